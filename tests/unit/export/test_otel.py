"""OpenTelemetry metrics: what a reader sees, and what reaches a collector."""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData
from simulated import Clock, Load, SimulatedSource, meter_of, run_to, spec

from joulewise.errors import EnvironmentFault, UserError
from joulewise.export.live import Live
from joulewise.export.otel import exporting, instrument


def live_figures() -> tuple[Live, SimulatedSource]:
    clock = Clock()
    gpu = SimulatedSource(clock, Load([(1.0, 300.0)]), spec(source_id="nvml:GPU-1", device="Simulated 1", gain=0.05))
    meter = meter_of(gpu)
    live = Live(meter, clock)
    run_to(meter, clock, 1010.0)
    return live, gpu


def observed(live: Live) -> dict[str, list[tuple[dict[str, object], float]]]:
    """Attributes and values by metric."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    instrument(live, provider)
    data = reader.get_metrics_data()
    provider.shutdown()
    assert isinstance(data, MetricsData)
    return {
        metric.name: [(dict(point.attributes or {}), point.value) for point in metric.data.data_points]  # type: ignore[union-attr]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_figures_under_the_semantic_conventions_names() -> None:
    live, _ = live_figures()
    found = observed(live)
    gpu = {
        "hw.id": "nvml:GPU-1",
        "hw.name": "Simulated 1",
        "hw.type": "gpu",
        "joulewise.provenance": "measured",
    }
    assert found["hw.energy"] == [(gpu, pytest.approx(3000.0, abs=30.0))]
    assert found["hw.power"] == [(gpu, pytest.approx(300.0))]
    assert found["hw.errors"] == [(gpu, 0)]
    assert found["joulewise.metered_time"] == [({}, pytest.approx(10.0))]
    parts = {str(point["joulewise.uncertainty.part"]): value for point, value in found["joulewise.energy.uncertainty"]}
    assert parts["gain"] == pytest.approx(0.05 * found["hw.energy"][0][1])
    assert set(parts) == {"independent", "gain", "offset"}


def test_what_is_not_known_is_not_observed() -> None:
    live, gpu = live_figures()
    gpu.fault = "GPU is lost"
    found = observed(live)
    assert not found.get("hw.energy")
    assert not found.get("hw.power")
    assert [value for _, value in found["hw.errors"]] == [1]


@pytest.mark.parametrize("path", ["", "/", "/otlp/metrics"])
def test_a_collector_gets_the_last_figures_at_the_end(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    bodies: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    live, _ = live_figures()
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        with exporting(live, f"http://127.0.0.1:{server.server_port}{path}"):
            assert not bodies
        server.shutdown()
        thread.join()
    ((where, body),) = bodies
    assert where == (path if len(path) > 1 else "/v1/metrics")
    (resource,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
    assert {a.key: a.value.string_value for a in resource.resource.attributes}["service.name"] == "joulewise"
    metrics = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    (point,) = metrics["hw.energy"].sum.data_points
    assert metrics["hw.energy"].sum.is_monotonic
    assert metrics["hw.energy"].unit == "J"
    assert point.as_double == pytest.approx(3000.0, abs=30.0)


def test_a_collector_that_is_not_there_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.server_close()  # a port where nobody listens
    live, _ = live_figures()
    with exporting(live, f"http://127.0.0.1:{server.server_port}"):
        pass
    assert caplog.records


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://localhost", "http://", ""])
def test_what_is_no_endpoint(endpoint: str) -> None:
    live, _ = live_figures()
    with pytest.raises(UserError, match="give the collector's address"), exporting(live, endpoint):
        pass


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
    live, _ = live_figures()
    with pytest.raises(EnvironmentFault, match=r"pip install 'joulewise\[otel\]'"), exporting(live, "http://localhost"):
        pass
