"""Net joules and the counter's check in a report: shown where they were measured, and warned about where it matters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from joulewise.report import markdown
from joulewise.report.grid import Grid
from joulewise.report.grids import grids
from joulewise.report.summary import Summary, sections, summarise, to_json
from joulewise.report.text import run_lines, trust_notes
from synthetic_table import part, row, table


def report(**environment: Any) -> Summary:
    rows = [row(question=f"q{i}", energy=[part("gpu", 36.0)], duration_s=2.0) for i in range(10)]
    return summarise(table(rows, environments={"r": environment}))


def idle(power_w: float, when: str) -> dict[str, Any]:
    return {
        "engine": "e",
        "when": when,
        "component": "gpu",
        "power_w": power_w,
        "independent_w": 0.1,
        "provenance": "measured",
    }


def net_table(summary: Summary) -> Grid | None:
    (section,) = sections(summary)
    return next((grid for grid in grids(section, summary) if grid.title.startswith("Net joules")), None)


def test_net_joules_stand_in_a_table_of_their_own() -> None:
    summary = report(idle=[idle(9.0, "before"), idle(11.0, "after")])
    grid = net_table(summary)
    assert grid.columns == ("net J per output token", "net J per answer")
    assert [figure.main for figure in grid.rows[0].figures] == ["1.60", "16.0"]
    assert "idle power (total 10.0 W, 2.00 W more after the Trials than before)" in grid.notes[0]
    assert len(grid.notes) == 1
    falling = net_table(report(idle=[idle(11.0, "before"), idle(9.5, "after")]))
    assert "1.50 W less after the Trials than before" in falling.notes[0]
    assert "Net joules, total" in markdown.render(summary)


def test_idle_power_read_on_one_side_only_is_said() -> None:
    grid = net_table(report(idle=[idle(10.0, "before")]))
    assert "its drift is not in the intervals" in grid.notes[1]


@pytest.mark.parametrize("readings", [[], [idle(10.0, "before") | {"engine": "another"}], None])
def test_no_net_table_without_idle_power(readings: Any) -> None:
    assert net_table(report(idle=readings)) is None


def check(gap: Any, source_id: str = "nvml:1") -> dict[str, Any]:
    return {"source_id": source_id, "counter_j": 1000.0, "trace_j": 1000.0 * (1 + gap), "gap": gap, "duration_s": 90.0}


def checked(*gaps: float) -> Summary:
    source = {
        "source_id": "nvml:1",
        "component": "gpu",
        "device": "NVIDIA H200",
        "provenance": "measured",
        "gain": 0.05,
    }
    return report(sources=[source], cross_check=[check(gap) for gap in gaps])


@pytest.mark.parametrize(
    ("gap", "line", "warned"),
    [
        (0.00001, "NVIDIA H200: power readings integrate to what the counter says", False),
        (0.0012, "NVIDIA H200: power readings integrate to 0.120 % more than the counter says", False),
        (-0.0299, "NVIDIA H200: power readings integrate to 2.99 % less than the counter says", False),
        (0.042, "NVIDIA H200: power readings integrate to 4.20 % more than the counter says", True),
        (-0.042, "NVIDIA H200: power readings integrate to 4.20 % less than the counter says", True),
    ],
)
def test_the_counter_check_is_told_and_a_gap_warned_about(gap: float, line: str, warned: bool) -> None:
    (run,) = checked(gap).runs
    assert ("Counter check", line) in run_lines(run)
    notes = [note for note in trust_notes(run) if "More than 3 % apart" in note]
    assert len(notes) == warned
    if warned:
        assert notes[0].startswith("NVIDIA H200: over 90.0 s the power readings integrate to 4.20 %")
    assert to_json(checked(gap))["runs"][0]["counter_checks"][0]["gap"] == gap


def test_what_a_damaged_check_says_is_left_out() -> None:
    summary = report(cross_check=[3, {}, check(0.1) | {"gap": None}, check(0.001, "rapl:0")])
    assert [c.device for c in summary.runs[0].counter_checks] == ["rapl:0"]
    assert report(cross_check=None).runs[0].counter_checks == ()
    json.dumps(to_json(summary), allow_nan=False)
