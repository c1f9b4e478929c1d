"""Tables of where the seconds and the joules of a generation go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from joulewise.analysis.intervals import Quantity
from joulewise.analysis.phase_energy import CellPhases, PhaseEnergy
from joulewise.analysis.phases import OVERHEAD, OVERHEAD_OF_THE_PAPER, PhaseShares
from joulewise.engines.engine import PHASES
from joulewise.report.grid import Column, Grid, Shown, in_words, lay_out, quantity_column
from joulewise.report.summary import Section
from joulewise.report.text import COMPONENT_NAMES, common_reason, figure, interval, listed

SECONDS_NOTE = (
    "Overhead: accept, memory and host together; arXiv 2602.09113 tells "
    f"{OVERHEAD_OF_THE_PAPER[0]:.0%} to {OVERHEAD_OF_THE_PAPER[1]:.0%} of the time for it, and no joules."
)

JOULES_NOTE = (
    "No meter sees a phase of milliseconds: a row is its seconds times the power that fits the joules of all Trials "
    "best, one for each phase (for drafts and the target's forwards after the prompt: one for each family of "
    "decodings). Closure error: by how much the rows' sum misses the measured joules of answers that the fit has not "
    "seen."
)

CLOSURE = 0.01
"""Phases that miss more of the Trials' windows than this are told."""

_ABSENT = Shown("–")


def phase_grids(section: Section) -> tuple[Grid, ...]:
    """Seconds by phase, then joules by phase; those without rows left out."""
    energy = section.phase_energy
    grids = [_seconds(section), _overhead_seconds(section)]
    if energy is not None and energy.reason is None:
        grids += [joules(energy), _overhead_joules(energy)]
    return tuple(grid for grid in grids if grid.rows)


def _seconds(section: Section) -> Grid:
    found, energy = section.phases, section.phase_energy
    notes = [SECONDS_NOTE] + [
        f"{p.key.task}, {p.key.decoding}: the phases are {figure(100 * (1 + p.closure))} % of the Trials' seconds."
        for p in found
        if abs(p.closure) > CLOSURE
    ]
    if energy is not None and energy.reason is not None:
        notes.append(f"Joules by phase: not resolvable ({energy.reason}).")
    columns = [_seconds_column(found, phase) for phase in PHASES if phase not in OVERHEAD]
    overhead = quantity_column("overhead", [p.overhead for p in found], 100.0)
    return lay_out("Where the seconds go, %", [p.key for p in found], (*columns, overhead), notes)


def _overhead_seconds(section: Section) -> Grid:
    found = section.phases
    name = COMPONENT_NAMES[section.component]
    columns = [_seconds_column(found, phase) for phase in OVERHEAD]
    prefill = quantity_column(f"{name} joules up to the first token, %", [p.prefill_energy for p in found], 100.0)
    return lay_out(
        "The overhead, % of all seconds; and the prefill's joules", [p.key for p in found], (*columns, prefill)
    )


def _seconds_column(found: Sequence[PhaseShares], phase: str) -> Column:
    return Column(_plain(phase), tuple(Shown(f"{100 * p.shares[phase]:.1f}") for p in found))


def joules(energy: PhaseEnergy) -> Grid:
    """The joules of every phase, the overhead's together; ``energy`` without a ``reason``."""
    found = energy.cells
    columns = [_joules_column(found, phase) for phase in PHASES if phase not in OVERHEAD]
    overhead = _column("overhead", [cell.overhead for cell in found], [_resolvable(cell.overhead) for cell in found])
    closure = quantity_column("closure error", [cell.closure for cell in found], 100.0)
    title = f"Where the {COMPONENT_NAMES[energy.component]} joules go, %"
    return lay_out(title, [cell.key for cell in found], (*columns, overhead, closure), [_powers(energy), JOULES_NOTE])


def _overhead_joules(energy: PhaseEnergy) -> Grid:
    found = energy.cells
    columns = [_joules_column(found, phase) for phase in OVERHEAD]
    if energy.idle_w is not None:
        shown = tuple(Shown(f"{100 * (cell.idle_share or 0.0):.1f}") for cell in found)
        columns.append(Column("the same seconds at idle power", shown))
    title = f"The overhead, % of all {COMPONENT_NAMES[energy.component]} joules"
    return lay_out(title, [cell.key for cell in found], columns)


def _joules_column(found: Sequence[CellPhases], phase: str) -> Column:
    told, figures = [], []
    for cell in found:
        row = next((row for row in cell.rows if phase in row.phases), None)
        if row is None:
            figures.append(_ABSENT)
        elif row.phases[0] != phase:
            figures.append(Shown(f"with {_plain(row.phases[0])}"))
        else:
            figures.append(_resolvable(row.share))
            told.append(row.share)
    return _column(_plain(phase), told, figures)


def _column(heading: str, told: Sequence[Quantity], figures: Sequence[Shown]) -> Column:
    """A column; where nothing in it is resolvable, for one reason, that reason in its place."""
    return Column(heading, tuple(figures), common_reason(told) if len(told) == len(figures) else None)


def _resolvable(share: Quantity) -> Shown:
    shown = in_words(share, None, 100.0)
    return replace(shown, main="not resolvable") if share.value is None else shown


def _powers(energy: PhaseEnergy) -> str:
    """Every fitted power in one sentence, idle power last."""
    told, open_ = [], []
    for one in energy.powers:
        name = " + ".join(_plain(phase) for phase in one.phases)
        if one.power_w.value is None:
            open_.append(name)
        else:
            told.append(f"{name} {figure(one.power_w.value)} W ({interval(one.power_w)})")
    parts = [
        *([", ".join(told)] if told else []),
        *([f"not resolvable: {listed(open_)}"] if open_ else []),
        *([f"idle power is {figure(energy.idle_w)} W"] if energy.idle_w is not None else []),
    ]
    return f"Fitted: {'; '.join(parts)}. The sensor's gain and offset are the same in all of these and left out."


def _plain(phase: str) -> str:
    return phase.replace("_", " ")
