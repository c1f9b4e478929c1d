"""Asking: what a reasoning asks, by a cell's engine and decoding."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from joulewise.decoding import Decoding
from joulewise.engines.engine import ComparingEngine, Engine, EngineInfo, Generation, Message, Request, Sampling
from joulewise.engines.serving import Serving
from joulewise.engines.together import Together
from joulewise.errors import ServerError, UserError
from joulewise.plan import Plan
from joulewise.reasoning import Answer
from joulewise.schedule import Job, QuestionsByTask

_WARM_UP = Request((Message("user", "Count from one to twenty in words."),), max_new_tokens=16)


@dataclass(frozen=True, slots=True)
class CellAsk:
    """An ``Ask`` of one cell and question. What the engine cannot do was refused before.

    Args:
        engine: loaded.
        decoding: the cell's.
        continuations: the answers that are compared, where none is generated.
    """

    engine: Engine
    decoding: Decoding
    continuations: tuple[str, ...] = ()

    def __call__(self, request: Request) -> Generation:
        """One Request."""
        if self.continuations and isinstance(self.engine, ComparingEngine):
            return self.engine.compare(request, self.continuations)
        return self.engine.generate(request, self.decoding)

    def together(self, requests: Sequence[Request]) -> tuple[Generation, ...]:
        """Several Requests side by side; what their beginning took is told of the first, not counted for each."""
        assert isinstance(self.engine, Together)
        first, *others = self.engine.generate_together(requests, self.decoding)
        return (first, *(replace(other, first_token_s=None) for other in others))

    def ready(self, times: int) -> str | None:
        """Make the engine ready for a Trial, with its server warmed up so often where it has just come up.

        Returns:
            Why it is not ready; None if it is.
        """
        if not isinstance(self.engine, Serving):
            return None
        try:
            if self.engine.prepare(self.decoding):
                for _ in range(times):
                    self.warm_up()
                self.engine.prepare(self.decoding)
        except ServerError as error:
            return str(error)
        return None

    def warm_up(self, together: int = 0) -> None:
        """Run once, outside of any window; side by side as many as will be, for engines that make ready for that."""
        if together:
            self.together([replace(_WARM_UP, sampling=Sampling(1.0))] * together)
        else:
            self(_WARM_UP)


def check_thinking(plan: Plan, label: str, info: EngineInfo) -> None:
    """Make sure that a model whose own thinking the plan asks for has a switch for it.

    Args:
        plan: the plan.
        label: the engine's.
        info: of the engine, loaded.

    Raises:
        UserError: it has none.
    """
    for cell in plan.cells():
        if cell.engine.label == label and cell.reasoning.needs_thinking and not info.thinking_switch:
            raise UserError(
                f"reasoning {cell.reasoning.label} asks for the own thinking of {cell.engine.model}, and its chat "
                "template has no switch for that; leave out `thinking`, or the cells with "
                f"`exclude: [{{engine: '{label}', reasoning: '{cell.reasoning.label}'}}]`"
            )


def check_server(plan: Plan, label: str, engine: Engine) -> None:
    """Make sure that a server can be asked what the plan's cells ask: of one that runs already, nobody knows before.

    Args:
        plan: the plan.
        label: the engine's.
        engine: loaded and warmed up: by then it is known by which API it answers.

    Raises:
        UserError: it cannot.
    """
    if not isinstance(engine, Serving):
        return
    fixed = plan.stop.rule == "fixed"
    for cell in plan.cells():
        if cell.engine.label != label:
            continue
        begun = () if fixed or not cell.reasoning.goes_on else (Message("assistant", "1"),)
        request = Request((Message("user", "1"), *begun), max_new_tokens=1, ignore_eos=fixed)
        if (reason := engine.refuses_request(request, cell.decoding)) is not None:
            name = cell.reasoning.label
            left_out = (
                f"; or leave it out with `exclude: [{{engine: '{label}', reasoning: '{name}'}}]`" if begun else ""
            )
            raise UserError(f"engine {label}, reasoning {name}: {reason}{left_out}")


def answer_of(engine: Engine, plan: Plan, questions: QuestionsByTask, job: Job) -> Answer:
    """Answer the question of a job: the work that is measured."""
    cell = job.cell
    asked = questions[cell.task.label][0].asked(job.question)
    return cell.reasoning.answer(asked, template_of(plan, questions, job), ask_of(engine, questions, job))


def ask_of(engine: Engine, questions: QuestionsByTask, job: Job) -> CellAsk:
    """What a job's reasoning asks by."""
    asked = questions[job.cell.task.label][0].asked(job.question)
    return CellAsk(engine, job.cell.decoding, asked.continuations)


def template_of(plan: Plan, questions: QuestionsByTask, job: Job) -> Request:
    """What all requests of a job have in common."""
    task, stop = job.cell.task, plan.stop
    template = Request(
        messages=(),
        max_new_tokens=stop.tokens or task.max_new_tokens or questions[task.label][0].max_new_tokens,
        ignore_eos=stop.rule == "fixed",
        sampling=plan.sampling.value(),
        seed=_seed(plan.seed, job.question.question_id, job.repeat),
    )
    return job.cell.reasoning.settings(template)


def _seed(plan_seed: int, question_id: str, repeat: int) -> int:
    """The same for all decodings of a question, so that pairs are fair; another for every repeat."""
    return int.from_bytes(hashlib.sha256(f"{plan_seed}/{question_id}/{repeat}".encode()).digest()[:4], "big")
