"""One's own task: a few lines of YAML and a JSON Lines file (``docs/tasks.md``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import Formatter
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from joulewise.errors import UserError
from joulewise.tasks.prompt_task import Example, PromptTask
from joulewise.tasks.prompts import lettered
from joulewise.tasks.rows import Row, Rows, TaskContext, questions, read_jsonl
from joulewise.tasks.scorers import SCORERS
from joulewise.tasks.task import Question, Task
from joulewise.yaml_file import NAME, FaultAt, line_of, load_yaml, suggest


class CustomTask(BaseModel):
    """What the YAML file of a custom task says.

    Args:
        name: the task's name in tables.
        questions: the JSON Lines file, one question a line; relative to the YAML file.
        prompt: the user message; ``{field}`` stands for a field of the row (a list becomes lettered options, one a
            line), ``{{`` and ``}}`` for braces.
        reference: the field with the right answer.
        scorer: how the model's text is compared with it.
        max_new_tokens: the token budget, used where the plan names none.
        cot_prompt: the user message for the reasoning ``cot``, which refuses the task without one: likewise, asking for
            steps and to end with "The answer is" and the answer.
        examples: a JSON Lines file of further questions with the same fields, relative to the YAML file, for the
            reasoning ``few_shot``, which refuses the task without one; the reference is shown as the answer.
        id: the field with the question's id; ``row-0``, ``row-1`` and so on if left out.
        category: the field with the question's category.
        source: where the questions come from, with the licence, for reports.
        third_party: true keeps the questions' and answers' texts out of ledgers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=NAME)
    questions: Path
    prompt: str = Field(min_length=1)
    reference: str
    scorer: Literal["math", "letter", "rouge", "exact", "code"]
    max_new_tokens: int = Field(ge=1)
    cot_prompt: str | None = Field(None, min_length=1)
    examples: Path | None = None
    id: str | None = None
    category: str | None = None
    source: str | None = None
    third_party: bool = False

    @field_validator("prompt", "cot_prompt")
    @classmethod
    def _plain_placeholders(cls, prompt: str | None) -> str | None:
        if prompt is None:
            return None
        names = _placeholders(prompt)
        if not names:
            raise ValueError("no {field} placeholder, so every question would read the same")
        for name in names:
            if not name or any(c in name for c in ".[]"):
                raise ValueError(
                    f"the placeholder {{{name}}} is not a field's plain name; write braces as {{{{ and }}}}"
                )
        return prompt

    @model_validator(mode="after")
    def _reference_is_hidden(self) -> CustomTask:
        for key, prompt in (("prompt", self.prompt), ("cot_prompt", self.cot_prompt)):
            if prompt is not None and self.reference in _placeholders(prompt):
                raise FaultAt((key,), f"it shows {{{self.reference}}}, which is the right answer")
        if self.cot_prompt is not None and SCORERS[self.scorer].stated is None:
            raise FaultAt(
                ("cot_prompt",),
                f"the scorer '{self.scorer}' cannot tell an answer from the steps before it; leave it out",
            )
        if self.examples is not None and self.scorer == "code":
            raise FaultAt(("examples",), "the reference of the scorer 'code' is no answer to be shown; leave it out")
        return self


def open_custom(path: Path, context: TaskContext) -> Task:
    """The task that a YAML file describes.

    Raises:
        UserError: with file, line and field: what is wrong in the YAML file or in the questions.
        EnvironmentFault: a package that the scorer needs is not installed.
    """
    spec = load_yaml(path, CustomTask)
    file = path.parent / spec.questions
    if not file.is_file():
        raise UserError(f"{path}: questions: no file {file}; the path is relative to the YAML file")
    items = _questions(spec, path, file, context)
    shown = _examples(spec, path, items, context)
    return PromptTask(
        name=spec.name,
        third_party=spec.third_party,
        source=spec.source or f"custom task {path.name}",
        max_new_tokens=spec.max_new_tokens,
        items=items,
        prompt=lambda question: question.text,
        scorer=SCORERS[spec.scorer],
        stepwise=lambda question: question.extra.get("cot_prompt"),
        examples=lambda _: shown,
    )


def _questions(spec: CustomTask, path: Path, file: Path, context: TaskContext) -> tuple[Question, ...]:
    rows = read_jsonl(file)
    _check_fields(spec, path, file, rows)
    known: dict[str, tuple[str, str]] = {}

    def question(row: Row, where: str, number: int) -> Question:
        made = _question(spec, row, where, number)
        answer, place = known.setdefault(made.text, (made.reference, where))
        if SCORERS[spec.scorer].extract is not None and answer != made.reference:
            raise UserError(
                f"{where}: asks what {place} asks and has another right answer; leave one, or ask otherwise"
            )
        return made

    return questions(context, rows, question)


def _examples(spec: CustomTask, path: Path, asked: Sequence[Question], context: TaskContext) -> tuple[Example, ...]:
    if spec.examples is None:
        return ()
    where = f"{path}:{line_of(path, 'examples')}: examples"
    file = path.parent / spec.examples
    if not file.is_file():
        raise UserError(f"{where}: no file {file}; the path is relative to the YAML file")
    shown = _questions(spec, path, file, context)
    texts = {question.text: question.question_id for question in asked}
    for example in shown:
        if example.text in texts:
            raise UserError(
                f"{where}: '{example.question_id}' of {file} is question '{texts[example.text]}', which is asked: an "
                "example must be another question; take it out"
            )
    return tuple((example, example.reference) for example in shown)


def _check_fields(spec: CustomTask, path: Path, file: Path, rows: Rows) -> None:
    """Refuse a field that no row has: then the YAML file is wrong, not every row."""
    there = {name for _, row in rows if not isinstance(row, UserError) for name in row}
    wanted: list[tuple[str, str | None]] = [("prompt", name) for name in _placeholders(spec.prompt)]
    wanted += [("cot_prompt", name) for name in _placeholders(spec.cot_prompt or "")]
    wanted += [("reference", spec.reference), ("id", spec.id), ("category", spec.category)]
    for key, name in wanted:
        if there and name is not None and name not in there:
            where = f"{path}:{line_of(path, key)}: {key}"
            raise UserError(f"{where}: no line of {file} has the field '{name}'{suggest(name, sorted(there))}")


def _question(spec: CustomTask, row: Row, where: str, number: int) -> Question:
    prompt = _filled(spec.prompt, row, where)
    reference = _text(row, spec.reference, where, "reference")
    fault = SCORERS[spec.scorer].fault(reference)
    if fault:
        found = "" if spec.third_party else f", found '{reference}'"  # others' texts stay out of run folders
        raise UserError(f"{where}: the field '{spec.reference}' {fault} (scorer '{spec.scorer}'{found})")
    return Question(
        question_id=f"row-{number}" if spec.id is None else _text(row, spec.id, where, "id"),
        text=prompt,
        reference=reference,
        category=None if spec.category is None else _text(row, spec.category, where, "category"),
        extra={} if spec.cot_prompt is None else {"cot_prompt": _filled(spec.cot_prompt, row, where)},
    )


def _filled(prompt: str, row: Row, where: str) -> str:
    return prompt.format_map({name: _text(row, name, where, "prompt") for name in _placeholders(prompt)})


def _text(row: Row, name: str, where: str, key: str) -> str:
    """A field of the row as text; ``key`` is the YAML key that names the field."""
    if name not in row:
        raise UserError(f"{where}: no field '{name}', which the task's '{key}' names{suggest(name, sorted(row))}")
    value = row[name]
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value)
    if key == "prompt" and isinstance(value, list) and value and all(isinstance(v, str) for v in value):
        return lettered(value)
    raise UserError(
        f"{where}: the field '{name}' must be text or a number{' or a list of texts' if key == 'prompt' else ''}, "
        f"found {type(value).__name__}"
    )


def _placeholders(template: str) -> list[str]:
    """The names in braces.

    Raises:
        ValueError: braces that do not match, or a format (``{x:3}``, ``{x!r}``).
    """
    names = []
    for _, name, spec, conversion in Formatter().parse(template):
        if name is not None:
            if spec or conversion:
                raise ValueError(f"the placeholder {{{name}}} has a format; write the field's name alone")
            names.append(name)
    return names
