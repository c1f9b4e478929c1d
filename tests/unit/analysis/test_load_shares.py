"""Joules of single requests under load: planted ones are found, all are accounted for, and what is missing is told."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joulewise.analysis.load_saving import RequestSpread, under_load
from joulewise.analysis.load_shares import load_shares, median_and_middle, with_request_spreads
from joulewise.errors import UserError
from joulewise.table import RunTable
from planted_loads import SECONDS, Sent, in_folder, keep_requests, stretch
from synthetic_table import table

WHOLE_J = 1000.0


def planted(folder: Path, *several: list[Sent], idle_w: float | None = None) -> RunTable:
    """A run of so many repeats of one stretch, with their requests."""
    rows = []
    for repeat, requests in enumerate(several):
        file = f"requests/{repeat:05d}.jsonl.gz"
        keep_requests(folder, file, requests)
        rows.append(stretch("vanilla", 4, repeat, WHOLE_J, load={"file": file}))
    return in_folder(table(rows), folder, idle_w)


def spread_of(run: RunTable, **options: bool) -> RequestSpread:
    (found,) = with_request_spreads(under_load(run, **options), run, **options)
    (one,) = found.requests
    return one


def test_planted_joules_are_found(tmp_path: Path) -> None:
    # From 1 to 9 s two at a time, in all 1,200 tokens read or made: 10, 20, ... 120 and another 420 at once.
    requests = [Sent(1.0 + i / 2, 2.0 + i / 2, 5 * i, 5 * i) for i in range(1, 13)]
    requests.append(Sent(1.0, 9.0, 0, 420))
    one = spread_of(planted(tmp_path, requests, idle_w=40.0))
    # 100 W: 40 of them idle all the time, 60 J in each of the two seconds without a request.
    assert (one.idle_j, one.unattributed_j, one.requests_j) == pytest.approx((400.0, 120.0, 480.0))
    assert (one.complete, one.others, one.stretches, one.missing) == (13, 0, 1, ())
    a_token_j = 480.0 / 1200
    # Of thirteen, the one in the middle has 70 tokens, and one lies beyond each end of the middle 80 %.
    assert (one.median_j, one.lower_j, one.upper_j) == pytest.approx((70 * a_token_j, 20 * a_token_j, 120 * a_token_j))


def test_what_the_window_cuts_gets_its_part_and_is_no_request_of_the_median(tmp_path: Path) -> None:
    cut, failed = Sent(8.0, 12.0, 0, 200), Sent(2.0, 3.0, 0, 50, whole=False)
    one = spread_of(planted(tmp_path, [Sent(0.0, 8.0, 0, 50), cut, failed]))
    # Half of its 200 tokens fell inside, beside 100 of the others.
    assert (one.complete, one.others, one.median_j) == (1, 2, pytest.approx(WHOLE_J / 4))
    assert (one.requests_j, one.idle_j, one.unattributed_j) == (pytest.approx(WHOLE_J), None, pytest.approx(0.0))
    (shared,) = load_shares(planted(tmp_path, [Sent(0.0, 8.0, 0, 50), cut, failed]), {})
    assert [r.complete for r in shared.requests] == [True, False, False]
    assert [r.by_tokens.energy_j for r in shared.requests] == pytest.approx([250.0, 500.0, 250.0])


moments = st.floats(-3.0, SECONDS + 3.0)
sent = st.builds(
    lambda a, b, prompt, output, whole: Sent(min(a, b), max(a, b) + 0.1, prompt, output, whole),
    moments, moments, st.integers(0, 5000), st.integers(0, 500), st.booleans(),
)  # fmt: skip


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(sent, max_size=20), min_size=1, max_size=3), st.none() | st.floats(1.0, 150.0))
def test_all_joules_are_accounted_for(tmp_path: Path, several: list[list[Sent]], idle_w: float | None) -> None:
    one = spread_of(planted(tmp_path, *several, idle_w=idle_w))
    assert one.whole_j == pytest.approx(WHOLE_J * len(several))
    assert one.requests_j is not None
    assert one.unattributed_j is not None
    assert one.requests_j + (one.idle_j or 0.0) + one.unattributed_j == pytest.approx(one.whole_j, rel=1e-9)
    assert (one.idle_j is None) == (idle_w is None)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.unlink(),
        lambda file: file.write_bytes(file.read_bytes()[:-9]),
        lambda file: file.write_bytes(file.read_bytes()[:30] + b"\xff" * 20 + file.read_bytes()[50:]),
        lambda file: file.write_bytes(gzip.compress(b"{]\n")),
        lambda file: file.write_bytes(gzip.compress(b"\xff\n")),
        lambda file: file.write_bytes(gzip.compress(b'{"number": 1}\n')),
        lambda file: file.write_bytes(gzip.compress(b"7\n")),
    ],
    ids=["not there", "cut off", "broken", "no JSON", "no text", "other fields", "no object"],
)
def test_files_that_cannot_be_read_are_told_and_the_others_are_shared(tmp_path: Path, spoil: object) -> None:
    run = planted(tmp_path, [Sent(0.0, 10.0)], [Sent(0.0, 5.0), Sent(5.0, 10.0)])
    assert callable(spoil)
    spoil(tmp_path / "requests" / "00000.jsonl.gz")
    one = spread_of(run)
    assert (one.stretches, one.complete, one.missing) == (1, 2, ("requests/00000.jsonl.gz",))
    assert one.median_j == pytest.approx(WHOLE_J / 2)
    with pytest.raises(UserError, match=r"00000\.jsonl\.gz cannot be read .*; copy the whole run folder"):
        list(load_shares(run, {}))
    spoil(tmp_path / "requests" / "00001.jsonl.gz")
    one = spread_of(run)
    assert (one.stretches, len(one.missing), one.median_j, one.whole_j) == (0, 2, None, None)


def test_stretches_that_do_not_count_are_not_read(tmp_path: Path) -> None:
    good, failed, polluted = (
        stretch("vanilla", 4, repeat, WHOLE_J, load={"file": f"requests/{repeat}"}, **other)
        for repeat, other in enumerate(({}, {"status": "failed", "error": "no"}, {"polluted": True}))
    )
    for number in range(3):
        keep_requests(tmp_path, f"requests/{number}", [Sent(0.0, 10.0)] * (number + 1))
    run = in_folder(table([good, failed, polluted]), tmp_path)
    assert spread_of(run).complete == 4
    assert spread_of(run, without_polluted=True).complete == 1


def test_unknown_joules_stay_unknown(tmp_path: Path) -> None:
    keep_requests(tmp_path, "requests/a", [Sent(0.0, 10.0)])
    run = in_folder(table([stretch("vanilla", 4, 0, None, load={"file": "requests/a"})]), tmp_path)  # type: ignore[arg-type]
    one = spread_of(run)
    assert (one.complete, one.median_j, one.whole_j, one.requests_j) == (1, None, None, None)
    assert one.provenance == "unknown"


def test_each_file_is_read_once_and_none_where_nobody_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = planted(tmp_path, [Sent(0.0, 10.0)], [Sent(0.0, 10.0)])
    opened = []
    really = gzip.open
    monkeypatch.setattr(gzip, "open", lambda file, *how, **more: opened.append(file.name) or really(file, *how, **more))
    found = under_load(run)
    assert found[0].requests == ()
    assert with_request_spreads((), run) == ()
    assert opened == []
    with_request_spreads(found, run)
    assert opened == ["00000.jsonl.gz", "00001.jsonl.gz"]
    elsewhere = RunTable(run.arrow)
    assert with_request_spreads(under_load(elsewhere), elsewhere)[0].requests == ()


def test_the_middle_leaves_out_a_tenth_at_each_end() -> None:
    assert median_and_middle([]) == (None, None, None)
    assert median_and_middle([None, 3.0, 1.0]) == (2.0, None, None)
    for order in itertools.islice(itertools.permutations(map(float, range(10))), 3):
        assert median_and_middle(order) == (4.5, 1.0, 8.0)
    assert median_and_middle(map(float, range(100))) == (49.5, 10.0, 89.0)
