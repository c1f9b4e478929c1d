"""Requests go out when they are due, whatever became of those before. In virtual time: every figure is exact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.errors import JoulewiseError, UserError
from joulewise.traffic.arrivals import Arrival, ClosedLoop, OpenLoop, Poisson, Replay
from joulewise.traffic.generator import Driven, NotSent, Outcome, drive
from virtual_time import run_virtually

ZERO_S = 1000.0


def driven(
    load: ClosedLoop | OpenLoop, takes_s: Callable[[int], float], **more: float
) -> tuple[Driven, list[Outcome[int]]]:
    """A load on a server that takes so long for each request; below 0 it fails after that time."""
    outcomes: list[Outcome[int]] = []

    async def send(_: Arrival, number: int) -> int:
        await asyncio.sleep(abs(takes_s(number)))
        if takes_s(number) < 0.0:
            raise JoulewiseError("no")
        return number

    limits = {"duration_s": 10.0, **more}
    return run_virtually(drive(load, send, outcomes.append, **limits)), outcomes  # type: ignore[arg-type]


def test_an_open_loop_does_not_wait_for_a_server_that_hangs() -> None:
    """Coordinated omission: the server hangs for 5 s, and what was due then is sent then, and counted from then."""
    load = Poisson(rate=20.0)
    due = [ZERO_S + a.due_s for a in load.arrivals(10.0)]
    result, outcomes = driven(load, lambda number: 5.0 if number < 50 else 0.01)
    outcomes.sort(key=lambda o: o.number)
    assert [o.due_s for o in outcomes] == pytest.approx(due)
    assert all(o.late_s == pytest.approx(0.0, abs=1e-6) for o in outcomes)
    assert sum(o.end_s - o.due_s == pytest.approx(5.0) for o in outcomes) == 50
    assert result.sent == result.answered == len(due)
    assert result.offered_until_s == pytest.approx(due[-1])


@given(
    concurrency=st.integers(1, 8),
    to=st.none() | st.integers(1, 8),
    takes=st.lists(st.floats(0.05, 3.0), min_size=1, max_size=5),
)
def test_a_closed_loop_keeps_its_number_in_flight(concurrency: int, to: int | None, takes: list[float]) -> None:
    result, outcomes = driven(
        ClosedLoop(concurrency=concurrency, to_concurrency=to), lambda number: takes[number % len(takes)]
    )
    assert result.most_in_flight == max(concurrency, to or 0)
    assert sorted(o.number for o in outcomes) == list(range(len(outcomes)))
    assert result.sent == result.answered == len(outcomes)
    assert all(o.began_s is not None and o.began_s < ZERO_S + 10.0 for o in outcomes)
    assert result.end_s <= ZERO_S + 10.0 + max(takes) + 1e-6
    if to is None:
        for at_s in (ZERO_S + 1.03, ZERO_S + 5.01, ZERO_S + 9.97):
            assert sum(o.began_s is not None and o.began_s <= at_s < o.end_s for o in outcomes) == concurrency


def test_a_stream_asks_again_as_soon_as_it_has_its_answer() -> None:
    _, outcomes = driven(ClosedLoop(concurrency=1), lambda _: 0.5)
    assert [o.due_s - ZERO_S for o in outcomes] == pytest.approx([0.5 * n for n in range(20)])
    assert all(b.due_s == pytest.approx(a.end_s) for a, b in pairwise(outcomes))


def test_failures_are_outcomes_and_are_not_repeated_without_end() -> None:
    result, outcomes = driven(ClosedLoop(concurrency=2), lambda number: -0.001 if number % 2 else 0.1)
    assert result.failed == sum(o.error is not None for o in outcomes)
    assert result.answered == sum(o.answer is not None for o in outcomes)
    assert 10 < result.failed < 25
    assert all((o.answer is None) != (o.error is None) for o in outcomes)


def test_what_is_not_there_when_the_drain_ends_is_cut_off() -> None:
    result, outcomes = driven(ClosedLoop(concurrency=3), lambda number: 100.0 if number == 1 else 1.0, drain_s=5.0)
    assert (result.cut_off, result.failed) == (1, 0)
    lost = next(o for o in outcomes if o.number == 1)
    assert (lost.answer, lost.error) == (None, None)
    assert lost.end_s == result.end_s == pytest.approx(ZERO_S + 15.0)


def test_an_open_loop_over_capacity_leaves_out_and_says_so() -> None:
    result, outcomes = driven(Poisson(rate=50.0), lambda _: 60.0, most_in_flight=100)
    assert result.most_in_flight == result.sent == 100
    left_out = [o for o in outcomes if isinstance(o.error, NotSent)]
    assert len(left_out) == result.left_out > 300
    assert all(o.began_s is None and o.late_s is None for o in left_out)


@pytest.mark.parametrize("load", [ClosedLoop(concurrency=4), Poisson(rate=20.0)])
def test_no_more_than_so_many(load: ClosedLoop | Poisson) -> None:
    result, outcomes = driven(load, lambda _: 0.3, most_requests=9)
    assert result.sent == len(outcomes) == 9
    assert result.offered_until_s == max(o.due_s for o in outcomes)
    assert result.end_s == pytest.approx(result.offered_until_s + 0.3)


@pytest.mark.parametrize("load", [ClosedLoop(concurrency=4), Poisson(rate=20.0)])
def test_an_error_that_all_would_meet_ends_the_load(load: ClosedLoop | Poisson) -> None:
    taken: list[Outcome[None]] = []

    async def refused(_: Arrival, number: int) -> None:
        await asyncio.sleep(0.1)
        if number == 7:
            raise UserError("the key is refused")

    with pytest.raises(UserError, match="the key is refused"):
        run_virtually(drive(load, refused, taken.append, duration_s=10.0))
    assert len(taken) < 20


def test_what_the_taker_raises_ends_the_load() -> None:
    def full(_: Outcome[int]) -> None:
        raise OSError("no space left")

    async def send(_: Arrival, number: int) -> int:
        return number

    with pytest.raises(OSError, match="no space left"):
        run_virtually(drive(ClosedLoop(concurrency=2), send, full, duration_s=10.0))


def test_a_trace_that_cannot_be_read_is_told() -> None:
    with pytest.raises(UserError, match="cannot be read"):
        driven(Replay(trace=Path("none.csv")), lambda _: 1.0)


def test_cancelling_from_outside_is_no_outcome() -> None:
    taken: list[Outcome[None]] = []

    async def main() -> None:
        async def send(_: Arrival, __: int) -> None:
            await asyncio.sleep(50.0)

        load = asyncio.ensure_future(drive(ClosedLoop(concurrency=2), send, taken.append, duration_s=10.0))
        await asyncio.sleep(1.0)
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load

    run_virtually(main())
    assert taken == []
