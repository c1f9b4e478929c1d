"""OpenTelemetry metrics of the running meter, sent by OTLP over HTTP (extra ``otel``).

Names are those of OpenTelemetry's semantic conventions for hardware where there are any (``hw.energy``, ``hw.power``,
``hw.errors`` with ``hw.id``, ``hw.name``, ``hw.type``); the others begin with ``joulewise``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

from joulewise import __version__
from joulewise.errors import EnvironmentFault, UserError
from joulewise.export.live import Figures, Live, SourceFigures

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

TIMEOUT_S = 5.0
"""A collector that does not answer holds up the meter's end for so long at most."""

_TYPES = {"gpu": "gpu", "cpu": "cpu", "dram": "memory", "total": "enclosure"}
"""``hw.type`` by component."""

_Points: TypeAlias = Iterator[tuple[float | None, dict[str, str]]]


def instrument(live: Live, provider: MeterProvider) -> None:
    """Make the meter's figures observable by a provider's readers. What is not known is not observed."""
    from opentelemetry.metrics import Observation

    meter = provider.get_meter("joulewise", __version__)

    def seen(points: Callable[[Figures], _Points]) -> list[Callable[[CallbackOptions], Iterable[Observation]]]:
        def callback(_options: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, labels) for value, labels in points(live.figures()) if value is not None]

        return [callback]

    def of_sources(value: Callable[[SourceFigures], float | None]) -> Callable[[Figures], _Points]:
        return lambda figures: ((value(source), _attributes(source)) for source in figures.sources)

    def uncertainties(figures: Figures) -> _Points:
        for source in figures.sources:
            for part in ("independent", "gain", "offset"):
                sigma_j = None if source.energy is None else getattr(source.energy, f"{part}_j")
                yield sigma_j, _attributes(source) | {"joulewise.uncertainty.part": part}

    def single(value: Callable[[Figures], float | None]) -> Callable[[Figures], _Points]:
        return lambda figures: iter([(value(figures), {})])

    meter.create_observable_counter(
        "hw.energy",
        seen(of_sources(lambda source: source.energy_j)),
        "J",
        "Joules drawn since the meter was started.",
    )
    meter.create_observable_gauge(
        "hw.power", seen(of_sources(lambda source: source.power_w)), "W", "Instantaneous power, where a source has one."
    )
    meter.create_observable_counter(
        "hw.errors", seen(of_sources(lambda source: source.faults)), "{error}", "How often a source has failed."
    )
    meter.create_observable_gauge(
        "joulewise.energy.uncertainty", seen(uncertainties), "J", "Standard uncertainty of hw.energy, by part."
    )
    meter.create_observable_counter(
        "joulewise.metered_time", seen(single(lambda figures: figures.duration_s)), "s", "Seconds since the start."
    )
    meter.create_observable_counter(
        "joulewise.sampler.cpu_time",
        seen(single(lambda figures: figures.sampler_cpu_s)),
        "s",
        "CPU time that the sampler has used.",
    )


def _attributes(source: SourceFigures) -> dict[str, str]:
    spec = source.spec
    return {
        "hw.id": spec.source_id,
        "hw.name": spec.device,
        "hw.type": _TYPES[spec.component],
        "joulewise.provenance": spec.provenance,
    }


@contextmanager
def exporting(live: Live, endpoint: str) -> Iterator[None]:
    """Send the metrics to a collector inside a ``with`` block, and once more at its end.

    Args:
        live: the figures.
        endpoint: the collector's address, such as ``http://localhost:4318``; ``/v1/metrics`` is added where it has no
            path. The library's own environment variables hold: ``OTEL_METRIC_EXPORT_INTERVAL`` (milliseconds, 60,000 if
            not set), ``OTEL_EXPORTER_OTLP_HEADERS``, ``OTEL_RESOURCE_ATTRIBUTES``.

    Raises:
        UserError: ``endpoint`` is no such address.
        EnvironmentFault: the extra is not installed.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UserError(f"--otlp {endpoint}: give the collector's address, such as http://localhost:4318")
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
    except ImportError as error:
        raise EnvironmentFault(
            f"--otlp needs the package {error.name}; install it with: pip install 'joulewise[otel]'"
        ) from error
    address = endpoint if parts.path.strip("/") else f"{endpoint.rstrip('/')}/v1/metrics"
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(address, timeout=TIMEOUT_S))
    resource = Resource.create({"service.name": "joulewise", "service.version": __version__})
    provider = MeterProvider([reader], resource, shutdown_on_exit=False)
    instrument(live, provider)
    try:
        yield
    finally:
        provider.shutdown(TIMEOUT_S * 1000)
