"""Why a decoding pays or not, in sentences and tables; ``docs/explain.md`` says what stands behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from joulewise.analysis.begun import GO_ON
from joulewise.analysis.breakeven import NO_SAVING, BreakEven
from joulewise.analysis.cells import VANILLA
from joulewise.analysis.explain import Best, Explanation, Needs
from joulewise.analysis.intervals import Quantity
from joulewise.report.grid import Column, Grid, Shown, in_words, lay_out, quantity_column
from joulewise.report.phases import phase_grids
from joulewise.report.summary import Section, Summary, sections
from joulewise.report.summary import to_json as summary_to_json
from joulewise.report.text import COMPONENT_NAMES, figure, listed

HOW_TO_READ = (
    "Tokens per round: those that a round of speculation keeps, its bonus token in, the prompt's first token and what "
    "lies past the end out. Needed: how many of them break even with plain decoding: what a round costs over what a "
    "plain step costs. A round's cost holds everything beyond vanilla's prefill, rejected drafts too. Net: idle power "
    "times seconds taken off every term, for a device that stays on anyway."
)

FORETOLD = 0.01
"""A saving that differs by more than this from the one that the costs foretell is told."""


def energy_name(found: Explanation) -> str:
    """``GPU energy``, or ``energy`` for the total."""
    return "energy" if found.component == "total" else f"{COMPONENT_NAMES[found.component]} energy"


def sentences(section: Section) -> list[str]:
    """One plain sentence for each decoding and task, what would have to change, and which size is best."""
    told = [] if section.explanations else [_nothing(section)]
    for found in section.explanations:
        told.append(f"{found.key.decoding} on {found.key.task} {explanation(found)}.")
        if change := _change(found):
            told[-1] += f" {change}"
    return told + [f"{_best(one)}." for one in section.best]


def refusal(summary: Summary) -> str | None:
    """Why nothing can be explained, and what to do, a sentence a run or section; None where something can.

    Where vanilla is all that was planned nothing is missing, and nothing is refused.
    """
    if not any(run.ok for run in summary.runs):
        return "\n".join(
            f"{run.name} has no successful Trial: "
            + (
                f"all {run.failed:,} failed, most with: {run.errors[0][0]}"
                if run.failed
                else "it holds no Trial at all"
            )
            + ". Mend it and run it again"
            for run in summary.runs
        )
    found = sections(summary)
    if not found and summary.under_load:
        return (
            "This is a run under load, where requests share the server's rounds: `joulewise report` says where saving "
            "turns into loss; to explain a decoding, ask the questions one by one (a plan without `loads`)"
        )
    if summary.explanations or any(_whole_without_drafts(section) for section in found):
        return None
    several = len(found) > 1
    return "\n".join(
        f"{s.run}{f', {s.engine}, {s.reasoning}' if several else ''}: {_nothing(s).rstrip('.')}" for s in found
    )


def _ran(section: Section) -> set[str]:
    return {cost.key.decoding for cost in section.costs}


def _whole_without_drafts(section: Section) -> bool:
    return _ran(section) == {VANILLA} and not section.not_begun


def _nothing(section: Section) -> str:
    ran, waiting = _ran(section), list(dict.fromkeys(key.decoding for key in section.not_begun))
    if VANILLA not in ran and VANILLA in waiting:
        return (
            "Nothing to explain: the run was stopped before any Trial of vanilla, which every decoding is held "
            f"against; {GO_ON}."
        )
    if VANILLA not in ran:
        return (
            "Nothing to explain: no Trial of vanilla is there to compare with; add `vanilla` to the plan's decodings "
            "and run it again, or, where it was left out as polluted, do without --without-polluted."
        )
    if ran == {VANILLA} and waiting:
        return (
            f"Nothing to explain: the run was stopped before any Trial of {listed(waiting)}, and vanilla alone does "
            f"not speculate; {GO_ON}."
        )
    if ran == {VANILLA}:
        return "Nothing to explain: vanilla is the only decoding, and it does not speculate."
    return (
        "Nothing to explain: no decoding that speculates has an answer beside vanilla's; `joulewise report` says why "
        "Trials failed."
    )


def to_json(summary: Summary) -> dict[str, Any]:
    """The explanations as plain data, with their sentences; what is not known is None."""
    plain = summary_to_json(summary)
    kept = {
        name: plain[name]
        for name in ("format_version", "joulewise", "explanations", "best", "phases", "phase_energy", "warnings")
    }
    told = [
        {"run": s.run, "engine": s.engine, "model": s.model, "reasoning": s.reasoning, "sentences": sentences(s)}
        for s in sections(summary)
    ]
    return kept | {"sections": told}


def explanation(found: Explanation) -> str:
    """What a decoding needs, what it reaches and what that means: ``needs 2.1 tokens a round to save time ...``."""
    time, energy, name = found.time, found.gross, energy_name(found)
    if time.length.value is None:
        return f"cannot be explained: {time.length.reason}"
    told = [(time, "time")]
    if energy.verdict is not None:
        told.append((energy, name))
    needs = [f"{figure(be.needed.value)} to save {what}" for be, what in told if be.needed.value is not None]
    never = [what for be, what in told if be.needed.reason == NO_SAVING]
    words = [f"needs {' and '.join(needs).replace(' to', ' tokens a round to', 1)}"] if needs else []
    words += [f"cannot save {' or '.join(never)} with any number of tokens a round"] if never else []
    sentence = f"{', '.join(words)}, reaches {figure(time.length.value)}: {_effects(told)}"
    if time.needed.upper is not None and time.needed.upper < 1.0:
        sentence += "; but a round holds a plain step and cannot take less: other work disturbed the times"
    if energy.verdict is None:
        why = (
            "its joules are modelled, not measured" if energy.needed.provenance == "modelled" else energy.needed.reason
        )
        return f"{sentence}; {name}: cannot tell ({why})"
    sentence += f"{', because' if time.verdict != energy.verdict else ';'} {_power(energy.power)}"
    if found.net.verdict not in (None, "cannot tell", energy.verdict):
        sentence += f"; above idle power: {_saved_words(found.net.measured.value)} {name}"
    return sentence


def _effects(told: Sequence[tuple[BreakEven, str]]) -> str:
    """``9 % less time and 13 % more energy``, of the whole answer; with the interval where it cannot be told."""
    clear = [f"{_saved_words(be.measured.value)} {what}" for be, what in told if be.verdict != "cannot tell"]
    unclear = [f"{what} ({_between(be.measured)})" for be, what in told if be.verdict == "cannot tell"]
    return ", ".join(
        [
            *([" and ".join(clear)] if clear else []),
            *([f"cannot tell whether it saves {' or '.join(unclear)}"] if unclear else []),
        ]
    )


def _between(saved: Quantity) -> str:
    words = _saved_words(saved.value)
    if saved.lower is None or saved.upper is None:
        return f"{words}; no interval: {saved.reason}"
    return f"{words}; 95 %: {_saved_words(saved.lower)} to {_saved_words(saved.upper)}"


def _saved_words(saved: float | None) -> str:
    if saved is None:
        return "unknown"
    return f"{figure(abs(saved) * 100)} % {'less' if saved >= 0 else 'more'}"


def _power(power: Quantity) -> str:
    if power.value is None:
        return f"a round's power is not known ({power.reason})"
    if power.lower is not None and power.upper is not None and power.lower <= 1.0 <= power.upper:
        return f"a round draws about the power of a plain step ({figure(power.value)} times)"
    return f"a round draws {figure(power.value)} times the power of a plain step"


def _change(found: Explanation) -> str | None:
    """What would have to be otherwise for it to save what it does not save."""
    told = []
    for be, needs, what in (
        (found.time, found.time_needs, "time"),
        (found.gross, found.energy_needs, energy_name(found)),
    ):
        if be.verdict in ("costs", "cannot tell") and needs.cheaper_round is not None:
            told.append(_way(found, needs, what))
    return " ".join(told) or None


def _way(found: Explanation, needs: Needs, what: str) -> str:
    assert needs.cheaper_round is not None
    rounds = f"rounds that {'take' if what == 'time' else 'draw'} {figure(needs.cheaper_round * 100)} % less"
    ways = [f"a draft that costs {figure(needs.cheaper_draft * 100)} % less"] if needs.cheaper_draft is not None else []
    if found.acceptance is not None and needs.acceptance is None:
        return f"To save {what} no acceptance is enough: it would need {' or '.join([*ways, rounds])}."
    if found.acceptance is not None:
        ways.insert(0, f"an acceptance of {needs.acceptance:.2f} per token instead of {found.acceptance:.2f}")
    return f"To save {what} it would need {', '.join(ways)}{' or ' if ways else ''}{rounds}."


def _best(found: Best) -> str:
    told = f"{found.family} on {found.task}: {found.decoding} takes the least {found.currency} per output token"
    if found.as_good:
        told += f", and {listed(found.as_good)} cannot be told from it"
    return told


def explain_grids(section: Section) -> tuple[Grid, ...]:
    """The break-even, its costs, what they save, and where seconds and joules go; those without rows left out."""
    grids = [grid for grid in (_break_even(section), _costs(section), _saved(section)) if grid.rows]
    return (*grids, *phase_grids(section))


def _break_even(section: Section) -> Grid:
    found = section.explanations
    name = COMPONENT_NAMES[section.component]
    return lay_out(
        "Where it begins to pay",
        [e.key for e in found],
        (
            quantity_column("tokens per round", [e.time.length for e in found]),
            _needed_column("needed to save time", [e.time for e in found]),
            _needed_column(f"needed to save {name} energy", [e.gross for e in found]),
            _needed_column(f"needed to save net {name} energy", [e.net for e in found]),
            Column("rejected", tuple(Shown(_rejected(e)) for e in found)),
        ),
        [*dict.fromkeys(f"{_capital(be.note)}." for e in found for be in (e.gross, e.net) if be.note), HOW_TO_READ],
    )


def _costs(section: Section) -> Grid:
    found = section.explanations
    name = COMPONENT_NAMES[section.component]
    grid = lay_out(
        "What rounds and plain steps cost",
        [e.key for e in found],
        (
            quantity_column("ms per round", [e.time.round for e in found], 1000.0),
            quantity_column("ms per plain step", [e.time.step for e in found], 1000.0),
            quantity_column(f"J per round, {name}", [e.gross.round for e in found]),
            quantity_column(f"J per plain step, {name}", [e.gross.step for e in found]),
            quantity_column("power, round / step", [e.gross.power for e in found]),
        ),
    )
    return replace(grid, absolute=True)


def _saved(section: Section) -> Grid:
    found = section.explanations
    name = COMPONENT_NAMES[section.component]
    return lay_out(
        "What it saves, % of the whole answer (below 0 it costs more)",
        [e.key for e in found],
        (
            quantity_column("time", [e.time.measured for e in found], 100.0),
            quantity_column(f"{name} energy", [e.gross.measured for e in found], 100.0),
            quantity_column(f"net {name} energy", [e.net.measured for e in found], 100.0),
        ),
        _foretold(found),
    )


def _foretold(found: Sequence[Explanation]) -> list[str]:
    """Where what the costs foretell is not what was measured: outputs of other lengths than vanilla's."""
    told = []
    for e in found:
        for be, what in ((e.time, "time"), (e.gross, energy_name(e))):
            if be.saving.value is None or be.measured.value is None:
                continue
            if abs(be.saving.value - be.measured.value) > FORETOLD:
                told.append(
                    f"{e.key.task}, {e.key.decoding}: by the costs of its rounds {figure(100 * be.saving.value)} % of "
                    f"the {what}; its outputs have other lengths than vanilla's."
                )
    return told


def _needed_column(heading: str, found: Sequence[BreakEven]) -> Column:
    """Thresholds with their verdicts; "none is enough" where no length is."""
    column = quantity_column(heading, [be.needed for be in found])
    if column.unknown is not None:
        return column
    figures = []
    for be in found:
        if be.needed.reason == NO_SAVING:
            figures.append(Shown("none is enough", mark=_mark(be), n=be.needed.n_questions))
        else:
            figures.append(in_words(be.needed, _mark(be)))
    return replace(column, figures=tuple(figures))


def _mark(found: BreakEven) -> str | None:
    if found.needed.provenance == "modelled":
        return "modelled"
    return found.verdict


def _rejected(found: Explanation) -> str:
    return "nothing was drafted" if found.rejected_share is None else f"{figure(100 * found.rejected_share)} %"


def _capital(text: str | None) -> str:
    return "" if text is None else text[0].upper() + text[1:]
