"""Shares of a window: conservation for anything, known answers by hand, and what each uncertainty does."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from joulewise.energy.attribution import (
    IDLE,
    UNATTRIBUTED,
    Interval,
    PowerAtRest,
    Share,
    TracePoint,
    attribute,
    divide,
)
from joulewise.energy.reading import Z95, ComponentEnergy, unknown

START_S, END_S = 1000.0, 1010.0


def window(energy_j: float = 1000.0, **fields: float) -> ComponentEnergy:
    return ComponentEnergy("gpu", "measured", energy_j, **fields)


def by_name(shares: tuple[Share, ...]) -> dict[str, float | None]:
    return {share.name: share.energy_j for share in shares}


def add_up(shares: tuple[Share, ...], what: str) -> float:
    return math.fsum(getattr(share, what) for share in shares)


joules = st.one_of(st.just(0.0), st.floats(1e-9, 1e9))
moments = st.floats(START_S - 5.0, END_S + 5.0)
weights = st.one_of(st.just(0.0), st.floats(1e-300, 1e300), st.floats(0.1, 10.0))
intervals = st.lists(
    st.builds(
        lambda name, a, b, weight: Interval(name, min(a, b), max(a, b), weight),
        st.sampled_from(["prefill", "draft", "verify", "request-1", "request-2"]),
        moments,
        moments,
        weights,
    ),
    max_size=30,
)
traces = st.one_of(
    st.just(()),
    st.lists(st.floats(0.0, 500.0), min_size=1, max_size=20).map(
        lambda gains: tuple(
            TracePoint(START_S - 1.0 + 12.0 * i / len(gains), 1e6 + math.fsum(gains[:i]), 2.0)
            for i in range(len(gains) + 1)
        )
    ),
)
rest = st.one_of(st.none(), st.builds(PowerAtRest, st.floats(0.0, 200.0), st.floats(0.0, 5.0)))


@settings(max_examples=150, deadline=None)
@given(energy_j=joules, intervals=intervals, trace=traces, idle=rest)
@example(1000.0, [], (), None)
@example(1000.0, [Interval("only", START_S, END_S)], (), PowerAtRest(1e6))
def test_shares_sum_to_the_window(
    energy_j: float, intervals: list[Interval], trace: tuple[TracePoint, ...], idle: PowerAtRest | None
) -> None:
    whole = window(energy_j, start_edge_j=3.0, sampling_j=4.0, gain_j=0.05 * energy_j, offset_j=50.0)
    shares = attribute(whole, START_S, END_S, intervals, trace=trace, idle=idle)
    assert add_up(shares, "energy_j") == pytest.approx(energy_j, rel=1e-9, abs=0.0)
    assert min(share.energy_j for share in shares) >= 0.0
    assert [s.name for s in shares] == [
        *dict.fromkeys(i.name for i in intervals), *([IDLE] if idle else []), UNATTRIBUTED
    ]  # fmt: skip
    assert {s.provenance for s in shares} == {"measured"}
    for part, of_the_whole in (("gain_j", whole.gain_j), ("offset_j", 50.0)):
        assert add_up(shares, part) == pytest.approx(of_the_whole)
    if energy_j:
        assert add_up(shares, "independent_j") == pytest.approx(5.0)
    for share in shares:
        if share.interval_j is not None:
            assert share.interval_j[0] <= share.energy_j <= share.interval_j[1]


@given(intervals=intervals, trace=traces, idle=rest)
def test_order_of_the_intervals_and_scale_of_the_weights_do_not_matter(
    intervals: list[Interval], trace: tuple[TracePoint, ...], idle: PowerAtRest | None
) -> None:
    intervals = [i._replace(weight=min(1e6, max(i.weight, 1e-6)) if i.weight else 0.0) for i in intervals]
    usual = by_name(attribute(window(), START_S, END_S, intervals, trace=trace, idle=idle))
    turned = [i._replace(weight=8.0 * i.weight) for i in reversed(intervals)]
    assert by_name(attribute(window(), START_S, END_S, turned, trace=trace, idle=idle)) == pytest.approx(
        usual, rel=1e-9, abs=1e-9
    )


def test_by_hand_overlapping_requests_and_a_gap() -> None:
    # 100 W for 10 s, 40 W of it idle. a alone 0-2 s, a and b (3 to 1) 2-4 s, nobody 4-10 s.
    shares = attribute(
        window(),
        START_S,
        END_S,
        [Interval("a", START_S, START_S + 4.0, 3.0), Interval("b", START_S + 2.0, START_S + 4.0)],
        idle=PowerAtRest(40.0),
    )
    assert by_name(shares) == pytest.approx({"a": 120.0 + 90.0, "b": 30.0, IDLE: 400.0, UNATTRIBUTED: 360.0})
    assert shares[0].method == "by even power and weights, above idle power"


def test_by_hand_with_a_trace() -> None:
    # 300 J flow in the first second and 100 J in the other nine; the counter says 800 J in all.
    trace = [TracePoint(START_S, 0.0), TracePoint(START_S + 1.0, 300.0), TracePoint(END_S, 400.0)]
    phases = [Interval("prefill", START_S, START_S + 1.0), Interval("decode", START_S + 1.0, END_S)]
    shares = attribute(window(800.0), START_S, END_S, phases, trace=trace)
    assert by_name(shares) == pytest.approx({"prefill": 600.0, "decode": 200.0, UNATTRIBUTED: 0.0})
    assert shares[0].method == "by the power trace and weights"


def test_idle_is_never_more_than_was_drawn() -> None:
    shares = attribute(window(100.0), START_S, END_S, [Interval("a", START_S, END_S)], idle=PowerAtRest(120.0, 1.0))
    assert by_name(shares) == {"a": 0.0, IDLE: 100.0, UNATTRIBUTED: 0.0}
    assert shares[0].split_j == pytest.approx(10.0)  # 1 W for 10 s could still be the request's


def test_how_uncertainties_split() -> None:
    whole = window(1000.0, start_edge_j=3.0, end_edge_j=4.0, gain_j=50.0, offset_j=20.0)
    trace = [TracePoint(START_S, 0.0, 6.0), TracePoint(END_S, 1000.0, 6.0)]
    halves = [Interval("a", START_S, START_S + 2.0), Interval("b", START_S + 2.0, END_S)]
    a, b, left = attribute(whole, START_S, END_S, halves, trace=trace)
    assert (a.independent_j, a.gain_j, a.offset_j) == pytest.approx((1.0, 10.0, 4.0))
    assert (a.split_j, b.split_j, left.split_j) == pytest.approx((6.0, 6.0, 0.0))  # one moment is uncertain, once
    half = Z95 * math.hypot(1.0, 6.0, 10.0 + 4.0)
    assert a.interval_j == pytest.approx((200.0 - half, 200.0 + half))
    # Idle power read by the same sensor takes its offset along, and its own error moves between the rows.
    a, b, idle, left = attribute(whole, START_S, END_S, halves, trace=trace, idle=PowerAtRest(50.0, 0.5))
    assert (a.offset_j, b.offset_j, idle.offset_j) == pytest.approx((0.0, 0.0, 20.0))
    assert (a.independent_j, b.independent_j, idle.independent_j) == pytest.approx((1.0, 4.0, 0.0))
    assert (a.split_j, b.split_j, idle.split_j) == pytest.approx((math.hypot(6.0, 1.0), math.hypot(6.0, 4.0), 5.0))


def test_without_a_trace_an_inner_boundary_has_no_known_uncertainty() -> None:
    even = [Interval("a", START_S, END_S, 3.0), Interval("b", START_S, END_S, 1.0)]
    assert [s.split_j for s in attribute(window(), START_S, END_S, even)] == [0.0, 0.0, 0.0]
    cut = [Interval("a", START_S, START_S + 1.0), Interval("b", START_S + 1.0, END_S)]
    shares = attribute(window(), START_S, END_S, cut)
    assert [(s.split_j, s.interval_j) for s in shares[:2]] == [(None, None)] * 2
    flat = [TracePoint(START_S, 5.0), TracePoint(END_S, 5.0)]
    assert attribute(window(), START_S, END_S, cut, trace=flat) == shares


def test_weights_of_nothing_are_nobodys() -> None:
    shares = attribute(window(), START_S, END_S, [Interval("a", START_S, END_S, 0.0)])
    assert by_name(shares) == {"a": 0.0, UNATTRIBUTED: 1000.0}


def test_unknown_joules_stay_unknown() -> None:
    lost = unknown("gpu", "the device fell off the bus")
    shares = attribute(lost, START_S, END_S, [Interval("a", START_S, END_S)], idle=PowerAtRest(40.0))
    assert [(s.energy_j, s.interval_j, s.provenance) for s in shares] == [(None, None, "unknown")] * 3
    assert [s.energy_j for s in divide(shares[0], {"t": 1.0})] == [None]


def test_thousands_of_tokens() -> None:
    step_s = (END_S - START_S) / 10_000
    tokens = [Interval(f"t{i}", START_S + i * step_s, START_S + (i + 1) * step_s) for i in range(10_000)]
    trace = [TracePoint(START_S, 0.0, 1.0), TracePoint(START_S + 5.0, 900.0, 1.0), TracePoint(END_S, 1000.0, 1.0)]
    shares = attribute(window(), START_S, END_S, tokens, trace=trace)
    assert add_up(shares, "energy_j") == pytest.approx(1000.0, rel=1e-9)
    assert shares[10].energy_j == pytest.approx(0.18)
    divided = divide(shares[10], {str(i): 1.0 + i % 7 for i in range(5_000)})
    assert add_up(divided, "energy_j") == pytest.approx(shares[10].energy_j, rel=1e-9)


@given(weights=st.dictionaries(st.text(max_size=3), st.one_of(st.just(0.0), st.floats(5e-324, 1e308)), max_size=50))
def test_a_divided_share_sums_to_itself(weights: dict[str, float]) -> None:
    share = Share("request-1", "modelled", "by even power and weights", 123.4, 1.0, 2.0, 3.0, 4.0)
    parts = divide(share, weights)
    for what in ("energy_j", "independent_j", "gain_j", "offset_j", "split_j"):
        assert add_up(parts, what) == pytest.approx(getattr(share, what), rel=1e-9)
    assert {p.provenance for p in parts} == {"modelled"}
    if not any(weights.values()):
        assert parts == (replace(share, name=UNATTRIBUTED, method=parts[0].method),)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (Interval("a", START_S, END_S, -1.0), "a: a weight is a number of at least 0"),
        (Interval("a", START_S, END_S, math.nan), "a: a weight is a number of at least 0"),
        (Interval("a", END_S, START_S), "a: the interval ends"),
        (Interval("a", math.nan, END_S), "a: an interval from nan s"),
        (Interval(IDLE, START_S, END_S), "the name 'idle' is taken"),
    ],
)
def test_intervals_that_are_none(bad: Interval, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        attribute(window(), START_S, END_S, [bad])


def test_windows_and_traces_that_are_none() -> None:
    with pytest.raises(ValueError, match="has no length"):
        attribute(window(), START_S, START_S, [])
    short = [TracePoint(START_S, 0.0), TracePoint(END_S - 1.0, 1.0)]
    with pytest.raises(ValueError, match="does not reach over the window"):
        attribute(window(), START_S, END_S, [], trace=short)
    falling = [TracePoint(START_S, 2.0), TracePoint(END_S, 1.0)]
    with pytest.raises(ValueError, match="the trace falls"):
        attribute(window(), START_S, END_S, [], trace=falling)
    with pytest.raises(ValueError, match="t: a weight"):
        divide(Share("a", "measured", "", 1.0), {"t": math.inf})
