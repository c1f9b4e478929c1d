"""How good a router is, in words and figures, for a terminal or a pipe; and for machines."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from joulewise.counted import counted
from joulewise.report.plain_table import table, wrapped
from joulewise.report.text import figure
from joulewise.routing.evaluate import Figure
from joulewise.routing.evaluation import Evaluation
from joulewise.routing.floors import AbsoluteFloor


def describe_evaluation(found: Evaluation, width: int | None = None) -> str:
    """All figures, in lines.

    Args:
        width: columns of the terminal; None: any.
    """
    lines: list[str] = []
    for part in _parts(found):
        if isinstance(part, str):
            lines += wrapped([part], width)
        else:
            lines += table(part, width, indent=2)
    return "\n".join(lines) + "\n"


def evaluation_json(found: Evaluation) -> dict[str, Any]:
    """The same for machines; what is not known is null."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(inner) for inner in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return dict(plain(asdict(found)))


def _parts(found: Evaluation) -> Iterator[str | list[tuple[str, ...]]]:
    """Sentences, and the rows of tables."""
    rows: list[tuple[str, ...]]
    if found.also_seen:
        yield f"{counted(found.queries, 'question')}; the router learnt from {found.seen:,}, so figures flatter it"
    else:
        yield f"{counted(found.queries, 'question')} that the router did not learn from"
        if found.seen:
            yield f"  left out: {found.seen:,} that it learnt from"
    if found.incomplete:
        yield f"  left out: {found.incomplete:,} without a score of every option"
    if found.unknown:
        yield f"  options that it does not know: {', '.join(found.unknown)}"
    if found.cascades:
        yield f"  cascades, which are not judged: {', '.join(found.cascades)}"
    if found.contradictory:
        yield f"  {contradiction(found.contradictory)}"
    if found.missing:
        yield f"  options without a score here: {', '.join(found.missing)}"
    if found.measured is None:
        yield "  joules: not known, so only accuracy is told"
    else:
        drawn = "as the answers have them" + (", some of them modelled" if found.modelled else "")
        yield f"  joules: {found.measured:.0%} {drawn}, the others as the router expects them"
        if not found.chosen_by_joules:
            yield "  the router does not know every option's joules, and cannot choose by them: no trade-off, no floors"
    yield ""
    yield "One option for all queries"
    rows = [("option", "right", "joules", "")]
    rows += [
        (
            one.option,
            _share(one.accuracy),
            "unknown" if one.energy_j is None else figure(one.energy_j),
            "" if one.dominated_by is None else f"no better than {one.dominated_by} in either",
        )
        for one in found.fixed
    ]
    yield rows
    if found.points:
        yield ""
        yield "The router, from the fewest joules to the most accuracy"
        yield [("right", "joules"), *((f"{p.accuracy:.1%}", figure(p.energy_j)) for p in found.points)]
        if found.same_accuracy is not None:
            yield (
                f"  as accurate as {found.best} at {found.same_accuracy:.0%} of its joules (at a price chosen on these "
                "answers)"
            )
        else:
            yield f"  nowhere as accurate as {found.best}"
    by_lot = "" if math.isnan(found.chance.energy_j) else f" at {figure(found.chance.energy_j)} J"
    yield f"  options by lot: {found.chance.accuracy:.1%}{by_lot}"
    oracle = "" if math.isnan(found.oracle.energy_j) else f" at {figure(found.oracle.energy_j)} J"
    yield f"  an oracle (the cheapest option that is right): {found.oracle.accuracy:.1%}{oracle}"
    if found.aiq is not None and found.aiq_fixed is not None and found.aiq_oracle is not None:
        yield (
            f"  AIQ (mean accuracy over joules): {found.aiq:.3f}; mixing fixed options {found.aiq_fixed:.3f}, "
            f"oracle {found.aiq_oracle:.3f}"
        )
    if found.pair is not None:
        yield ""
        yield f"{found.weak} against {found.strong} (RouteLLM's frame; chance is 0.5, 50 % and 80 %)"
        yield f"  APGR {_plain(found.pair.apgr)}"
        halfway, far = _share(found.pair.cpt50), _share(found.pair.cpt80)
        yield f"  CPT(50) {halfway}, CPT(80) {far} of the questions go to {found.strong}"
    elif len(found.fixed) > 1:
        yield f"  {found.weak} and {found.strong}: no gap of accuracy that a router could recover (no APGR)"
    if found.floors:
        yield ""
        yield f"Floors: accuracy lost against {found.strongest}, the router's strongest option"
        rows = [("within", "lost", "allowed", "", "joules saved")]
        rows += [
            (
                f"{floor.within:.0%}",
                _points(floor.loss),
                f"{100 * floor.allowed:.1f} points",
                floor.verdict,
                _share(floor.saved),
            )
            for floor in found.floors
        ]
        yield rows
        if found.certificate is not None:
            yield from textwrap.wrap(
                f"Floors in this order, fixed before these answers were seen: {found.certificate.words}", 98,
                initial_indent="  ", subsequent_indent="  ",
            )  # fmt: skip
    if found.absolute:
        yield ""
        yield (
            "Least chance of a right answer: where an option is expected to reach it, the cheapest that does, else the "
            "most accurate"
        )
        yield [
            ("floor", "reached", "right where reached", "", "right on all", "J/question", "joules saved"),
            *(
                (
                    f"{floor.least:.1%}",
                    f"{floor.reached / found.queries:.0%}",
                    "-" if floor.accuracy is None else _share(floor.accuracy),
                    floor.verdict,
                    _share(floor.overall),
                    figure(floor.energy_j),
                    _share(floor.saved),
                )
                for floor in found.absolute
            ),
        ]
        yield f"  joules saved against {found.strongest}"
        for floor in found.absolute:
            yield f"  {_proven(floor)}"
    yield ""
    yield "Calibration"
    rows = [("option", "labels", "error", "Brier score")]
    rows += [
        (
            c.option,
            f"{c.labels:,}",
            "too few labels" if c.error is None else f"{100 * c.error:.1f} points",
            f"{c.brier:.3f}",
        )
        for c in found.calibrations
    ]
    yield rows
    if found.expectations:
        rows = [("option", "answers", "drawn / expected", "within the 95th percentile")]
        rows += [(e.option, f"{e.answers:,}", f"{e.ratio:.2f}", f"{e.within_p95:.0%}") for e in found.expectations]
        yield rows


def contradiction(pairs: int) -> str:
    """That labels contradict each other, in a sentence."""
    return (
        f"{counted(pairs, 'pair')} of question and option with both right and wrong answers: the mean counts. Where an "
        "option does not answer by chance, one of its labels is wrong"
    )


def _proven(floor: AbsoluteFloor) -> str:
    """What the labels prove of a floor."""
    found, name = floor.certificate, f"{floor.least:.1%}"
    if floor.accuracy is None:
        return f"{name}: no option is expected to reach it on any question"
    if found is None:
        return f"{name}: " + ("no number of labels can prove it" if floor.least else "there is nothing to prove")
    chance = f"with probability at most {100 * found.risk:.3g} %"
    labels = counted(found.labels, "label")
    if found.setting is not None:
        return f"{name}: proven; where it is reached fewer are right {chance} ({labels})"
    more = f"about {found.needed:,} are needed" if found.needed else "and of these no more are right"
    return f"{name}: cannot prove with {labels} that where it is reached fewer are right {chance}; {more}"


def _share(found: Figure) -> str:
    if found.value is None:
        return "never"
    return f"{found.value:.1%}" + (
        "" if found.lower is None or found.upper is None else f" ({found.lower:.1%} to {found.upper:.1%})"
    )


def _points(found: Figure) -> str:
    assert found.value is not None
    ends = (
        "" if found.lower is None or found.upper is None else f" ({100 * found.lower:+.1f} to {100 * found.upper:+.1f})"
    )
    return f"{100 * found.value:+.1f} points{ends}"


def _plain(found: Figure) -> str:
    if found.value is None:
        return "unknown"
    return f"{found.value:.3f}" + (
        "" if found.lower is None or found.upper is None else f" ({found.lower:.3f} to {found.upper:.3f})"
    )
