"""A router, and a choice of it, in words and figures, for a terminal or a pipe."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from joulewise.counted import counted
from joulewise.report.plain_table import table, wrapped
from joulewise.report.text import figure
from joulewise.routing.asking import Answered, CutOff
from joulewise.routing.policy import Choice, Estimate
from joulewise.routing.router import Learnt, Router


def describe_router(router: Router, notes: Iterable[str] = (), width: int | None = None, textless: int = 0) -> str:
    """Every option with what was learnt of it.

    Args:
        notes: what else to say, one sentence each.
        width: columns of the terminal; None: any.
        textless: questions that could not be learnt from, as their texts are not at hand.
    """
    model = router.performance
    place = {name: i for i, name in enumerate(model.options)}
    rows = [("option", "labels", "right", "calibration error", "joules", "seconds")]
    for name, known in router.learnt.items():
        at = place[known.answers_as]
        error = float(model.calibration_error[at])
        right = float(model.means[at]) + (0.0 if at == model.reference else float(model.means[model.reference]))
        rows.append(
            (
                name,
                f"{int(model.labels[at]):,}",
                f"{min(1.0, max(0.0, right)):.1%}",
                "too few labels" if math.isnan(error) else f"{100 * error:.1f} points",
                joules_source(known),
                "unknown" if known.latency is None else f"{known.latency.timings:,} timed",
            )
        )
    seen = len(router.seen)
    queries = (
        f"{seen:,} of {seen + textless:,} queries" if textless else f"{seen:,} {'query' if seen == 1 else 'queries'}"
    )
    why = " (the texts of the others are not at hand)" if textless else ""
    lines = [
        f"{counted(len(router.learnt), 'option')}, {queries} learnt from{why}",
        "",
        *table(rows, width),
    ]
    told = [
        f"{option.name}: keeps {c.keeps_right:.0%} of right answers and {c.keeps_wrong:.0%} of wrong ones"
        for option in router.cascades
        if (c := option.cascade) is not None
    ]
    told += [f"Note: {note}" for note in notes]
    return "\n".join([*lines, *wrapped(told, width)]) + "\n"


def joules_source(known: Learnt) -> str:
    """Where an option's joules come from, and how far off they are, in a few words."""
    from joulewise.analysis.curves import Curve
    from joulewise.routing.answer_joules import AnswerJoules

    if known.energy is None:
        return "unknown"
    curve = known.energy.curve
    if isinstance(curve, Curve):
        off = curve.held_out.inside.median
        return "measured curve" if off is None else f"measured curve, off by {off:.1%}"
    if isinstance(curve, AnswerJoules):
        off = curve.error
        told = f"{curve.answers:,} answers, {curve.provenance}"
        return told if off is None else f"{told}, off by {off:.1%}"
    return f"published ({curve.device})"


def describe_choice(choice: Choice, explain: bool, notes: Sequence[str] = (), width: int | None = None) -> str:
    """The option with its reasons; with ``explain`` every option, and why it lost.

    Args:
        width: columns of the terminal; None: any.
    """
    told = [f"  {words}" for words in (*choice.reasons, *_expected(choice.estimate))]
    lines = [choice.option, *wrapped(told, width)]
    if explain:
        rows = [("option", "right", "joules", "seconds", "why")]
        order = sorted(
            choice.verdicts, key=lambda v: (v.option != choice.option, math.inf if v.cost is None else v.cost)
        )
        rows += [(v.option, *_figures(v.estimate), v.why) for v in order]
        lines += ["", *table(rows, width)]
    return "\n".join([*lines, *wrapped((f"Note: {note}" for note in notes), width)]) + "\n"


def choice_json(choice: Choice, notes: Sequence[str] = ()) -> dict[str, Any]:
    """The same for machines; what is not known is null."""
    return {
        "option": choice.option,
        "best_effort": choice.best_effort,
        "reasons": list(choice.reasons),
        "expected": estimate_json(choice.estimate),
        "options": [
            {
                "option": v.option,
                "expected": None if v.estimate is None else estimate_json(v.estimate),
                "cost": v.cost,
                "why": v.why,
            }
            for v in choice.verdicts
        ],
        "notes": list(notes),
    }


def describe_answered(one: Answered, width: int | None = None) -> str:
    """The answer, and the joules drawn against those expected.

    Args:
        width: columns of the terminal, for all but the answer itself; None: any.
    """
    head = "" if one.asked.name is None else f"{one.asked.name}: {one.asked.query.strip().splitlines()[0][:80]}\n"
    if one.error is not None:
        return f"{head}no answer: {one.error}\n"
    expected = one.choice.estimate.energy_j
    lines = [f"  by {one.choice.option}"]
    if one.energy_j is None or one.lower_j is None or one.upper_j is None:
        lines.append(f"  joules drawn are unknown; {figure(expected.mean)} J were expected")
    else:
        lines.append(
            f"  {figure(one.energy_j)} J drawn ({figure(one.lower_j)} to {figure(one.upper_j)}, {one.provenance}), "
            f"{figure(expected.mean)} J expected (at most {figure(expected.p95)} J 95 times out of 100)"
        )
    if one.not_comparable is not None:
        lines.append(f"  drawn against expected says nothing here: {one.not_comparable}")
    lines.append(f"  {figure(one.duration_s)} s" + _routing(one))
    if one.correct is not None or one.score is not None:
        lines.append(f"  {_verdict(one)}, {one.choice.estimate.accuracy:.0%} expected")
    lines += [f"  {words}" for words in map(_cut_off, one.cut_off)]
    lines += [
        f"  {reason}"
        for reason in one.choice.reasons
        if one.choice.best_effort or reason.startswith(("best effort", "the joule budget"))
    ]
    return "\n".join([f"{head}{(one.text or '').strip()}", "", *wrapped(lines, width)]) + "\n"


def _cut_off(cut: CutOff) -> str:
    what = f"{cut.cut:,} of its {cut.samples:,} samples {'was' if cut.cut == 1 else 'were'}"
    what = "its answer was" if cut.samples == 1 else what
    budget = "the token budget of its own" if cut.own_budget else "its token budget (--max-tokens N gives another)"
    return f"{cut.option}: {what} cut off after {counted(cut.tokens, 'token')}, {budget}"


def _routing(one: Answered) -> str:
    return "" if one.routing_j is None else f"; choosing drew {figure(one.routing_j)} J on top"


def _verdict(one: Answered) -> str:
    if one.correct is None:
        return f"score {one.score:.2f}"
    return "right" if one.correct else "wrong"


def answered_json(one: Answered) -> dict[str, Any]:
    """The same for machines; what is not known is null."""
    return {
        "id": one.asked.name,
        "query": one.asked.query,
        "answer": one.text,
        "option": one.choice.option,
        "energy_j": one.energy_j,
        "lower_j": one.lower_j,
        "upper_j": one.upper_j,
        "provenance": one.provenance,
        "not_comparable": one.not_comparable,
        "duration_s": one.duration_s,
        "routing_j": one.routing_j,
        "correct": one.correct,
        "score": one.score,
        "error": one.error,
        "cut_off": [asdict(cut) for cut in one.cut_off],
        "choice": choice_json(one.choice),
    }


def estimate_json(found: Estimate) -> dict[str, Any]:
    """What is expected of an option."""
    parts = {"energy_j": found.energy_j, "first_token_s": found.first_token_s, "total_s": found.total_s}
    return {
        "accuracy": found.accuracy,
        **{n: None if q is None else {"mean": q.mean, "p50": q.p50, "p95": q.p95} for n, q in parts.items()},
    }


def _expected(found: Estimate) -> list[str]:
    joules = f"{figure(found.energy_j.mean)} J on average, {figure(found.energy_j.p95)} J at the 95th percentile"
    if found.total_s is None:
        return [f"expected: {joules}; seconds are not known"]
    first = "" if found.first_token_s is None else f", the first token after {figure(found.first_token_s.mean)} s"
    return [f"expected: {joules}; {figure(found.total_s.mean)} s{first}"]


def _figures(found: Estimate | None) -> tuple[str, str, str]:
    if found is None:
        return ("unknown",) * 3
    seconds = "unknown" if found.total_s is None else figure(found.total_s.mean)
    return f"{found.accuracy:.1%}", figure(found.energy_j.mean), seconds
