"""Prometheus: GPUs of other hosts, by the series of NVIDIA's DCGM exporter.

``JOULEWISE_PROMETHEUS`` names where to ask, several addresses apart by commas:

- ``http://gpu-node:9400/metrics``: an exporter itself (the path ends in ``/metrics``);
- ``http://prometheus:9090``: a Prometheus server that collects from exporters.

A query keeps only the series with these labels, as in ``http://prometheus:9090?Hostname=gpu-node``. Each address is
asked once a second by a thread of its own, so that a slow or lost server never holds up the meter.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from joulewise.energy.calibration import calibrated
from joulewise.energy.power_integral import PowerIntegral
from joulewise.energy.reading import Reading
from joulewise.energy.source import Absent, Discovery, Source, SourceSpec
from joulewise.energy.sources import nvml

SETTING = "JOULEWISE_PROMETHEUS"
PERIOD_SETTING = "JOULEWISE_PROMETHEUS_PERIOD_S"

ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
"""Millijoules since the driver was loaded."""

POWER = "DCGM_FI_DEV_POWER_USAGE"
"""Watts."""

SCRAPE_S = 60.0
"""A Prometheus server collects this often unless told otherwise; used where it does not show how often."""

LOOK_BACK_S = 300
"""The server's own samples of so long are counted to find how often it collects."""

PERIOD_S = 30.0
"""dcgm-exporter renews its values this often unless told otherwise (``--collect-interval``)."""

POLL_S = 1.0

TIMEOUT_S = 2.0
"""Of one step of a request; a server that is slower than that is as good as lost."""

WAIT_S = 5.0
"""Discovery waits so long for the first answer."""

STALE_S = 5.0
"""Without a good answer for so long, the last one is no longer shown."""

MAX_BYTES = 16_000_000

_LINE = re.compile(r"^(\w+)\{(.*)\}\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass
class _Card:
    """What is known of one remote GPU; written by the poller alone."""

    labels: Mapping[str, str]
    counts: bool
    energy_j: float
    seen_s: float


@dataclass(frozen=True)
class _Sample:
    name: str
    labels: Mapping[str, str]
    value: float


class Poller:
    """Asks one address again and again, in a thread of its own.

    Args:
        address: where to ask, as the module says.
        period_s: how often the exporter renews its values, in seconds.
        clock: monotonic clock, in seconds.
        poll_s: seconds between two requests.
        timeout_s: seconds that one step of a request may take.
    """

    def __init__(
        self,
        address: str,
        period_s: float = PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
        poll_s: float = POLL_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.address = address
        self.period_s = period_s
        self.lag_s = poll_s  # from the exporter to here
        self.fault: str | None = f"{address}: no answer yet"
        self.cards: dict[str, _Card] = {}
        self.answered = threading.Event()
        self.poll_s, self.clock = poll_s, clock
        self._timeout_s = timeout_s
        self._integrals: dict[str, PowerIntegral] = {}
        self._asked = False
        self._stop = threading.Event()
        url = urllib.parse.urlsplit(address)
        self._wanted = dict(urllib.parse.parse_qsl(url.query))
        self._is_exporter = url.path.endswith("/metrics")
        self._base = urllib.parse.urlunsplit((url.scheme, url.netloc, url.path.rstrip("/"), "", ""))
        self._thread = threading.Thread(target=self._follow, name="joulewise-prometheus", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more. Idempotent; a request that is under way is not waited for."""
        self._stop.set()

    def _follow(self) -> None:
        while True:
            self.poll()
            self.answered.set()
            if self._stop.wait(self.poll_s):
                return

    def poll(self) -> None:
        """Ask once; what goes wrong is told in ``fault``."""
        try:
            samples = self._ask()
        except urllib.error.HTTPError as error:
            self.fault = f"{self.address}: answers {error.code} {error.reason}"
            error.close()
        except urllib.error.URLError as error:
            self.fault = f"{self.address}: {_why(error.reason)}"
        except (OSError, http.client.HTTPException) as error:
            self.fault = f"{self.address}: {_why(error)}"
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            self.fault = f"{self.address}: its answer is not that of a Prometheus server or exporter"
        else:
            self._take(samples)

    def _ask(self) -> list[_Sample]:
        if self._is_exporter:
            return list(parse_metrics(self._get(self._base)))
        labels = "".join(f",{name}={json.dumps(value)}" for name, value in self._wanted.items())
        series = f'{{__name__=~"{ENERGY}|{POWER}"{labels}}}'
        if not self._asked:
            counts = [s.value for s in self._query(f"count_over_time({series}[{LOOK_BACK_S}s])")]
            self.lag_s = self.poll_s + (LOOK_BACK_S / min(counts) if counts else SCRAPE_S)
            self._asked = True
        return self._query(series)

    def _query(self, query: str) -> list[_Sample]:
        answer = json.loads(self._get(f"{self._base}/api/v1/query?{urllib.parse.urlencode({'query': query})}"))
        return [
            _Sample(series["metric"].get("__name__", ""), series["metric"], float(series["value"][1]))
            for series in answer["data"]["result"]
        ]

    def _get(self, url: str) -> str:
        with urllib.request.urlopen(url, timeout=self._timeout_s) as response:
            return str(response.read(MAX_BYTES).decode("utf-8", "replace"))

    def _take(self, samples: Iterable[_Sample]) -> None:
        now_s = self.clock()
        found: dict[str, dict[str, _Sample]] = {}
        for sample in samples:
            uuid = sample.labels.get("UUID")
            wanted = all(sample.labels.get(name) == value for name, value in self._wanted.items())
            if sample.name in (ENERGY, POWER) and uuid and wanted and math.isfinite(sample.value):
                # MIG instances, and containers that share a card, repeat the whole card's figure.
                found.setdefault(uuid, {}).setdefault(sample.name, sample)
        for uuid, by_name in found.items():
            before = self.cards.get(uuid)
            counts = ENERGY in by_name if before is None else before.counts
            sample_ = by_name.get(ENERGY if counts else POWER)
            if sample_ is None:
                continue  # what told this card is gone; its last value grows old
            if counts:
                energy_j = sample_.value / 1000
            else:
                energy_j = self._integrals.setdefault(uuid, PowerIntegral(STALE_S)).add(now_s, sample_.value)
            self.cards[uuid] = _Card(sample_.labels, counts, energy_j, now_s)
        self.fault = None if found else f"{self.address}: has no series {ENERGY} or {POWER} with the labels asked for"


class PrometheusSource:
    """One remote GPU: the last value that the exporter was seen to show.

    Args:
        poller: asks the exporter; stopped when the last of its sources is closed.
        uuid: the GPU.
        spec: what it is.
        users: the open sources of the poller.
    """

    def __init__(self, poller: Poller, uuid: str, spec: SourceSpec, users: set[str]) -> None:
        self.spec = spec
        self._poller, self._uuid, self._users = poller, uuid, users
        users.add(uuid)

    def read(self) -> Reading:
        """The value at hand; nothing is asked here, so this takes no time."""
        now_s = self._poller.clock()
        card = self._poller.cards[self._uuid]
        age_s = now_s - card.seen_s
        if age_s > max(STALE_S, 3 * self._poller.poll_s):
            why = self._poller.fault or f"{self._poller.address}: gives no new value of {self._uuid}"
            return Reading(now_s, 0.0, None, fault=f"{why} (last value {age_s:.0f} s ago)")
        # Its power may be a whole period old, too old to follow the load by, so the meter is told the counter alone.
        return Reading(now_s, 0.0, card.energy_j)

    def sample(self) -> Reading:
        """The same: the meter then sees when the value changes."""
        return self.read()

    def close(self) -> None:
        """Let go; with the last source the asking ends."""
        self._users.discard(self._uuid)
        if not self._users:
            self._poller.stop()


def parse_metrics(text: str) -> Iterator[_Sample]:
    """The samples with labels of a text in Prometheus' exposition format; other lines are passed over."""
    for line in text.splitlines():
        if match := _LINE.match(line):
            try:
                value = float(match[3])
            except ValueError:  # not a sample
                continue
            yield _Sample(match[1], dict(_LABEL.findall(match[2])), value)


def discover(
    environ: Mapping[str, str] = os.environ,
    clock: Callable[[], float] = time.monotonic,
    *,
    local_uuids: Callable[[], Collection[str]] = nvml.local_uuids,
    poll_s: float = POLL_S,
    timeout_s: float = TIMEOUT_S,
    wait_s: float = WAIT_S,
) -> Discovery:
    """One source per GPU that the addresses of ``JOULEWISE_PROMETHEUS`` tell of; nothing where it is not set.

    Args:
        environ: where the settings are looked up.
        clock: monotonic clock, in seconds.
        local_uuids: the GPUs of this machine, which NVML reads and which would otherwise be counted twice.
        poll_s: seconds between two requests.
        timeout_s: seconds that one step of a request may take.
        wait_s: seconds to wait for the first answer.
    """
    addresses = [a.strip() for a in environ.get(SETTING, "").split(",") if a.strip()]
    if not addresses:
        return Discovery()
    period_s = _seconds(environ.get(PERIOD_SETTING) or str(PERIOD_S))
    if period_s is None:
        return Discovery(absent=(_absent(f"{PERIOD_SETTING} is no number of seconds above 0", "correct or unset it"),))
    pollers: list[Poller] = []
    absent: list[Absent] = []
    for address in addresses:
        url = urllib.parse.urlsplit(address)
        if url.scheme not in ("http", "https") or not url.hostname:
            absent.append(_absent(f"{SETTING}: {address} is no address", "write it as http://host:9400/metrics"))
        elif "@" in url.netloc:  # it would be recorded with every run
            absent.append(_absent(f"{SETTING}: an address with a password in it", "ask an address that needs none"))
        else:
            pollers.append(Poller(address, period_s, clock, poll_s, timeout_s))
            pollers[-1].start()
    here = set(local_uuids()) if pollers else set()
    sources: list[Source] = []
    for poller in pollers:
        answered = poller.answered.wait(wait_s)
        users: set[str] = set()
        for uuid, card in dict(poller.cards).items():
            if uuid not in here:
                sources.append(PrometheusSource(poller, uuid, _spec(poller, uuid, card), users))
                here.add(uuid)
        if not users:
            poller.stop()
        if not poller.cards:
            why = poller.fault if answered and poller.fault else f"{poller.address}: no answer within {wait_s:g} s"
            absent.append(_absent(why, f"see whether the address answers in a browser, or unset {SETTING}"))
    return Discovery(tuple(sources), tuple(absent))


def _seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 < seconds < math.inf else None


def _spec(poller: Poller, uuid: str, card: _Card) -> SourceSpec:
    host = card.labels.get("Hostname") or card.labels.get("instance") or "an unknown host"
    spec = SourceSpec(
        source_id=f"prometheus:{uuid}",
        component="gpu",
        device=card.labels.get("modelName", "remote GPU"),
        provenance="measured",
        method=f"{ENERGY} of a DCGM exporter" if card.counts else f"{POWER} of a DCGM exporter, integrated",
        update_period_s=poller.period_s + poller.lag_s,
        relayed=True,
        quantum_j=nvml.QUANTUM_J,
        gain=nvml.GAIN,
        offset_w=nvml.OFFSET_W,
        note=f"on {host}, asked for at {poller.address}, renewed there every {poller.period_s:g} s",
    )
    if card.counts:
        return calibrated(spec)
    note = f"{spec.note}; its power readings are integrated, wide interval"
    return calibrated(replace(spec, note=note), unseen=nvml.UNSEEN_GAIN)


def _absent(reason: str, remedy: str) -> Absent:
    return Absent("prometheus", "gpu", True, reason, remedy)


def _why(error: object) -> str:
    """What went wrong with a connection, in words and without numbers of the system."""
    if isinstance(error, TimeoutError):
        return "does not answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "refuses the connection; is the exporter running?"
    if isinstance(error, socket.gaierror):
        return "no such host"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be asked: {error.strerror}"
    return f"cannot be asked: {error or type(error).__name__}"
