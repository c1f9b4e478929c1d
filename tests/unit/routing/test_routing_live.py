from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from joulewise.energy import carbon
from joulewise.engines.servers.server import Fetch
from joulewise.errors import UserError
from joulewise.routing.energy import Quantiles
from joulewise.routing.live import (
    CARBON_EVERY_S,
    LiveState,
    Metrics,
    Watched,
    by_model,
    carbon_given,
    overridden,
    read_metrics,
)
from joulewise.routing.policy import Estimate, Goal, Load, Option, Query, Reading, State, choose

VLLM = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="1",model_name="m"} 2.0
vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 6.0
vllm:time_to_first_token_seconds_count{model_name="m"} 10.0
vllm:time_to_first_token_seconds_sum{model_name="m"} 2.5
"""
SGLANG = """sglang:num_running_reqs{model_name="m",tp_rank="0",priority=""} 8
sglang:num_running_reqs{model_name="m",tp_rank="0",dp_rank="0",priority=""} 3
sglang:num_running_reqs{model_name="m",tp_rank="1",dp_rank="0",priority=""} 3
sglang:num_running_reqs{model_name="m",tp_rank="0",dp_rank="1",priority=""} 5
sglang:num_running_reqs{model_name="m",tp_rank="0",dp_rank="1",priority="high"} 5
sglang:num_queue_reqs{model_name="m"} 1
sglang:time_to_first_token_seconds_sum{model_name="m"} 0.9
sglang:time_to_first_token_seconds_count{model_name="m"} 4
"""
LLAMACPP = "llamacpp:requests_processing 4\nllamacpp:requests_deferred 46\nllamacpp:n_decode_total 39303\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (VLLM, Metrics(7, 2, 10, 2.5)),
        (SGLANG, Metrics(8, 1, 4, 0.9)),
        (LLAMACPP, Metrics(4, 46)),
        ("vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\n", Metrics()),
        ("vllm:num_requests_running 1\n", Metrics(1, None)),
        ("process_cpu_seconds_total 3\n<html>", Metrics()),
        ("", Metrics()),
    ],
)
def test_what_each_server_tells_of_its_load(text: str, found: Metrics) -> None:
    assert read_metrics(text) == found


class World:
    """Servers by model, and a clock, as a test sets them."""

    def __init__(self, **texts: str) -> None:
        self.answers: dict[str, tuple[int, str] | threading.Event] = {m: (200, text) for m, text in texts.items()}
        self.now_s = 1000.0
        self.asked: list[str] = []

    def fetch(self, one: Watched) -> Fetch:
        def fetch(path: str) -> tuple[int, str]:
            assert path == "/metrics"
            self.asked.append(one.model)
            answer = self.answers[one.model]
            if isinstance(answer, threading.Event):
                assert answer.wait(60)
                return 200, LLAMACPP
            return answer

        return fetch

    def live(self, **more: object) -> LiveState:
        watched = [Watched(model, f"http://{model}.test:8000/v1") for model in self.answers]
        return LiveState(watched, clock=lambda: self.now_s, fetch=self.fetch, **more)  # type: ignore[arg-type]


def first_tokens(count: float, seconds: float) -> tuple[int, str]:
    name = "vllm:time_to_first_token_seconds"
    return 200, f"vllm:num_requests_running 1\n{name}_count {count}\n{name}_sum {seconds}\n"


def test_loads_are_read_and_age() -> None:
    world = World(large=VLLM, small=LLAMACPP)
    live = world.live()
    assert live.state() == State()
    live.refresh()
    world.now_s += 12
    found = live.state()
    assert found.running == {"large": Reading(7, 12), "small": Reading(4, 12)}
    assert found.queued == {"large": Reading(2, 12), "small": Reading(46, 12)}
    assert found.first_token_s == {}
    assert live.notes() == ()


@pytest.mark.parametrize(
    ("status", "text", "why"),
    [
        (0, "", "cannot be reached"),
        (404, "", "--metrics"),
        (501, "", "--metrics"),
        (401, "", "key_env"),
        (500, "", "HTTP 500"),
        (200, "up 1\n", "no running requests"),
    ],
)
def test_a_server_that_tells_nothing_keeps_its_last_reading_and_a_note_says_why(
    status: int, text: str, why: str
) -> None:
    world = World(large=VLLM, small=LLAMACPP)
    live = world.live()
    live.refresh()
    world.answers["large"] = (status, text)
    world.now_s += 40
    live.refresh()
    assert live.state().running == {"large": Reading(7, 40), "small": Reading(4, 0)}
    (note,) = live.notes()
    assert "load of large: http://large.test:8000" in note
    assert why in note
    assert note.endswith("read 40 s ago")
    world.answers["large"] = (200, VLLM)
    live.refresh()
    assert live.state().running["large"] == Reading(7, 0)
    assert live.notes() == ()


def test_a_server_that_was_never_there_is_not_known() -> None:
    world = World(large="")
    live = world.live()
    live.refresh()
    assert live.state().running == {}
    assert live.notes()[0].endswith("there is no reading")


def test_a_server_that_hangs_holds_nothing_up_is_not_asked_twice_and_its_late_answer_counts() -> None:
    world = World(slow="", small=LLAMACPP)
    world.answers["slow"] = gate = threading.Event()
    live = world.live(timeout_s=0.05)
    began_s = time.monotonic()
    live.refresh()
    world.now_s += 10
    live.refresh()
    assert time.monotonic() - began_s < 30  # two time-outs, and not the gate's minute
    assert live.state().running == {"small": Reading(4, 0)}
    assert "slow: http://slow.test:8000 did not answer within 0.05 s; there is no reading" in live.notes()[0]
    assert world.asked.count("slow") == 1
    world.answers["slow"] = (0, "")
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "joulewise-live":
            thread.join(60)
    world.now_s += 10
    live.refresh()
    assert live.state().running["slow"] == Reading(4, 20)  # as old as when it was asked for
    assert "read 20 s ago" in live.notes()[0]


def test_first_tokens_are_the_mean_since_the_last_reading_as_old_as_the_middle_in_between() -> None:
    world = World(m="")

    def after(step_s: float, answer: tuple[int, str]) -> Reading | None:
        world.now_s += step_s
        world.answers["m"] = answer
        live.refresh()
        return live.state().first_token_s.get("m")

    live = world.live()
    assert after(0, first_tokens(10, 5.0)) is None  # since the server began: of no use
    assert after(10, first_tokens(14, 7.0)) == Reading(0.5, 5)
    assert after(10, first_tokens(14, 7.0)) == Reading(0.5, 15)  # none meanwhile
    assert after(4, first_tokens(16, 10.0)) == Reading(1.5, 2)
    assert after(4, first_tokens(1, 9.0)) == Reading(1.5, 6)  # started anew
    assert after(4, (200, LLAMACPP)) == Reading(1.5, 10)
    assert after(4, first_tokens(2, 9.5)) == Reading(1.5, 14)
    assert after(4, first_tokens(4, 10.5)) == Reading(0.5, 2)


@pytest.fixture
def http() -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    asked: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Authorization")))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(LLAMACPP.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_servers_are_asked_by_http_beside_the_v1_with_their_key(
    http: tuple[str, list[tuple[str, str | None]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, asked = http
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("THE_KEY", "k")
    live = LiveState([Watched("a", f"{url}/v1/", "THE_KEY"), Watched("b", f"{url}/at/v1")], timeout_s=30)
    live.refresh()
    assert {model: reading.value for model, reading in live.state().running.items()} == {"a": 4, "b": 4}
    assert sorted(asked) == [("/at/metrics", None), ("/metrics", "Bearer k")]


def test_what_does_not_speak_http_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def babble() -> None:
            with server.accept()[0] as other:
                other.recv(9999)
                other.sendall(b"SSH-2.0-of no use\r\n\r\n")

        thread = threading.Thread(target=babble)
        thread.start()
        live = LiveState([Watched("m", f"http://127.0.0.1:{server.getsockname()[1]}")], timeout_s=30)
        live.refresh()
        thread.join()
    assert "cannot be reached" in live.notes()[0]


@pytest.mark.parametrize(
    ("watched", "told"),
    [
        ([Watched("m", "http://a.test"), Watched("m", "http://b.test")], "for one model"),
        ([Watched("m", "a.test:8000")], "server of m, a.test:8000: no address"),
        ([Watched("m", "http://a.test", "NO_SUCH_KEY")], "NO_SUCH_KEY .*not set"),
    ],
)
def test_servers_that_cannot_be_are_refused(watched: list[Watched], told: str) -> None:
    with pytest.raises(UserError, match=told):
        LiveState(watched)


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_carbon_is_read_with_its_age_and_not_asked_too_often(tmp_path: Path) -> None:
    series = tmp_path / "grid.csv"
    series.write_text("time,g_per_kwh\n2026-03-01T12:00:00Z,100\n2026-03-01T13:00:00Z,200\n")
    world, began_s = World(), 1000.0
    live = world.live(carbon=str(series), now=lambda: NOON + timedelta(seconds=world.now_s - began_s), timeout_s=30)

    def after(step_s: float) -> Reading | None:
        world.now_s += step_s
        live.refresh()
        return live.state().carbon_g_per_kwh

    assert after(0) == Reading(100, 0)
    assert after(CARBON_EVERY_S - 1) == Reading(100, CARBON_EVERY_S - 1)
    assert after(3601 - CARBON_EVERY_S + 1) == Reading(200, 0)
    assert after(4 * 3600 - 3601) == Reading(200, 2 * 3600)  # the last value's hour ended at 14:00
    assert live.intensity is not None
    assert "2 hours away" in live.intensity.age
    series.unlink()
    assert after(CARBON_EVERY_S) == Reading(200, 2 * 3600 + CARBON_EVERY_S)
    assert "carbon intensity" in live.notes()[0]
    assert "cannot be read" in live.notes()[0]


def test_a_countrys_mean_is_never_old_and_one_that_is_not_there_is_told_at_once() -> None:
    world = World()
    live = world.live(carbon="Germany", timeout_s=30)
    live.refresh()
    found = live.state().carbon_g_per_kwh
    assert found is not None
    assert (found.value > 0, found.age_s) == (True, 0)
    with pytest.raises(UserError, match="did you mean Germany"):
        world.live(carbon="Germny")


def test_a_grid_that_hangs_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def hangs(zone: str) -> carbon.Grid:
        assert gate.wait(60)
        return lambda start, end: carbon.Intensity(50.0, zone, "a test", "now", 60.0)

    monkeypatch.setattr(carbon, "_electricity_maps", hangs)
    world = World(small=LLAMACPP)
    live = world.live(carbon="electricitymaps:DE", timeout_s=0.05)
    live.refresh()
    assert live.state().carbon_g_per_kwh is None
    assert "carbon intensity of electricitymaps:DE did not answer" in " ".join(live.notes())
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "joulewise-live":
            thread.join(60)
    world.now_s += 5
    live.refresh()
    assert live.state().carbon_g_per_kwh == Reading(50, 65)


OPTIONS = (Option("small", "s"), Option("large", "l"))


def told(query: Query, option: Option, load: Load) -> Estimate:
    """The large model is better, draws more but shares it among its requests, and is late under load."""
    accuracy, joules, seconds = {"small": (0.6, 30.0, 1.0), "large": (0.9, 120.0, 2.0)}[option.name]
    late, energy = seconds * load.running**0.5 + load.queued, joules / load.running
    return Estimate(
        accuracy,
        Quantiles(energy, energy, energy),
        Quantiles(late / 4, late / 4, late / 4),
        Quantiles(late, late, late),
    )


def taken(state: State, goal: Goal) -> str:
    return choose(Query(100), OPTIONS, told, state, goal).option


CHEAP, SOON, PRICED = Goal(least_accuracy=0.5), Goal(most_first_token_s=1), Goal(answer_value=1, co2_kg_price=1e5)


@pytest.mark.parametrize(
    ("goal", "given", "options"),
    [
        (CHEAP, {"load": {"l": 7.0}}, ("small", "large")),
        (SOON, {"load": {"l": 7.0}}, ("large", "small")),
        (SOON, {"latency_ms": {"l": 1500.0}}, ("large", "small")),
        (PRICED, {"carbon_g_per_kwh": 900.0}, ("large", "small")),
    ],
)
def test_each_option_alone_changes_the_choice(goal: Goal, given: dict[str, object], options: tuple[str, str]) -> None:
    state = State(carbon_g_per_kwh=Reading(10))
    assert (taken(state, goal), taken(overridden(state, **given), goal)) == options  # type: ignore[arg-type]


def test_each_reading_alone_changes_the_choice(tmp_path: Path) -> None:
    def seen(text: str, then: str, goal: Goal, grid: str = "10") -> str:
        series = tmp_path / "grid.csv"
        series.write_text(f"time,g_per_kwh\n2026-03-01T12:00:00Z,{grid}\n")
        world = World(l=text)
        live = world.live(carbon=str(series), now=lambda: NOON, timeout_s=30)
        live.refresh()
        world.answers["l"], world.now_s = (200, then), world.now_s + 10
        live.refresh()
        return taken(live.state(), goal)

    idle, quick, late = "vllm:num_requests_running 0\n", first_tokens(20, 4)[1], first_tokens(20, 19)[1]
    begun = first_tokens(10, 0)[1]
    assert (seen(idle, idle, CHEAP), seen(idle, VLLM, CHEAP)) == ("small", "large")
    assert (seen(begun, quick, SOON), seen(begun, late, SOON)) == ("large", "small")
    assert (seen(idle, idle, PRICED), seen(idle, idle, PRICED, "900")) == ("large", "small")


def test_what_is_given_goes_before_what_was_read() -> None:
    read = State({"l": Reading(9, 5), "s": Reading(2, 5)}, {"l": Reading(3, 5), "s": Reading(1, 5)})
    found = overridden(read, load={"l": 4.0}, latency_ms={"s": 250.0}, carbon_g_per_kwh=0.0)
    assert found.running == {"l": Reading(4), "s": Reading(2, 5)}
    assert found.queued == {"s": Reading(1, 5)}
    assert (found.first_token_s, found.carbon_g_per_kwh) == ({"s": Reading(0.25)}, Reading(0))
    assert overridden(read) == read


def test_numbers_for_all_models_or_one() -> None:
    models = ("a", "b=c")
    assert by_model([], models, "--load") == {}
    assert by_model(["3"], models, "--load") == {"a": 3, "b=c": 3}
    assert by_model(["a=1", "3", "a=2"], models, "--load") == {"a": 2, "b=c": 3}
    assert by_model(["b=c=0.5"], models, "--load") == {"b=c": 0.5}
    assert carbon_given("41.5") == 41.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: by_model(["many"], ["m"], "--load"), "--load many: no number"),
        (
            lambda: by_model(["m=-1"], ["m"], "--latency-ms"),
            "--latency-ms m=-1: no number of at least 0; give one such",
        ),
        (lambda: by_model(["m="], ["m"], "--load"), "no number"),
        (lambda: by_model(["nan"], ["m"], "--load"), "no number"),
        (lambda: by_model(["x=1"], ["m", "n"], "--load"), "no option is of a model x; there are m, n"),
        (lambda: by_model(["1e300"], ["m"], "--load"), "--load 1e300: more than can be .at most 1,000,000."),
        (lambda: by_model(["m=2e8"], ["m"], "--latency-ms", 1e8), "--latency-ms m=2e8: more than can be"),
        (lambda: carbon_given("1e6"), "--carbon-g-per-kwh 1e6: more than can be .at most 100,000."),
        (lambda: carbon_given("inf"), "--carbon-g-per-kwh inf: no number of at least 0"),
    ],
)
def test_numbers_that_are_none_are_told(call: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()


def test_numpy_alone_is_loaded() -> None:
    heavy = "('torch', 'scipy', 'transformers', 'matplotlib', 'aiohttp')"
    code = f"import sys, joulewise.routing.live; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
