"""Write the generated parts of the documentation anew: `make docs`. A test fails when they differ from their source.

- docs/plan.schema.json, docs/curve.schema.json: from the code.
- in README.md, docs/*.md and assets/**/*.md, what stands between `<!-- generated: WHAT FROM -->` and `<!-- end -->`:
  from recorded runs and benchmarks under results/, and from recipes and checks of the shipped heads. `BLOCKS` says what
  there is.
- docs/figures/*.svg: from recorded runs.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

sys.path.insert(0, str(Path(__file__).parent))

from recorded_tables import TABLES, record
from routing_tables import ROUTING_TABLES
from tradeoff_tables import TRADEOFF_TABLES, summary_of

from joulewise.analysis.curve_file import CurveFile
from joulewise.analysis.curve_points import run_points
from joulewise.analysis.curves import fit_curve
from joulewise.analysis.intervals import Quantity
from joulewise.analysis.savings import Gamma
from joulewise.decoding import DECODINGS
from joulewise.engines.servers import SERVERS, open_recipe
from joulewise.engines.shipped import ShippedKind
from joulewise.ledger import cross_checks, load
from joulewise.plan import plan_schema
from joulewise.report import chart
from joulewise.report import claims as claim_words
from joulewise.report.curve import describe
from joulewise.report.explain import sentences
from joulewise.report.markdown import words
from joulewise.report.phases import JOULES_NOTE, joules
from joulewise.report.summary import sections
from joulewise.report.text import interval, value, verdict

ROOT = Path(__file__).parent.parent
SCHEMA = ROOT / "docs" / "plan.schema.json"
CURVE_SCHEMA = ROOT / "docs" / "curve.schema.json"
FIGURE = ROOT / "docs" / "figures" / "real_tasks.svg"
MARKED = re.compile(r"(<!-- generated: (\w+) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
COLOURS = {"ink": "#1d2327", "faint": "#8a939c", "costs-soft": "#fbe8dd", "paper": "#ffffff"}
SERIES = ("#0072b2", "#c15500", "#00805d", "#a6487e", "#8a6500", "#2b87b8")


def pages() -> dict[Path, str]:
    """Every file with generated parts, and its text."""
    markdown = [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs" / "how-to").glob("*.md")),
        *sorted((ROOT / "assets").rglob("*.md")),
    ]
    found = {path: path.read_text(encoding="utf-8") for path in markdown}
    texts = {path: filled(text) for path, text in found.items() if MARKED.search(text)}
    schemas = {SCHEMA: plan_schema(), CURVE_SCHEMA: CurveFile.model_json_schema()}
    texts |= {path: json.dumps(schema, indent=2) + "\n" for path, schema in schemas.items()}
    return texts | {FIGURE: scatter("results/h200/real_tasks")}


def filled(text: str) -> str:
    """A page with every generated part as its source gives it."""
    return MARKED.sub(lambda found: f"{found[1]}{BLOCKS[found[2]](found[3])}\n{found[4]}", text)


def savings(run: str) -> str:
    """The saving factors of a recorded run."""
    rows = ["| task | decoding | questions | time γ_t | GPU energy γ_GPU |", "| --- | --- | ---: | --- | --- |"]
    for saving in summary_of(run).savings:
        key = saving.key
        figures = f"{_gamma(saving.time)} | {_gamma(saving.gpu)}"
        rows.append(f"| {key.task} | {key.decoding} | {saving.time.ratio.n_questions} | {figures} |")
    return "\n".join(rows)


def answers(run: str) -> str:
    """Joules per answer of a recorded run, and what the answers are worth."""
    rows = ["| task | engine | decoding | GPU J per output token | GPU J per answer | correct, or score |"]
    rows += ["| --- | --- | --- | --- | --- | --- |"]
    for cost in summary_of(run).costs:
        gpu = cost.component("gpu")
        worth = _quantity(cost.accuracy)
        if cost.accuracy.value is None:
            worth = "not judged" if cost.score.value is None else f"{_quantity(cost.score)} ({cost.metric})"
        energy = f"{_quantity(gpu.energy_per_output_token_j)} | {_quantity(gpu.energy_per_answer_j)}"
        rows.append(f"| {cost.key.task} | {cost.key.engine} | {cost.key.decoding} | {energy} | {worth} |")
    return "\n".join(rows)


def explained(run: str) -> str:
    """Why the decodings of a recorded run pay or not."""
    return "\n".join(f"- {sentence}" for section in sections(summary_of(run)) for sentence in sentences(section))


def phase_joules(run: str) -> str:
    """Where the joules of a recorded run went, by phase, and the powers behind it."""
    told = []
    for section in sections(summary_of(run)):
        assert section.phase_energy is not None
        grid = joules(section.phase_energy)
        told += [f"| task | decoding | {' | '.join(grid.columns)} |", "| --- | --- |" + " --- |" * len(grid.columns)]
        told += [f"| {row.task} | {row.decoding} | {' | '.join(map(words, row.figures))} |" for row in grid.rows]
        told += ["", *(f"{note}\n" for note in grid.notes if note != JOULES_NOTE)]
    return "\n".join(told).rstrip()


def claims(run: str) -> str:
    """What a recorded run says of the papers' claims."""
    told = []
    for claim in claim_words.claim_words(summary_of(run).claims):
        told += [f"- {claim.statement}: **{claim.verdict}**", *(f"  - {line}" for line in claim_words.lines(claim))]
    return "\n".join(told)


def cross_check(folder: str) -> str:
    """What every recorded run under a folder says about its counters and power readings."""
    rows = ["| run | device | compared | counter | power x time | gap |", "| --- | --- | ---: | ---: | ---: | ---: |"]
    for run in sorted(path.parent for path in (ROOT / folder).glob("*/timeline")):
        sources = {s["source_id"]: s["device"] for s in record(f"{folder}/{run.name}/environment.json")["sources"]}
        for check in cross_checks(run):
            rows.append(
                f"| {run.name} | {sources[check.source_id]} | {check.duration_s:,.0f} s | {check.counter_j:,.0f} J | "
                f"{check.trace_j:,.0f} J | {check.gap * 100:+.2f} % |"
            )
    return "\n".join(rows)


def accepted(folder: str) -> str:
    """What `joulewise heads check --json` recorded of the shipped heads; prompt lookup, which stands in all, once."""
    lines = ["| tokens a round | all outputs | less than 10 % of 8-grams repeated |", "| --- | --- | --- |"]
    rows = {}
    checks = [file for kind in get_args(ShippedKind) if (file := ROOT / folder / kind / "check.json").is_file()]
    for check in checks:
        for one in json.loads(check.read_bytes())["decodings"]:
            both = (one["everything"], one["unrepetitive"])
            told = [f"{fared['length']:.2f} ({fared['outputs']} outputs)" for fared in both]
            rows[one["label"]] = f"| {one['label']} | {' | '.join(told)} |"
    lookup = [label for label in rows if label.startswith("prompt-lookup")]
    return "\n".join(lines + [rows[label] for label in sorted(rows, key=lookup.__contains__)])


def curve(run: str) -> str:
    """The curve of a recorded run's vanilla decoding, as `joulewise curve` prints it."""
    table = load(ROOT / run)
    found = run_points(table)
    return f"```\n{describe(fit_curve(found.points, by=found.by), found.origin, (*table.warnings, *found.notes))}```"


def server_ways(_: str) -> str:
    """What each server can do for a decoding, by the recipes."""
    recipes = [open_recipe(kind) for kind in SERVERS if kind != "running"]
    rows = [f"| decoding | {' | '.join(recipe.name for recipe in recipes)} |", "| --- |" + " --- |" * len(recipes)]
    for kind in DECODINGS:
        told = (recipe.ways.get(kind) or f"no: {recipe.lacks[kind]}" for recipe in recipes)
        rows.append(f"| `{kind}` | {' | '.join(told)} |")
    return "\n".join(rows)


BLOCKS: dict[str, Callable[[str], str]] = {
    f.__name__: f
    for f in (
        savings,
        answers,
        explained,
        phase_joules,
        claims,
        cross_check,
        accepted,
        curve,
        server_ways,
        *TABLES,
        *ROUTING_TABLES,
        *TRADEOFF_TABLES,
    )
}


def scatter(run: str) -> str:
    """Speed against GPU energy, one point a task, as an SVG of its own."""
    points = [
        chart.Point(saving.key.task, series, saving.time.ratio, saving.gpu.ratio, modelled=False)
        for series, saving in enumerate(summary_of(run).savings)
    ]
    (decoding,) = {saving.key.decoding for saving in summary_of(run).savings}
    drawn = chart.scatter(
        points,
        title=f"{decoding}: speed against GPU energy, by task",
        energy_name="GPU energy",
        limit=chart.reach(points),
        prefix="real-tasks",
    )
    for name, colour in COLOURS.items() | {(f"series-{i}", colour) for i, colour in enumerate(SERIES, 1)}:
        drawn = drawn.replace(f"var(--{name})", colour)
    if 'xmlns="' not in drawn:
        drawn = drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return drawn.replace("<svg ", '<svg style="background:#ffffff;font-family:sans-serif" ', 1).rstrip() + "\n"


def _gamma(gamma: Gamma) -> str:
    return f"{_quantity(gamma.ratio)} {verdict(gamma)}"


def _quantity(quantity: Quantity) -> str:
    between = interval(quantity)
    return value(quantity) + (f" ({between})" if between else "")


def main() -> None:
    """Write them."""
    FIGURE.parent.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
