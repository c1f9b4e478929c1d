"""Which cell of the grid an output is compared with."""

from __future__ import annotations

from dataclasses import replace

from joulewise.decoding import Vanilla
from joulewise.plan import Cell, Plan
from joulewise.schedule import Job
from joulewise.tasks.task import Question
from joulewise.verdicts import reference_of


def test_the_reference_is_vanilla_of_the_same_engine_task_and_reasoning_where_the_grid_has_it() -> None:
    plan = Plan.model_validate(
        {
            "name": "test",
            "engines": [{"kind": "transformers", "name": name, "draft": "x"} for name in ("one", "two")],
            "decodings": ["prompt_lookup", "vanilla", {"kind": "coga", "tokens": 5}],
            "reasonings": ["direct", {"kind": "cot", "max_new_tokens": 9}],
            "tasks": ["gsm8k", "mmlu"],
            "exclude": [
                {"engine": "two", "decoding": "vanilla", "task": "mmlu"},
                {"engine": "one", "decoding": "coga-5"},
            ],
        }
    )
    cells = plan.cells()
    found = {cell.cell_id: reference_of(plan, Job(cell, Question("q", "", ""), 0)) for cell in cells}

    def wanted(cell: Cell) -> list[Cell]:
        return [c for c in cells if isinstance(c.decoding, Vanilla) and replace(c, decoding=cell.decoding) == cell]

    assert {name: [job.cell] if job else [] for name, job in found.items()} == {c.cell_id: wanted(c) for c in cells}
    assert {name for name, job in found.items() if job is None} == {
        f"two/{decoding}/{reasoning}/mmlu"
        for decoding in ("prompt-lookup-10", "coga-5")
        for reasoning in ("direct", "cot-9")
    }
