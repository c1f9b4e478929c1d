"""The project's own prompts. ``docs/tasks.md`` says how they were chosen; a change here changes what runs compare."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_uppercase

from joulewise.tasks.task import Question


def short_maths(question: Question) -> str:
    """A problem to be answered in a sentence or two, so that a small token budget holds the answer."""
    return (
        f'{question.text}\n\nReply in one or two short sentences. The last one must be "The answer is" and the number.'
    )


def stepwise_maths(question: Question) -> str:
    """A problem that needs several steps."""
    return f'{question.text}\n\nSolve it in a few short steps. End with "The answer is" and the number.'


def summary(question: Question) -> str:
    """A short text to be summarised."""
    return f"Summarise this text in one or two sentences.\n\n{question.text}"


def news_summary(question: Question) -> str:
    """A news article to be summarised."""
    return f"Summarise this news article in three short sentences.\n\n{question.text}"


def choice(question: Question) -> str:
    """A question whose text ends with its options (see ``with_options``)."""
    return f"Question: {question.text}\n\nReply with the letter of the correct option only.\n\nThe correct option is"


STEPS = "Let's think step by step."
"""Kojima et al., 2022, arXiv 2205.11916, section 3."""


def maths_steps(question: Question) -> str:
    """A problem to be thought through."""
    return f'{question.text}\n\n{STEPS} End with "The answer is" and the number.'


def steps(question: Question) -> str:
    """Anything to be thought through."""
    return f'{question.text}\n\n{STEPS} End with "The answer is" and the answer.'


def choice_steps(question: Question) -> str:
    """A question with options (see ``with_options``) to be thought through."""
    return f'Question: {question.text}\n\n{STEPS} End with "The answer is" and the letter of the correct option.'


def code(question: Question) -> str:
    """A Python function to be completed: its signature and docstring."""
    return f"Complete this Python function. Reply with the whole function in one code block.\n\n{question.text}"


def with_options(question: str, choices: Sequence[str]) -> str:
    """The text of a multiple-choice question."""
    return f"{question}\n\nOptions:\n{lettered(choices)}"


def lettered(choices: Sequence[str]) -> str:
    """One line a choice: ``A) first``, ``B) second`` and so on (at most 26)."""
    return "\n".join(f"{letter}) {choice}" for letter, choice in zip(ascii_uppercase, choices, strict=False))
