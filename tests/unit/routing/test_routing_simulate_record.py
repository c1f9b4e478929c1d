"""What `benchmarks/routing_simulation.py` recorded holds together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

RECORD = Path(__file__).parents[3] / "results" / "simulated" / "routing.json"
LOADS = json.loads(RECORD.read_text(encoding="utf-8"))["loads"]


@pytest.mark.parametrize("load", LOADS, ids=lambda load: f"speed {load['speed']:g}")
def test_every_router_took_all_requests_and_savings_follow_from_joules(load: dict) -> None:  # type: ignore[type-arg]
    routers = {one["name"]: one for one in load["routers"]}
    base = routers["strong"]
    assert len({one["requests"] for one in routers.values()}) == 1
    for name, one in routers.items():
        assert sum(one["shares"].values()) == pytest.approx(1.0)
        if name != "strong":
            against = one["against"]
            assert against["saved"] == pytest.approx(1 - one["energy_j"] / base["energy_j"])
            assert against["saved_interval"][0] <= against["saved"] <= against["saved_interval"][1]
            assert against["lost"] == pytest.approx(base["accuracy"] - one["accuracy"], abs=1e-9)
    assert routers["oracle"]["accuracy"] >= max(one["accuracy"] for one in routers.values()) - 1e-12
