"""``joulewise meter`` with metrics served and carbon told: real processes, real scrapes on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

METER = [sys.executable, "-c", "from joulewise.cli.main import main; main()", "meter"]
ENVIRONMENT = os.environ | {"no_proxy": "127.0.0.1"}


def meter(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*METER, *arguments], capture_output=True, text=True, timeout=60, check=False, env=ENVIRONMENT
    )


def scrape(url: str) -> dict[str, float]:
    """Values by metric and labels, as they stand in the text."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (li.rsplit(" ", 1) for li in lines if not li.startswith("#"))}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_a_command_it_serves_until_it_is_stopped_and_then_reports(number: signal.Signals) -> None:
    with subprocess.Popen([*METER, "--serve", "0"], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as running:
        assert running.stderr is not None
        told = re.fullmatch(r"joulewise: metrics at (http://127\.0\.0\.1:\d+/metrics)\n", running.stderr.readline())
        assert told
        first, second = scrape(told[1]), scrape(told[1])
        running.send_signal(number)
        report = running.stderr.read()
        assert running.wait(60) == 0
    energy = {name: value for name, value in second.items() if name.startswith("joulewise_energy_joules_total{")}
    assert any('component="cpu"' in name for name in energy)
    for name, value in energy.items():
        assert value >= first.get(name, 0.0)
        assert 'provenance="m' in name
        assert 'source="' in name
    assert second["joulewise_metered_seconds_total"] > 0
    assert "Joules of the machine while it was metered" in report
    assert "total" in report


def test_a_command_runs_as_ever_while_metrics_are_served() -> None:
    scraper = (
        "import sys, urllib.request as u;"
        "o = u.build_opener(u.ProxyHandler({}));"
        "print(o.open(sys.argv[1], timeout=10).read().decode()); sys.exit(3)"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/metrics"
    done = meter("--serve", str(port), "--", sys.executable, "-c", scraper, url)
    assert done.returncode == 3
    assert "joulewise_energy_joules_total{" in done.stdout
    assert done.stderr.startswith(f"joulewise: metrics at {url}\n")


def test_a_port_in_use_is_told_before_the_command_runs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = meter("--serve", str(taken.getsockname()[1]), "--", "echo", "ran")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "another program listens there" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_neither_a_command_nor_metrics_is_a_mistake() -> None:
    done = meter()
    assert done.returncode == 2
    assert done.stderr.startswith("joulewise: meter needs a command")


def test_carbon_of_a_command(tmp_path: Path) -> None:
    grid = tmp_path / "grid.csv"
    grid.write_text("time,g_per_kwh\n2026-01-01T00:00:00Z,360\n")
    target = tmp_path / "joules.json"
    done = meter("--carbon", str(grid), "--json", str(target), "--", "sleep", "0.1")
    assert done.returncode == 0
    assert re.search(r"carbon: [\d.e-]+ gCO2e \([\d.e-]+ to [\d.e-]+\), of joules that are m", done.stderr)
    assert "location-based" in done.stderr
    record = json.loads(target.read_text())
    total = record["components"][-1]
    assert record["carbon"]["g"] == pytest.approx(total["energy_j"] * 1e-4)
    assert record["carbon"]["upper_g"] == pytest.approx(total["upper_j"] * 1e-4)
    assert record["carbon"]["provenance"] == total["provenance"]
    assert record["carbon"]["intensity"]["where"] == "grid.csv"


def test_a_country_that_is_not_known_is_told_before_the_command_runs() -> None:
    done = meter("--carbon", "Atlantis", "--", "echo", "ran")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("joulewise: --carbon Atlantis: no country")


def test_no_carbon_without_an_intensity(tmp_path: Path) -> None:
    target = tmp_path / "joules.json"
    done = meter("--json", str(target), "--", "true")
    assert "carbon" not in done.stderr
    assert json.loads(target.read_text())["carbon"] is None
