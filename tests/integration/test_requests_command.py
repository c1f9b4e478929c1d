"""``joulewise requests``: every request of a load and its joules, before a scripted server."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("aiohttp", reason="the extra endpoint is not installed")

from fake_server import DONE, MODEL, FakeServer, Pause, Reply, finish, piece, role, usage
from fake_source import SteadySource
from joulewise.analysis.curve_file import curve_json
from joulewise.analysis.curve_points import Origin
from joulewise.analysis.curves import Coefficient, Correction, Curve, HeldOut, Region, Spread
from joulewise.cli.main import app
from joulewise.energy.meter import Meter
from joulewise.errors import UserError
from joulewise.ledger_lines import read_ledger
from joulewise.plan import Plan
from joulewise.runner import run
from scripted_runs import questions_task

CURVE = Curve(
    {"token": Coefficient(0.2, 0.1, 0.3), "token_shared": Coefficient(1.0, 0.9, 1.1)},
    Correction(1.0, (), ()),
    HeldOut("question", Spread(9, 0.01, 0.02), Spread(0, None, None)),
    Spread(9, 0.01, 0.02),
    (),
    Region((1.0, 100.0), (1.0, 100.0), (1.0, 8.0)),
)
LOADS = ("c1-2", "c6-8")
ORIGIN = Origin(MODEL, "served", {}, None, None, "total", "vanilla", None)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("done")
    # So slow that eight at a time are served at their pace on a busy machine, too: they share five times one's tokens.
    steps = [step for i in range(5) for step in (Pause(0.04), piece(f"{i} "))]
    with FakeServer(lambda _: Reply([role(), *steps, finish("stop"), usage(7, 5), DONE])) as server:
        plan = Plan.model_validate(
            {
                "name": "test",
                "engines": [{"kind": "endpoint", "url": server.url, "model": MODEL, "name": "served", "meter": "here"}],
                "decodings": ["vanilla"],
                "tasks": [questions_task(folder, ["one", "two", "three"])],
                "idle_baseline_s": 0,
                # Ramps are measured whole: a steady part may not be found where the machine is busy.
                "loads": [
                    {"kind": "closed", "concurrency": 1, "to_concurrency": 2, "duration_s": 1.0},
                    {"kind": "closed", "concurrency": 6, "to_concurrency": 8, "duration_s": 1.0},
                ],
            }
        )
        with Meter([SteadySource("gpu", 100.0), SteadySource("cpu", 30.0)]) as meter:
            run(plan, folder / "run", meter=meter)
    (folder / "curve.json").write_text(curve_json(CURVE, ORIGIN))
    (folder / "other.json").write_text(curve_json(CURVE, replace(ORIGIN, engine="other")))
    return folder


def said(*words: str) -> str:
    done = CliRunner().invoke(app, ["requests", *words], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_shares_sum_to_what_was_measured(done: Path) -> None:
    told = said(str(done / "run"), "--curve", str(done / "curve.json"), "--csv", str(done / "requests.csv"))
    assert all(words in told for words in ("token share: ", "cost model: ", "one more like them", "idle power was not"))
    with (done / "requests.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    trials = {t.trial_id: t for t in read_ledger(done / "run" / "ledger.jsonl").trials}
    assert {row["trial_id"] for row in rows} == set(trials)
    for trial_id, trial in trials.items():
        mine = [row for row in rows if row["trial_id"] == trial_id]
        for column in ("token_share_j", "cost_share_j"):
            assert math.fsum(float(row[column]) for row in mine) == pytest.approx(trial.window().total.energy_j)
        requests = [row for row in mine if row["request"] != "unattributed"]
        assert all(row["prompt_tokens"] == "7" and row["question"] for row in requests)
        # Four at a time share the tokens' fixed cost, so one more adds less than a share.
        assert all(float(row["one_more_j"]) > 0 for row in requests)
    by_load = {
        load: [float(row["token_share_j"]) for row in rows if f"|{load}|" in row["trial_id"] and row["question"]]
        for load in LOADS
    }
    assert max(by_load[LOADS[0]]) > 2 * max(by_load[LOADS[1]])


def test_one_load_and_standard_output(done: Path) -> None:
    rows = list(csv.DictReader(said(str(done / "run"), "--load", LOADS[1], "--csv", "-").splitlines()))
    assert {row["cell"].rpartition("/")[2] for row in rows} == {LOADS[1]}
    assert all(row["cost_share_j"] == "" for row in rows)


def refused(*words: str) -> str:
    found = CliRunner().invoke(app, ["requests", *words]).exception
    assert isinstance(found, UserError)
    return str(found)


def test_mistakes_are_told(done: Path, tmp_path: Path) -> None:
    run_folder = str(done / "run")
    assert f"has no such load; it has {', '.join(LOADS)}" in refused(run_folder, "--load", "c9")
    assert "the curve is of other/vanilla" in refused(run_folder, "--curve", str(done / "other.json"))
    assert "--csv is empty" in refused(run_folder, "--csv", "")
    assert "run" in refused(str(tmp_path / "none"))
