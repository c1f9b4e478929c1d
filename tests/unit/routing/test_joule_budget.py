"""Joules by the hour and the day, on a clock that the test sets."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.errors import EnvironmentFault, UserError
from joulewise.routing.energy import Quantiles
from joulewise.routing.joule_budget import Account, Limits, allowance, at, begin, drew, end
from joulewise.routing.joule_budget_file import change_account, read_account
from joulewise.routing.policy import Choice, Estimate, Goal, Load, Option, Query, State, choose
from joulewise.routing.within_budget import BudgetSpentError, Foreseen, Purse

T0 = 1_800_000_000.0
OPTIONS_J = (17.0, 18.0, 30.0, 37.0, 45.0, 54.0)


def traffic(limits: Limits, interval_s: float, hours: float, seed: int | None = None) -> tuple[list[float], float, int]:
    """Requests that would each draw 54 J, and take the dearest option that they are allowed.

    Returns:
        Joules by hour, their mean by request, and how many were refused.
    """
    rng = None if seed is None else random.Random(seed)
    account, now_s = Account(), T0
    by_hour, asked, refused = [0.0] * round(hours), 0, 0
    lasts_s = min(2.0, interval_s / 2)
    while now_s < T0 + 3600 * hours - lasts_s:
        allowed = allowance(account, limits, now_s)
        if OPTIONS_J[0] > allowed.left_j:
            refused += 1
        else:
            most_j = min(max(OPTIONS_J[0], allowed.share * OPTIONS_J[-1]), allowed.left_j)
            drawn_j = max(j for j in OPTIONS_J if j <= most_j)
            account = drew(account, limits, now_s + lasts_s, drawn_j, now_s)
            by_hour[int((now_s - T0) // 3600)] += drawn_j
            asked += 1
        now_s += interval_s if rng is None else rng.expovariate(1 / interval_s)
    return by_hour, sum(by_hour) / asked, refused


def interval_s(limit_j_per_hour: float, demand: float) -> float:
    return 54.0 / (limit_j_per_hour * demand / 3600.0)


@pytest.mark.parametrize("demand", [1.2, 2.0])
@pytest.mark.parametrize("seed", [None, 1])
def test_an_hours_budget_is_spent_and_not_exceeded_and_nobody_is_refused(demand: float, seed: int | None) -> None:
    by_hour, mean_j, refused = traffic(Limits(hour_j=20_000.0), interval_s(20_000, demand), 2, seed)
    assert all(0.96 * 20_000 < hour <= 20_000 for hour in by_hour)
    assert refused == 0
    assert mean_j < 54.0


@pytest.mark.parametrize("seed", [None, 1])
def test_traffic_below_the_budget_draws_what_it_would_without(seed: int | None) -> None:
    _, mean_j, refused = traffic(Limits(hour_j=20_000.0), interval_s(20_000, 0.6), 2, seed)
    assert mean_j == pytest.approx(54.0, rel=0.01)
    assert refused == 0


def test_what_even_the_cheapest_option_exceeds_is_refused() -> None:
    by_hour, _, refused = traffic(Limits(hour_j=20_000.0), interval_s(20_000, 5), 2)
    assert all(20_000 - 54 <= hour <= 20_000 for hour in by_hour)
    assert refused > 0


def test_a_days_budget_is_spent_over_the_day() -> None:
    by_hour, _, refused = traffic(Limits(day_j=48_000.0), interval_s(2_000, 2), 24)
    assert 0.96 * 48_000 < sum(by_hour) <= 48_000
    assert refused == 0
    assert max(by_hour[3:]) < 2 * min(by_hour[3:])


def test_a_burst_in_a_quiet_day_is_hardly_slowed() -> None:
    account, limits, now_s = Account(), Limits(day_j=100_000.0), T0
    for _ in range(5):  # 250 J in 25 s: nine times the day's rate
        account = drew(account, limits, now_s + 5, 50.0, now_s)
        now_s += 5
    assert allowance(account, limits, now_s).share == 1.0


def test_rest_gives_back_what_the_throttle_took() -> None:
    account, limits, now_s = Account(), Limits(hour_j=20_000.0), T0
    for _ in range(100):
        account = drew(account, limits, now_s + 5, 90.0, now_s)
        now_s += 5
    tight = allowance(account, limits, now_s)
    assert tight.share < 0.6
    rested = allowance(account, limits, now_s + 1200)
    assert rested.share == 1.0
    assert rested.left_j == tight.left_j == 11_000.0


def test_a_period_begins_with_its_first_joule_and_the_next_one_owes_nothing() -> None:
    limits = Limits(hour_j=100.0, day_j=1000.0)
    account = drew(Account(), limits, T0 + 10, 90.0, T0)
    now = allowance(account, limits, T0 + 3599)
    assert (now.left_j, now.period, now.until_s) == (10.0, "hour", T0 + 3600)
    later = allowance(account, limits, T0 + 3600)
    assert (later.left_j, later.period, later.until_s) == (100.0, "hour", T0 + 7200)
    assert allowance(account, Limits(day_j=1000.0), T0 + 3600).left_j == 910.0
    assert allowance(account, Limits(day_j=1000.0), T0 + 86400).left_j == 1000.0


def test_what_is_under_way_counts_until_it_is_told_and_after_a_kill_for_the_rest_of_the_period() -> None:
    limits = Limits(hour_j=100.0)
    account = begin(Account(), "a", T0, 30.0)
    assert allowance(account, limits, T0 + 1).left_j == 70.0
    account = begin(account, "b", T0 + 1, 20.0)
    assert allowance(account, limits, T0 + 2).left_j == 50.0
    account = end(drew(account, limits, T0 + 5, 33.0, T0), "a")
    assert allowance(account, limits, T0 + 6).left_j == 47.0
    # b was killed: nobody tells what it drew.
    assert allowance(account, limits, T0 + 3599).left_j == 47.0
    assert allowance(account, limits, T0 + 3602).left_j == 100.0
    assert at(account, T0 + 90_000).begun == {}


def test_a_clock_that_is_put_back_neither_frees_nor_locks_the_budget() -> None:
    limits = Limits(hour_j=100.0)
    account = begin(drew(Account(), limits, T0 + 10, 90.0, T0), "a", T0 + 10, 5.0)
    back = at(account, T0 - 1e6)
    assert allowance(back, limits, T0 - 1e6).left_j == 5.0
    assert allowance(back, limits, T0 - 1e6 + 3601).left_j == 100.0
    assert allowance(drew(back, limits, T0 - 1e6 + 1, 1.0, T0 - 1e6), limits, T0 - 1e6 + 2).left_j == 4.0


amounts = st.one_of(st.floats(0, 1e4), st.sampled_from([0.0, float("nan"), float("inf"), -1.0]))


@given(st.lists(st.tuples(st.floats(-100, 5000), amounts, st.floats(0, 100)), max_size=30))
def test_whatever_is_drawn_whenever_shares_and_rests_are_sound(events: list[tuple[float, float, float]]) -> None:
    limits, account, now_s = Limits(1000.0, 5000.0), Account(), T0
    for passed_s, drawn_j, lasted_s in events:
        now_s += passed_s
        account = drew(account, limits, now_s, drawn_j, now_s - lasted_s)
        allowed = allowance(account, limits, now_s)
        assert 0 < allowed.share <= 1
        assert 0 <= allowed.left_j <= 1000.0
        assert allowed.until_s > now_s


def test_the_least_share_still_asks() -> None:
    account, now_s = Account(), T0
    for _ in range(500):
        account = drew(account, Limits(hour_j=1e9), now_s + 5, 1e7, now_s)
        now_s += 5
    assert allowance(account, Limits(hour_j=1e9), now_s).share == pytest.approx(0.1 / 0.9)


def test_limits_that_are_none_are_refused() -> None:
    for hour_j, day_j, told in (
        (None, None, "needs a limit"),
        (0.0, None, "A joule budget by the hour of 0 J: give a number above 0"),
        (1.0, float("nan"), "above 0"),
    ):
        with pytest.raises(UserError, match=told):
            Limits(hour_j, day_j)


def options(*joules: float) -> list[Option]:
    return [Option(f"at-{j:g}", "m") for j in joules]


def chooser(*joules: float) -> Callable[[Goal], Choice]:
    def estimate(_: Query, option: Option, __: Load) -> Estimate:
        at = [f"at-{j:g}" for j in joules].index(option.name)
        energy, seconds = Quantiles(*[joules[at]] * 3), Quantiles(2.0, 2.0, 2.0)
        return Estimate(0.5 + joules[at] / 1000, energy, seconds, seconds)

    return lambda goal: choose(Query(10), options(*joules), estimate, State(), goal)


def test_choices_take_what_is_left_and_end_when_nothing_fits() -> None:
    foreseen = Foreseen(Account(), Limits(hour_j=100.0), T0)
    taken = [foreseen.choose(chooser(10, 30, 45), Goal(within=0.0)) for _ in range(3)]
    with pytest.raises(BudgetSpentError) as told:
        foreseen.choose(chooser(10, 30, 45), Goal(within=0.0))
    drawn = [choice.estimate.energy_j.mean for choice in taken]
    assert drawn == [45.0, 45.0, 10.0]
    assert sum(drawn) <= 100
    assert taken[-1].below_floor
    assert taken[-1].best_effort
    assert "the joule budget leaves 10 J for this request, so not at-45 with 54.5% for 45 J" in taken[-1].reasons[-1]
    why = {verdict.option: verdict.why for verdict in taken[-1].verdicts}
    assert why["at-30"] == "30 J expected, and the joule budget leaves 10 J"
    assert "the joule budget of 100 J an hour is used up: 0 J are left, and the cheapest option" in str(told.value)
    assert "or raise --joules-per-hour" in str(told.value)


def test_a_budget_goes_before_every_other_limit() -> None:
    foreseen = Foreseen(drew(Account(), Limits(hour_j=100.0), T0, 80.0, T0), Limits(hour_j=100.0), T0)
    # Nothing keeps the limit of seconds, and the dear option alone keeps that of joules a request.
    goal = Goal(least_accuracy=0.54, most_total_s=0.1, most_j=5.0)
    choice = foreseen.choose(chooser(10, 45), goal)
    assert choice.option == "at-10"
    assert choice.limits_missed
    assert choice.below_floor


def test_a_budget_that_is_not_short_changes_no_choice() -> None:
    goal = Goal(within=0.0)
    foreseen = Foreseen(Account(), Limits(day_j=1e6), T0)
    assert foreseen.choose(chooser(10, 45), goal) == chooser(10, 45)(goal)


def test_an_account_survives_in_its_file(tmp_path: Path) -> None:
    now = [T0]
    purse = Purse(tmp_path / "budget.json", Limits(hour_j=100.0), clock=lambda: now[0])
    assert read_account(purse.file) == Account()
    purse.begin(20.0)
    assert "80 of 100 J left until 20" in purse.left()
    now[0] += 4
    purse.drew(25.0, 4.0)
    purse.end()
    again = replace(purse, name="other")
    assert "75 of 100 J left" in again.left()
    now[0] += 3597
    assert "100 of 100 J left" in again.left()
    assert "2e+04 of" not in again.left()


def test_several_processes_share_one_account(tmp_path: Path) -> None:
    file = tmp_path / "budget.json"
    code = (
        "import sys; from pathlib import Path; from joulewise.routing.joule_budget import Limits; "
        "from joulewise.routing.within_budget import Purse\n"
        f"for _ in range(25): Purse(Path(sys.argv[1]), Limits(day_j=1e6), clock=lambda: {T0}).drew(1.0)"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, str(file)]) for _ in range(4)]
    assert [one.wait() for one in running] == [0] * 4
    assert read_account(file).windows["day"].drawn_j == 100.0
    assert [one.name for one in tmp_path.iterdir()] == ["budget.json"]


def test_a_kill_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "budget.json"
    code = (
        "import sys; from pathlib import Path; from joulewise.routing.joule_budget import Limits; "
        "from joulewise.routing.within_budget import Purse\n"
        f"purse = Purse(Path(sys.argv[1]), Limits(day_j=1e6), clock=lambda: {T0})\n"
        "n = 0\n"
        "while True:\n"
        "    purse.drew(1.0); n += 1\n"
        "    print(n, flush=True)\n"
    )
    told = 0.0
    for _ in range(3):
        running = subprocess.Popen([sys.executable, "-c", code, str(file)], stdout=subprocess.PIPE, text=True)
        assert running.stdout is not None
        lines = [int(running.stdout.readline()) for _ in range(5)]
        running.send_signal(signal.SIGKILL)
        lines += [int(line) for line in running.stdout.read().split("\n")[:-1]]
        running.wait()
        running.stdout.close()
        told += lines[-1]
        assert read_account(file).windows["day"].drawn_j >= told
    # What was booked and not yet told when the kill came is one joule a process.
    assert read_account(file).windows["day"].drawn_j <= told + 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"windows": {}}',
        '{"version": 2, "windows": {}, "begun": {}}',
        '{"windows": {"year": {}}, "begun": {}}',
        '{"windows": {"day": {"began_s": 0, "drawn_j": -1, "share": 1, "power_w": null, "at_s": null}}, "begun": {}}',
        '{"windows": {"day": {"began_s": 0, "drawn_j": 1e308, "share": 1, "power_w": 0, "at_s": 0}}, "begun": {}}',
        '{"windows": {"day": {"began_s": 0, "drawn_j": 1, "share": 0, "power_w": 0, "at_s": 0}}, "begun": {}}',
        '{"kind": "joulewise-curve", "windows": {}, "begun": {}}',
        " " * (1 << 20) + "{}",
    ],
)
def test_a_file_that_is_none_is_told_and_left_as_it_is(tmp_path: Path, text: str) -> None:
    file = tmp_path / "budget.json"
    file.write_text(text)
    with pytest.raises(UserError, match=r"budget\.json is .*: name another with --budget-file, or remove it"):
        change_account(file, lambda account: account)
    assert file.read_text() == text


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"nowhere/budget\.json: cannot be written"):
        change_account(tmp_path / "nowhere" / "budget.json", lambda account: account)
    with pytest.raises(UserError, match="cannot be read"):
        read_account(tmp_path)


def test_a_file_holds_plain_figures(tmp_path: Path) -> None:
    file = tmp_path / "budget.json"
    change_account(file, lambda account: begin(drew(account, Limits(1.0), T0, 0.5, T0), "me", T0, 0.1))
    found = json.loads(file.read_text())
    assert found["kind"] == "joulewise-joule-budget"
    assert found["windows"]["hour"]["drawn_j"] == 0.5
    assert found["begun"] == {"me": {"at_s": T0, "expected_j": 0.1}}
