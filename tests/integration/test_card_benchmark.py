"""`benchmarks/card.py` and `record_nvml.py` from end to end, on a fake card in real time; and their figures."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fake_card import IDLE_W, PERIOD_S, WORKING_W, FakeCard, FakeLoad
from joulewise.energy.sources.replay import load_recording
from load_benchmark import load_benchmark

for _name in ("simulated_card", "meter_accuracy", "recorded_loads"):
    load_benchmark(_name)
figures = load_benchmark("card_figures")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCard]:
    """A fake card in the place of ``pynvml``, for modules that are loaded from now on."""
    card = FakeCard()
    monkeypatch.setitem(sys.modules, "pynvml", card)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield card
    for name in ("gpu_load", "record_nvml", "card"):
        sys.modules.pop(name, None)


def modules(*names: str) -> list[ModuleType]:
    return [load_benchmark(name) for name in names]


def small(card: Any) -> Any:
    return card.Sizes(
        settle_s=0.1,
        learn_s=1.6,
        quiet_s=0.3,
        calls=3,
        pairs=3,
        slot_s=0.2,
        still_s=1.7,
        phases=4,
        visits=1,
        bursts=6,
        windows_s=2.0,
        rivals_s=1.0,
        rivals=(),
    )


@pytest.mark.alone
@pytest.mark.slow
def test_all_parts_run_on_a_fake_card_and_the_raw_rows_give_the_same_figures(fake: FakeCard, tmp_path: Path) -> None:
    _, _, card = modules("gpu_load", "record_nvml", "card")
    told, raw, again = tmp_path / "card.json", tmp_path / "card.jsonl", tmp_path / "again.json"
    load = FakeLoad(fake)
    card.main(["--json", str(told), "--raw", str(raw)], load, small(card))
    assert load.closed
    found = json.loads(told.read_text())
    assert list(found) == ["environment", *card.PARTS]
    assert found["added_idle"]["power_w"] == pytest.approx(IDLE_W, rel=0.01)
    assert found["added_steady"]["power_w"] == pytest.approx(WORKING_W, rel=0.01)
    # Bursts by the wall clock: a busy machine stretches them.
    assert 0.3 < found["duty"]["burst_j"] / ((WORKING_W - IDLE_W) * 0.0125) < 3.0
    assert found["windows"]["power_w"] == pytest.approx(WORKING_W, rel=0.02)
    assert {r["length_s"] for r in found["windows"]["lengths"]} >= {0.053, 0.217}
    assert found["cost"]["calls_us"]["throttle reasons"]["absent"] == "Not Supported"
    assert found["rivals"] == []

    card.main(["--json", str(again), "--replay", str(raw)])
    assert json.loads(again.read_text()) | {"rivals": []} == found


def test_a_raw_file_that_was_cut_gives_the_parts_that_are_whole(fake: FakeCard, tmp_path: Path) -> None:
    _, _, card = modules("gpu_load", "record_nvml", "card")
    raw = tmp_path / "card.jsonl"
    rows = [["run", "environment", {"card": "fake"}], ["cost", "quiet", 10.0, 0.1, 0.2]]
    raw.write_text("\n".join(json.dumps(r) for r in rows) + '\n["added_idle","slo')
    card.main(["--json", str(tmp_path / "told.json"), "--replay", str(raw)])
    found = json.loads((tmp_path / "told.json").read_text())
    assert found["cost"]["sampler_cpu_percent"] == pytest.approx(1.0)
    assert "added_idle" not in found


def test_a_part_that_was_cut_is_told_as_such(fake: FakeCard, tmp_path: Path) -> None:
    _, _, card = modules("gpu_load", "record_nvml", "card")
    raw = tmp_path / "card.jsonl"
    rows = [
        ["run", "environment", {"card": "fake"}],
        ["duty", "counter", 10.0, 0.003, 0.1],
        ["cost", "quiet", 10.0, 0.1, 0.2],
    ]
    raw.write_text("\n".join(json.dumps(r) for r in rows) + "\n")
    card.main(["--json", str(tmp_path / "told.json"), "--replay", str(raw)])
    found = json.loads((tmp_path / "told.json").read_text())
    assert found["duty"].keys() == {"failed"}
    assert found["cost"]["sampler_cpu_percent"] == pytest.approx(1.0)


def test_rivals_that_are_not_there_say_so(fake: FakeCard, tmp_path: Path) -> None:
    _, _, card = modules("gpu_load", "record_nvml", "card")
    (tmp_path / "rivals.py").write_text("print('\"not installed (no module)\"', flush=True)")
    absent, broken = card.Rival("zeus", tmp_path / "rivals.py"), card.Rival("codecarbon", tmp_path / "missing.py")
    for rival in (absent, broken):
        rival.end(20.0)
    assert absent.absent == "not installed (no module)"
    assert broken.absent is not None
    assert broken.absent.startswith("did not start: ")
    raw = card.Raw(None, "rivals")
    card.rivals(None, [absent, broken], small(card), raw)
    assert [r["name"] for r in figures.rivals(raw.rows)] == ["zeus", "codecarbon"]


@pytest.mark.alone
def test_a_recording_knows_its_phases_also_when_it_is_cut(fake: FakeCard, tmp_path: Path) -> None:
    _, record = modules("gpu_load", "record_nvml")
    out = tmp_path / "gpu.jsonl"
    phases = "idle:0.5,steady:4,bursts:0.4"
    record.main(
        ["--out", str(out), "--json", str(tmp_path / "gpu.json"), "--dense", "--phases", phases], FakeLoad(fake)
    )
    recording = load_recording(out)
    assert [p[0] for p in recording.header["phases"]] == ["idle", "steady", "bursts"]
    assert [kind for _, kind in recording.header["events"]] == [1, 1]
    told = json.loads((tmp_path / "gpu.json").read_text())
    assert told["phases"][1]["mean_power_w"] == pytest.approx(WORKING_W, rel=0.1)
    assert told["steady"]["usage"] is not None
    text = out.read_text()
    cut = text[: text.index("bursts")]
    cut = cut[: int(0.9 * len(cut))]  # in the middle of the steady load, and of a line
    (tmp_path / "cut.jsonl").write_text(cut)
    shorter = load_recording(tmp_path / "cut.jsonl")
    assert [p[0] for p in shorter.header["phases"]] == ["idle", "steady"]
    assert shorter.header["phases"][1][2] == pytest.approx(shorter.end_s)


# The figures, on rows whose truth is known.


def duty_rows(seen: float, noise: float, lag_s: float = 0.0) -> Any:
    """Trains of bursts as ``card.duty`` leaves them, of a counter that integrates the last share of each period."""
    draw = random.Random(3)
    rows: dict[str, list[Any]] = {"counter": [], "instant": [], "locked": []}
    bursts: list[tuple[float, float, float]] = []
    order = [n for n in range(16) for _ in range(2)]
    draw.shuffle(order)
    at_s = 4.0
    for number in order:
        first_s = (np.ceil(at_s / PERIOD_S) + number / 16) * PERIOD_S
        starts = [float(first_s + i * PERIOD_S + draw.uniform(0.0, 0.0005)) for i in range(15)]
        scale = 1 + draw.gauss(0.0, noise)
        bursts += [(s, s + 0.0125, scale) for s in starts]
        rows["locked"].append([starts, [s + 0.0125 for s in starts]])
        at_s = starts[-1] + 0.3
    table = np.array(bursts)

    def worked_s(start_s: float, end_s: float) -> float:
        over = np.clip(np.minimum(table[:, 1], end_s) - np.maximum(table[:, 0], start_s), 0.0, None)
        return float(np.sum(over * table[:, 2]))

    energy_j = 0.0
    for step in range(1, int((at_s + 0.5) / PERIOD_S)):
        time_s = step * PERIOD_S
        rows["counter"].append([time_s - 0.002, 0.003, energy_j])
        energy_j += 12.0 + 400.0 * worked_s(time_s - lag_s - seen * PERIOD_S, time_s - lag_s) / seen
        rows["counter"].append([time_s + 0.002, 0.003, energy_j])
        rows["instant"].append([time_s + 0.001, 120.0 + 400.0 * worked_s(time_s - 0.025, time_s) / 0.025])
    return rows


def test_a_counter_that_integrates_a_quarter_of_the_time_is_found_out() -> None:
    found = figures.duty(duty_rows(0.25, 0.01))
    assert found["counter"]["low"] <= 0.25 <= found["counter"]["high"] < 0.4
    assert "NOT" in found["found"]
    assert found["counter"]["from"] == pytest.approx(0.75, abs=0.03)


def test_a_counter_that_misses_a_tenth_of_the_time_is_found_out() -> None:
    found = figures.duty(duty_rows(0.9, 0.01))
    assert found["counter"]["high"] < 0.98
    assert "NOT" in found["found"]


@pytest.mark.parametrize("lag_s", [0.0, 0.03])
def test_a_counter_that_integrates_all_of_the_time_is_passed(lag_s: float) -> None:
    found = figures.duty(duty_rows(1.0, 0.01, lag_s))
    assert found["counter"]["high"] == pytest.approx(1.0)
    assert found["counter"]["low"] > 0.9
    assert found["found"].startswith("the counter integrates all of the time")
    assert found["burst_j"] == pytest.approx(5.0, rel=0.02)
    assert found["power"]["low"] <= 0.25 <= found["power"]["high"]
    assert found["power"]["from"] == pytest.approx(0.75, abs=0.03)


def test_a_counter_that_weighs_parts_of_a_step_unlike_is_found_out() -> None:
    """As an H200's: bursts just before a step show a fifth less, just after it a quarter more."""
    draw = random.Random(4)
    phases = [i / 16 for i in range(16)] * 2
    values = [5.0 * {15: 0.87, 0: 0.83, 1: 1.22, 2: 1.25}.get(round(p * 16), 0.98) for p in phases]
    found = figures.share_seen(phases, [v * (1 + draw.gauss(0.0, 0.02)) for v in values], 0.1)
    assert found["least_percent"] == pytest.approx(84, abs=3)
    assert found["most_percent"] == pytest.approx(125, abs=3)
    told = figures.said(found, 0.01)
    assert "NOT weigh" in told
    assert "integrates all" not in told


def test_bursts_that_are_not_seen_are_no_finding() -> None:
    with pytest.raises(ValueError, match="nothing is shown"):
        figures.share_seen([0.0, 0.5], [0.0, 0.0], 0.1)


def slots(added_w: float, seed: int) -> list[Any]:
    """Slots at 500 W with slow drift; each slot's power is off by 0.5 W at random."""
    draw = random.Random(seed)
    rows, time_s, energy_j = [], 0.0, 0.0
    end = [time_s - 0.002, time_s + 0.002, energy_j]
    for _ in range(10):
        for runs in draw.sample((True, False), 2):
            steps = 15 + draw.randrange(2)
            power_w = 500.0 + 0.02 * time_s + draw.gauss(0.0, 0.5) + (added_w if runs else 0.0)
            time_s += steps * PERIOD_S
            energy_j += power_w * steps * PERIOD_S
            late_s = draw.uniform(-0.002, 0.002)
            start, end = end, [time_s + late_s - 0.002, time_s + late_s + 0.002, energy_j]
            rows.append([runs, start, end, 0.01 if runs else 0.0])
    return rows


def test_an_added_watt_is_found_and_none_is_not_claimed() -> None:
    found = figures.added(slots(2.0, 1), PERIOD_S)
    assert found["seen"]
    assert found["interval_w"][0] < 2.0 < found["interval_w"][1]
    claimed = [figures.added(slots(0.0, seed), PERIOD_S) for seed in range(60)]
    assert sum(c["seen"] for c in claimed) <= 7  # 5 % of 60 are 3
    assert claimed[0]["power_w"] == pytest.approx(500.3, abs=1.0)


def test_windows_are_held_against_a_power_that_drifts() -> None:
    def truth_j(time_s: float) -> float:
        return 500.0 * time_s + 0.05 * time_s**2

    draw = random.Random(0)
    rows: dict[str, Any] = {"window": [], "usage": [[0.0, 510.0]], "busy": [[48.0, 0.48]]}
    rows["step"] = [[t - 0.002, t + 0.002, truth_j(t)] for t in range(0, 49, 6)]
    for _ in range(200):
        start_s = draw.uniform(0.0, 43.0)
        end_s = start_s + 1.037
        true_j = truth_j(end_s) - truth_j(start_s)
        rows["window"].append([1.037, start_s, end_s, true_j * 1.01, true_j * 0.01, 0.9 * true_j, 1.1 * true_j, 0.0])
    found = figures.windows(rows)
    (row,) = found["lengths"]
    assert row["joulewise_p95"] == pytest.approx(1.0, abs=0.01)
    assert row["interval_holds"] == row["bound_holds"] == 100.0
    assert row["difference_p95"] == pytest.approx(100.0)
    assert found["sampler_cpu_percent"] == pytest.approx(1.0)
    assert "no window" not in figures.shown("windows", found)


def test_windows_over_a_load_that_was_not_steady_are_left_out() -> None:
    def truth_j(time_s: float) -> float:
        return 500.0 * time_s - 50.0 * min(max(0.0, time_s - 20.0), 2.0)  # 450 W from 20 to 22 s

    rows: dict[str, Any] = {"window": [], "busy": [[48.0, 0.48]]}
    rows["step"] = [[t - 0.002, t + 0.002, truth_j(t)] for t in range(0, 49, 6)]
    rows["usage"] = [[t / 10, truth_j(t / 10) - truth_j(t / 10 - 1.0)] for t in range(10, 480)]
    for tenth in range(20, 440):
        start_s, end_s = tenth / 10, tenth / 10 + 1.037
        told_j = truth_j(end_s) - truth_j(start_s)
        rows["window"].append([1.037, start_s, end_s, told_j, told_j * 0.001, 0.0, 2 * told_j, told_j])
    found = figures.windows(rows)
    (row,) = found["lengths"]
    assert row["windows"] + found["left_out_unsteady"] == 420
    assert 30 <= found["left_out_unsteady"] <= 60
    assert row["joulewise_p95"] < 0.02
    assert row["interval_holds"] == 100.0
    assert "not being steady" in figures.shown("windows", found)


def test_rivals_are_held_against_the_power_between_two_steps() -> None:
    rows = {
        "end": [[0.0, 0.004, 0.0], [20.0, 20.004, 10_000.0]],
        "window": [["zeus", 1.037, 1.0, 450.0], ["zeus", 1.037, 1.0, 510.0], ["codecarbon", 0.053, 0.1, 0.0]],
        "absent": [["other", "not installed"]],
    }
    found = figures.rivals(rows)
    assert {r["name"]: r.get("p95") for r in found} == {
        "other": None,
        "codecarbon": pytest.approx(100.0),
        "zeus": pytest.approx(10.0),
    }
    assert "not installed" in figures.shown("rivals", found)
