"""A Request as a server takes it, and what it answers as a Generation. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any, Literal

from joulewise.engines.engine import Cut, FinishReason, Generation, Request
from joulewise.engines.openai_api.answer import Answer
from joulewise.engines.servers.server import ServerRecipe
from joulewise.errors import ServerError, UserError

Api = Literal["chat", "completions"]

UNTIMED = "the server does not tell when an answer had so many tokens, so a probe's joules are not known"

THINKING = "enable_thinking"
"""The usual name of a chat template's switch."""


def body_of(request: Request, recipe: ServerRecipe, api: Api) -> dict[str, Any]:
    """What is sent, the model's name apart.

    Raises:
        UserError: what this kind of server cannot be asked.
    """
    if request.ignore_eos and not recipe.ignores_eos:
        raise UserError(
            "The stop rule `fixed` needs a server that can go on past the end token, and of this one nobody knows that "
            "it can: use `stop: {rule: natural}`, or serve the model by vLLM, SGLang or llama.cpp"
        )
    sampling = request.sampling
    body: dict[str, Any] = {
        **recipe.body(),
        "max_tokens": request.max_new_tokens,
        "temperature": sampling.temperature,
        "seed": request.seed,
    }
    if not sampling.greedy:
        body["top_p"] = sampling.top_p
        top_k = sampling.top_k or recipe.all_tokens
        if top_k is not None:
            body["top_k"] = top_k
    if request.ignore_eos:
        body["ignore_eos"] = True
    if request.cuts:
        body |= recipe.counting
    if request.thinking is not None:
        body["chat_template_kwargs"] = {THINKING: request.thinking}
    if api == "completions":
        return {**body, "prompt": "\n\n".join(message.content for message in request.messages)}
    messages = [{"role": message.role, "content": message.content} for message in request.messages]
    if len(messages) > 1 and messages[-1]["role"] == "assistant":
        if recipe.continuing is None:
            raise UserError(
                "This reasoning has the model go on with an answer that it has begun, and of this server nobody knows "
                "how to ask for that: serve the model by vLLM, SGLang or llama.cpp, or ask by `api: completions`"
            )
        body |= recipe.continuing
    return {**body, "messages": messages}


def generation_of(request: Request, answer: Answer, prompt_tokens: int, output_tokens: int) -> Generation:
    """An answer as a Generation, with the tokens that the server, or a tokenizer here, has counted.

    Raises:
        ServerError: it is not what was asked for.
    """
    if answer.finish_reason not in ("stop", "length", None):
        raise ServerError(f"The server ended the answer for the reason {answer.finish_reason!r}")
    if output_tokens > request.max_new_tokens:
        raise ServerError(
            f"The server says that it produced {output_tokens} tokens, and {request.max_new_tokens} were allowed"
        )
    if request.ignore_eos and output_tokens < request.max_new_tokens:
        raise ServerError(
            f"The server stopped after {output_tokens} of {request.max_new_tokens} tokens, although it was to go on "
            "past the end token"
        )
    reason: FinishReason = "length" if answer.finish_reason == "length" else "eos"
    cuts = tuple(_cuts(request, answer, output_tokens))
    return Generation(
        text=_text(answer),
        token_ids=(),
        counted_tokens=output_tokens,
        prompt_tokens=prompt_tokens,
        finish_reason=reason,
        start_s=answer.sent_s,
        first_token_s=answer.first_token_s if answer.streamed else None,
        end_s=answer.end_s,
        cuts=cuts,
        note=UNTIMED if any(cut.time_s is None for cut in cuts) else None,
    )


def _cuts(request: Request, answer: Answer, output_tokens: int) -> Iterator[Cut]:
    """The answer as it was after some of its tokens, as far as its pieces tell.

    Some pieces hold several tokens: a round of speculation, or a character that is made of several. Of a cut inside one
    the time is known, since they came together, and the text is not.
    """
    chunks = answer.chunks
    made = list(accumulate(chunks.tokens))
    if made and made[-1] > output_tokens:  # these are no counts of this answer
        made = []
    for tokens in request.cuts:
        if tokens >= output_tokens:
            return
        first, after = bisect_left(made, tokens), bisect_right(made, tokens)
        time_s = chunks.times_s[first] if first < len(made) else None
        # A piece with a token and no text holds a part of a character back.
        known = first < after and chunks.characters[first] > 0
        yield Cut(tokens, _text_after(answer, after) if known else None, time_s)


def _text_after(answer: Answer, pieces: int) -> str | None:
    """The text of the first pieces of an answer; None where their lengths do not tell."""
    chunks = answer.chunks
    thoughts = [n if thought else 0 for n, thought in zip(chunks.characters, chunks.reasoning, strict=True)]
    thought, whole = sum(thoughts[:pieces]), sum(chunks.characters[:pieces])
    if (sum(thoughts), sum(chunks.characters)) != (len(answer.reasoning), len(answer.reasoning) + len(answer.text)):
        return None  # a tool's arguments, or halves of characters put together
    text = answer.text[: whole - thought]
    return _text(replace(answer, reasoning=answer.reasoning[:thought], text=text, finish_reason="length"))


def _text(answer: Answer) -> str:
    """The answer, and before it the thoughts that a server sends apart, as the model wrote them."""
    if not answer.reasoning:
        return answer.text
    closed = "\n</think>\n\n" if answer.text or answer.finish_reason != "length" else ""
    return f"<think>\n{answer.reasoning.strip()}{closed}{answer.text}"
