"""The steady part is found where it is known, and claimed nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.engines.openai_api.answer import Chunks
from joulewise.traffic.course import SLICES, Course, Floats
from joulewise.traffic.served import Served
from joulewise.traffic.steady import Steady, steady_from, steady_part

N = 200


def noisy(series: Floats, share: float, seed: int = 0) -> Floats:
    return series * (1 + share * np.random.default_rng(seed).standard_normal(len(series)))


def ramp(slices: int, high: float = 100.0) -> Floats:
    return np.minimum(np.arange(N) / max(slices, 1), 1.0) * high


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("transient", [0, 10, 40, 80])
def test_a_ramp_is_left_out_and_little_more(transient: int, noise: float) -> None:
    for seed in range(20):
        series = noisy(ramp(transient), noise, seed), noisy(ramp(transient), noise, seed + 50)
        first, reason = steady_from(*series)
        assert reason is None
        assert first <= transient + (5 if noise < 0.1 else 40)
        # What is left of the ramp is too little to show in the mean.
        assert ramp(transient)[first:].mean() == pytest.approx(100.0, rel=0.003 + noise / 10)


def test_an_overshoot_is_left_out_too() -> None:
    settling = 100.0 * (1 + 2.0 * np.exp(-np.arange(N) / 8.0))
    first, reason = steady_from(noisy(settling, 0.02), noisy(np.full(N, 50.0), 0.02))
    assert reason is None
    assert 15 <= first <= 60


def test_the_later_of_both_series_decides() -> None:
    one, both = noisy(ramp(10), 0.01), noisy(ramp(60), 0.01, 1)
    assert steady_from(one, both)[0] == steady_from(both, one)[0] >= 50


def test_a_queue_that_grows_is_no_steady_state() -> None:
    growing, level = noisy(np.arange(N) + 1.0, 0.02), noisy(np.full(N, 100.0), 0.02)
    _, reason = steady_from(growing, level)
    assert reason is not None
    assert "requests in flight" in reason
    slowly = noisy(np.linspace(100.0, 140.0, N), 0.01)
    _, reason = steady_from(slowly, level)
    assert reason is not None
    _, reason = steady_from(level, slowly[::-1].copy())
    assert reason is not None
    assert "output" in reason


def test_a_load_that_settles_late_is_no_steady_state() -> None:
    _, reason = steady_from(ramp(150), ramp(150))
    assert reason is not None
    assert "had not settled" in reason


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.3])
def test_noise_alone_is_hardly_ever_taken_for_more(noise: float) -> None:
    found = [
        steady_from(noisy(np.full(N, 10.0), noise, seed), noisy(np.full(N, 70.0), noise, seed + 500))
        for seed in range(200)
    ]
    assert sum(reason is not None for _, reason in found) <= 2
    assert float(np.mean([first for first, _ in found])) <= 4.0


def test_nothing_at_all_is_steady_and_harmless() -> None:
    assert steady_from(np.zeros(N), np.zeros(N)) == (0, None)


def course(concurrency: int, takes_s: float, start_s: float = 100.0, duration_s: float = 50.0) -> Course:
    """Streams that begin one after the other over five seconds, of requests in a row, ten chunks each."""
    found = Course(start_s, duration_s)
    for stream in range(concurrency):
        began_s = start_s + 5.0 * stream / concurrency
        while began_s < start_s + duration_s:
            times = tuple(began_s + takes_s * (n + 1) / 10 for n in range(10))
            found.add(Served(began_s, began_s, times[-1], times[0], times[-1]), Chunks(times, (1,) * 10, (3,) * 10))
            began_s = times[-1]
    return found


def test_the_parts_of_a_load() -> None:
    part = steady_part(course(10, 2.0), 150.0, 153.0)
    assert part.reason is None
    assert part.from_s is not None
    assert 103.0 <= part.from_s <= 110.0
    assert (part.start_s, part.until_s, part.end_s) == (100.0, 150.0, 153.0)
    assert part.duration_s == pytest.approx(150.0 - part.from_s)
    assert not part.has(101.0)
    assert part.has(149.9)
    assert not part.has(150.0)


def test_a_load_that_ended_early() -> None:
    part = steady_part(course(10, 2.0), 130.0, 133.0)
    assert part.reason is None
    assert part.until_s == pytest.approx(130.0)
    part = steady_part(course(10, 2.0), 104.0, 106.0)
    assert part.reason == "it was offered for 16 of its 200 slices only"
    assert (part.duration_s, part.has(103.0)) == (0.0, False)


def test_nothing_asked() -> None:
    assert steady_part(Course(0.0, 10.0), 0.0, 0.0) == Steady(
        0.0, None, None, 0.0, "it was offered for 0 of its 200 slices only"
    )


def test_without_any_answer_nothing_is_steady() -> None:
    found = Course(0.0, 10.0)
    for stream in range(100):
        found.add(Served(stream / 10, stream / 10, stream / 10 + 2.0, whole=False), None)
    assert steady_part(found, 10.0, 12.0) == Steady(0.0, None, None, 12.0, "no request was answered")


def test_answers_that_come_all_at_once_are_answers() -> None:
    found = Course(0.0, 10.0)
    for stream in range(100):
        found.add(Served(stream / 10, stream / 10, stream / 10 + 0.1), Chunks())
    assert steady_part(found, 10.0, 12.0).reason is None


@given(
    st.lists(
        st.tuples(st.floats(0.0, 8.0), st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6), st.integers(1, 4)),
        max_size=8,
    )
)
def test_nothing_is_lost_between_slices(requests: list[tuple[float, list[float], int]]) -> None:
    """What was in flight and what came add up to the requests', wherever the slices' edges fall."""
    found, flight_s, tokens = Course(0.0, 20.0), 0.0, 0
    for began_s, gaps, each in requests:
        times = tuple(began_s + float(t) for t in np.cumsum(gaps))
        found.add(Served(began_s, began_s, times[-1]), Chunks(times, (1,) * len(times), (each,) * len(times)))
        flight_s += times[-1] - began_s
        tokens += each * len(times)
    width = 20.0 / SLICES
    assert found.in_flight.sum() * width == pytest.approx(flight_s)
    assert found.output.sum() * width == pytest.approx(tokens)
    assert found.in_flight.min() >= -1e-9
    assert found.gaps(0.0, 20.0).spread().count == sum(len(gaps) - 1 for _, gaps, _ in requests)


def test_output_is_in_chunks_where_one_answer_does_not_tell_its_tokens() -> None:
    found = Course(0.0, 10.0)
    found.add(Served(0.0, 0.0, 2.0), Chunks((1.0, 2.0), (1, 1), (5, 5)))
    assert found.output.sum() * 0.05 == pytest.approx(10.0)
    found.add(Served(0.0, 0.0, 2.0), Chunks((1.0, 2.0), (1, 1)))
    assert found.output.sum() * 0.05 == pytest.approx(4.0)
    found.add(Served(0.0, None, 2.0), None)
    assert found.in_flight.sum() * 0.05 == pytest.approx(4.0)
