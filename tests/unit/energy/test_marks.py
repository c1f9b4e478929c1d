"""Marks: moments that cut time into pieces, source by source."""

from __future__ import annotations

import itertools
import threading

import pytest
from simulated import Clock, Load, SimulatedSource, meter_of, run_to, spec

from joulewise.energy import Meter
from joulewise.errors import JoulewiseError


def test_pieces_between_marks_add_up_to_the_whole_and_sources_stay_apart() -> None:
    clock = Clock()
    one = SimulatedSource(clock, Load([(1.0, 300.0)]), spec(source_id="simulated:0"))
    two = SimulatedSource(clock, Load([(1.0, 100.0)]), spec(source_id="simulated:1"))
    meter = meter_of(one, two)
    run_to(meter, clock, 1000.5)
    marks = [meter.mark()]
    for end_s in (1002.0, 1002.73, 1005.0):
        run_to(meter, clock, end_s)
        marks.append(meter.mark())
    whole = meter.by_source(marks[0], marks[-1])
    pieces = [meter.by_source(a, b) for a, b in itertools.pairwise(marks)]
    assert [w.source_ids for w in whole] == [("simulated:0",), ("simulated:1",)]
    for i, power_w in enumerate((300.0, 100.0)):
        assert whole[i].energy_j == pytest.approx(sum(p[i].energy_j or 0.0 for p in pieces), rel=1e-9)
        assert whole[i].energy_j == pytest.approx(power_w * 4.5, rel=0.02)


def test_a_closed_meter_takes_no_marks() -> None:
    meter = meter_of(SimulatedSource(Clock(), Load([(1.0, 300.0)])))
    meter.close()
    with pytest.raises(JoulewiseError, match="the meter is closed"):
        meter.mark()


def test_the_sampler_tells_its_cpu_time() -> None:
    clock = Clock()
    pause = threading.Event()
    with Meter([SimulatedSource(clock, Load([(1.0, 300.0)]))], clock=clock, sample_period_s=0.001) as meter:
        while meter.sampler_cpu_s is None:
            pause.wait(0.001)
        assert 0.0 < meter.sampler_cpu_s < 1.0
    assert meter_of(SimulatedSource(clock, Load([(1.0, 300.0)]))).sampler_cpu_s is None
