"""The load generator's benchmark, small: the same measurement against the scripted server, in this process's thread."""

from __future__ import annotations

import numpy as np
import pytest

from fake_server import FakeServer, steady
from joulewise.pollution import CpuUse
from joulewise.traffic.loop import run
from load_benchmark import load_benchmark


@pytest.mark.alone
def test_what_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = load_benchmark("load_generator")
    monkeypatch.setattr(benchmark, "WARM_UP_S", 0.5)
    monkeypatch.setattr(benchmark, "PIECES", 4)
    server = FakeServer(steady(0.05, 0.1, lambda: server))
    with server:
        counted, driven = run(benchmark.generate(server.url, 30.0, 2.0))
    figures = counted.figures(driven, 2.0)
    assert figures["requests"] == len(server.asked)
    assert figures["failed"] == 0
    assert server.counters["vllm:generation_tokens_total"] == 4 * len(server.asked)
    # 30 requests a second of 0.35 s each, and 120 pieces a second; five standard deviations of so short a run.
    assert figures["streams"] == pytest.approx(10.5, abs=8.0)
    assert figures["pieces_per_s"] == pytest.approx(120.0, abs=90.0)
    assert len(counted.late) == 2 * len(server.asked)
    assert min(counted.late[1::2]) >= 0.0
    assert min(counted.stamps[1::2]) > 0.0


def test_what_is_disturbed() -> None:
    benchmark = load_benchmark("load_generator")
    busy = [0.0, 0.01, 0.02, 0.4, 0.41, 0.42, 0.43]
    uses = [CpuUse(0.5 * n, 100.0 + others + 0.3 * n, 0.3 * n) for n, others in enumerate(busy)]
    assert benchmark.undisturbed(uses) == [(0.0, 0.5), (0.5, 1.0), (2.0, 2.5), (2.5, 3.0)]
    pairs = np.array([[0.1, 1.0], [1.0, 2.0], [1.7, 3.0], [2.2, 4.0]])
    assert benchmark.within(pairs, benchmark.undisturbed(uses)).tolist() == [1.0, 4.0]
