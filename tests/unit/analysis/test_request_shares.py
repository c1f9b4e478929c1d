"""Joules per request in a batch: conservation for anything, what each model says, what one more request would add."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from joulewise.analysis.curves import Coefficient, Correction, Curve, HeldOut, Region, Spread
from joulewise.analysis.request_shares import (
    BatchRequest,
    Weigh,
    Work,
    by_curve,
    by_output_tokens,
    by_tokens,
    one_more,
    request_shares,
)
from joulewise.energy.attribution import IDLE, UNATTRIBUTED, PowerAtRest, Share, TracePoint
from joulewise.energy.reading import Z95, ComponentEnergy, unknown
from planted_curve import PLANTED

START_S, END_S = 1000.0, 1010.0
NONE = Spread(0, None, None)
CURVE = Curve(
    {name: Coefficient(value, 0.9 * value, 1.1 * value) for name, value in PLANTED.items()},
    Correction(2.0, (1.0, 8.0), (0.05, -0.05)),
    HeldOut("point", NONE, NONE),
    NONE,
    (),
    Region((0, 0), (0, 0), (0, 0)),
)
MODELS: dict[str, Weigh] = {"tokens": by_tokens, "output": by_output_tokens, "curve": by_curve(CURVE)}


def window(energy_j: float = 1000.0, **fields: float) -> ComponentEnergy:
    return ComponentEnergy("gpu", "measured", energy_j, **fields)


def by_name(shares: tuple[Share, ...]) -> dict[str, float | None]:
    return {share.name: share.energy_j for share in shares}


@st.composite
def one_request(draw: st.DrawFn) -> BatchRequest:
    start_s, length_s = draw(st.floats(START_S - 5.0, END_S)), draw(st.floats(0.01, 12.0))
    end_s = start_s + length_s
    first_s = draw(st.one_of(st.none(), st.floats(0.001, 1.0).map(lambda part: start_s + part * length_s)))
    prompt, output = draw(st.integers(0, 5000)), draw(st.integers(0, 500))
    chunks: tuple[tuple[float, float], ...] = ()
    if first_s is not None and (count := draw(st.integers(0, 5))):
        times = np.linspace(first_s, end_s, count)
        chunks = tuple((float(t), float(i + 1)) for i, t in enumerate(times))
    return BatchRequest("", start_s, end_s, prompt, output, first_s and min(first_s, end_s), chunks)


batches = st.lists(one_request(), max_size=12).map(
    lambda found: [replace(r, name=f"request {number}") for number, r in enumerate(found)]
)


def traces_of(least_j: float) -> st.SearchStrategy[tuple[TracePoint, ...]]:
    """None, or up to 20 even steps of so many joules or more."""
    return st.one_of(
        st.just(()),
        st.lists(st.one_of(st.just(least_j), st.floats(least_j + 1e-3, 500.0)), min_size=1, max_size=20).map(
            lambda gains: tuple(
                TracePoint(START_S - 1.0 + 12.0 * i / len(gains), math.fsum(gains[:i]), 2.0)
                for i in range(len(gains) + 1)
            )
        ),
    )


traces = traces_of(0.0)
rest = st.one_of(st.none(), st.builds(PowerAtRest, st.floats(0.0, 200.0), st.floats(0.0, 5.0)))
models = st.sampled_from(sorted(MODELS))
cuts = st.lists(st.floats(START_S + 0.01, END_S - 0.01), max_size=3)


@settings(max_examples=150)
@given(st.one_of(st.just(0.0), st.floats(1e-6, 1e9)), batches, models, rest, traces, cuts)
@example(1000.0, [], "curve", PowerAtRest(10.0), (), [])
@example(1000.0, [BatchRequest("nothing done", START_S, END_S, 0, 0)], "tokens", None, (), [])
def test_rows_are_the_window_and_none_is_negative(
    energy_j: float,
    requests: list[BatchRequest],
    model: str,
    idle: PowerAtRest | None,
    trace: tuple[TracePoint, ...],
    cuts: list[float],
) -> None:
    whole = window(energy_j, start_edge_j=3.0, sampling_j=4.0, gain_j=0.05 * energy_j, offset_j=50.0)
    shares = request_shares(whole, START_S, END_S, requests, MODELS[model], idle=idle, trace=trace, cuts=cuts)
    assert math.fsum(s.energy_j for s in shares) == pytest.approx(energy_j, rel=1e-9, abs=0.0)
    assert min(s.energy_j for s in shares) >= 0.0
    inside = [r.name for r in requests if r.start_s < END_S and r.end_s > START_S]
    assert [s.name for s in shares] == [*inside, *([IDLE] if idle else []), UNATTRIBUTED]
    for part, of_the_whole in (("gain_j", whole.gain_j), ("offset_j", 50.0)):
        assert math.fsum(getattr(s, part) for s in shares) == pytest.approx(of_the_whole)
    if energy_j:
        assert math.fsum(s.independent_j for s in shares) == pytest.approx(5.0)


@given(batches, models, rest, traces, st.randoms(use_true_random=False))
def test_the_order_of_requests_does_not_matter(
    requests: list[BatchRequest], model: str, idle: PowerAtRest | None, trace: tuple[TracePoint, ...], draw: object
) -> None:
    usual = request_shares(window(), START_S, END_S, requests, MODELS[model], idle=idle, trace=trace)
    draw.shuffle(requests)  # type: ignore[attr-defined]
    turned = request_shares(window(), START_S, END_S, requests, MODELS[model], idle=idle, trace=trace)
    assert by_name(turned) == pytest.approx(by_name(usual), rel=1e-9, abs=1e-9)


# At least 20 W flow at any moment: where less than idle power flows, `attribute` looks at whole segments.
@given(
    batches,
    models,
    st.floats(START_S + 0.1, END_S - 0.1),
    st.one_of(st.none(), st.builds(PowerAtRest, st.floats(0.0, 15.0))),
    traces_of(100.0),
)
def test_two_parts_of_a_window_add_up_to_it_where_it_is_cut(
    requests: list[BatchRequest], model: str, cut_s: float, idle: PowerAtRest | None, trace: tuple[TracePoint, ...]
) -> None:
    both = request_shares(window(), START_S, END_S, requests, MODELS[model], idle=idle, trace=trace, cuts=[cut_s])
    times = [START_S, cut_s, END_S]
    flowed = times
    if trace and len({p.energy_j for p in trace}) > 1:
        read = list(np.interp(times, [p.time_s for p in trace], [p.energy_j for p in trace]))
        flowed = read if read[2] > read[0] else flowed
    added: dict[str, float] = {}
    for i in (0, 1):
        part = window(1000.0 * (flowed[i + 1] - flowed[i]) / (flowed[2] - flowed[0]))
        for share in request_shares(part, times[i], times[i + 1], requests, MODELS[model], idle=idle, trace=trace):
            added[share.name] = added.get(share.name, 0.0) + (share.energy_j or 0.0)
    assert added == pytest.approx(by_name(both), rel=1e-6, abs=1e-6)


@given(batches, models, st.floats(START_S + 0.1, END_S - 0.1))
def test_work_adds_up_over_time(requests: list[BatchRequest], model: str, cut_s: float) -> None:
    whole = MODELS[model](requests, START_S, END_S).amounts
    parts = [MODELS[model](requests, *ends).amounts for ends in ((START_S, cut_s), (cut_s, END_S))]
    assert parts[0] + parts[1] == pytest.approx(whole, rel=1e-9, abs=1e-6)


@given(one_request(), models, st.floats(0.0, 200.0))
def test_a_request_alone_gets_all_above_idle(request: BatchRequest, model: str, idle_w: float) -> None:
    alone = replace(request, name="alone", prompt_tokens=10, output_tokens=5)
    whole = window(1000.0)
    shares = request_shares(whole, alone.start_s, alone.end_s, [alone], MODELS[model], idle=PowerAtRest(idle_w))
    idle_j = min(1000.0, idle_w * (alone.end_s - alone.start_s))
    assert by_name(shares) == pytest.approx({"alone": 1000.0 - idle_j, IDLE: idle_j, UNATTRIBUTED: 0.0}, abs=1e-9)


def test_tokens_by_hand() -> None:
    # 100 W for 10 s, 40 W of it idle; the last two seconds nobody is there.
    a = BatchRequest("a", START_S, START_S + 8.0, 300, 100, START_S + 1.0)
    b = BatchRequest("b", START_S, START_S + 4.0, 100, 100, START_S + 1.0)
    shares = request_shares(window(), START_S, END_S, [a, b], by_tokens, idle=PowerAtRest(40.0))
    assert by_name(shares) == pytest.approx({"a": 320.0, "b": 160.0, IDLE: 400.0, UNATTRIBUTED: 120.0})
    shares = request_shares(window(), START_S, END_S, [a, b], by_output_tokens, idle=PowerAtRest(40.0))
    assert by_name(shares) == pytest.approx({"a": 240.0, "b": 240.0, IDLE: 400.0, UNATTRIBUTED: 120.0})


def test_what_is_done_when() -> None:
    request = BatchRequest("a", 0.0, 10.0, 100, 9, 2.0)
    read, made = request.done(np.array([-1.0, 1.0, 2.0, 6.0, 10.0, 11.0]))
    assert read == pytest.approx([0.0, 0.5, 1.0, 1.0, 1.0, 1.0])
    assert made == pytest.approx([0.0, 0.5, 1.0, 5.0, 9.0, 9.0])
    _, made = replace(request, first_s=None).done(np.array([5.0]))
    assert made == pytest.approx([4.5])
    # Chunks: three tokens at once at 2 s, nothing until 9 s, and the server's own counts leave three of nine out.
    _, made = replace(request, chunks=((2.0, 3.0), (9.0, 3.0), (10.0, 6.0))).done(np.array([2.0, 8.0, 9.5, 10.0]))
    assert made == pytest.approx([4.5, 4.5, 6.75, 9.0])
    _, made = replace(request, first_s=10.0).done(np.array([5.0, 10.0]))
    assert made == pytest.approx([4.5, 9.0])


def test_equal_requests_weigh_and_add_what_the_curve_says() -> None:
    batch = [BatchRequest(str(i), START_S, END_S, 700, 90, START_S + 2.5) for i in range(5)]
    assert by_curve(CURVE)(batch, START_S, END_S).weights == pytest.approx([CURVE.energy_j(700, 90, 5)] * 5)
    added = one_more(CURVE, batch, START_S, END_S)
    assert [m.added_j for m in added] == pytest.approx([CURVE.another_request_j(700, 90, 5)] * 5)
    low, high = added[0].interval_j
    assert low < added[0].added_j < high


def test_a_long_prompt_beside_long_outputs() -> None:
    """One of 4,000 prompt tokens and few outputs, beside three of the other kind that outlast it."""
    asks = BatchRequest("asks", START_S, START_S + 4.0, 4000, 10, START_S + 2.0)
    tells = [BatchRequest(f"tells {i}", START_S, END_S, 20, 200, START_S + 0.2) for i in range(3)]
    costs = by_curve(CURVE)([asks, *tells], START_S, END_S).weights
    # 4 run for the first 4 s and 3 for the rest: what is shared over the load is shared over so many.
    token = [
        sum(PLANTED[n] / k for n, k in (("token", 1.0), ("token_shared", b), ("token_root_shared", math.sqrt(b))))
        for b in (4.0, 3.0)
    ]
    s4, s3 = (float(CURVE.correction(np.array([b]))[0]) for b in (4.0, 3.0))
    read_j = PLANTED["prompt_token"] * 4000 + PLANTED["prompt_token_squared"] * 4000**2
    once_j = PLANTED["request"] + PLANTED["request_shared"] / 4.0
    assert costs[0] == pytest.approx(
        s4 * (once_j + read_j + 10 * token[0] + PLANTED["attention"] * 10 * (4000 + 5)), rel=1e-12
    )
    early = 1.0 + 199.0 * 3.8 / 9.8
    own_j = PLANTED["attention"] * np.array([early * (20 + early / 2), 200 * (20 + 100) - early * (20 + early / 2)])
    own_j += [once_j + PLANTED["prompt_token"] * 20 + PLANTED["prompt_token_squared"] * 400, 0.0]
    assert costs[1] == pytest.approx(s4 * (own_j[0] + early * token[0]) + s3 * (own_j[1] + (200 - early) * token[1]))


def test_shares_sum_to_the_window_and_one_more_does_not() -> None:
    batch = [BatchRequest(str(i), START_S, END_S, 50, 100, START_S + 0.1) for i in range(8)]
    joules = 8 * CURVE.energy_j(50, 100, 8)
    shares = request_shares(window(joules), START_S, END_S, batch, MODELS["curve"])
    assert math.fsum(s.energy_j for s in shares) == pytest.approx(joules, rel=1e-9)
    added = one_more(CURVE, batch, START_S, END_S)
    assert math.fsum(m.added_j for m in added) < 0.7 * joules
    assert not {f for f in dir(added[0]) if f.endswith("_j")} & {"energy_j", "share_j", "joules_j"}


def test_only_what_was_done_in_the_window_counts() -> None:
    whole = BatchRequest("a", START_S, END_S, 700, 90, START_S + 2.5)
    late = one_more(CURVE, [whole], START_S + 5.0, END_S + 5.0)
    early = one_more(CURVE, [whole], START_S - 5.0, START_S + 5.0)
    assert late[0].added_j + early[0].added_j == pytest.approx(CURVE.another_request_j(700, 90, 1))
    assert one_more(CURVE, [whole], END_S, END_S + 1.0) == ()


def test_what_the_coefficients_leave_open() -> None:
    work = Work(np.array([[1.0, 4.0], [3.0, 0.0]]), np.array([2.0, 1.0]), np.array([0.2, 0.1]))
    fractions = [6.0 / 12.0, 6.0 / 12.0]
    moved = [
        replace(work, prices=work.prices + step).weights[0] / replace(work, prices=work.prices + step).weights.sum()
        for step in ([1e-6, 0.0], [0.0, 1e-6])
    ]
    slopes = [(m - fractions[0]) / 1e-6 for m in moved]
    assert work.open_parts == pytest.approx([math.hypot(0.2 * slopes[0], 0.1 * slopes[1])] * 2, rel=1e-4)
    a = BatchRequest("a", START_S, END_S, 4000, 10, START_S + 2.0)
    b = BatchRequest("b", START_S, END_S, 10, 400, START_S + 0.1)
    shares = request_shares(window(1000.0), START_S, END_S, [a, b], MODELS["curve"])
    part = MODELS["curve"]([a, b], START_S, END_S).open_parts[0]
    assert shares[0].split_j == pytest.approx(1000.0 * part)
    assert shares[0].interval_j == pytest.approx(
        (shares[0].energy_j - Z95 * 1000.0 * part, shares[0].energy_j + Z95 * 1000.0 * part)
    )
    # Where nobody ran for a while and no trace tells how much flowed then, nobody knows the rest either.
    gap = request_shares(window(), START_S - 1.0, END_S, [a, b], MODELS["curve"])
    assert gap[0].split_j is None


def test_unknown_joules_stay_unknown() -> None:
    a = BatchRequest("a", START_S, END_S, 10, 10)
    idle_from = BatchRequest("b", START_S, END_S, 0, 0)
    shares = request_shares(unknown("gpu", "no counter"), START_S, END_S, [a, idle_from], by_tokens)
    assert {s.energy_j for s in shares if s.name == "a"} == {None}
    assert {s.provenance for s in shares} == {"unknown"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": IDLE}, "taken"),
        ({"name": UNATTRIBUTED}, "taken"),
        ({"output_tokens": -1}, "below 0"),
        ({"end_s": START_S}, "order"),
        ({"end_s": math.nan}, "order"),
        ({"first_s": START_S}, "order"),
        ({"first_s": END_S + 1.0}, "order"),
        ({"first_s": END_S, "chunks": ((END_S, 2.0), (END_S - 1.0, 3.0))}, "fall"),
        ({"first_s": END_S, "chunks": ((END_S - 1.0, 2.0), (END_S, 1.0))}, "fall"),
    ],
)
def test_requests_that_are_none(change: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        replace(BatchRequest("a", START_S, END_S, 10, 10), **change)  # type: ignore[arg-type]


def test_windows_that_cannot_be_shared() -> None:
    a = BatchRequest("a", START_S, END_S, 10, 10)
    with pytest.raises(ValueError, match="two requests are called 'a'"):
        request_shares(window(), START_S, END_S, [a, a], by_tokens)
    with pytest.raises(ValueError, match="cuts"):
        request_shares(window(), START_S, END_S, [a], by_tokens, cuts=[END_S + 1.0])
    with pytest.raises(ValueError, match="no length"):
        request_shares(window(), END_S, END_S, [], by_tokens)
