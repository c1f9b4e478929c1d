"""A comparison in words: in a terminal, as Markdown for a pull request, as plain data."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from itertools import groupby
from typing import IO, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from joulewise import __version__
from joulewise.analysis.compare import OTHER_CARDS, SAME_CARDS, Change, Comparison
from joulewise.analysis.differences import ABSENT, ENVIRONMENT
from joulewise.analysis.paired_cells import METRICS
from joulewise.counted import counted
from joulewise.report.text import COMPONENT_NAMES, figure

FORMAT_VERSION = 1
"""Raised when a field of the JSON changes its meaning."""

_STYLES = {"above the limit": "bold red", "cannot tell": "yellow", "lower": "green", "within the limit": "green"}
_WIDEST = 110
_SPACE = "\u00a0"


def to_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain data; what is not known is None, and no number is infinite."""
    return {
        "format_version": FORMAT_VERSION,
        "joulewise": __version__,
        "headline": headline(comparison),
        **asdict(comparison),
    }


def headline(comparison: Comparison) -> str:
    """The verdict in one line."""
    shared = "are the same recording" if comparison.same_recording else "have Trials of the same recording"
    return _verdict(comparison) + (f" Note that BASE and NEW {shared}." if comparison.shared_trials else "")


def _verdict(comparison: Comparison) -> str:
    gate = comparison.gate
    cells = f"{len(comparison.cells)} {'cell' if len(comparison.cells) == 1 else 'cells'}"
    rise = f"{_what(comparison)} rose by more than {_percent(gate.fail_above)}"
    every = [*comparison.overall, *comparison.cells]
    if comparison.verdict == "failed":
        above = [c for c in every if c.verdict == "above the limit"]
        worst = max(above, key=lambda c: c.ratio.lower or 0.0)
        alone = [c for c in above if c.task is not None]
        where = f"in {len(alone)} of {cells}" if alone else "over all cells together"
        return f"FAILED: {rise} {where}; most surely {_name(worst, comparison)}: {_change(worst)}."
    if comparison.verdict == "passed":
        return f"PASSED: {rise} in none of {cells}."
    unclear = [c for c in every if c.verdict == "cannot tell"]
    ends = "fails" if comparison.exit_code else "passes"
    some = f"{sum(c.task is not None for c in unclear)} of {cells}"
    return (
        f"CANNOT TELL whether {rise} ({some} unclear: {_reasons(unclear)}). That {ends}, as --on-unclear "
        f"{gate.on_unclear} says."
    )


def _reasons(unclear: list[Change]) -> str:
    """Why these lines are unclear: the most frequent reason, and in how many cells where it is not the only one."""
    alone = [c for c in unclear if c.task is not None] or unclear
    # How many more questions would tell differs from cell to cell; that they would is one reason.
    (why, n), *others = Counter(None if c.more_questions else c.why for c in alone).most_common()
    more = max((c.more_questions for c in unclear if c.more_questions), default=None)
    told = why or (f"about {counted(more, 'more question')} would tell" if more else "no interval")
    if not others:
        return told
    return f"{told} in {n}, {'another reason' if len(others) == 1 else f'{len(others)} other reasons'} in the rest"


def warnings(comparison: Comparison) -> list[str]:
    """What a reader must know before trusting the verdict, the weightiest first."""
    told = []
    if comparison.shared_trials:
        told.append(
            f"{counted(comparison.shared_trials, 'Trial')} of NEW are BASE's own, not measured anew: the same folder "
            "or a copy "
            "of it. They show no change whatever was changed; if one was made, record it in a run of its own."
        )
    changed = [c for c in comparison.cells if c.outputs_changed]
    if changed:
        n, of = sum(c.outputs_changed or 0 for c in changed), sum(c.ratio.n_trials for c in comparison.cells)
        told.append(
            f"The outputs differ: {n:,} of {of:,} greedy answers of NEW are not BASE's. Their lengths may explain a "
            "change of joules per answer, and what they are worth must be judged too."
        )
    worse = [c for c in comparison.cells if c.accuracy_base is not None and c.lost > c.gained]
    if worse:
        lost, gained = sum(c.lost for c in worse), sum(c.gained for c in worse)
        told.append(
            f"Accuracy fell in {', '.join(_name(c, comparison) for c in worse[:3])}"
            f"{' and others' if len(worse) > 3 else ''}: {counted(lost, 'right answer')} went wrong, {gained} the "
            "reverse. A saving that costs accuracy is no saving; accuracy is shown, not gated."
        )
    refusing = [d for d in comparison.differences if d.refuses and d.what != ENVIRONMENT]
    for d in comparison.differences:
        if d.what == ENVIRONMENT:
            blank = " and ".join(side for side, told_ in (("BASE", d.base), ("NEW", d.new)) if ABSENT in told_)
            told.append(f"What {blank} ran on is not recorded, so whether it was alike is not known.")
    if refusing:
        told.append("Compared all the same (--allow-different), though these differ: " + _differences(refusing) + ".")
    for c in comparison.cells:
        if c.only_base or c.only_new:
            told.append(
                f"{_name(c, comparison)}: questions left out, as they were not answered on both sides (interrupted, "
                f"--limit, failed): {c.only_base} of BASE, {c.only_new} of NEW."
            )
        if c.no_figure and c.ratio.n_questions:
            told.append(
                f"{_name(c, comparison)}: left out are {counted(c.no_figure, 'question')} that both sides answered, "
                "as not "
                f"all that {METRICS[comparison.gate.metric].words} needs is known of them."
            )
    unclear = Counter(c.why for c in comparison.cells if c.why and not c.more_questions)
    told += [f"Cannot tell in {n} of {counted(len(comparison.cells), 'cell')}: {why}." for why, n in unclear.items()]
    return [*told, *comparison.notes]


def how_to_read(comparison: Comparison) -> str:
    """What the intervals hold, and what they rest on."""
    gate, spreads = comparison.gate, [c.run_spread for c in comparison.cells if c.run_spread is not None]
    several = min(len(comparison.base), len(comparison.new)) > 1
    if gate.run_to_run is not None:
        runs = f"From run to run {_percent(gate.run_to_run)} (standard deviation) is allowed for, as stated."
    elif several:
        runs = "How much runs differ by themselves was seen in the runs of each side."
    else:
        assumed = SAME_CARDS if comparison.same_cards else OTHER_CARDS
        cards = "on the same card" if comparison.same_cards else "not known to be on the same card"
        runs = (
            f"One run of each side cannot show how much runs differ by themselves: {_percent(assumed)} is assumed, as "
            f"they are {cards}. To see it, repeat both in turns (--also-base, --also-new)."
        )
    if spreads:
        runs += f" Seen: {' to '.join(dict.fromkeys(_percent(s) for s in (min(spreads), max(spreads))))}."
    lines = len(comparison.cells) + len(comparison.overall)
    among = f", over all {lines} lines together" if lines > 1 else ""
    return (
        f"Change is NEW over BASE, same questions, with its 95{_SPACE}% interval. Where nothing truly rose beyond the "
        f"limit, chance alone fails at most 2.5{_SPACE}% of comparisons{among}. {runs}"
    )


def print_comparison(comparison: Comparison, file: IO[str] | None = None) -> None:
    """Print the tables, and the verdict in the last line.

    Args:
        comparison: what to print.
        file: where to; standard output if left out. What is not a terminal gets 80 columns and no colours.
    """
    console = Console(file=file, highlight=False)
    console.width = min(console.width, _WIDEST)
    for side, names in (("BASE", comparison.base), ("NEW", comparison.new)):
        console.print(Text(f"{side:5}{', '.join(names)}"), soft_wrap=True)
    shown = [d for d in comparison.differences if not d.refuses]
    if shown:
        console.print(Padding(Text("They differ in " + _differences(shown) + "."), (0, 0, 0, 5)))
    console.print()
    console.print(Text(_sentence(_what(comparison)), style="bold"))
    accuracy = _has_accuracy(comparison)
    console.print(_table(comparison, accuracy))
    for name, group in groupby([*comparison.overall, *comparison.cells], key=lambda c: _group(c, comparison)):
        # A table of its own for each task, or a long task's name would take its room from the figures.
        table = _table(comparison, accuracy, heading=False)
        for change in group:
            words = [*_words(change, comparison, "\n"), *([_accuracy(change, "\n")] if accuracy else [])]
            verdict = Text(change.verdict, style=_STYLES[change.verdict])
            if change.more_questions:
                verdict.append(f"\n{counted(change.more_questions, 'more question')}", style="dim")
            table.add_row(change.decoding or "", *(Text(w) for w in words), verdict)
        console.print(Padding(Text(name, style="italic"), (0, 0, 0, 1)))
        console.print(table)
    console.print()
    for note in (*(f"Note: {w}" for w in warnings(comparison)), how_to_read(comparison)):
        console.print(Padding(Text(note), (0, 0, 0, 2)))
    console.print()
    style = {"failed": "bold red", "passed": "bold green", "cannot tell": "bold yellow"}[comparison.verdict]
    console.print(Text(headline(comparison), style=style))


def _table(comparison: Comparison, accuracy: bool, heading: bool = True) -> Table:
    """An empty table: the same widths with its heading and without."""
    table = Table(box=SIMPLE_HEAD if heading else None, show_header=heading, show_edge=False, expand=True)
    longest = max(len(c.decoding or "") for c in comparison.cells)
    table.add_column("decoding", width=min(18, max(8, longest)), overflow="fold")
    table.add_column("n", justify="right", width=max(len(f"{c.ratio.n_questions:,}") for c in comparison.cells) + 1)
    for name in ("BASE → NEW", "change", *(["accuracy"] if accuracy else []), "verdict"):
        table.add_column(name, ratio=5 if name == "change" else 4)
    return table


def to_markdown(comparison: Comparison) -> str:
    """A comment for a pull request, or a summary of a job."""
    accuracy = _has_accuracy(comparison)
    names = ["cell", "n", "BASE → NEW", "change", *(["accuracy"] if accuracy else []), "verdict"]
    lines = ["### Energy gate", "", f"**{_escaped(headline(comparison))}**", "", f"| {' | '.join(names)} |"]
    lines.append("| --- | ---: |" + " --- |" * (len(names) - 2))
    for change in (*comparison.overall, *comparison.cells):
        words = [_name(change, comparison), *_words(change, comparison, " ")]
        words += [*([_accuracy(change, " ")] if accuracy else []), change.verdict]
        if change.verdict == "above the limit":
            words[-1] = f"**{words[-1]}**"
        elif change.more_questions:
            words[-1] += f" ({counted(change.more_questions, 'more question')})"
        lines.append("| " + " | ".join([*map(_escaped, words[:-1]), words[-1]]) + " |")
    lines += ["", *(f"- {_escaped(w)}" for w in warnings(comparison)), ""]
    lines += ["<details><summary>How to read this, and what was compared</summary>", "", how_to_read(comparison), ""]
    lines += [
        f"- BASE: {', '.join(map(_escaped, comparison.base))}",
        f"- NEW: {', '.join(map(_escaped, comparison.new))}",
    ]
    lines += [
        f"- {_escaped(d.what)}: {_escaped(d.base)} (BASE), {_escaped(d.new)} (NEW)" for d in comparison.differences
    ]
    return "\n".join([*lines, "", "</details>"]) + "\n"


def _has_accuracy(comparison: Comparison) -> bool:
    return any(c.accuracy_base is not None for c in comparison.cells)


def _words(change: Change, comparison: Comparison, between: str) -> list[str]:
    """Number of questions, both sides, and the change."""
    unit = METRICS[comparison.gate.metric].unit
    sides = ""
    if change.base is not None and change.new is not None:
        sides = f"{figure(change.base)} → {figure(change.new)}{_SPACE}{unit}"
    return [f"{change.ratio.n_questions:,}", sides, _change(change, between)]


def _group(change: Change, comparison: Comparison) -> str:
    """The heading that a line stands under."""
    if change.task is None:
        return _name(change, comparison)
    several = {c.engine for c in comparison.cells}, {c.reasoning for c in comparison.cells}
    more = (change.engine if len(several[0]) > 1 else None, change.reasoning if len(several[1]) > 1 else None)
    return ", ".join(p for p in (change.task, *more) if p)


def _name(change: Change, comparison: Comparison) -> str:
    """What a line is about: as much as tells it from the others."""
    engines = {c.engine for c in comparison.cells}
    if change.task is None:
        return f"all {change.cells} cells" + (f" of {change.engine}" if len(engines) > 1 else "")
    reasonings = {c.reasoning for c in comparison.cells}
    parts = [change.task, change.decoding, change.reasoning if len(reasonings) > 1 else None]
    return ", ".join(p for p in (*parts, change.engine if len(engines) > 1 else None) if p)


def _change(change: Change, between: str = " ") -> str:
    ratio = change.ratio
    if ratio.value is None:
        return "unknown"
    if ratio.lower is None or ratio.upper is None:
        return _signed(ratio.value) + _SPACE + "%"
    ends = f"{_signed(ratio.lower)} to {_signed(ratio.upper)}".replace(" ", _SPACE)
    return f"{_signed(ratio.value)}{_SPACE}%{between}({ends})"


def _signed(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}".replace("-", "−")


def _accuracy(change: Change, between: str) -> str:
    if change.accuracy_base is None or change.accuracy_new is None:
        return ""
    told = f"{100 * change.accuracy_base:.0f} → {100 * change.accuracy_new:.0f}{_SPACE}%"
    return told + (f"{between}({change.lost} lost, {change.gained} gained)" if change.lost or change.gained else "")


def _what(comparison: Comparison) -> str:
    words = METRICS[comparison.gate.metric].words
    return words if comparison.component is None else f"{COMPONENT_NAMES[comparison.component]} {words}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _differences(found: list[Any]) -> str:
    told = [f"{d.what} ({_short(d.base)} → {_short(d.new)})" for d in found[:8]]
    return "; ".join(told) + (f"; and {len(found) - 8} more" if len(found) > 8 else "")


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def _escaped(text: str) -> str:
    """Text that a Markdown table and HTML take as it stands."""
    for mark in ("\\", "|", "*", "_", "`", "[", "<"):
        text = text.replace(mark, "&lt;" if mark == "<" else f"\\{mark}")
    return text.replace("\n", " ")
