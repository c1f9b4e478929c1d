"""An engine that cannot be loaded, among others that can: they run, it is named, and a run that goes on tries again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import scripted_engine
from joulewise.cli.main import app
from joulewise.decoding import Decoding
from joulewise.energy.meter import Meter
from joulewise.engines import ENGINES
from joulewise.engines.engine import EngineInfo
from joulewise.errors import EnvironmentFault, UserError
from joulewise.ledger import load
from joulewise.plan import Plan
from joulewise.report.markdown import render
from joulewise.report.summary import summarise
from joulewise.runner import run
from scripted_engine import ScriptedEngine
from scripted_runs import make_plan, questions_task

FAULT = "bitsandbytes is not installed; install it with: pip install 'joulewise[bitsandbytes]'"


class Quantised(ScriptedEngine):
    """Loads nothing in nf4 while ``absent``; its model is what it says it is otherwise."""

    absent = True

    def load(self, decodings: Sequence[Decoding]) -> EngineInfo:
        if self.spec.quantisation == "nf4" and Quantised.absent:
            raise EnvironmentFault(FAULT)
        return super().load(decodings)


@pytest.fixture(autouse=True)
def quantised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "transformers", "test_runner_not_loaded:Quantised")
    monkeypatch.setattr(Quantised, "absent", True)
    scripted_engine.CALLS.clear()


def plan(folder: Path, *quantisations: str) -> Plan:
    engines = [{"kind": "transformers", "name": q, "draft": "x", "quantisation": q} for q in quantisations]
    return make_plan(questions_task(folder, ["a", "b"]), engines=engines, decodings=["vanilla"])


@pytest.mark.parametrize("order", [("nf4", "none"), ("none", "nf4")])
def test_the_others_run_and_it_is_named(tmp_path: Path, meter: Meter, order: tuple[str, str]) -> None:
    told: list[str] = []
    result = run(plan(tmp_path, *order), tmp_path / "run", meter=meter, on_progress=lambda p: told.append(p.text))
    assert (result.done, result.total, result.failed, result.interrupted) == (2, 4, 0, False)
    assert result.not_loaded == {"nf4": FAULT}
    assert f"nf4 could not be loaded, and its cells are left out: {FAULT}" in told
    recorded = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert recorded["not_loaded"] == [{"engine": "nf4", "error": FAULT}]
    assert [engine["label"] for engine in recorded["engines"]] == ["none"]


def test_going_on_tries_it_again_and_runs_nothing_twice(tmp_path: Path, meter: Meter) -> None:
    both = plan(tmp_path, "nf4", "none")
    run(both, tmp_path / "run", meter=meter)
    asked = len(scripted_engine.CALLS)
    again = run(both, tmp_path / "run", meter=meter, resume=True)
    assert again.not_loaded == {"nf4": FAULT}
    assert len(scripted_engine.CALLS) == asked
    Quantised.absent = False
    whole = run(both, tmp_path / "run", meter=meter, resume=True)
    assert (whole.done, whole.total, dict(whole.not_loaded)) == (4, 4, {})
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["not_loaded"] == []


def test_where_none_can_be_loaded_it_is_refused_as_a_single_one(tmp_path: Path, meter: Meter) -> None:
    with pytest.raises(EnvironmentFault, match="bitsandbytes is not installed"):
        run(plan(tmp_path, "nf4"), tmp_path / "one", meter=meter)
    two = [{"kind": "transformers", "name": n, "quantisation": "nf4"} for n in ("a", "b")]
    none = make_plan(questions_task(tmp_path, ["a"]), engines=two, decodings=["vanilla"])
    with pytest.raises(EnvironmentFault, match="bitsandbytes is not installed"):
        run(none, tmp_path / "two", meter=meter)


def test_an_engine_that_cannot_even_be_opened(tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(spec: object) -> ScriptedEngine:
        raise EnvironmentFault("an extra is not installed")

    monkeypatch.setitem(ENGINES, "native", "test_runner_not_loaded:refuse")
    monkeypatch.setattr("test_runner_not_loaded.refuse", refuse, raising=False)
    engines = [{"kind": "native", "name": "ours"}, {"kind": "transformers", "name": "none"}]
    both = make_plan(questions_task(tmp_path, ["a"]), engines=engines, decodings=["vanilla"])
    assert run(both, tmp_path / "run", meter=meter).not_loaded == {"ours": "an extra is not installed"}


def test_what_the_plan_gets_wrong_still_ends_the_run(tmp_path: Path, meter: Meter) -> None:
    engines = [{"kind": "transformers", "name": n} for n in ("a", "b")]
    wrong = make_plan(questions_task(tmp_path, ["a"]), engines=engines, decodings=["vanilla", {"kind": "coga"}])
    with pytest.raises(UserError, match="no draft model is named"):
        run(wrong, tmp_path / "run", meter=meter)


def test_the_command_s_exit_code_says_that_something_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(plan(tmp_path, "none", "nf4").model_dump(mode="json")))
    command = ["run", str(file), "--out", str(tmp_path / "run")]
    first = CliRunner().invoke(app, [*command, "--json"])
    assert first.exit_code == 1
    assert "nf4 could not be loaded, and none of its cells was run: bitsandbytes is not" in first.output
    assert f"Once it can be, run them with: joulewise {' '.join(command)} --resume" in first.output
    Quantised.absent = False
    assert CliRunner().invoke(app, [*command, "--resume"]).exit_code == 0


def test_the_report_says_so(tmp_path: Path, meter: Meter) -> None:
    result = run(plan(tmp_path, "none", "nf4"), tmp_path / "run", meter=meter)
    text = render(summarise(load(result)))
    assert "> nf4 could not be loaded, and none of its cells was run: bitsandbytes is not installed" in text
    assert "No Trial yet" not in text
