"""Accuracy against joules in sentences and tables; ``docs/tradeoffs.md`` says what stands behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from joulewise.analysis.budget_advice import NONE_RIGHT, Advice, BudgetCurve, Step
from joulewise.analysis.cells import CellKey
from joulewise.analysis.contrast import Against
from joulewise.analysis.frontier import SURE, Dominance
from joulewise.analysis.intervals import Quantity
from joulewise.analysis.side_by_side import ACCURACY
from joulewise.analysis.tradeoffs import Tradeoff
from joulewise.analysis.worth import WHOLE, Group, Worth
from joulewise.counted import counted
from joulewise.report.grid import NO_INTERVAL, Column, Grid, Shown, in_words, lay_out, quantity_column
from joulewise.report.text import COMPONENT_NAMES, figure, interval, listed, value

TITLE = "What thinking longer costs, and what it buys"

MOST_BEATEN = 5
"""So many beaten cells are told in words; the others stand in the table."""

LEAST_SHOWN = 10
"""Parts of a task with fewer questions stand in no table: their intervals would span nearly everything."""

MOST_NAMED = 8
"""So many left-out parts of a task are told by name, of more their number."""

TOO_FEW_MARK = "too few"

HOW_TO_READ = (
    "All ways of answering a task are held against each other on the questions that all of them answered. A way is on "
    "the frontier, or optimal, if no other is at least as accurate for at most its joules and better in one of them; "
    "the column tells in how many of the bootstrap's samples of the questions that is so. To reach an accuracy for the "
    "fewest joules, take the cheapest optimal way that has it."
)

AMONG = (
    "A verdict holds among all comparisons of its table: if nothing in it differed, any verdict at all would be given "
    "in about 5 % of runs (Holm's procedure). The intervals are of each comparison by itself: of many, some miss by "
    "chance."
)

_RELATIVE = (
    "Gain: of accuracy or score. What is in per cent is relative: 50 % more right answers may be a gain of 2 points."
)


def way(key: CellKey, found: Tradeoff) -> str:
    """What a cell is called beside the others of its task: by what differs among them."""
    keys = [cell.key for cell in found.whole.cells] if found.groups else [key for key, _ in found.left_out]
    several = [len({getattr(k, part) for k in keys}) > 1 for part in ("decoding", "engine")]
    return ", ".join([key.reasoning, *(n for n, s in zip((key.decoding, key.engine), several, strict=True) if s)])


def findings(found: Tradeoff) -> list[str]:
    """What a task's cells show, each sentence with the numbers that carry it."""
    if not found.groups:
        return ["No question was answered in every way, so nothing can be compared yet.", *_left_out(found)]
    told = _frontier(found)
    if found.measure is not None and not any(cell.quality.value for cell in found.whole.cells):
        return [*told, *_reached(found), *_left_out(found)]
    told += [*_changes(found), *_beaten(found)]
    told += [_stop(curve, curve.advice[0], found) for curve in found.curves if curve.advice[0].why is None]
    return [*told, *_reached(found), *_left_out(found)]


def tradeoff_grids(several: Sequence[Tradeoff]) -> tuple[Grid, ...]:
    """The tables of one run's tasks, those without rows left out."""
    told = [found for found in several if found.groups]
    grids = []
    for component in dict.fromkeys(found.component for found in told):
        alike = [found for found in told if found.component == component]
        grids += [_worth(alike), _against(alike), _beaten_grid(alike)]
        grids += [group_grid([(found, g) for found in alike for g in found.level("category")], "category")]
        grids += [_steps(alike), _where_to_stop(alike)]
    return tuple(grid for grid in grids if grid.rows)


def fine_grids(found: Tradeoff) -> tuple[Grid, ...]:
    """The tables by subject and subcategory, where a task has them: too long for anything but a page."""
    grids = [group_grid([(found, g) for g in found.level(level)], level) for level in ("subcategory", "subject")]
    return tuple(grid for grid in grids if grid.rows)


def group_grid(groups: Sequence[tuple[Tradeoff, Group]], level: str) -> Grid:
    """All cells in every group of a level that has questions enough."""
    rows = [(found, group, cell) for found, group in groups if group.questions >= LEAST_SHOWN for cell in group.cells]
    name = COMPONENT_NAMES[rows[0][0].component] if rows else ""

    def change(tell: Callable[[Against], Shown]) -> tuple[Shown, ...]:
        return tuple(Shown("–") if cell.against is None else tell(cell.against) for *_, cell in rows)

    grid = lay_out(
        f"By {level}, joules of {name}" if name != "total" else f"By {level}",
        [cell.key for *_, cell in rows],
        (
            Column("accuracy or score, %", tuple(_good(cell) for *_, cell in rows)),
            quantity_column("J per answer", [cell.energy_per_answer_j for *_, cell in rows]),
            quantity_column("J per correct answer", [cell.energy_per_correct_answer_j for *_, cell in rows]),
            Column("gain, points", change(_points)),
            Column("energy change, %", change(_more_energy)),
        ),
        [AMONG],
        [(f"{found.task}: {group.name}", way(cell.key, found)) for found, group, cell in rows],
    )
    return replace(grid, absolute=True, of="answered by")


def notes(several: Sequence[Tradeoff]) -> list[str]:
    """What a reader must know of one run's tasks, beyond how to read them."""
    told = []
    for found in several:
        if found.groups and found.questions < found.tried:
            told.append(
                f"{found.task}: {found.questions:,} of {found.tried:,} questions were answered, judged and metered in "
                "every way; the others are left out."
            )
        if found.unjudged:
            told.append(
                f"{found.task}: on {found.unjudged:,} of {found.tried:,} questions an answer has no verdict; such "
                "answers are left out, and never count as wrong."
            )
        told += _too_few(found)
    alone = [f.task for f in several if f.groups and all(cell.against is None for cell in f.whole.cells)]
    if alone:
        told.append(
            f"On {listed(alone)} nothing is held against a baseline, as no engine has direct answers beside others; "
            "--baseline ENGINE/DECODING/REASONING names one."
        )
    if any(found.groups and not found.measured for found in several):
        told.append(
            "Where joules are modelled or unknown, no way is said to be on the frontier, to beat another or to be "
            "enough: modelled joules follow time, and prove nothing about energy."
        )
    return told


def _too_few(found: Tradeoff) -> list[str]:
    """The parts of a task that no table shows, a sentence a level."""
    told = []
    for level, several in (("category", "categories"), ("subcategory", "subcategories"), ("subject", "subjects")):
        groups = found.level(level)
        few = [group for group in groups if group.questions < LEAST_SHOWN]
        if few:
            names = listed([f"{group.name} ({group.questions})" for group in few])
            which = names if len(few) <= MOST_NAMED else f"{len(few)} of {len(groups)} {several}"
            told.append(
                f"{found.task} by {level}: left out of the tables, as nothing can be told of fewer than "
                f"{LEAST_SHOWN} questions: {which}."
            )
    return told


def _worth(several: Sequence[Tradeoff]) -> Grid:
    rows = [(found, cell) for found in several for cell in found.whole.cells]
    name = COMPONENT_NAMES[several[0].component]
    columns = [
        Column("accuracy or score, %", tuple(_good(cell) for _, cell in rows)),
        quantity_column("J per answer", [cell.energy_per_answer_j for _, cell in rows]),
        quantity_column("J per correct answer", [cell.energy_per_correct_answer_j for _, cell in rows]),
        quantity_column("correct answers per kJ", [cell.correct_answers_per_kj for _, cell in rows]),
    ]
    if any(found.places for found in several):
        columns.append(Column("optimal, % of samples", tuple(_place(cell.key, found) for found, cell in rows)))
    names = [(found.task, way(cell.key, found)) for found, cell in rows]
    grid = lay_out(f"Accuracy against joules, {name}", [c.key for _, c in rows], columns, [HOW_TO_READ], names)
    return replace(grid, absolute=True, of="answered by")


def _good(cell: Worth) -> Shown:
    return Shown("not scored") if cell.quality.value is None else in_words(cell.quality, None, 100.0)


def _place(key: CellKey, found: Tradeoff) -> Shown:
    place = next((p for p in found.places if p.key == key), None)
    if place is None:
        return Shown("–")
    often = "–" if place.frequency is None else _share(place.frequency).removesuffix(" %")
    return Shown(often, mark="optimal" if place.optimal else None)


def _against(several: Sequence[Tradeoff]) -> Grid:
    rows = [(f, cell, cell.against) for f in several for cell in f.whole.cells if cell.against is not None]
    baselines = dict.fromkeys(way(against.baseline, f) for f, _, against in rows)
    told = [_RELATIVE, AMONG]
    if any(against.lost is not None for *_, against in rows):
        told.insert(1, "Lost and gained: questions that the baseline has right and this way wrong, and the reverse.")
    grid = lay_out(
        f"Against {listed(list(baselines))}",
        [cell.key for _, cell, _ in rows],
        (
            Column("gain, points", tuple(_points(against) for *_, against in rows)),
            Column("gain, %", tuple(_signed(a.quality_relative, 100.0, None) for *_, a in rows)),
            Column("lost / gained", tuple(_moved(against) for *_, against in rows)),
            Column("energy change, %", tuple(_more_energy(against) for *_, against in rows)),
        ),
        told,
        [(f.task, way(cell.key, f)) for f, cell, _ in rows],
    )
    return replace(grid, of="answered by")


def _points(against: Against) -> Shown:
    return _signed(against.quality_difference, 100.0, against.quality_verdict)


def _more_energy(against: Against) -> Shown:
    modelled = against.energy_relative.provenance == "modelled"
    return _signed(against.energy_relative, 100.0, "modelled" if modelled else against.energy_verdict)


def _signed(quantity: Quantity, factor: float, mark: str | None) -> Shown:
    shown = in_words(quantity, mark, factor)
    return replace(shown, main=f"+{shown.main}") if (quantity.value or 0.0) > 0.0 else shown


def _moved(against: Against) -> Shown:
    return Shown("–" if against.lost is None else f"{against.lost:,} / {against.gained:,}")


def _beaten_grid(several: Sequence[Tradeoff]) -> Grid:
    rows = [(f, one) for f in several for one in f.dominances]
    grid = lay_out(
        "Beaten: another is at least as accurate for at most its joules",
        [one.loser for _, one in rows],
        (
            Column("by", tuple(Shown(way(one.winner, f), _often(one)) for f, one in rows)),
            Column("at so much of its joules", tuple(Shown(figure(one.energy_ratio)) for _, one in rows)),
            Column("accuracy more, points", tuple(Shown(figure(100 * one.quality_difference)) for _, one in rows)),
            Column("groups where more / as / less accurate", tuple(Shown(_counts(one)) for _, one in rows)),
        ),
        [f"Groups: {listed([*dict.fromkeys(f'{f.task} by {one.level}' for f, one in rows if one.level)])}."]
        if any(one.level for _, one in rows)
        else [],
        [(f.task, way(one.loser, f)) for f, one in rows],
    )
    return replace(grid, of="beaten")


def _often(one: Dominance) -> str | None:
    return None if one.frequency is None else f"in {_share(one.frequency)} of samples"


def _counts(one: Dominance) -> str:
    return f"{one.ahead} / {one.even} / {one.behind}" if one.level else "–"


def _steps(several: Sequence[Tradeoff]) -> Grid:
    rows = [(f, curve, step) for f in several for curve in f.curves for step in curve.steps]

    def column(heading: str, tell: Callable[[Step], Quantity], factor: float = 1.0) -> Column:
        return quantity_column(heading, [tell(step) for *_, step in rows], factor)

    grid = lay_out(
        "What a larger size buys",
        [curve.keys[0] for _, curve, _ in rows],
        (
            column("accuracy gained, points", lambda step: step.quality_difference, 100.0),
            column("J more per answer", lambda step: step.energy_j),
            column("points per kJ", lambda step: step.points_per_kj),
        ),
        names=[(curve_name(curve, f), f"{step.smaller} → {step.larger}") for f, curve, step in rows],
    )
    return replace(grid, absolute=True, of="from, to")


def _where_to_stop(several: Sequence[Tradeoff]) -> Grid:
    rows = [(f, curve, advice) for f in several if f.measured for curve in f.curves for advice in _worth_telling(curve)]
    grid = lay_out(
        "Where to stop",
        [curve.keys[0] for _, curve, _ in rows],
        (Column("enough", tuple(_enough(advice) for *_, advice in rows)),),
        [f"Enough: the size with the most accuracy, {_price(rows[0][0])}; of equals the one with the fewest joules."]
        if rows
        else [],
        [(curve_name(curve, f), "all" if a.level == WHOLE else a.name) for f, curve, a in rows],
    )
    return replace(grid, of="questions")


def _worth_telling(curve: BudgetCurve) -> list[Advice]:
    return [one for one in curve.advice if one.level == WHOLE or one.questions >= LEAST_SHOWN]


def _enough(advice: Advice) -> Shown:
    if advice.best is None:
        mark = None if advice.why == NONE_RIGHT else TOO_FEW_MARK
        return Shown("–", advice.why, mark, advice.questions)
    often = f"the best in {_share(advice.frequency)} of samples"
    if len(advice.may_be) > 1:
        others = listed([size for size in advice.may_be if size != advice.best], "or")
        return Shown(advice.best, f"{often}; or {others}", "cannot tell", advice.questions)
    return Shown(advice.best, often, None, advice.questions)


def _price(found: Tradeoff) -> str:
    if found.points_per_kj:
        return f"less {figure(found.points_per_kj)} points for each kilojoule of an answer"
    return "whatever its joules (--worth states what a kilojoule must buy)"


def curve_name(curve: BudgetCurve, found: Tradeoff) -> str:
    """A curve's task and what grows along it."""
    kind, _, rest = curve.keys[-1].reasoning.partition(f"-{curve.sizes[-1]}")
    words = {"budget": "tokens to think", "vote": "votes", "cot": "tokens for steps", "few-shot": "examples"}
    apart = way(curve.keys[-1], found).partition(", ")[2]
    return f"{found.task}: {words.get(kind, kind)}{f' ({rest[1:]})' if rest else ''}{f', {apart}' if apart else ''}"


def _frontier(found: Tradeoff) -> list[str]:
    """Where the frontier runs, or why there is none."""
    cells, n = found.whole.cells, found.questions
    if found.measure is None:
        joules = ", ".join(f"{way(cell.key, found)} {value(cell.energy_per_answer_j)}" for cell in cells)
        return [
            f"Nothing judges these answers, so joules alone are told, per answer over {counted(n, 'question')}: "
            f"{joules}."
        ]
    best = max(cells, key=lambda cell: cell.quality.value or 0.0)
    what = _measure(found)
    if not best.quality.value:
        bound = "" if best.quality.upper is None else f"; at most {_percent(best.quality.upper)} is (95 %)"
        return [f"No way has any of {counted(n, 'question')} right{bound}: whatever a way costs, it buys nothing here."]
    if not found.places:
        return [
            f"The highest {what}: {way(best.key, found)} with {_with_interval(best.quality)}, over "
            f"{counted(n, 'question')}. "
            f"The joules are {'modelled' if _modelled(cells) else 'not known'}, so that there is no frontier."
        ]
    on_it = sorted(
        ((cell, place) for cell, place in zip(cells, found.places, strict=True) if place.optimal),
        key=lambda pair: pair[0].quality.value or 0.0,
    )
    steps = [
        f"{way(cell.key, found)} ({_percent(cell.quality.value)}, {value(cell.energy_per_answer_j)} J"
        + ("" if place.frequency is None else f"; on it in {_share(place.frequency)} of samples")
        + ")"
        for cell, place in on_it
    ]
    energy = "joules" if found.component == "total" else f"{COMPONENT_NAMES[found.component]} joules"
    return [
        f"On the frontier of {what} against {energy} per answer, over {counted(n, 'question')}: "
        f"{', then '.join(steps)}."
    ]


def _changes(found: Tradeoff) -> list[str]:
    """Who is clearly better or worse than its baseline, and at how many times its joules; and who cannot be told."""
    told: dict[str, list[str]] = {}
    for cell in found.whole.cells:
        against = cell.against
        if against is None or against.quality_verdict is None:
            continue
        times = _times(against.energy_relative)
        base = f" than {way(against.baseline, found)}"
        if against.quality_verdict == "cannot tell":
            head = f"Whether more or less accurate{base} cannot be told"
            told.setdefault(head, []).append(f"{way(cell.key, found)}{f' ({times})' if times else ''}")
        else:
            head = f"{'More' if against.quality_verdict == 'better' else 'Less'} accurate{base}"
            points = figure(100 * abs(against.quality_difference.value or 0.0))
            told.setdefault(head, []).append(
                f"{way(cell.key, found)} by {points} points{f' for {times}' if times else ''}"
            )
    return [f"{head}: {'; '.join(ways)}." for head, ways in told.items()]


def _beaten(found: Tradeoff) -> list[str]:
    sure = [d for d in found.dominances if d.frequency is not None and d.frequency >= SURE]
    sure.sort(key=lambda d: d.energy_ratio)
    told = [_dominance(d, found) for d in sure[:MOST_BEATEN]]
    if len(sure) > MOST_BEATEN:
        told.append(f"As surely beaten: {len(sure) - MOST_BEATEN:,} more, in the table.")
    return told


def _dominance(one: Dominance, found: Tradeoff) -> str:
    quality = {cell.key: cell.quality.value for cell in found.whole.cells}
    better = "and is as accurate" if quality[one.winner] else "and has no answer right either"
    if one.quality_difference > 0.0:
        better = f"and is {figure(100 * one.quality_difference)} points more accurate"
    where = ""
    groups = one.ahead + one.even + one.behind
    if groups > 1 and one.quality_difference > 0.0:
        name = {"category": "categories", "subcategory": "subcategories"}[one.level or "category"]
        where = f"; more accurate in {one.ahead} of {groups} {name}, less in {one.behind or 'none'}"
    return (
        f"{way(one.winner, found)} beats {way(one.loser, found)}: it takes {figure(one.energy_ratio)} of the joules "
        f"{better} (in {_share(one.frequency)} of samples{where})."
    )


def _stop(curve: BudgetCurve, advice: Advice, found: Tradeoff) -> str:
    name = curve_name(curve, found).partition(": ")[2]
    buys = f"less than {figure(curve.points_per_kj)} points per kJ" if curve.points_per_kj else "no more accuracy"
    often = f"the best in {_share(advice.frequency)} of samples"
    name = name[0].upper() + name[1:]
    if len(advice.may_be) > 1:
        return f"{name}: where another joule begins to buy {buys} cannot be told: at {listed(advice.may_be, 'or')}."
    if advice.best == curve.keys[-1].reasoning:
        return f"{name}: up to {advice.best}, the largest that was run, each is worth its joules ({often})."
    return f"{name}: beyond {advice.best} another joule buys {buys} ({often})."


def _reached(found: Tradeoff) -> list[str]:
    reach = found.reach
    if reach is None:
        if found.to_reach is None:
            return []
        why = "nothing judges the answers" if found.measure is None else "these joules are not all measured"
        return [f"The cheapest that reaches {_percent(found.to_reach)} cannot be told: {why}."]
    target = _percent(reach.target)
    if reach.key is None:
        return [f"No way reaches {target}."]
    cell = next(cell for cell in found.whole.cells if cell.key == reach.key)
    often = ""
    if reach.frequency is not None:
        often = f"; it reaches it in {_share(reach.frequency)} of samples, as the cheapest in {_share(reach.cheapest)}"
    return [
        f"The cheapest that reaches {target}: {way(reach.key, found)} ({_percent(cell.quality.value)}, "
        f"{value(cell.energy_per_answer_j)} J{often})."
    ]


def _left_out(found: Tradeoff) -> list[str]:
    return [f"Left out: {way(key, found)} ({reason})." for key, reason in found.left_out]


def _measure(found: Tradeoff) -> str:
    return ACCURACY if found.measure == ACCURACY else f"score ({found.measure})"


def _modelled(cells: Iterable[Worth]) -> bool:
    return any(cell.energy_per_answer_j.provenance == "modelled" for cell in cells)


def _times(relative: Quantity) -> str:
    """Joules over the baseline's, in words; nothing where they are not known."""
    if relative.value is None:
        return ""
    return f"{figure(1.0 + relative.value)} times the {'modelled ' * (relative.provenance == 'modelled')}joules"


def _with_interval(quantity: Quantity) -> str:
    between = interval(quantity, 100.0)
    return _percent(quantity.value) + (f" ({between})" if between else f" ({NO_INTERVAL})")


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{figure(100 * share)} %"


def _share(share: float | None) -> str:
    """How often, in whole per cent, without rounding to never or always."""
    if share is None:
        return "unknown"
    if 0.0 < share < 0.01:
        return "under 1 %"
    return "over 99 %" if 0.99 < share < 1.0 else f"{100 * share:.0f} %"
