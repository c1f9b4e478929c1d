"""Budget: steps up to a number of tokens, then the answer, if need be by force."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

from pydantic import Field, model_validator

from joulewise.engines.engine import Generation, Message, Request
from joulewise.errors import ServerError
from joulewise.reasoning.cot import Stepwise, label_of_thinking
from joulewise.reasoning.reasoning import (
    Answer,
    Asked,
    Probe,
    Probed,
    Thinking,
    stated_whole,
    still_thinking,
    without_thinking,
)

CLOSE = "The answer is"
"""Behind the steps, for the model to go on from; as in the second prompt of Kojima et al., 2022 (arXiv 2205.11916)."""


class Budget(Stepwise):
    """Chain of thought under a budget: steps that stated no answer are closed, and the model goes on with the answer.

    Args:
        tokens: at most so many output tokens for the steps.
        answer_tokens: at most so many more for an answer that the steps did not state.
        thinking: as for ``cot``.
        probes: after how many tokens of the steps it is also found out what budgets of so many would have answered.
            That is done when all is measured, so no joules of it are in the figures of this one.
    """

    kind: Literal["budget"] = "budget"
    tokens: int = Field(256, ge=1)
    answer_tokens: int = Field(16, ge=1)
    probes: tuple[Annotated[int, Field(ge=1)], ...] = ()

    @model_validator(mode="after")
    def _probes_before_the_end(self) -> Budget:
        if list(self.probes) != sorted({*self.probes}) or any(tokens >= self.tokens for tokens in self.probes):
            raise ValueError(f"'probes' must rise, and stay below 'tokens' ({self.tokens})")
        return self

    @property
    def label(self) -> str:
        answer = "" if self.answer_tokens == 16 else f"-{self.answer_tokens}"
        return f"budget-{self.tokens}{answer}{label_of_thinking(self.thinking)}"

    @property
    def probed(self) -> tuple[str, ...]:
        return tuple(self.model_copy(update={"tokens": tokens}).label for tokens in self.probes)

    @property
    def goes_on(self) -> bool:
        return True

    @property
    def steps_tokens(self) -> int:
        return self.tokens

    def most_tokens(self, template: Request) -> tuple[int, ...]:
        limits = super().most_tokens(template)
        return limits if template.ignore_eos else (*limits, self.answer_tokens)

    def think(self, asked: Asked, template: Request) -> Thinking:
        assert asked.stepwise is not None
        thinking = replace(template, messages=asked.stepwise)
        if template.ignore_eos:
            steps = yield thinking
            return Answer(_stated(asked, steps), (thinking,), (steps,))
        thinking = replace(thinking, cuts=self.probes)
        answer = yield from self._conclude(asked, thinking, (yield thinking))
        labels = zip(self.probes, self.probed, strict=True)
        return replace(
            answer, probes=tuple(Probe(k, label, partial(self._probe, asked, answer, k)) for k, label in labels)
        )

    def _conclude(self, asked: Asked, thinking: Request, steps: Generation) -> Thinking:
        """The answer that steps state, or else are made to state by one further request."""
        assert asked.stepwise is not None
        if stated := _stated(asked, steps):
            return Answer(stated, (thinking,), (steps,))
        end = "\n</think>" if still_thinking(steps) else ""
        begun = Message("assistant", f"{steps.text.rstrip()}{end}\n\n{CLOSE}")
        closing = replace(thinking, messages=(*asked.stepwise, begun), max_new_tokens=self.answer_tokens, cuts=())
        last = yield closing
        stated = stated_whole(asked, f"{CLOSE}{_apart(last.text)}", last.finish_reason)
        return Answer(stated, (thinking, closing), (steps, last))

    def _probe(
        self,
        asked: Asked,
        answer: Answer,
        tokens: int,
        again: Callable[[Request], Generation],
        ask: Callable[[Request], Generation],
    ) -> Probed:
        thinking, steps = answer.requests[0], answer.generations[0]
        cut = next((cut for cut in steps.cuts if cut.tokens == tokens), None)
        if cut is None:  # it came to its end before
            return Probed(answer.text, None, answer.generations[-1].end_s)
        text = cut.text
        if text is None:
            text = again(replace(thinking, max_new_tokens=tokens, cuts=())).text
            if not steps.text.startswith(text.rstrip("\N{REPLACEMENT CHARACTER}").rstrip()):
                raise ServerError(f"the first {tokens} tokens were asked for again, and were others than before")
        steps = replace(steps, text=text, finish_reason="length")
        conclusion = self._conclude(asked, thinking, steps)
        try:
            conclusion.send(ask(next(conclusion)))
        except StopIteration as end:
            made: Answer = end.value
        return Probed(made.text, made.generations[1] if len(made.generations) > 1 else None, cut.time_s)


def _stated(asked: Asked, steps: Generation) -> str:
    return stated_whole(asked, without_thinking(steps), steps.finish_reason)


def _apart(text: str) -> str:
    """A text with a space before it: some tokenizers drop that of a first token."""
    return text if text[:1].isspace() else f" {text}"
