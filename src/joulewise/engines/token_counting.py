"""Tokens counted here, for servers that do not tell how many there were."""

from __future__ import annotations

from functools import cache
from typing import Any

from joulewise.engines.engine import Request
from joulewise.errors import EnvironmentFault, UserError, first_paragraph


def count_tokens(name: str, request: Request, text: str, finish_reason: str | None) -> tuple[int, int]:
    """Tokens of a prompt and of an output, whose end token counts where it came to its end.

    Args:
        name: of the tokenizer: a hub name, a folder, or ``default``.
        request: what was asked.
        text: what was answered.
        finish_reason: as the server says it.

    Raises:
        UserError: no such tokenizer.
        EnvironmentFault: the extra ``transformers`` is not installed.
    """
    tokenizer = _tokenizer(name)
    if tokenizer.chat_template:
        messages = [{"role": message.role, "content": message.content} for message in request.messages]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt_tokens = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
    else:
        prompt_tokens = len(tokenizer("\n\n".join(message.content for message in request.messages))["input_ids"])
    output_tokens = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    return prompt_tokens, output_tokens + (finish_reason == "stop")


@cache
def _tokenizer(name: str) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise EnvironmentFault("Counting tokens needs a tokenizer: pip install 'joulewise[transformers]'") from error
    from joulewise.engines.default_model import default_model_folder

    try:
        return AutoTokenizer.from_pretrained(default_model_folder() if name == "default" else name)
    except (OSError, ValueError) as error:
        raise UserError(f"tokenizer {name} cannot be opened: {first_paragraph(error)}") from error
