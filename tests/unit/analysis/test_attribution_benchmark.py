"""``benchmarks/attribution.py`` on its simulated server, and the windows that it keeps of a real one."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joulewise.energy.attribution import PowerAtRest
from joulewise.energy.reading import ComponentEnergy
from joulewise.engines.openai_api.answer import Answer, Chunks, Usage
from joulewise.engines.openai_api.errors import ServerFault
from joulewise.errors import EnvironmentFault, UserError
from joulewise.traffic.arrivals import Arrival
from joulewise.traffic.generator import Outcome
from load_benchmark import load_benchmark

simulated_server = load_benchmark("simulated_server")
windows = load_benchmark("attribution_windows")
server = load_benchmark("attribution_server")
attribution = load_benchmark("attribution")

SMALL = windows.Settings(
    long_prompt=(1500, 20), long_output=(60, 150), concurrency=8, repeats=2, seconds=8.0, warm_s=2.0, point_s=1.0
)


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    found: dict[str, Any] = attribution.simulated_figures(SMALL)
    return found


def test_the_cost_model_meets_the_regression_and_the_token_share_misses(figures: dict[str, Any]) -> None:
    assert figures["met"]
    for kind, way in (("long output", -1.0), ("long prompt", 1.0)):
        row = figures["kinds"][kind]
        assert abs(row["models"]["cost model"]["miss"]) <= 0.05
        assert row["models"]["token share"]["miss"] * way > 0.2
        assert row["models"]["output tokens"]["miss"] * way < -0.2
        assert row["energy_j"] == pytest.approx(row["true_j"], rel=0.03)
        assert row["models"]["cost model"]["mean_j"] == pytest.approx(row["true_j"], rel=0.05)
    # What a long output shares with the others costs nothing more for one more; a prompt is nearly all its own.
    more = {kind: row["one_more_j"] / row["energy_j"] for kind, row in figures["kinds"].items()}
    assert more["long output"] < 0.4
    assert more["long prompt"] > 0.7


def test_each_models_shares_are_the_joules_of_all_windows(figures: dict[str, Any]) -> None:
    rows = figures["kinds"].values()
    whole = math.fsum(row["energy_j"] * row["requests"] for row in rows)
    for model in ("cost model", "token share", "output tokens"):
        assert math.fsum(r["models"][model]["mean_j"] * r["requests"] for r in rows) == pytest.approx(whole, rel=1e-9)


def test_the_table_tells_all_of_it(figures: dict[str, Any]) -> None:
    told = attribution.table(figures)
    assert "simulated: no hardware was read" in told
    assert told.count("token share") == 2
    assert "cost model within 5%, with its interval: yes" in told
    assert attribution.table(json.loads(json.dumps(figures))) == told


def test_the_aim_is_met_only_where_the_interval_says_so() -> None:
    assert attribution.within([(-0.04, 0.01), (0.0, 0.05)]) is True
    assert attribution.within([(-0.04, 0.01), (0.06, 0.09)]) is False
    assert attribution.within([(-0.04, 0.06), (0.0, 0.05)]) is None


def test_the_simulated_server_conserves_and_batches() -> None:
    costs = simulated_server.Costs()
    ran = simulated_server.serve(costs, lambda number: (3000, 20) if number % 2 else (10, 50), 4, 2.0)
    drawn = ran.energy_j(0.0, ran.end_s)
    assert math.fsum(ran.caused_j.values()) + costs.idle_w * ran.end_s == pytest.approx(drawn, rel=1e-9)
    assert len(ran.requests) == len(ran.caused_j)
    for request in ran.requests:
        assert len(request.chunks) == request.output_tokens
        assert request.chunks[0][0] == request.first_s
    busy = [sum(r.start_s <= t < r.end_s for r in ran.requests) for t in np.linspace(0.01, 1.99, 50)]
    assert set(busy) == {4}
    # One alone, of one chunk: all of each step is its own.
    alone = simulated_server.serve(costs, lambda _: (100, 3), 1, 1e-9)
    own = 3 * (costs.weights_j + costs.token_j) + costs.context_j * (101 + 102 + 103)
    assert alone.caused_j["0"] == pytest.approx(own + costs.prompt_j * 100 + costs.prompt_squared_j * 100**2)


def test_mixes_have_their_share_of_each_kind_everywhere() -> None:
    for percent in windows.PERCENTS:
        prompts = [SMALL.kind(percent, number) == "long prompt" for number in range(400)]
        assert sum(prompts) == 4 * percent
        assert all(abs(sum(prompts[i : i + 20]) - percent / 5) <= 1 for i in range(380))
    outputs = [SMALL.mixed(0)(number)[1] for number in range(12)]
    assert outputs[:8] == [150 * k // 8 for k in range(1, 9)]
    assert set(outputs[8:]) == {150}


def answer(outcome: Answer | None, error: ServerFault | None = None) -> Outcome[Answer]:
    return Outcome(7, Arrival(0.0), 1.0, 1.0, 3.0, outcome, error)


WELL = Answer(chunks=Chunks((2.0, 3.0), (1, 1)), usage=Usage(100, 20), sent_s=1.0, end_s=3.0)


def test_an_answer_becomes_a_request() -> None:
    request = server.answered(answer(WELL), (100, 20))
    assert (request.name, request.start_s, request.first_s, request.end_s) == ("7", 1.0, 2.0, 3.0)
    assert (request.prompt_tokens, request.output_tokens) == (100, 20)


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (answer(None, ServerFault("the server is gone")), "the server is gone"),
        (answer(None), "cut off"),
        (answer(replace(WELL, usage=None)), "no usage"),
        (answer(replace(WELL, usage=Usage(100, 19))), "ignore_eos"),
        (answer(replace(WELL, usage=Usage(90, 20))), "token ids"),
        (answer(replace(WELL, usage=Usage(100, 20, cached_tokens=64))), "64 from a cache"),
    ],
)
def test_answers_that_would_falsify_the_window(outcome: Outcome[Answer], says: str) -> None:
    with pytest.raises(EnvironmentFault, match=says):
        server.answered(outcome, (100, 20))


class FakeServer:
    """Takes windows of the simulated server; breaks at a given one."""

    def __init__(self, breaks_at: int | None = None) -> None:
        self.taken, self.breaks_at = 0, breaks_at
        self.known, *_ = attribution.simulated(SMALL, 0.003)

    def at_rest(self, seconds: float) -> PowerAtRest:
        return PowerAtRest(75.0, 0.1)

    def point(self, settings: Any, what: tuple[int, int, int]) -> Any:
        return self._of(("point", *what))

    def mix(self, settings: Any, percent: int, repeat: int) -> Any:
        return self._of(("mix", percent, repeat))

    def _of(self, what: tuple[object, ...]) -> Any:
        if self.taken == self.breaks_at:
            raise EnvironmentFault("the server is gone")
        self.taken += 1
        return next(t for t in self.known if t.what == what)


def test_what_was_measured_is_kept_and_not_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw, header = tmp_path / "raw.jsonl", {"model": "m"}
    first = FakeServer(breaks_at=5)
    with pytest.raises(EnvironmentFault, match="gone"):
        server.measured(first, SMALL, raw, header, True)
    raw.write_text(raw.read_text() + '{"what": ["mix", 0')  # a kill in the middle of a line
    again = FakeServer()
    taken, idle = server.measured(again, SMALL, raw, header, True)
    assert again.taken == len(again.known) - 5
    assert len(taken) == len(again.known)
    assert idle == PowerAtRest(75.0, 0.1)
    assert f"6 of {len(again.known)}" in capsys.readouterr().out
    once_more = FakeServer(breaks_at=0)
    assert server.measured(once_more, SMALL, raw, header, True)[0] == taken
    by_what = {t.what: t for t in again.known}
    assert all(by_what[t.what] == t for t in taken)
    with pytest.raises(UserError, match="other options"):
        server.measured(FakeServer(), SMALL, raw, {"model": "other"}, True)


def test_unknown_joules_are_not_taken_for_none() -> None:
    blind = windows.Taken(("mix", 0, 0), 0.0, 1.0, ComponentEnergy("gpu", "unknown", None, note="no counter"), ())
    with pytest.raises(EnvironmentFault, match="no counter"):
        _ = blind.joules


@pytest.mark.parametrize("missing", [["--model", "m"], ["--raw", "file"]])
def test_a_url_needs_a_model_and_a_file(missing: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["attribution.py", "--url", "http://localhost:1/v1", *missing])
    with pytest.raises(SystemExit, match="--url needs --model"):
        attribution.main()
