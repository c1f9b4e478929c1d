"""MMLU: multiple-choice questions on 57 subjects (Hendrycks et al., 2021, arXiv 2009.03300)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Literal

from pydantic import BaseModel, Field

from joulewise.errors import UserError
from joulewise.tasks import prompts
from joulewise.tasks.prompt_task import Example, PromptTask
from joulewise.tasks.rows import (
    HubDataset,
    Row,
    Rows,
    TaskContext,
    TaskOptions,
    find_rows,
    parse_options,
    questions,
    validated,
)
from joulewise.tasks.scorers import SCORERS
from joulewise.tasks.starter import choice_examples
from joulewise.tasks.task import Question, Task
from joulewise.yaml_file import suggest

Split = Literal["test", "val", "dev"]
HUB_SPLITS: dict[str, Split] = {"test": "test", "validation": "val", "dev": "dev"}
"""By the hub's name, that of the local file."""


class MmluOptions(TaskOptions):
    """What a plan may choose.

    Args:
        split: the questions to ask.
        subjects: the subjects to ask; all if empty.
        scoring: ``generation``: the letter is found in what the model writes. ``likelihood``: of the four letters the
            most probable next one counts, by one forward.
    """

    split: Split = "test"
    subjects: tuple[str, ...] = ()
    scoring: Literal["generation", "likelihood"] = "generation"


class _Row(BaseModel):
    split: Split
    subject: str
    index: int
    question: str
    choices: tuple[str, ...] = Field(min_length=4, max_length=4)
    answer: Literal["A", "B", "C", "D"]


def open_mmlu(context: TaskContext) -> Task:
    """One split of MMLU from ``mmlu.jsonl.gz`` or ``cais/mmlu``.

    Question ids are ``<subject>-<split>-<row within the subject>``; the category is the subject.

    Raises:
        UserError: the data file is missing or broken, or an option is wrong.
        EnvironmentFault: the hub's data set cannot be had, or a package is missing.
    """
    options = parse_options(MmluOptions, context, "mmlu")

    @cache
    def examples() -> dict[str | None, list[Example]]:
        found: dict[str | None, list[Example]] = defaultdict(list)
        if options.split != "dev":  # else its questions are asked
            for question in questions(context, _rows(context, "dev"), _question):
                found[question.category].append((question, question.reference))
        return found

    def shown(question: Question) -> Sequence[Example]:
        return choice_examples() if own_examples else examples().get(question.category, ())

    rows = _rows(context, options.split)
    own_examples = options.split != "dev" and context.folder() is not None and not _rows(context, "dev")
    if not rows:
        raise UserError(f"task mmlu: option 'split': mmlu.jsonl.gz holds no questions of the split '{options.split}'")
    items = questions(context, rows, _question)
    subjects = sorted({str(question.category) for question in items})
    for subject in options.subjects:
        if subject not in subjects:
            raise UserError(f"task mmlu: option 'subjects': no subject '{subject}'{suggest(subject, subjects)}")
    return PromptTask(
        name="mmlu",
        third_party=True,
        source=f"MMLU, {options.split} split (Hendrycks et al., 2021; MIT); prompt by Joulewise"
        + ("; the file has no dev split, so examples to show are Joulewise's own" if own_examples else ""),
        max_new_tokens=16,
        items=tuple(q for q in items if not options.subjects or q.category in options.subjects),
        prompt=prompts.choice,
        scorer=SCORERS["letter"],
        stepwise=prompts.choice_steps,
        continuations=tuple("ABCD") if options.scoring == "likelihood" else (),
        examples=shown,
    )


def _rows(context: TaskContext, split: Split) -> Rows:
    """The rows of one split, and those that cannot be read."""
    hub_split = next(name for name, local in HUB_SPLITS.items() if local == split)
    hub = HubDataset("cais/mmlu", "all", hub_split, partial(_as_local, split))
    others = set(HUB_SPLITS.values()) - {split}
    found = find_rows(context, "mmlu", "mmlu.jsonl.gz", hub)
    return [(where, row) for where, row in found if isinstance(row, UserError) or row.get("split") not in others]


def _question(fields: Row, where: str, _number: int) -> Question:
    row = validated(_Row, fields, where)
    return Question(
        question_id=f"{row.subject}-{row.split}-{row.index}",
        text=prompts.with_options(row.question, row.choices),
        reference=row.answer,
        category=row.subject,
        extra={"choices": row.choices},
    )


def _as_local(split: Split, rows: Iterable[Row]) -> Iterator[Row]:
    """The hub's rows carry the answer's number, and neither split nor index within the subject."""
    seen: Counter[str] = Counter()
    for row in rows:
        answer = row.get("answer")
        letter = "ABCD"[answer] if isinstance(answer, int) and 0 <= answer < 4 else answer
        subject = str(row.get("subject"))
        yield {**row, "split": split, "index": seen[subject], "answer": letter}
        seen[subject] += 1
