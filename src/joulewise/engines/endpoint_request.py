"""A Request as a server takes it, and what it answers as a Generation. Pure."""

from __future__ import annotations

from typing import Any, Literal

from joulewise.engines.engine import FinishReason, Generation, Request
from joulewise.engines.openai_api.answer import Answer
from joulewise.engines.servers.server import ServerRecipe
from joulewise.errors import ServerError, UserError

Api = Literal["chat", "completions"]

THINKING = "enable_thinking"
"""The usual name of a chat template's switch."""


def body_of(request: Request, recipe: ServerRecipe, api: Api) -> dict[str, Any]:
    """What is sent, the model's name apart.

    Raises:
        UserError: what this kind of server cannot be asked.
    """
    if request.cuts:
        raise UserError(
            "A server does not tell what an answer was after so many tokens: leave `probes` out of the budget"
        )
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
    if request.thinking is not None:
        body["chat_template_kwargs"] = {THINKING: request.thinking}
    if api == "completions":
        return {**body, "prompt": "\n\n".join(message.content for message in request.messages)}
    messages = [{"role": message.role, "content": message.content} for message in request.messages]
    if len(messages) > 1 and messages[-1]["role"] == "assistant":
        if recipe.continuing is None:
            raise UserError(
                "This reasoning has the model go on with an answer that it has begun, and of this server nobody knows "
                "how to ask for that: serve the model by vLLM, SGLang or llama.cpp"
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
    return Generation(
        text=_text(answer),
        token_ids=(),
        counted_tokens=output_tokens,
        prompt_tokens=prompt_tokens,
        finish_reason=reason,
        start_s=answer.sent_s,
        first_token_s=answer.first_token_s if answer.streamed else None,
        end_s=answer.end_s,
    )


def _text(answer: Answer) -> str:
    """The answer, and before it the thoughts that a server sends apart, as the model wrote them."""
    if not answer.reasoning:
        return answer.text
    closed = "\n</think>\n\n" if answer.text or answer.finish_reason != "length" else ""
    return f"<think>\n{answer.reasoning.strip()}{closed}{answer.text}"
