"""What is due when: rates, ramps, traces."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from joulewise.errors import UserError
from joulewise.traffic.arrivals import Arrival, ClosedLoop, Load, Poisson, Replay

RATES = st.floats(0.1, 50.0)


@given(RATES, st.none() | RATES, st.integers(0, 5), st.floats(1.0, 20.0))
def test_poisson_arrivals_rise_end_and_repeat(rate: float, to: float | None, seed: int, duration_s: float) -> None:
    load = Poisson(rate=rate, to_rate=to, seed=seed)
    due = [a.due_s for a in load.arrivals(duration_s)]
    assert all(0.0 <= a <= b < duration_s for a, b in pairwise(due))
    assert due == [a.due_s for a in load.arrivals(duration_s)]


@pytest.mark.parametrize(("rate", "to"), [(50.0, None), (10.0, 90.0), (90.0, 10.0), (100.0, 0.001)])
def test_poisson_counts_and_gaps(rate: float, to: float | None) -> None:
    """Counts of the two halves lie within four standard deviations of the integrated rate."""
    duration_s = 200.0
    due = [a.due_s for a in Poisson(rate=rate, to_rate=to).arrivals(duration_s)]
    end = rate if to is None else to
    middle = (rate + end) / 2
    for low, high, mean in ((0.0, 100.0, 50 * (rate + middle)), (100.0, 200.0, 50 * (middle + end))):
        assert abs(sum(low <= d < high for d in due) - mean) < 4 * mean**0.5
    if to is None:  # exponential gaps: a share 1/e is longer than the mean
        gaps = [b - a for a, b in pairwise(due)]
        assert sum(g > 1 / rate for g in gaps) / len(gaps) == pytest.approx(0.368, abs=0.02)


def test_seeds_differ() -> None:
    assert list(Poisson(rate=5, seed=1).arrivals(9)) != list(Poisson(rate=5, seed=2).arrivals(9))


@given(st.integers(1, 50), st.none() | st.integers(1, 50), st.floats(1.0, 100.0))
def test_streams_of_a_closed_loop_reach_both_levels(first: int, to: int | None, duration_s: float) -> None:
    load = ClosedLoop(concurrency=first, to_concurrency=to)
    spans = [load.stream(n, duration_s) for n in range(load.most)]
    assert all(0.0 <= begins <= ends <= duration_s for begins, ends in spans)
    at_end = sum(ends == duration_s for _, ends in spans)
    assert at_end == (to or first)
    at_start = sum(begins <= first * 0.002 for begins, _ in spans[:first])
    assert at_start == first


def test_a_ramp_is_even() -> None:
    up = ClosedLoop(concurrency=1, to_concurrency=11)
    assert [up.stream(n, 100.0)[0] for n in range(11)] == pytest.approx([0.0, *range(5, 100, 10)])
    down = ClosedLoop(concurrency=11, to_concurrency=1)
    assert sorted(down.stream(n, 100.0)[1] for n in range(11)) == pytest.approx([*range(5, 100, 10), 100.0])


def trace(folder: Path, *rows: str, head: str = "TIMESTAMP,ContextTokens,GeneratedTokens") -> Path:
    file = folder / "trace.csv"
    file.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    return file


ROWS = (
    "2023-11-16 18:17:03.9799600,4808,10",
    "2023-11-16 18:17:04.9799600,3180,8",
    "2023-11-16 18:17:06.9799600,110,27",
)


def test_a_trace_with_its_times_and_lengths(tmp_path: Path) -> None:
    file = trace(tmp_path, *ROWS)
    assert list(Replay(trace=file).arrivals(60.0)) == [
        Arrival(0.0, 4808, 10),
        Arrival(1.0, 3180, 8),
        Arrival(3.0, 110, 27),
    ]
    marked = trace(tmp_path, *ROWS, head="\ufeffTIMESTAMP,ContextTokens,GeneratedTokens")  # as spreadsheets save it
    assert len(list(Replay(trace=marked).arrivals(60.0))) == 3
    assert list(Replay(trace=file, speed=2.0).arrivals(1.0)) == [Arrival(0.0, 4808, 10), Arrival(0.5, 3180, 8)]
    scaled = Replay(trace=file, skip_s=0.5, most_prompt_tokens=200, most_output_tokens=8)
    assert list(scaled.arrivals(60.0)) == [Arrival(0.5, 200, 8), Arrival(2.5, 110, 8)]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["yesterday,1,1"], "line 2, TIMESTAMP: found 'yesterday'; write a time like 2023"),
        ([",1,1"], "line 2, TIMESTAMP: nothing is there; write a time like"),
        ([ROWS[0], "2023-11-16 18:17:04,many,1"], "line 3, ContextTokens: found 'many'; write how many tokens"),
        ([ROWS[0], "2023-11-16 18:17:04,1.5,1"], "line 3, ContextTokens: found '1.5'; write how many tokens"),
        ([ROWS[0], "2023-11-16 18:17:04,1"], "line 3, GeneratedTokens: nothing is there; write how many tokens"),
        ([ROWS[0], "2023-11-16 18:17:04,1,-1"], "line 3, GeneratedTokens: found '-1'; write how many"),
        (
            [ROWS[0], "2023-11-16 18:17:04,1," + "9" * 5000],
            "found '9{40}', and no request has more than 999,999,999",
        ),
        ([ROWS[0], "2023-11-16 18:17:04,1000000000,1"], "ContextTokens: found '1000000000', and no request has more"),
        ([ROWS[1], ROWS[0]], "line 3, TIMESTAMP: earlier than the line before"),
        ([ROWS[0], "2023-11-16 18:17:04+00:00,1,1"], "line 3, TIMESTAMP: give all times with their zone, or none"),
    ],
)
def test_lines_that_are_none_of_a_trace(tmp_path: Path, rows: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        list(Replay(trace=trace(tmp_path, *rows)).arrivals(60.0))


def test_files_that_are_no_trace(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        list(Replay(trace=tmp_path / "none.csv").arrivals(1.0))
    with pytest.raises(UserError, match="no column TIMESTAMP nor GeneratedTokens"):
        list(Replay(trace=trace(tmp_path, head="time,ContextTokens")).arrivals(1.0))
    (tmp_path / "empty.csv").touch()
    with pytest.raises(UserError, match="is empty: its first line names the columns TIMESTAMP, ContextTokens, Gen"):
        list(Replay(trace=tmp_path / "empty.csv").arrivals(1.0))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="no CSV"):
        list(Replay(trace=tmp_path / "binary.csv").arrivals(1.0))


def test_a_trace_without_a_request_in_the_load_s_time(tmp_path: Path) -> None:
    Replay(trace=trace(tmp_path, *ROWS), skip_s=3.0).check(1.0)
    with pytest.raises(UserError, match=r"no request from 3\.5 s to 5\.5 s after its first: change `skip_s`"):
        Replay(trace=trace(tmp_path, *ROWS), skip_s=3.5, speed=2.0).check(1.0)
    for skip_s in (0.0, 3.5):
        with pytest.raises(UserError, match=r"trace\.csv holds no request, only the names of its columns") as told:
            Replay(trace=trace(tmp_path), skip_s=skip_s).check(1.0)
        assert "skip_s" not in str(told.value)


def test_many_noughts_are_still_a_number(tmp_path: Path) -> None:
    found = list(Replay(trace=trace(tmp_path, "2023-11-16 18:17:03,000000000007,0000000000")).arrivals(1.0))
    assert found == [Arrival(0.0, 7, 0)]


def test_the_published_trace(shared_data: Path) -> None:
    file = shared_data / "azure_trace" / "AzureLLMInferenceTrace_code.csv"
    arrivals = list(Replay(trace=file).arrivals(1e9))
    assert len(arrivals) == 8819
    assert arrivals[0] == Arrival(0.0, 4808, 10)
    assert arrivals[-1].due_s == pytest.approx(3600.0, rel=0.05)


@pytest.mark.parametrize(
    "spec",
    [{"kind": "closed", "concurrency": 0}, {"kind": "poisson", "rate": 0.0}, {"kind": "poisson", "rate": float("inf")},
     {"kind": "replay", "trace": "t", "speed": -1.0}, {"kind": "bursts"}, {"kind": "closed", "concurrency": 1, "x": 1}],
)  # fmt: skip
def test_loads_that_cannot_be(spec: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Load).validate_python(spec)
