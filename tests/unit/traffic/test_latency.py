"""Percentiles, goodput, and what they are counted from."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.engines.openai_api.answer import Answer, Chunks, Usage
from joulewise.engines.openai_api.errors import BrokenStream
from joulewise.traffic.arrivals import Arrival
from joulewise.traffic.generator import Outcome
from joulewise.traffic.latency import Goodput, Histogram, Slo, goodput, latencies, spread
from joulewise.traffic.served import Served, came, served

DURATIONS = st.lists(st.floats(1e-5, 1e4), min_size=1, max_size=300)
FINE = Served(due_s=10.0, began_s=10.5, end_s=13.2, first_s=11.0, last_s=13.0, output_tokens=5)
"""1 s to the first token, 0.5 s for each of four more, 3.2 s in all."""

ANSWER = Answer(
    text="abc",
    chunks=Chunks((11.0, 12.0, 13.0), (1, 1, 1)),
    usage=Usage(7, 5),
    sent_s=10.6,
    end_s=13.2,
    finish_reason="stop",
)


@given(DURATIONS)
def test_percentiles_are_values_with_that_share_at_or_below(values: list[float]) -> None:
    found = spread(values)
    assert (found.count, found.largest) == (len(values), max(values))
    assert found.mean == pytest.approx(sum(values) / len(values))
    for level, value in found.percentiles.items():
        assert value in values
        assert sum(v <= value for v in values) >= level / 100 * len(values) - 1e-9
        assert sum(v < value for v in values) < level / 100 * len(values)


@given(DURATIONS, DURATIONS)
def test_a_histogram_is_within_a_percent_and_adds_up(one: list[float], two: list[float]) -> None:
    exact, merged, other = spread([*one, *two]), Histogram(), Histogram()
    merged.add(np.array(one))
    other.add(np.array(two))
    merged.merge(other)
    found = merged.spread()
    assert (found.count, found.largest) == (exact.count, exact.largest)
    assert found.mean == pytest.approx(exact.mean)
    assert found.percentiles.keys() == exact.percentiles.keys()
    for level, value in exact.percentiles.items():
        assert value * (1 - 1e-9) <= found.percentiles[level] <= value * 1.0101


def test_a_percentile_needs_a_value_above_it() -> None:
    assert list(spread([1.0] * 10).percentiles) == [50.0, 90.0]
    assert list(spread([1.0] * 100).percentiles) == [50.0, 90.0, 95.0, 99.0]
    assert spread([]).mean is None
    assert Histogram().spread() == spread([])


def test_durations_beyond_the_bins() -> None:
    histogram = Histogram()
    histogram.add(np.array([0.0, 1e9, 1e9]))
    found = histogram.spread()
    assert (found.count, found.largest) == (3, 1e9)
    assert found.percentiles[50.0] == pytest.approx(86_400.0, rel=0.02)


def test_latency_counts_from_the_due_time() -> None:
    assert (FINE.to_first_s, FINE.server_to_first_s, FINE.per_token_s) == (1.0, 0.5, 0.5)
    assert FINE.total_s == pytest.approx(3.2)


def test_what_is_not_known_is_none() -> None:
    assert replace(FINE, output_tokens=None).per_token_s is None
    assert replace(FINE, output_tokens=1).per_token_s is None
    assert replace(FINE, first_tokens=3).per_token_s == 1.0
    at_once = replace(FINE, first_s=None, last_s=None)
    assert (at_once.to_first_s, at_once.per_token_s) == (None, None)
    assert replace(FINE, whole=False).total_s is None
    assert replace(FINE, began_s=None).server_to_first_s is None


def outcome(answer: Answer | None, error: BrokenStream | None = None) -> Outcome[Answer]:
    return Outcome(0, Arrival(0.0), 10.0, 10.5, 14.0, answer, error)


def test_an_outcome_as_analysis_sees_it() -> None:
    assert served(outcome(ANSWER)) == FINE
    assert served(outcome(ANSWER), output_tokens=9).output_tokens == 9
    assert served(outcome(replace(ANSWER, usage=None))).output_tokens is None
    told = replace(ANSWER, chunks=Chunks((11.0, 12.0, 13.0), (1, 1, 1), (2, 2, 1)))
    assert served(outcome(told)).first_tokens == 2


def test_what_came_before_a_failure_counts_as_far_as_it_came() -> None:
    broken = outcome(None, BrokenStream("gone", ANSWER))
    assert came(broken) is ANSWER
    assert served(broken) == replace(FINE, whole=False)
    nothing = outcome(None, BrokenStream("gone"))
    assert came(nothing) is None
    assert served(nothing) == Served(10.0, 10.5, 14.0, whole=False)
    assert served(outcome(None)) == Served(10.0, 10.5, 14.0, whole=False)


def test_latencies_of_a_window() -> None:
    gaps = Histogram()
    gaps.add(np.array([0.5, 1.5]))
    found = latencies([FINE, replace(FINE, whole=False), Served(10.0, None, 10.0, whole=False)], gaps)
    assert (found.requests, found.whole) == (3, 1)
    assert (found.to_first.count, found.per_token.count, found.total.count) == (2, 1, 1)
    assert found.between_chunks.mean == 1.0


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        (Slo(), True),
        (Slo(to_first_s=1.0, per_token_s=0.5, total_s=3.3), True),
        (Slo(to_first_s=0.9), False),
        (Slo(per_token_s=0.4), False),
        (Slo(total_s=3.0), False),
    ],
)
def test_objectives(slo: Slo, met: bool) -> None:
    assert slo.met_by(FINE) is met
    assert slo.met_by(replace(FINE, whole=False)) is False


def test_what_cannot_be_told_is_not_met_by_guess() -> None:
    uncounted = replace(FINE, output_tokens=None)
    assert Slo(per_token_s=1.0).met_by(uncounted) is None
    assert Slo(per_token_s=1.0, total_s=1.0).met_by(uncounted) is False
    assert Slo(total_s=9.0).met_by(uncounted) is True
    one = replace(FINE, output_tokens=1, last_s=11.0)
    assert Slo(per_token_s=0.0).met_by(one) is True


def test_goodput_and_its_joules() -> None:
    bad = replace(FINE, whole=False)
    slo = Slo(total_s=9.0)
    assert goodput([FINE, FINE, bad], slo, 4.0, 100.0) == Goodput(3, 2, 0, 0.5, 0.02, 0.1)
    assert goodput([FINE, FINE, bad], slo, 4.0, None) == Goodput(3, 2, 0, 0.5, None, None)
    uncounted = replace(FINE, output_tokens=None)
    assert goodput([FINE, uncounted], slo, 4.0, 100.0) == Goodput(2, 2, 0, 0.5, 0.02, None)
    assert goodput([FINE, uncounted], Slo(per_token_s=1.0), 4.0, 100.0) == Goodput(2, 1, 1, None, None, None)


@given(st.lists(st.floats(0.1, 10.0), max_size=20), st.floats(0.1, 10.0), st.floats(0.1, 10.0))
def test_a_stricter_objective_never_serves_more(totals: list[float], one: float, two: float) -> None:
    requests = [replace(FINE, end_s=FINE.due_s + total) for total in totals]
    strict, loose = (goodput(requests, Slo(total_s=limit), 1.0, 1.0).met for limit in sorted((one, two)))
    assert strict <= loose <= math.inf
