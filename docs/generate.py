"""Write the generated parts of the documentation anew: `make docs`. A test fails when they differ from their source.

- docs/plan.schema.json: from the code.
- the table in README.md between its two marks: from the recorded run results/h200/demo.
"""

from __future__ import annotations

import json
from pathlib import Path

from joulewise.analysis.savings import Gamma
from joulewise.ledger import load
from joulewise.plan import plan_schema
from joulewise.report.summary import summarise
from joulewise.report.text import interval, value, verdict

ROOT = Path(__file__).parent.parent
SCHEMA = ROOT / "docs" / "plan.schema.json"
README = ROOT / "README.md"
RECORDED = ROOT / "results" / "h200" / "demo"
BEGIN, END = "<!-- savings table: written by docs/generate.py -->", "<!-- end of the savings table -->"


def schema_text() -> str:
    """The JSON schema of plans, as a file."""
    return json.dumps(plan_schema(), indent=2) + "\n"


def savings_table(run: Path) -> str:
    """The saving factors of a recorded run as a Markdown table."""
    rows = ["| task | decoding | questions | time γ_t | GPU energy γ_GPU |", "| --- | --- | ---: | --- | --- |"]
    for saving in summarise(load(run)).savings:
        key = saving.key
        rows.append(
            f"| {key.task} | {key.decoding} | {saving.time.ratio.n_questions} | {_cell(saving.time)} | "
            f"{_cell(saving.gpu)} |"
        )
    return "\n".join(rows)


def _cell(gamma: Gamma) -> str:
    between = interval(gamma.ratio)
    return f"{value(gamma.ratio)}" + (f" ({between})" if between else "") + f" {verdict(gamma)}"


def readme_text() -> str:
    """README.md with its table as the recorded run gives it."""
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{savings_table(RECORDED)}\n{END}{after}"


if __name__ == "__main__":
    SCHEMA.write_text(schema_text(), encoding="utf-8")
    README.write_text(readme_text(), encoding="utf-8")
