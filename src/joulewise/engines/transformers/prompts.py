"""From a request's messages to token ids, and whether they fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from joulewise.engines.engine import Message
from joulewise.engines.transformers.drafts import Draft
from joulewise.engines.transformers.loading import SWITCH, Loaded
from joulewise.errors import ContextLengthError, UserError


def encode(target: Loaded, messages: Sequence[Message], thinking: bool | None = None) -> Any:
    """The prompt's token ids, shape ``(1, tokens)``, on the CPU. Of a last message of the assistant, the model goes on.

    Args:
        target: whose tokenizer and chat template.
        messages: the conversation.
        thinking: as in ``Request``.

    Raises:
        UserError: the chat template refuses the messages, or nothing is left of them.
    """
    tokenizer = target.tokenizer
    if tokenizer.chat_template and not target.encoder_decoder:
        from jinja2 import TemplateError

        # What the model has begun follows as it is: templates rewrite its messages, and some drop its <think> block.
        said = messages[:-1] if len(messages) > 1 and messages[-1].role == "assistant" else messages
        begun = "".join(m.content for m in messages[len(said) :])
        try:
            text = tokenizer.apply_chat_template(
                [{"role": m.role, "content": m.content} for m in said],
                tokenize=False,
                add_generation_prompt=True,
                **({} if thinking is None else {SWITCH: thinking}),
            )
        except TemplateError as error:
            roles = ", ".join(m.role for m in messages)
            raise UserError(f"The chat template of {target.name} refuses the roles {roles}: {error}.") from error
        ids = tokenizer(text + begun, add_special_tokens=False, return_tensors="pt")["input_ids"]
    else:
        text = "\n\n".join(m.content for m in messages)
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
    if ids.shape[1] == 0:
        raise UserError(f"The prompt has no tokens for {target.name}: ask something.")
    return ids.long()


def thinking_open(target: Loaded, prompt: Any) -> bool:
    """Whether a prompt, shape ``(1, tokens)``, ends with the beginning of a ``<think>`` block."""
    return bool(target.tokenizer.decode(prompt[0, -16:]).rstrip().endswith("<think>"))


def require_context(target: Loaded, draft: Draft | None, prompt: Any, new_tokens: int) -> None:
    """Make sure that prompt and output fit the target and the draft.

    Raises:
        ContextLengthError: they do not.
    """
    for model in (target,) if draft is None else (target, draft.loaded):
        limit = model.context_length
        tokens = prompt.shape[1]
        if draft is not None and model is draft.loaded and not draft.same_tokenizer:
            text = target.tokenizer.decode(prompt[0], skip_special_tokens=True)
            tokens = len(model.tokenizer(text)["input_ids"])
        # An encoder-decoder has its prompt and its output in two contexts of the same length.
        needed = max(tokens, new_tokens + 1) if model.encoder_decoder else tokens + new_tokens
        if limit is not None and needed > limit:
            raise ContextLengthError(
                f"{tokens} prompt tokens and {new_tokens} new ones need {needed} positions, and {model.name} has "
                f"{limit}: shorten the question or lower max_new_tokens."
            )
