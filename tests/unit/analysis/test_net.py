"""Net joules: known answers by hand, what drift does, and what is not known."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.analysis.cells import split
from joulewise.analysis.net import idle_power, idle_powers, idle_readings
from joulewise.analysis.per_token import CellCost, costs
from joulewise.energy.reading import Z95
from joulewise.records import NET_POLICY
from joulewise.report.summary import summarise, to_json
from synthetic_table import part, row, table

QUESTIONS = [f"q{i}" for i in range(10)]


def entry(component: str, power_w: float | None, when: str | None = "before", **more: Any) -> dict[str, Any]:
    usual = {"engine": "e", "component": component, "power_w": power_w, "provenance": "measured", "independent_w": 0.3}
    return usual | ({} if when is None else {"when": when}) | more


def cost(*idle: Any, energy: list[Any] | None = None, duration_s: float = 2.0, n: int = 10) -> CellCost:
    energy = energy or [part("gpu", 36.0, gain=0.02, offset_j=0.5), part("cpu", 14.0)]
    rows = [row(question=q, energy=energy, duration_s=duration_s) for q in QUESTIONS[:n]]
    (found,) = costs(split(table(rows)), environments={"r": {"idle": list(idle)}})
    return found


def test_net_joules_by_hand() -> None:
    # 36 J in 2 s on the GPU, 10 W of it idle; 14 J in the CPU, 4 W idle; 10 output tokens.
    found = cost(entry("gpu", 10.0), entry("cpu", 4.0))
    gpu, cpu, total = (found.component(name).net for name in ("gpu", "cpu", "total"))
    assert gpu.energy_per_answer_j.value == pytest.approx(16.0)
    assert gpu.energy_per_output_token_j.value == pytest.approx(1.6)
    assert cpu.energy_per_answer_j.value == pytest.approx(6.0)
    assert total.energy_per_answer_j.value == pytest.approx(22.0)
    assert (total.idle.power_w, total.idle.drift_w, total.idle.readings) == (14.0, None, 1)
    assert gpu.energy_per_answer_j.provenance == total.energy_per_answer_j.provenance == "measured"
    assert found.component("gpu").energy_per_answer_j.value == 36.0  # gross stays what it was


def test_drift_and_the_readings_own_error_widen_the_interval_and_the_offset_cancels() -> None:
    # 9 W before, 11 W after: 2 / sqrt(12) W of drift, 0.3 / sqrt(2) W of their own; times 2 s, plus 2 % of 16 J.
    found = cost(entry("gpu", 9.0), entry("gpu", 11.0, "after")).component("gpu").net
    assert found.idle.drift_w == pytest.approx(2.0)
    assert found.idle.standard_w == pytest.approx(math.hypot(2.0 / math.sqrt(12), 0.3 / math.sqrt(2)))
    common_j = 0.02 * 16.0 + 2.0 * found.idle.standard_w
    answer = found.energy_per_answer_j
    assert (answer.lower, answer.upper) == pytest.approx((16.0 - Z95 * common_j, 16.0 + Z95 * common_j))
    assert answer.common == pytest.approx(common_j / 16.0)


def test_the_joules_of_idling_are_net_nothing_and_the_interval_says_so() -> None:
    found = cost(entry("gpu", 18.0), energy=[part("gpu", 36.0)]).component("gpu").net.energy_per_answer_j
    assert found.value == pytest.approx(0.0)
    assert found.lower < 0.0 < found.upper
    below = cost(entry("gpu", 20.0), energy=[part("gpu", 36.0)]).component("gpu").net.energy_per_answer_j
    assert below.value == pytest.approx(-4.0)  # told as it is, not cut off


def test_questions_that_differ_widen_the_interval() -> None:
    rows = [row(question=q, energy=[part("gpu", 30.0 + i)], duration_s=2.0) for i, q in enumerate(QUESTIONS)]
    (found,) = costs(split(table(rows)), environments={"r": {"idle": [entry("gpu", 10.0, independent_w=0.0)]}})
    net, gross = found.component("gpu").net.energy_per_answer_j, found.component("gpu").energy_per_answer_j
    assert net.value == pytest.approx(14.5)
    assert (net.lower, net.upper) == pytest.approx((gross.lower - 20.0, gross.upper - 20.0))


def test_without_an_idle_reading_net_is_not_known() -> None:
    found = cost(entry("gpu", 10.0))
    assert found.component("gpu").net.energy_per_answer_j.value is not None
    for name in ("cpu", "total"):  # a total less a part of what idles is not a net total
        net = found.component(name).net
        assert (net.idle, net.energy_per_answer_j.value) == (None, None)
        assert net.energy_per_answer_j.reason == "idle power was not measured"
    assert cost().component("gpu").net.energy_per_output_token_j.reason == "idle power was not measured"


def test_what_is_unknown_gross_is_unknown_net() -> None:
    found = cost(entry("gpu", 10.0), energy=[part("gpu", None)])
    assert found.component("gpu").net.energy_per_answer_j.reason == "the GPU joules could not be read"
    assert found.component("dram").net.energy_per_answer_j.reason == "no memory was metered here"


def test_a_modelled_part_makes_the_net_total_modelled() -> None:
    modelled = [part("gpu", 36.0), part("cpu", 14.0, "modelled")]
    found = cost(entry("gpu", 10.0), entry("cpu", 4.0, provenance="modelled"), energy=modelled)
    kinds = [found.component(name).net.energy_per_answer_j.provenance for name in ("gpu", "cpu", "total")]
    assert kinds == ["measured", "modelled", "modelled"]


def test_few_questions_give_no_interval() -> None:
    found = cost(entry("gpu", 10.0), n=3).component("gpu").net.energy_per_answer_j
    assert (found.value, found.lower, found.reason) == (pytest.approx(16.0), None, "fewer than 5 questions")


def test_readings_of_older_runs_and_of_other_engines() -> None:
    environment = {
        "sources": [{"component": "gpu", "update_period_s": 0.1}, 1],
        "idle": [
            entry("gpu", 120.0, None, independent_w=None, duration_s=5.0),
            entry("gpu", 99.0, engine="another"),
            entry("cpu", None),
            entry("gpu", 120.0, independent_w=None),  # does not say how long, so not how well
            entry("gpu", "120"),
            3,
        ],
    }
    (found,) = idle_readings(environment, "e", "gpu")
    assert (found.when, found.power_w) == ("before", 120.0)
    assert found.standard_w == pytest.approx(120.0 * 0.1 / math.sqrt(6) / 5.0)
    assert set(idle_powers(environment, "e")) == {"gpu"}
    assert idle_powers({}, "e") == {}


@given(powers=st.lists(st.floats(1.0, 500.0), min_size=1, max_size=8))
def test_more_readings_never_leave_the_range_of_what_was_read(powers: list[float]) -> None:
    environment = {"idle": [entry("gpu", p, "after" if i % 2 else "before") for i, p in enumerate(powers)]}
    idle = idle_power(idle_readings(environment, "e", "gpu"))
    assert min(powers) - 1e-9 <= idle.power_w <= max(powers) + 1e-9
    assert idle.standard_w >= (max(powers) - min(powers)) / math.sqrt(12)
    assert (idle.drift_w is None) == (len(powers) == 1)


def test_the_report_s_json_names_the_policy() -> None:
    rows = [row(question=q, energy=[part("gpu", 36.0)], duration_s=2.0) for q in QUESTIONS]
    found = to_json(summarise(table(rows, environments={"r": {"idle": [entry("gpu", 10.0)]}})))
    found = json.loads(json.dumps(found, allow_nan=False))
    assert found["net_policy"] == NET_POLICY
    gpu = next(c for c in found["costs"][0]["components"] if c["component"] == "gpu")
    assert gpu["net"]["idle"]["power_w"] == 10.0
    assert gpu["net"]["energy_per_answer_j"]["value"] == pytest.approx(16.0)
