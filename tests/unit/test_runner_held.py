"""A plan over power limits and locked clocks: engines once for each, the cards held meanwhile, and put back."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import file_nvml
from file_nvml import ONE, fresh, state
from joulewise import environment, runner
from joulewise.energy import card_setting
from joulewise.energy.meter import Meter
from joulewise.engines.engine import Generation
from joulewise.errors import EnvironmentFault, UserError
from joulewise.plan import Plan
from joulewise.records import Trial
from joulewise.run_result import Progress
from joulewise.runner import run
from joulewise.yaml_file import parse_yaml
from scripted_engine import ScriptedEngine
from scripted_runs import make_plan, questions_task

pytestmark = pytest.mark.usefixtures("scripted")


@pytest.fixture(autouse=True)
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "nvml.json"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(file_nvml.__file__).parent), *sys.path]))
    monkeypatch.setattr(card_setting, "NVML", "file_nvml")
    monkeypatch.setattr(runner, "cards_of", lambda gpus, sources: [ONE])
    fresh(file_nvml.file())


def plan(folder: Path, **more: Any) -> Plan:
    return make_plan(questions_task(folder, ["a"]), decodings=["vanilla"], **more)


def labels(made: Plan) -> list[str]:
    return [engine.label for engine in made.engines]


def test_every_engine_becomes_one_for_each_setting_and_a_recorded_plan_stays_as_it_is(tmp_path: Path) -> None:
    made = plan(tmp_path, power_limit_w=[300, 500.5], locked_sm_clock_hz=[1.41e9])
    assert labels(made) == ["toy+300W+1.41GHz", "toy+500.5W+1.41GHz"]
    again = Plan.model_validate(made.model_dump(mode="json"))
    assert (labels(again), again.content_hash) == (labels(made), made.content_hash)
    own = [{"kind": "native", "power_limit_w": 400}, {"kind": "native"}]
    assert labels(plan(tmp_path, engines=own)) == ["default@native+400W", "default@native"]
    assert labels(plan(tmp_path, engines=own, power_limit_w=[300])) == ["default@native+400W", "default@native+300W"]


@pytest.mark.parametrize(
    "setting", [{"power_limit_w": [0]}, {"power_limit_w": [300, 300]}, {"locked_sm_clock_hz": [1410]}]
)
def test_settings_that_are_none(tmp_path: Path, setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"greater than|two engines have the label"):
        plan(tmp_path, **setting)


def test_a_server_elsewhere_is_not_set() -> None:
    text = (
        "name: n\ndecodings: [vanilla]\ntasks: [starter-maths]\npower_limit_w: [300]\n"
        "engines:\n  - {kind: endpoint, url: 'http://far.example/v1', model: m}\n"
    )
    with pytest.raises(
        UserError, match=r"plan:6: engines\[0\]: the GPUs of a server at a 'url' may be another machine's"
    ):
        parse_yaml(text, Plan, "plan")
    assert labels(parse_yaml(text.replace("model: m", "model: m, meter: here"), Plan, "plan")) == ["m@far.example+300W"]


def test_cards_are_held_while_an_engine_runs(tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    generate = ScriptedEngine.generate

    def look(*arguments: Any) -> Generation:
        seen.append(state()["cards"][ONE]["power_limit_mw"])
        return generate(*arguments)

    monkeypatch.setattr(ScriptedEngine, "generate", look)
    result = run(plan(tmp_path, power_limit_w=[300, 500]), tmp_path / "run", meter=meter)
    assert result.done == 2
    assert sorted(set(seen)) == [300_000, 500_000]
    assert state()["cards"][ONE]["power_limit_mw"] == 700_000
    engines = json.loads((tmp_path / "run" / "environment.json").read_text())["engines"]
    assert [engine["notes"] for engine in engines] == [[f"GPUs held: power limit {n} W"] for n in (300, 500)]


def test_a_plan_that_asks_for_nothing_touches_nothing(tmp_path: Path, meter: Meter) -> None:
    run(plan(tmp_path), tmp_path / "run", meter=meter)
    assert state()["sets"] == []


def test_without_rights_it_is_refused_and_what_needs_none_runs(tmp_path: Path, meter: Meter) -> None:
    fresh(file_nvml.file(), rights=False)
    with pytest.raises(EnvironmentFault, match="you may not change the GPU GPU-1: run as root, or leave that out"):
        run(plan(tmp_path, power_limit_w=[300, 500]), tmp_path / "all", meter=meter)
    engines = [{"kind": "transformers", "name": "a", "power_limit_w": 300}, {"kind": "transformers", "name": "b"}]
    result = run(plan(tmp_path, engines=engines), tmp_path / "some", meter=meter)
    assert (result.done, list(result.not_loaded)) == (1, ["a+300W"])


def test_a_ctrl_c_in_the_middle_puts_them_back(tmp_path: Path, meter: Meter) -> None:
    def stop(progress: Progress) -> None:
        if isinstance(progress.trial, Trial):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(plan(tmp_path, power_limit_w=[300]), tmp_path / "run", meter=meter, on_progress=stop)
    assert state()["cards"][ONE]["power_limit_mw"] == 700_000


def test_the_environment_tells_the_limits_that_were_found(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [{"uuid": ONE, "power_limit_w": 300.0}, {"uuid": "GPU-2", "power_limit_w": 700.0}]
    monkeypatch.setattr(environment, "gpus", lambda: gpus)
    told = environment.describe(meter, {}, {ONE: 700.0})["machine"]["gpus"]
    assert [gpu["power_limit_w"] for gpu in told] == [700.0, 700.0]
