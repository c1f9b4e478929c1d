"""Remote GPUs, from a fake DCGM exporter and a fake Prometheus server over real HTTP on this machine."""

from __future__ import annotations

import json
import socket
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from joulewise.energy import Discovery, Meter
from joulewise.energy.sources import prometheus
from joulewise.energy.sources.prometheus import Poller, parse_metrics

ENERGY, POWER = prometheus.ENERGY, prometheus.POWER


class Fake:
    """An exporter (``/metrics``) and a server (``/api/v1/query``) of the same cards."""

    def __init__(self) -> None:
        self.energy_mj: dict[str, float] = {"GPU-a": 5_000_000, "GPU-b": 7_000_000}
        self.power_w: dict[str, float] = {"GPU-a": 400.5, "GPU-b": 300.0}
        self.status = 200
        self.body: bytes | None = None
        self.hold: threading.Event | None = None
        self.queries: list[str] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if fake.hold is not None:
                    fake.hold.wait(30)
                body = fake.answer(self.path) if fake.body is None else fake.body
                self.send_response(fake.status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, path: str) -> bytes:
        series = [(ENERGY, u, v) for u, v in self.energy_mj.items()] + [(POWER, u, v) for u, v in self.power_w.items()]
        if path == "/metrics":
            lines = [f"# HELP {ENERGY} Total energy.", f"# TYPE {ENERGY} counter", "DCGM_FI_DEV_SM_CLOCK 1"]
            for name, uuid, value in series:
                labels = ",".join(f'{k}="{v}"' for k, v in self.labels(uuid).items())
                lines += [f"{name}{{{labels}}} {value}", f'{name}{{{labels},GPU_I_ID="1"}} {value}']
            return "\n".join(lines).encode()
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)["query"][0]
        self.queries.append(query)
        counted = query.startswith("count_over_time")
        result = [
            {
                "metric": self.labels(u) | ({} if counted else {"__name__": n}),
                "value": [1.7e9, "20" if counted else str(v)],
            }
            for n, u, v in series
        ]
        return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()

    @staticmethod
    def labels(uuid: str) -> dict[str, str]:
        host = f"node-{uuid[-1]}"
        return {"gpu": "0", "UUID": uuid, "modelName": "NVIDIA H100 80GB HBM3", "Hostname": host}

    def close(self) -> None:
        if self.hold is not None:
            self.hold.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def fake() -> Iterator[Fake]:
    fake = Fake()
    yield fake
    fake.close()


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def found(address: str, clock: Clock | None = None, here: tuple[str, ...] = (), **settings: str) -> Discovery:
    return prometheus.discover(
        {"JOULEWISE_PROMETHEUS": address, **settings},
        clock or Clock(),
        local_uuids=lambda: here,
        poll_s=3600.0,  # the tests poll by hand
        timeout_s=0.5,
        wait_s=5.0,
    )


def poller_of(discovery: Discovery) -> Poller:
    source = discovery.sources[0]
    assert isinstance(source, prometheus.PrometheusSource)
    return source._poller


def test_nothing_is_asked_unless_an_address_is_set() -> None:
    assert prometheus.discover({}) == Discovery()


def test_an_exporter_tells_the_joules_of_each_of_its_gpus(fake: Fake) -> None:
    discovery = found(f"{fake.address}/metrics", JOULEWISE_PROMETHEUS_PERIOD_S="2")
    assert [s.spec.source_id for s in discovery.sources] == ["prometheus:GPU-a", "prometheus:GPU-b"]
    assert discovery.absent == ()
    first = discovery.sources[0]
    assert first.read().energy_j == 5000.0
    assert first.read().power_w is None
    assert (first.spec.device, first.spec.update_period_s) == ("NVIDIA H100 80GB HBM3", 2.0 + 3600.0)
    assert first.spec.relayed
    assert first.spec.note is not None
    assert "node-a" in first.spec.note
    for source in discovery.sources:
        source.close()
        source.close()
    assert poller_of(discovery)._stop.is_set()


def test_a_window_over_a_remote_gpu_has_an_interval_as_wide_as_the_exporter_is_slow(fake: Fake) -> None:
    clock = Clock()
    discovery = found(f"{fake.address}/metrics?Hostname=node-a", clock, JOULEWISE_PROMETHEUS_PERIOD_S="2")
    first = discovery.sources[0]
    assert isinstance(first, prometheus.PrometheusSource)
    first.spec = replace(first.spec, update_period_s=2.0)
    meter = Meter(discovery.sources, clock=clock, sample_period_s=None)
    meter.poll()
    with meter.window() as window:
        clock.now_s += 100.0
        fake.energy_mj["GPU-a"] += 40_000_000
        poller_of(discovery).poll()
    gpu = window.energy.gpu
    assert gpu is not None
    assert gpu.energy_j == pytest.approx(40_000.0, rel=0.05)
    # Each end: the power times a period whose phase nobody knows.
    assert gpu.independent_j == pytest.approx(2**0.5 * 400.0 * 2.0 / 12**0.5, rel=0.1)


def test_a_server_is_asked_for_the_labels_and_for_how_often_it_collects(fake: Fake) -> None:
    discovery = found(f"{fake.address}?Hostname=node-b")
    assert [s.spec.source_id for s in discovery.sources] == ["prometheus:GPU-b"]
    assert 'Hostname="node-b"' in fake.queries[0]
    assert discovery.sources[0].read().energy_j == 7000.0
    # 20 samples in 300 s: collected every 15 s, so a value may be older by that, and by the time between two polls.
    assert discovery.sources[0].spec.update_period_s == pytest.approx(30.0 + 15.0 + 3600.0)


def test_a_gpu_without_the_energy_series_is_told_by_its_integrated_power_and_marked(fake: Fake) -> None:
    clock = Clock()
    fake.energy_mj = {}
    discovery = found(f"{fake.address}/metrics", clock)
    clock.now_s += 2.0
    poller_of(discovery).poll()
    assert discovery.sources[0].read().energy_j == pytest.approx(801.0)
    assert "integrated" in discovery.sources[0].spec.method
    # The series comes up later: the integral goes on, as a jump to another counter would be a lie.
    fake.energy_mj = {"GPU-a": 1e12}
    clock.now_s += 2.0
    poller_of(discovery).poll()
    assert discovery.sources[0].read().energy_j == pytest.approx(1602.0)


def test_gpus_of_this_machine_and_gpus_told_twice_are_counted_once(fake: Fake) -> None:
    both = f"{fake.address}/metrics, {fake.address}"
    assert [s.spec.source_id for s in found(both, here=("GPU-a",)).sources] == ["prometheus:GPU-b"]


@pytest.mark.parametrize("address", ["gpu-node:9400/metrics", "file:///etc/hostname", "http:///metrics", "ftp://a/b"])
def test_what_is_no_address_is_told(address: str) -> None:
    (absent,) = found(address).absent
    assert address in absent.reason
    assert absent.remedy is not None
    assert "http://" in absent.remedy


def test_a_password_is_refused_and_not_shown() -> None:
    (absent,) = found("http://me:secret@node:9400/metrics").absent
    assert "secret" not in absent.reason


@pytest.mark.parametrize("period", ["0", "-1", "often", "nan", "inf"])
def test_a_period_that_is_none_is_told(period: str) -> None:
    (absent,) = found("http://node:9400/metrics", JOULEWISE_PROMETHEUS_PERIOD_S=period).absent
    assert "JOULEWISE_PROMETHEUS_PERIOD_S" in absent.reason


@pytest.mark.parametrize(
    ("status", "body", "path", "words"),
    [
        (503, None, "/metrics", "answers 503"),
        (200, b"<html>hello</html>", "/metrics", "has no series"),
        (200, b"<html>hello</html>", "", "not that of a Prometheus server"),
        (200, b'{"data": {"result": []}}', "", "has no series"),
        (200, b'{"data": []}', "", "not that of a Prometheus server"),
        (200, f'{ENERGY}{{UUID="GPU-a"}} NaN'.encode(), "/metrics", "has no series"),
    ],
)
def test_answers_that_are_of_no_use(fake: Fake, status: int, body: bytes | None, path: str, words: str) -> None:
    fake.status, fake.body = status, body
    discovery = found(fake.address + path)
    assert discovery.sources == ()
    (absent,) = discovery.absent
    assert absent.present
    assert words in absent.reason


def test_a_server_that_does_not_answer_is_told_in_time(fake: Fake) -> None:
    fake.hold = threading.Event()
    (absent,) = found(f"{fake.address}/metrics").absent
    assert "does not answer in time" in absent.reason


def test_a_port_where_nobody_listens_is_told_without_numbers_of_the_system() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        (absent,) = found(f"http://127.0.0.1:{free.getsockname()[1]}/metrics").absent
    assert "refuses the connection" in absent.reason
    assert "Errno" not in absent.reason


def test_a_server_lost_on_the_way_makes_the_window_unknown_with_the_reason_and_blocks_nothing(fake: Fake) -> None:
    clock = Clock()
    discovery = found(f"{fake.address}/metrics", clock)
    poller = poller_of(discovery)
    poller.poll_s = 1.0
    meter = Meter(discovery.sources, clock=clock, sample_period_s=None)
    meter.poll()
    with meter.window() as window:
        fake.status = 500
        poller.poll()
        clock.now_s += 10.0
    gpu = window.energy.gpu
    assert gpu is not None
    assert gpu.energy_j is None
    assert gpu.note is not None
    assert "answers 500" in gpu.note
    assert "10 s ago" in gpu.note
    fake.status = 200
    poller.poll()
    assert discovery.sources[0].read().energy_j == 5000.0


def test_a_gpu_that_is_no_longer_told_of_grows_old(fake: Fake) -> None:
    clock = Clock()
    discovery = found(f"{fake.address}/metrics", clock)
    poller = poller_of(discovery)
    poller.poll_s = 1.0
    del fake.energy_mj["GPU-a"]
    clock.now_s += 10.0
    poller.poll()
    fault = discovery.sources[0].read().fault
    assert fault is not None
    assert "gives no new value of GPU-a" in fault
    assert discovery.sources[1].read().fault is None


def test_labels_may_hold_anything() -> None:
    (sample,) = parse_metrics('x{a="1,2}",b="say \\"hi\\"", c="d"} 1.5e3 1700000000\n# x{a="b"} 1\nx{a="b"} word\n')
    assert sample.value == 1500.0
    assert sample.labels["a"] == "1,2}"
    assert sample.labels["c"] == "d"
