"""Does NEW cost more than BASE? Cell by cell over the same questions, with a verdict that a build may fail on.

Every figure is better when lower, so only a rise fails. ``docs/statistics.md`` derives the intervals.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from numbers import Real
from typing import Literal, get_args

import numpy as np
import pyarrow.compute as pc

from joulewise.analysis.begun import GO_ON, named, not_begun
from joulewise.analysis.differences import (
    Difference,
    differences,
    greedy,
    runs_of,
    same_cards,
    shared_trials,
    unrecorded,
)
from joulewise.analysis.intervals import Quantity
from joulewise.analysis.log_ratio import Uncertainty, add_up, jackknife_se, spread_of_runs
from joulewise.analysis.paired_cells import METRICS, PairedCell, choose_component, pair_cells
from joulewise.analysis.pollution_share import pollution_share, without_polluted
from joulewise.analysis.student import quantile
from joulewise.counted import counted
from joulewise.energy.reading import ComponentName
from joulewise.errors import UserError
from joulewise.table import COMPONENTS, RunTable

FALSE_ALARM = 0.025
"""The chance that a comparison fails though nothing in it rose by more than the limit, at most."""

SAME_CARDS, OTHER_CARDS = 0.01, 0.10
"""Spread from run to run that is assumed where it cannot be seen (docs/statistics.md argues both)."""

HIGHEST_SHARE = 10.0
"""What is allowed or stated, relative, must be below it: 1000 %."""

CellVerdict = Literal["above the limit", "within the limit", "lower", "cannot tell"]
OnUnclear = Literal["pass", "fail"]


@dataclass(frozen=True, slots=True)
class Gate:
    """What is asked of a comparison.

    Args:
        metric: a key of ``METRICS``.
        component: whose joules; None takes the GPU where it alone is measured, else the total.
        fail_above: the rise that is allowed, relative.
        on_unclear: what "cannot tell" does.
        allow_different: compare also what was not asked or run alike; the cells in common.
        run_to_run: standard deviation of one run to the next, relative; None takes the spread seen where either side
            has several runs, else an assumption.
        without_polluted: leave out Trials during which other processes used the CPU.
    """

    metric: str = "energy_per_output_token_j"
    component: ComponentName | None = None
    fail_above: float = 0.05
    on_unclear: OnUnclear = "pass"
    allow_different: bool = False
    run_to_run: float | None = None
    without_polluted: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """One line of the comparison: a cell, or all cells of an engine together.

    Args:
        engine, reasoning, task, decoding: which cell; the last three are None for all cells of an engine together.
        cells: how many cells are in it.
        base, new: the figure on either side over the questions that both answered; None for several cells together.
        ratio: NEW over BASE with its 95 % interval (of this line by itself); for several cells the geometric mean.
        verdict: "above the limit" only if that also holds among as many comparisons as were made.
        p_above: the chance of such a rise if the truth were the limit, of this line by itself; None without interval.
        why: of "cannot tell": why, and what would help.
        more_questions: of "cannot tell": about how many more questions would settle it; None where they cannot.
        run_spread: standard deviation of one run to the next as seen here; None where no side has two runs.
        outputs_changed: pairs whose output differs though both were greedy; None where that is not known.
        accuracy_base, accuracy_new: share of correct answers over the pairs; None without right and wrong.
        lost, gained: answers that were right in BASE and are wrong in NEW, and the reverse.
        only_base, only_new: questions that were not answered on both sides, by the side that tried them.
        no_figure: questions that were, but whose joules (or whether they are correct) are not known.
    """

    engine: str
    reasoning: str | None
    task: str | None
    decoding: str | None
    cells: int
    base: float | None
    new: float | None
    ratio: Quantity
    verdict: CellVerdict
    p_above: float | None = None
    why: str | None = None
    more_questions: int | None = None
    run_spread: float | None = None
    outputs_changed: int | None = None
    accuracy_base: float | None = None
    accuracy_new: float | None = None
    lost: int = 0
    gained: int = 0
    only_base: int = 0
    only_new: int = 0
    no_figure: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """A whole comparison.

    Args:
        base, new: names of the runs on either side.
        gate: what was asked.
        component: whose joules were compared; None for times.
        same_cards: whether all runs were on the same GPUs, by UUID.
        verdict: ``failed`` where a line is above the limit, ``cannot tell`` where none is but not all are within it.
        exit_code: 0 or 1.
        overall: all cells of an engine together, where it has several; engines are never averaged.
        cells: every cell in common.
        differences: in what the runs differ.
        notes: what a reader must know.
        shared_trials: how many Trials of NEW are BASE's own, the same folder or a copy; they show no change.
        same_recording: whether that is all there is on both sides.
    """

    base: tuple[str, ...]
    new: tuple[str, ...]
    gate: Gate
    component: ComponentName | None
    same_cards: bool
    verdict: Literal["passed", "failed", "cannot tell"]
    exit_code: int
    overall: tuple[Change, ...]
    cells: tuple[Change, ...]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    shared_trials: int = 0
    same_recording: bool = False


def compare_tables(base: RunTable, new: RunTable, gate: Gate = Gate()) -> Comparison:
    """Compare two sides.

    Args:
        base, new: one run each, or several runs of the same plan.
        gate: what is asked.

    Raises:
        UserError: the runs differ in what was asked or what they ran on, or have nothing in common.
    """
    _check(gate)
    _check_side("BASE", base)
    _check_side("NEW", new)
    unknown = [f"{side} ({_folder(t, name)})" for side, t in (("BASE", base), ("NEW", new)) for name in unrecorded(t)]
    if unknown and not gate.allow_different:
        raise UserError(
            f"{', '.join(unknown)}: no record of what it ran on (environment.json), so whether the runs are alike is "
            "not known; copy the whole folder from where it was run, run it again, or compare all the same with "
            "--allow-different"
        )
    shared = shared_trials(base.arrow, new.arrow)
    same = shared == max(base.arrow.num_rows, new.arrow.num_rows)
    found = differences(base, new)
    refusing = [d for d in found if d.refuses]
    if refusing and not gate.allow_different:
        told = "\n".join(f"  {d.what}: {d.base} (BASE), {d.new} (NEW)" for d in refusing[:12])
        more = f"\n  and {len(refusing) - 12} more" if len(refusing) > 12 else ""
        raise UserError(
            f"the runs cannot be compared fairly; they differ in\n{told}{more}\n"
            "repeat them alike, or compare what they have in common all the same with --allow-different"
        )
    notes = [*base.warnings, *new.warnings, *_trial_notes("BASE", base, gate), *_trial_notes("NEW", new, gate)]
    whole = {"BASE": base, "NEW": new}
    if gate.without_polluted:
        base, new = (replace(table, arrow=without_polluted(table.arrow)) for table in (base, new))
    metric = METRICS[gate.metric]
    component = (gate.component or choose_component(base, new)) if metric.energy else None
    alike = same_cards([base, new])
    pairs, unpaired = pair_cells(base, new, metric, component, alike, both_greedy=greedy(base) and greedy(new))
    if not any(p.questions for p in pairs) and any(p.no_figure for p in pairs):
        reasons = "; ".join(dict.fromkeys(p.reason for p in pairs if p.reason and p.no_figure))
        raise UserError(f"{metric.words}: not known in any cell ({reasons}); choose another --metric or --component")
    if gate.without_polluted and not any(p.questions for p in pairs):
        raise UserError(
            "every question was polluted by other processes in some run; measure again on a quiet machine, or compare "
            "without --without-polluted"
        )
    waiting = {side: [key for run in t.plans for key in not_begun(t, run)] for side, t in whole.items()}
    if not any(p.questions for p in pairs) and any(waiting.values()):
        stopped = "; ".join(f"{side} has no Trial yet of {named(keys)}" for side, keys in waiting.items() if keys)
        raise UserError(f"no question was answered in the same cell on both sides: {stopped}; {GO_ON}")
    if not any(p.questions for p in pairs):
        raise UserError(
            "no question was answered in the same cell on both sides; cells are the same where the labels of engine, "
            "decoding, reasoning and task are (an engine's 'name' in the plan sets its label)"
        )
    notes += [f"No Trial of {cell} in {side}: is that run whole?" for cell, side in unpaired]
    theirs = {replace(key, run="") for key in waiting["NEW"]}
    begun_nowhere = list(dict.fromkeys(cell for key in waiting["BASE"] if (cell := replace(key, run="")) in theirs))
    if begun_nowhere:
        notes.append(f"No Trial yet of {named(begun_nowhere)}, on either side: {GO_ON}.")
    lines = [_line(p, gate, alike) for p in pairs]
    engines = {p.engine: [q for q in pairs if q.engine == p.engine and q.judged] for p in pairs}
    together = [_together(e, ps, gate, alike) for e, ps in engines.items() if len(ps) > 1]
    share = FALSE_ALARM / 2 if together else FALSE_ALARM
    overall, cells = (_judge(part, gate, share) for part in (together, lines))
    every = [*overall, *cells]
    verdict: Literal["passed", "failed", "cannot tell"] = "cannot tell"
    if any(c.verdict == "above the limit" for c in every):
        verdict = "failed"
    elif all(c.verdict in ("within the limit", "lower") for c in every):
        verdict = "passed"
    fails = verdict == "failed" or (verdict == "cannot tell" and gate.on_unclear == "fail")
    return Comparison(
        _names(base),
        _names(new),
        gate,
        component,
        alike,
        verdict,
        int(fails),
        overall,
        cells,
        found,
        tuple(notes),
        shared,
        same,
    )


@dataclass(frozen=True, slots=True)
class _Line:
    """A change before it is judged among the others."""

    change: Change
    uncertainty: Uncertainty | None
    questions_se: float = 0.0
    runs_se: float = 0.0


def _line(pair: PairedCell, gate: Gate, alike: bool) -> _Line:
    change = Change(
        pair.engine,
        pair.reasoning,
        pair.task,
        pair.decoding,
        1,
        pair.base,
        pair.new,
        pair.quantity(),
        "cannot tell",
        why=pair.reason,
        outputs_changed=pair.outputs_changed,
        accuracy_base=pair.accuracy_base,
        accuracy_new=pair.accuracy_new,
        lost=pair.lost,
        gained=pair.gained,
        only_base=pair.only_base,
        only_new=pair.only_new,
        no_figure=pair.no_figure,
    )
    ratio = pair.ratio
    if ratio is None or ratio.questions_se is None:
        return _Line(change, None)
    spread = spread_of_runs(*pair.runs)
    runs = _runs_part(spread, len(pair.runs[0]), len(pair.runs[1]), gate, alike)
    uncertainty = add_up([(ratio.questions_se, ratio.questions_df), runs], pair.common, pair.drift)
    change = replace(change, run_spread=spread and spread[0])
    line = _Line(change, uncertainty, ratio.questions_se, runs[0])
    return _with_interval(line, ratio.value, gate, judged=pair.judged)


def _together(engine: str, pairs: Sequence[PairedCell], gate: Gate, alike: bool) -> _Line:
    """The geometric mean over an engine's cells. Cells of a task share its questions, and all cells share the runs."""
    ratios = [p.ratio for p in pairs if p.ratio is not None]
    pulls: dict[str, dict[object, float]] = defaultdict(lambda: defaultdict(float))
    for pair, ratio in zip(pairs, ratios, strict=True):
        for unit, pull in zip(pair.units, ratio.pulls, strict=True):
            pulls[pair.task][unit] += float(pull) / len(pairs)
    parts = [(jackknife_se(np.array(list(p.values()))), float(len(p) - 1)) for p in pulls.values()]
    counts = {(len(p.runs[0]), len(p.runs[1])) for p in pairs}
    k = counts.pop() if len(counts) == 1 else (1, 1)  # a cell that some run lacks: nothing is seen of the runs
    runs_of = [[math.fsum(p.runs[s][i] for p in pairs) / len(pairs) for i in range(k[s])] for s in (0, 1)]
    spread = spread_of_runs(*runs_of)
    runs = _runs_part(spread, k[0], k[1], gate, alike)
    n, trials = sum(len(p) for p in pulls.values()), sum(p.trials for p in pairs)
    value = math.fsum(r.value for r in ratios) / len(ratios)
    common, drift = (math.fsum(getattr(p, name) for p in pairs) / len(pairs) for name in ("common", "drift"))
    uncertainty = add_up([*parts, runs], common, drift)
    quantity = Quantity(math.exp(value), None, None, n, trials, "measured", common=common)
    change = Change(engine, None, None, None, len(pairs), None, None, quantity, "cannot tell")
    change = replace(change, run_spread=spread and spread[0])
    questions_se = math.hypot(*(se for se, _ in parts))
    return _with_interval(_Line(change, uncertainty, questions_se, runs[0]), value, gate, judged=True)


def _runs_part(spread: tuple[float, int] | None, base: int, new: int, gate: Gate, alike: bool) -> tuple[float, float]:
    """Standard error that run-to-run spread adds, and its degrees of freedom.

    What is seen counts where either side repeats; what is stated (or, without repeats on both sides, assumed) counts
    where it is larger.
    """
    stated = gate.run_to_run
    if stated is None and (spread is None or min(base, new) < 2):
        stated = SAME_CARDS if alike else OTHER_CARDS
    one, df = (stated or 0.0), math.inf
    if spread is not None and spread[0] > one:
        one, df = spread[0], float(spread[1])
    return one * math.sqrt(1 / base + 1 / new), df


def _with_interval(line: _Line, value: float, gate: Gate, judged: bool) -> _Line:
    uncertainty = line.uncertainty
    assert uncertainty is not None
    half = uncertainty.half_width(FALSE_ALARM)
    ratio = replace(line.change.ratio, lower=math.exp(value - half), upper=math.exp(value + half))
    p_above = uncertainty.p_above(value, math.log1p(gate.fail_above)) if judged else None
    return replace(line, change=replace(line.change, ratio=ratio, p_above=p_above))


def _judge(lines: Sequence[_Line], gate: Gate, level: float) -> tuple[Change, ...]:
    """Verdicts such that any false "above the limit" among all lines has at most the chance ``level`` (Holm 1979)."""
    judged = sorted((c.p_above, i) for i, c in enumerate(line.change for line in lines) if c.p_above is not None)
    above: set[int] = set()
    for rank, (p, i) in enumerate(judged):
        if p > level / (len(judged) - rank):
            break
        above.add(i)
    return tuple(_verdict(line, i in above, gate, level / max(1, len(judged))) for i, line in enumerate(lines))


def _verdict(line: _Line, above: bool, gate: Gate, strictest: float) -> Change:
    change, ratio = line.change, line.change.ratio
    if above:
        return replace(change, verdict="above the limit")
    if change.p_above is None or ratio.upper is None or ratio.value is None:
        return change
    if ratio.upper <= 1.0 + gate.fail_above:
        return replace(change, verdict="lower" if ratio.upper < 1.0 else "within the limit")
    more = _more_questions(line, gate, strictest)
    if more is not None:
        why = f"about {counted(more, 'more question')} would tell"
    elif ratio.lower is not None and ratio.lower > 1.0 + gate.fail_above:
        why = "above the limit by itself, but not surely so among as many comparisons as here"
    else:
        why = "more questions alone would not tell: repeat both runs, in turns, on one machine"
    return replace(change, why=why, more_questions=more)


def _more_questions(line: _Line, gate: Gate, strictest: float) -> int | None:
    """About how many more questions would bring the interval to one side of the limit, if the figure stays."""
    ratio, uncertainty = line.change.ratio, line.uncertainty
    assert ratio.value is not None
    assert uncertainty is not None
    margin = math.log(ratio.value) - math.log1p(gate.fail_above)
    z = quantile(strictest if margin > 0 else FALSE_ALARM, math.inf)
    room = (abs(margin) - uncertainty.drift) / z - uncertainty.common
    if room <= line.runs_se:
        return None
    n = ratio.n_questions
    needed = n * line.questions_se**2 / (room**2 - line.runs_se**2)
    return max(1, math.ceil(needed) - n)


def _check(gate: Gate) -> None:
    for what, asked, choices in (
        ("metric", gate.metric, tuple(METRICS)),
        ("component", gate.component or "total", COMPONENTS),
        ('way to end for "cannot tell"', gate.on_unclear, get_args(OnUnclear)),
    ):
        if asked not in choices:
            raise UserError(f"{asked}: no such {what}; choose from {', '.join(choices)}")
    for name, share in (("fail_above", gate.fail_above), ("run_to_run", gate.run_to_run or 0.0)):
        if not isinstance(share, Real) or not 0.0 <= share < HIGHEST_SHARE:
            raise UserError(f"{name}={share!r}: not a share from 0 to below {HIGHEST_SHARE:.0f}; give 0.05 for 5 %")


def _check_side(side: str, table: RunTable) -> None:
    """Every run of a side has Trials to compare, and none is there twice."""
    names = runs_of(table)
    if not names:
        raise UserError(f"{side}: no run is named; name at least one run folder")
    parts = {name: table.arrow.filter(pc.equal(table.arrow["run"], name)) for name in names}
    for name, part in parts.items():
        failed = part.filter(pc.not_equal(part["status"], "ok"))
        if failed.num_rows == part.num_rows:
            why = "it holds no Trial at all"
            if failed.num_rows:
                why = f"all {failed.num_rows:,} failed, the first with: {failed['error'][0].as_py() or 'unknown'}"
            raise UserError(f"{side} ({_folder(table, name)}) has no successful Trial: {why}. Mend it and run it again")
    for one, other in combinations(names, 2):
        if shared_trials(parts[one], parts[other]):
            raise UserError(
                f"{side}: {_folder(table, other)} is {_folder(table, one)} again, or a copy of it: they have Trials in "
                "common; a run shows nothing new by being counted again"
            )


def _folder(table: RunTable, name: str) -> str:
    return str(table.folders.get(name, name))


def _names(table: RunTable) -> tuple[str, ...]:
    return tuple(_folder(table, name) for name in table.plans)


def _trial_notes(side: str, table: RunTable, gate: Gate) -> Iterable[str]:
    rows = table.arrow.num_rows
    failed = pc.sum(pc.not_equal(table.arrow["status"], "ok")).as_py() or 0
    if failed:
        yield f"{failed:,} of {counted(rows, 'Trial')} of {side} failed: in no figure."
    yield from pollution_share(table.arrow).notes(gate.without_polluted, f"of {side}")
