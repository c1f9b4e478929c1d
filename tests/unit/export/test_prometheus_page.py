"""Prometheus metrics: their names, labels and values, and what cannot be served."""

from __future__ import annotations

import re
import socket
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from simulated import Clock, Load, SimulatedSource, meter_of, run_to, spec

from joulewise.energy import Absent, Meter
from joulewise.errors import EnvironmentFault, UserError
from joulewise.export.live import Live
from joulewise.export.prometheus import _parsed, serving

GPU = spec(source_id="nvml:GPU-1", device="Simulated 1", gain=0.05, offset_w=2.0)
CPU = spec(
    source_id="model:cpu",
    component="cpu",
    device="CPU",
    provenance="modelled",
    update_period_s=None,
    max_power_w=None,
    gain=None,
)


def live_figures() -> tuple[Live, SimulatedSource]:
    """Ten seconds of a GPU at 300 W and a modelled CPU at 40 W, with memory that cannot be read."""
    clock = Clock()
    gpu = SimulatedSource(clock, Load([(1.0, 300.0)]), GPU)
    cpu = SimulatedSource(clock, Load([(1.0, 40.0)]), CPU, has_power=False)
    meter = meter_of(gpu, cpu, absent=[Absent("rapl", "dram", True, "may be read by root only")])
    live = Live(meter, clock)
    run_to(meter, clock, 1010.0)
    return live, gpu


def scraped(url: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Values by metric and labels, as Prometheus would read them."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def labels(component: str, provenance: str, device: str, source: str, **more: str) -> tuple[tuple[str, str], ...]:
    given = {"component": component, "provenance": provenance, "device": device, "source": source} | more
    return tuple(sorted(given.items()))


def test_a_scrape_tells_joules_by_source_with_provenance_and_uncertainty() -> None:
    live, _ = live_figures()
    with serving(live, "0") as url:
        assert url.startswith("http://127.0.0.1:")
        found = scraped(url)
    gpu = labels("gpu", "measured", "Simulated 1", "nvml:GPU-1")
    cpu = labels("cpu", "modelled", "CPU", "model:cpu")
    energy = found["joulewise_energy_joules_total"]
    assert set(energy) == {gpu, cpu}
    assert energy[gpu] == pytest.approx(3000.0, abs=30.0)
    assert energy[cpu] == pytest.approx(400.0)
    sigma = found["joulewise_energy_uncertainty_joules"]
    of_gpu = {dict(key)["part"]: value for key, value in sigma.items() if dict(key)["component"] == "gpu"}
    assert of_gpu["gain"] == pytest.approx(0.05 * energy[gpu])
    assert of_gpu["offset"] == pytest.approx(20.0)
    assert of_gpu["independent"] > 0.0
    assert found["joulewise_power_watts"] == {gpu: pytest.approx(300.0)}
    assert found["joulewise_gain_uncertainty_ratio"] == {gpu: 0.05}
    assert found["joulewise_source_up"] == {gpu: 1.0, cpu: 1.0}
    assert found["joulewise_source_faults_total"] == {gpu: 0.0, cpu: 0.0}
    assert found["joulewise_metered_seconds_total"][()] == pytest.approx(10.0)
    unread = {"component": "dram", "kind": "rapl", "reason": "may be read by root only"}
    assert found["joulewise_component_unread"] == {tuple(sorted(unread.items())): 1.0}


def test_what_is_not_known_has_no_sample() -> None:
    live, gpu = live_figures()
    gpu.fault = "GPU is lost"
    with serving(live, "0") as url:
        found = scraped(url)
    lost = labels("gpu", "measured", "Simulated 1", "nvml:GPU-1")
    assert lost not in found["joulewise_energy_joules_total"]
    assert "joulewise_power_watts" not in found
    assert found["joulewise_source_up"][lost] == 0.0
    assert found["joulewise_source_faults_total"][lost] == 1.0


def test_the_page_names_every_metric_and_no_other(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (repository / "docs" / "how-to" / "export-metrics.md").read_text()
    monkeypatch.setattr(Meter, "sampler_cpu_s", 0.1)
    live, _ = live_figures()
    with serving(live, "0") as url:
        served = set(scraped(url))
    assert set(re.findall(r"`(joulewise_\w+)`", page)) == served - {"joulewise_build_info"}


def test_the_page_s_program_runs(repository: Path) -> None:
    page = (repository / "docs" / "how-to" / "export-metrics.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    seen: dict[str, object] = {}
    found: list[set[str]] = []
    seen["work"] = lambda: found.append(set(scraped(str(seen["address"]))))
    exec(program.replace("9777", "0"), seen)
    assert "joulewise_metered_seconds_total" in found[0]


def test_after_the_block_nobody_listens() -> None:
    live, _ = live_figures()
    with serving(live, "0") as url:
        port = int(url.split(":")[2].split("/")[0])
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


def test_a_port_in_use_is_told() -> None:
    live, _ = live_figures()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(EnvironmentFault, match=f"--serve {where}: another program listens there"),
            serving(live, where),
        ):
            pass


def test_an_address_of_another_machine_is_told() -> None:
    live, _ = live_figures()
    with pytest.raises(EnvironmentFault, match=r"--serve 192\.0\.2\.1:0: "), serving(live, "192.0.2.1:0"):
        pass


@pytest.mark.parametrize(
    ("where", "meant"),
    [
        ("9777", ("127.0.0.1", 9777)),
        (":9777", ("127.0.0.1", 9777)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:9777", ("::1", 9777)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_where_to_serve(where: str, meant: tuple[str, int]) -> None:
    assert _parsed(where) == meant


@pytest.mark.parametrize("where", ["", "localhost", "localhost:", "1:65536", "1:-1", "http://localhost:9777/metrics"])
def test_what_is_no_address(where: str) -> None:
    with pytest.raises(UserError, match="give a port, or an address and a port"):
        _parsed(where)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    live, _ = live_figures()
    with pytest.raises(EnvironmentFault, match=r"pip install 'joulewise\[prometheus\]'"), serving(live, "0"):
        pass
