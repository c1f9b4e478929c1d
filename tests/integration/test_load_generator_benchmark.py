"""The load generator's benchmark, small: the same measurement against the scripted server, in this process's thread."""

from __future__ import annotations

import pytest

from fake_server import FakeServer, steady
from joulewise.traffic.loop import run
from load_benchmark import load_benchmark


def test_what_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = load_benchmark("load_generator")
    monkeypatch.setattr(benchmark, "WARM_UP_S", 0.5)
    monkeypatch.setattr(benchmark, "PIECES", 4)
    server = FakeServer(steady(0.05, 0.1, lambda: server))
    with server:
        figures = run(benchmark.generate(server.url, 30.0, 2.0))
    assert figures.requests == len(server.asked)
    assert figures.failed == 0
    assert server.counters["vllm:generation_tokens_total"] == 4 * figures.requests
    # 30 requests a second of 0.35 s each, and 120 pieces a second; five standard deviations of so short a run.
    assert figures.streams == pytest.approx(10.5, abs=8.0)
    assert figures.pieces_per_s == pytest.approx(120.0, abs=90.0)
    assert 0.0 <= figures.late_ms["50"] <= figures.late_ms["99"]
    assert 0.0 < figures.stamp_ms["50"] <= figures.stamp_ms["90"]
    assert not figures.met
