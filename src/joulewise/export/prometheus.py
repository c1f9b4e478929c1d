"""Prometheus metrics of the running meter (extra ``prometheus``)."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from joulewise import __version__
from joulewise.errors import EnvironmentFault, UserError
from joulewise.export.live import Live

if TYPE_CHECKING:
    from prometheus_client import Metric

LOCAL = "127.0.0.1"

_LABELS = ("component", "provenance", "device", "source")


def collect(live: Live) -> Iterator[Metric]:
    """The metrics of now. What is not known has no sample."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    energy = CounterMetricFamily("joulewise_energy_joules", "Joules drawn since the meter was started.", labels=_LABELS)
    sigma = GaugeMetricFamily(
        "joulewise_energy_uncertainty_joules",
        "Standard uncertainty of joulewise_energy_joules_total: independent (edges, sampling), gain and offset.",
        labels=(*_LABELS, "part"),
    )
    gain = GaugeMetricFamily(
        "joulewise_gain_uncertainty_ratio",
        "Relative standard uncertainty of the sensor's gain, or of the model.",
        labels=_LABELS,
    )
    power = GaugeMetricFamily("joulewise_power_watts", "Instantaneous power, where a source has one.", labels=_LABELS)
    up = GaugeMetricFamily("joulewise_source_up", "1 if the source can be read, else 0.", labels=_LABELS)
    faults = CounterMetricFamily("joulewise_source_faults", "How often a source has failed.", labels=_LABELS)
    absent = GaugeMetricFamily(
        "joulewise_component_unread",
        "A device that is there but cannot be read.",
        labels=("component", "kind", "reason"),
    )
    figures = live.figures()
    for source in figures.sources:
        spec = source.spec
        labels = (spec.component, spec.provenance, spec.device, spec.source_id)
        if source.energy is not None and source.energy_j is not None:
            energy.add_metric(labels, source.energy_j)
            for part in ("independent", "gain", "offset"):
                sigma.add_metric((*labels, part), getattr(source.energy, f"{part}_j"))
        if spec.gain is not None:
            gain.add_metric(labels, spec.gain)
        if source.power_w is not None:
            power.add_metric(labels, source.power_w)
        up.add_metric(labels, float(source.fault is None))
        faults.add_metric(labels, source.faults)
    for gap in live.meter.absent:
        if gap.present:
            absent.add_metric((gap.component, gap.name, gap.reason), 1.0)
    yield from (energy, sigma, gain, power, up, faults, absent)
    yield CounterMetricFamily("joulewise_metered_seconds", "Seconds since the start.", value=figures.duration_s)
    yield GaugeMetricFamily("joulewise_read_seconds", "How long reading all sources took.", value=figures.read_s)
    if figures.sampler_cpu_s is not None:
        yield CounterMetricFamily(
            "joulewise_sampler_cpu_seconds", "CPU time that the sampler has used.", value=figures.sampler_cpu_s
        )
    yield InfoMetricFamily("joulewise_build", "Which Joulewise this is.", value={"version": __version__})


class _Collector:
    """What the library calls at each scrape."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def collect(self) -> Iterator[Metric]:
        return collect(self._live)


@contextmanager
def serving(live: Live, where: str) -> Iterator[str]:
    """Serve the metrics over HTTP inside a ``with`` block, which gets their address.

    Args:
        live: the figures.
        where: ``PORT`` or ``ADDRESS:PORT``; the address is 127.0.0.1 if left out, and port 0 stands for any free one.

    Raises:
        UserError: ``where`` is no such thing.
        EnvironmentFault: nothing can listen there, or the extra is not installed.
    """
    address, port = _parsed(where)
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise EnvironmentFault(
            f"--serve needs the package {error.name}; install it with: pip install 'joulewise[prometheus]'"
        ) from error
    registry = CollectorRegistry()
    registry.register(_Collector(live))
    try:
        server, thread = start_http_server(port, address, registry)
    except OSError as error:
        why = "another program listens there" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise EnvironmentFault(f"--serve {where}: {why}; give another PORT or ADDRESS:PORT") from error
    try:
        host = f"[{address}]" if ":" in address else address
        yield f"http://{host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _parsed(where: str) -> tuple[str, int]:
    address, _, port = where.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise UserError(f"--serve {where}: give a port, or an address and a port, such as 9777 or 0.0.0.0:9777")
    return address.removeprefix("[").removesuffix("]") or LOCAL, int(port)
