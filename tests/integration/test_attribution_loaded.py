"""``benchmarks/attribution.py`` against a scripted server: what it asks, and what becomes of the answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fake_server import DONE, MODEL, Asked, FakeServer, Pause, Reply, finish, piece, usage
from joulewise.energy.meter import Meter
from joulewise.engines.openai_api.client import Endpoint
from joulewise.errors import EnvironmentFault, UserError
from load_benchmark import load_benchmark

load_benchmark("simulated_server")
windows = load_benchmark("attribution_windows")
loaded = load_benchmark("attribution_server")
attribution = load_benchmark("attribution")

OPTIONS = {"concurrency": 3, "repeats": 1, "seconds": 0.4, "warm_s": 0.1, "point_s": 0.05, "idle_s": 0.05}
SMALL = windows.Settings(long_prompt=(600, 2), long_output=(20, 9), **OPTIONS)


def script(asked: Asked) -> Reply:
    """As many tokens as asked for; a prompt takes 0.1 ms a token, and an output token 2 ms."""
    prompt, output = len(asked.json["prompt"]), asked.json["max_tokens"]
    steps = [Pause(1e-4 * prompt), *[piece("x"), Pause(0.002)] * output]
    return Reply([*steps, finish("length"), usage(prompt, output), DONE])


@pytest.mark.alone
def test_windows_of_a_server(meter: Meter) -> None:
    with FakeServer(script) as server:
        one = loaded.Server(Endpoint(server.url, MODEL), meter, vocabulary=1000)
        one.require_model()
        assert one.at_rest(0.05).power_w == pytest.approx(100.0, rel=0.05)
        point = one.point(SMALL, (110, 4, 2))
        mix = one.mix(SMALL, 50, 0)
    assert {(r.prompt_tokens, r.output_tokens) for r in point.requests} == {(110, 4)}
    assert point.start_s <= min(r.start_s for r in point.requests)
    assert max(r.end_s for r in point.requests) <= point.end_s
    assert point.energy.component == "gpu"
    assert point.joules == pytest.approx(100.0 * (point.end_s - point.start_s), rel=0.05)
    assert mix.end_s - mix.start_s == pytest.approx(0.4)
    assert mix.joules == pytest.approx(40.0, rel=0.05)
    assert [(r.prompt_tokens, r.output_tokens) for r in mix.requests] == [
        SMALL.mixed(50)(number) for number in range(len(mix.requests))
    ]
    body = server.asked[-1].json
    assert body["ignore_eos"] is True
    assert all(loaded.FIRST_TOKEN_ID <= token < 1000 for token in body["prompt"])
    assert body["prompt"] != server.asked[-2].json["prompt"]


def test_all_of_it_from_the_command_line(
    meter: Meter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attribution, "discover", lambda: meter)
    # All joules are shared: a made-up power knows no rest.
    monkeypatch.setattr(loaded.Server, "at_rest", lambda *_: loaded.PowerAtRest(0.0, 0.0))
    raw, figures = tmp_path / "raw.jsonl", tmp_path / "figures.json"
    options = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
    files = ["--raw", str(raw), "--json", str(figures), "--long-prompt=600,2", "--long-output=20,9"]
    with FakeServer(script) as server:
        monkeypatch.setattr("sys.argv", ["attribution.py", "--url", server.url, "--model", MODEL, *options, *files])
        attribution.main()
        asked = len(server.asked)
    told = json.loads(figures.read_text())
    assert set(told["kinds"]) == set(windows.KINDS)
    assert told["origin"] == f"{MODEL}, joules of gpu, measured"
    assert "one more request like it" in capsys.readouterr().out
    counted = [json.loads(line)["requests"] for line in raw.read_text().splitlines()[2:]]
    assert sum(map(len, counted)) == asked


def test_a_model_that_is_not_there(meter: Meter) -> None:
    with FakeServer(script) as server, pytest.raises(UserError, match="no model other"):
        loaded.Server(Endpoint(server.url, "other"), meter, 1000).require_model()


def test_a_server_that_ends_its_answers_early(meter: Meter) -> None:
    def early(asked: Asked) -> Reply:
        return Reply([piece("x"), finish("stop"), usage(len(asked.json["prompt"]), 1), DONE])

    with FakeServer(early) as server, pytest.raises(EnvironmentFault, match="ignore_eos"):
        loaded.Server(Endpoint(server.url, MODEL), meter, 1000).point(SMALL, (20, 4, 1))
