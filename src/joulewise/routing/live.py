"""What is so at present: load and first tokens from the servers' metrics, carbon from the grid's source, by age.

All servers are asked side by side, and none is waited for longer than a time-out: a choice never hangs on a dead one.
"""

from __future__ import annotations

import math
import os
import threading
import time
import urllib.parse
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType

from joulewise.address import check_address, server_of
from joulewise.energy.carbon import ELECTRICITY_MAPS, Intensity, grid
from joulewise.engines.servers.counters import Exposition, parse_exposition
from joulewise.engines.servers.server import Fetch, fetcher
from joulewise.errors import EnvironmentFault, UserError
from joulewise.routing.policy import Reading, State

TIMEOUT_S = 0.5
CARBON_EVERY_S, CARBON_AGAIN_S = 900.0, 60.0
"""The carbon intensity is asked for no more often, and after a failure: it changes by the quarter of an hour."""

MOST_REQUESTS, MOST_LATENCY_MS, MOST_WATTS, MOST_CARBON_G = 1e6, 1e8, 1e6, 1e5
"""Beyond these nobody's requests, milliseconds, watts of a server and grams a kWh are: a number was mistyped."""

_GAUGES = {
    "vllm:num_requests_running": "vllm:num_requests_waiting",
    "sglang:num_running_reqs": "sglang:num_queue_reqs",
    "llamacpp:requests_processing": "llamacpp:requests_deferred",
}
"""Running requests, and those that wait."""
_FIRST_TOKENS = ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds")
_NO_METRICS = "has no metrics: start llama.cpp with --metrics, SGLang with --enable-metrics"
_WHY_STATUS = {
    0: "cannot be reached, or not in time",
    401: "refuses the key: check its key_env",
    403: "refuses the key: check its key_env",
    404: _NO_METRICS,
    501: _NO_METRICS,
}
_NO_LOADS = "its metrics tell no running requests as vLLM, SGLang and llama.cpp do"


@dataclass(frozen=True, slots=True)
class Watched:
    """A server of a model.

    Args:
        model: as options name it.
        url: the base of its address, such as ``http://localhost:8000/v1``.
        key_env: the environment variable that holds its key; None to send none.
    """

    model: str
    url: str
    key_env: str | None = None


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a server's metrics tell; None for what they do not.

    Args:
        running, queued: requests.
        first_tokens, first_tokens_s: how many there were since it started, and the sum of their seconds.
    """

    running: float | None = None
    queued: float | None = None
    first_tokens: float | None = None
    first_tokens_s: float | None = None


def read_metrics(text: str) -> Metrics:
    """The load and the first tokens out of the metrics of vLLM, SGLang or llama.cpp."""
    found = parse_exposition(text)
    running = queued = None
    for name, waiting in _GAUGES.items():
        if name in found:
            running, queued = _requests(found, name), _requests(found, waiting)
    for name in _FIRST_TOKENS:
        if f"{name}_count" in found:
            return Metrics(running, queued, _sum(found, f"{name}_count"), _sum(found, f"{name}_sum"))
    return Metrics(running, queued)


def _requests(metrics: Exposition, name: str) -> float | None:
    """Over a server's replicas; SGLang repeats each for its tensor-parallel ranks, by priority, and as a sum of all."""
    by_replica: dict[tuple[str, ...], float] = {}
    for labels, value in metrics.get(name, ()):
        if not labels.get("priority"):
            replica = tuple(f"{key} {labels[key]}" for key in ("engine", "dp_rank") if key in labels)
            by_replica[replica] = max(value, by_replica.get(replica, 0.0))
    if len(by_replica) > 1:
        by_replica.pop((), None)
    return _known(sum(by_replica.values()), MOST_REQUESTS) if by_replica else None


def _sum(metrics: Exposition, name: str) -> float | None:
    return _known(sum(value for _, value in metrics[name])) if name in metrics else None


def _known(value: float, most: float = math.inf) -> float | None:
    return value if 0 <= value <= most and math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class _Seen:
    """The last reading of a thing: its value, and the moment by the monotonic clock that it was so."""

    value: float
    at_s: float


class _Asking:
    """One question in a thread of its own; what it answers is there once it has ended."""

    def __init__(self, ask: Callable[[], object], at_s: float) -> None:
        self.at_s = at_s
        self.answer: object = None
        self._ask = ask
        self._thread = threading.Thread(target=self._run, name="joulewise-live", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.answer = self._ask()

    def ended_by(self, end_s: float) -> bool:
        """Waits until then, by ``time.monotonic``."""
        self._thread.join(max(0.0, end_s - time.monotonic()))
        return not self._thread.is_alive()


class LiveState:
    """Keeps the last reading of each server and of the grid. Not for several threads at once.

    ``intensity`` is the grid's last one, with its source; that of a country is a year's mean, and never old.

    Args:
        watched: servers, one a model.
        carbon: as for ``energy.carbon.grid``; None for none.
        timeout_s: so long all of them together may take to answer.
        clock: monotonic, in seconds.
        now: the present by the calendar, with its time zone.
        fetch: how a server is asked; left out, by HTTP.

    Raises:
        UserError: two servers of one model, what is no address, a key that is not set, or no such country or file.
        EnvironmentFault: the file of intensities cannot be read.
    """

    def __init__(
        self,
        watched: Sequence[Watched],
        carbon: str | None = None,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        fetch: Callable[[Watched], Fetch] | None = None,
    ) -> None:
        self._watched = {one.model: one for one in watched}
        if len(self._watched) < len(watched):
            raise UserError("Two servers are watched for one model: give each its own model's name.")
        keys = {one.model: _key(one) for one in watched}
        self._fetch = {
            one.model: fetcher(_root(one.url), keys[one.model], timeout_s) if fetch is None else fetch(one)
            for one in watched
        }
        if carbon is not None and not carbon.startswith(ELECTRICITY_MAPS):
            grid(carbon)  # what is misspelt is told here
        self._carbon, self._timeout_s, self._clock, self._now = carbon, timeout_s, clock, now
        self._running: dict[str, _Seen] = {}
        self._queued: dict[str, _Seen] = {}
        self._first_token: dict[str, _Seen] = {}
        self._counted: dict[str, tuple[float, Metrics]] = {}
        self.intensity: Intensity | None = None
        self._carbon_at_s = self._carbon_due_s = -math.inf
        self._asking: dict[str | None, _Asking] = {}
        self._faults: dict[str | None, str] = {}

    def refresh(self) -> None:
        """Ask all servers, and the grid where it is due. Who does not answer in time keeps the last reading.

        A late answer is taken the next time, as old as it is then; until it is there, nobody is asked twice.
        """
        end_s = time.monotonic() + self._timeout_s
        self._take(time.monotonic())
        for model, fetch in self._fetch.items():
            if model not in self._asking:
                self._asking[model] = _Asking(partial(_metrics, fetch), self._clock())
        if self._carbon is not None and None not in self._asking and self._clock() >= self._carbon_due_s:
            self._asking[None] = _Asking(partial(_intensity, self._carbon, self._now()), self._clock())
        self._take(end_s)

    def state(self) -> State:
        """What was read last, by its age now."""
        now_s = self._clock()

        def aged(seen: Mapping[str, _Seen]) -> Mapping[str, Reading]:
            return MappingProxyType({model: Reading(one.value, now_s - one.at_s) for model, one in seen.items()})

        grid_now = self.intensity
        carbon = None if grid_now is None else Reading(grid_now.g_per_kwh, now_s - self._carbon_at_s)
        return State(aged(self._running), aged(self._queued), carbon, first_token_s=aged(self._first_token))

    def notes(self) -> tuple[str, ...]:
        """Why a reading is not renewed, one sentence each."""
        told, state = [], self.state()
        for who, why in self._faults.items():
            if who is None:
                last, of = state.carbon_g_per_kwh, f"carbon intensity of {self._carbon}"
            else:
                last, of = state.running.get(who), f"load of {who}: {server_of(self._watched[who].url)}"
            told.append(f"{of} {why}; {'there is no reading' if last is None else f'read {last.age_s:,.0f} s ago'}")
        return tuple(told)

    def _take(self, end_s: float) -> None:
        """All answers that are there by then."""
        for who, asking in list(self._asking.items()):
            if not asking.ended_by(end_s):
                self._faults[who] = f"did not answer within {self._timeout_s:g} s"
                continue
            del self._asking[who]
            self._faults.pop(who, None)
            match asking.answer:
                case Metrics() as found if who is not None:
                    self._take_metrics(who, found, asking.at_s)
                case Intensity() as found:
                    self.intensity = found
                    self._carbon_at_s = asking.at_s - found.away_s
                    self._carbon_due_s = asking.at_s + CARBON_EVERY_S
                case fault:
                    self._faults[who] = str(fault)
                    if who is None:
                        self._carbon_due_s = asking.at_s + CARBON_AGAIN_S

    def _take_metrics(self, model: str, found: Metrics, at_s: float) -> None:
        for kept, value in ((self._running, found.running), (self._queued, found.queued)):
            if value is not None:
                kept[model] = _Seen(value, at_s)
        if found.running is None:
            self._faults[model] = _NO_LOADS
        before_s, before = self._counted.get(model, (at_s, Metrics()))
        self._counted[model] = (at_s, found)
        mean_s = _mean_between(before, found)
        if mean_s is not None:  # a mean over an interval is as old as its middle
            self._first_token[model] = _Seen(mean_s, (before_s + at_s) / 2)


def _metrics(fetch: Fetch) -> Metrics | str:
    status, text = fetch("/metrics")
    return read_metrics(text) if status == 200 else _WHY_STATUS.get(status, f"answers with HTTP {status}")


def _intensity(carbon: str, moment: datetime) -> Intensity | str:
    try:
        return grid(carbon)(moment, moment)
    except (EnvironmentFault, UserError) as fault:
        return f"is not known: {fault}"


def _mean_between(before: Metrics, after: Metrics) -> float | None:
    """Mean seconds of the first tokens in between; None where there were none, or the server has started anew."""
    if None in (before.first_tokens, before.first_tokens_s, after.first_tokens, after.first_tokens_s):
        return None
    count = (after.first_tokens or 0.0) - (before.first_tokens or 0.0)
    seconds = (after.first_tokens_s or 0.0) - (before.first_tokens_s or 0.0)
    return _known(seconds / count, MOST_LATENCY_MS / 1000.0) if count > 0 and seconds >= 0 else None


def _key(one: Watched) -> str | None:
    key = None
    if one.key_env is not None:
        key = os.environ.get(one.key_env)
        if not key:
            raise UserError(f"The server of {one.model}: the environment variable {one.key_env} of its key is not set.")
    check_address(one.url, key, named=f"The server of {one.model},", whose="its")
    return key


def _root(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def by_model(
    texts: Sequence[str], models: Collection[str], option: str, most: float = MOST_REQUESTS
) -> dict[str, float]:
    """What ``--load`` and ``--latency-ms`` say, by model.

    Args:
        texts: ``8`` for all models, or ``ENGINE=8``, which goes before; of two for one model the later counts.
        models: all there are.
        option: its name, for what is told.
        most: that can be.

    Raises:
        UserError: no number of at least 0, one beyond what can be, or no such model.
    """
    found: dict[str, float] = {}
    named: dict[str, float] = {}
    for text in texts:
        model, equals, number = text.rpartition("=")
        value = _number(number, f"{option} {text}", "8, or ENGINE=8", most)
        if not equals:
            found = dict.fromkeys(models, value)
        elif model in models:
            named[model] = value
        else:
            raise UserError(f"{option} {text}: no option is of a model {model}; there are {', '.join(sorted(models))}.")
    return {**found, **named}


def carbon_given(text: str, option: str = "--carbon-g-per-kwh") -> float:
    """What ``--carbon-g-per-kwh`` says.

    Raises:
        UserError: no number of at least 0, or one beyond what can be.
    """
    return _number(text, f"{option} {text}", "350", MOST_CARBON_G)


def _number(text: str, place: str, example: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UserError(f"{place}: no number of at least 0; give one such as {example}.")
    if value > most:
        raise UserError(f"{place}: more than can be (at most {most:,.0f}); give one such as {example}.")
    return value


def overridden(
    state: State,
    load: Mapping[str, float] = MappingProxyType({}),
    latency_ms: Mapping[str, float] = MappingProxyType({}),
    carbon_g_per_kwh: float | None = None,
) -> State:
    """A state with what a person says in the place of what was read.

    Args:
        load: running requests by model; nothing waits there then.
        latency_ms: milliseconds to the first token by model.
    """
    running = {**state.running, **{model: Reading(value) for model, value in load.items()}}
    queued = {model: reading for model, reading in state.queued.items() if model not in load}
    first = {**state.first_token_s, **{model: Reading(value / 1000.0) for model, value in latency_ms.items()}}
    carbon = state.carbon_g_per_kwh if carbon_g_per_kwh is None else Reading(carbon_g_per_kwh)
    return replace(state, running=running, queued=queued, first_token_s=first, carbon_g_per_kwh=carbon)
