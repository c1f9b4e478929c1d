"""What does a power limit, or a locked clock, do to joules and seconds at equal decoding?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import ValidationError

from joulewise.analysis.cells import Cell, CellKey, Components
from joulewise.analysis.intervals import Quantity, unknown_quantity
from joulewise.analysis.log_figures import LogFigures, log_figures
from joulewise.energy.card_setting import CardSetting
from joulewise.energy.reading import ComponentName
from joulewise.engines.endpoint_spec import setting_label
from joulewise.plan import Plan
from joulewise.table import RunTable

AS_FOUND = "as found"
"""What an engine ran at that the plan sets nothing for."""


@dataclass(frozen=True, slots=True)
class AtSetting:
    """One cell at one setting of the cards.

    Args:
        setting: in words.
        key: which cell.
        energy, time: factors to the baseline's joules and seconds per output token; below 1 it takes less.
    """

    setting: str
    key: CellKey
    energy: Quantity
    time: Quantity


@dataclass(frozen=True, slots=True)
class SettingTable:
    """One cell of a plan at several settings of the cards: alike in everything else.

    Args:
        run, engine, reasoning, task, decoding: which; the engine without what its setting adds to the label.
        component: whose joules.
        baseline: the setting that the others are held against: the cards as found, else the highest.
        cells: the baseline first.
    """

    run: str
    engine: str
    reasoning: str
    task: str
    decoding: str
    component: ComponentName
    baseline: str
    cells: tuple[AtSetting, ...]


def setting_tables(table: RunTable, cells: Sequence[Cell], components: Components) -> tuple[SettingTable, ...]:
    """Every cell of every run that was measured at several settings of the cards.

    Args:
        table: the plans.
        cells: from one ``split``.
        components: whose joules to tell.
    """
    found = []
    for run in dict.fromkeys(cell.key.run for cell in cells):
        settings = _settings(table, run)
        groups: dict[tuple[str, ...], list[tuple[CardSetting, Cell]]] = {}
        for cell in cells:
            if cell.key.run == run and cell.key.engine in settings:
                engine, setting = settings[cell.key.engine]
                key = (engine, cell.key.reasoning, cell.key.task, cell.key.decoding)
                groups.setdefault(key, []).append((setting, cell))
        for group, of_group in groups.items():
            if len({setting for setting, _ in of_group}) > 1:
                found.append(_table(run, group, sorted(of_group, key=_order), components))
    return tuple(found)


def _settings(table: RunTable, run: str) -> dict[str, tuple[str, CardSetting]]:
    """By an engine's label: what it is called without its setting, and the setting."""
    try:
        plan = Plan.model_validate(table.plans.get(run))
    except ValidationError:
        return {}  # of another version, or made up for a test
    return {
        spec.label: (
            spec.label.removesuffix(setting_label(spec.power_limit_w, spec.locked_sm_clock_hz)),
            CardSetting(spec.power_limit_w, spec.locked_sm_clock_hz),
        )
        for spec in plan.engines
    }


def _order(one: tuple[CardSetting, Cell]) -> tuple[float, float]:
    """As found first, then from the highest on."""
    setting = one[0]
    return -(setting.power_limit_w or np.inf), -(setting.locked_sm_clock_hz or np.inf)


def _table(
    run: str, group: tuple[str, ...], of_group: Sequence[tuple[CardSetting, Cell]], components: Components
) -> SettingTable:
    cells = [cell for _, cell in of_group]
    heads = {components.get(cell.key.head) for cell in cells}
    component: ComponentName = "gpu" if heads == {"gpu"} else "total"
    energy, time = log_figures(cells, component), log_figures(cells, None)
    base = next((key for key in (c.key for c in cells) if key in energy.keys), cells[0].key)
    told = [
        AtSetting(str(setting) or AS_FOUND, cell.key, *(_factor(figures, cell.key, base) for figures in (energy, time)))
        for setting, cell in of_group
    ]
    engine, reasoning, task, decoding = group
    baseline = next(one.setting for one in told if one.key == base)
    return SettingTable(run, engine, reasoning, task, decoding, component, baseline, tuple(told))


def _factor(figures: LogFigures, key: CellKey, base: CellKey) -> Quantity:
    for one in (key, base):
        if one not in figures.keys:
            return unknown_quantity(next((why for left, why in figures.left_out if left == one), "no figures"))
    weights = np.zeros(len(figures.keys))
    weights[figures.keys.index(key)] += 1.0
    weights[figures.keys.index(base)] -= 1.0
    return figures.factor(weights)
