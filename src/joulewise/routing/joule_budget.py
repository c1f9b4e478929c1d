"""Joules by the hour and by the day: what may still be drawn, and how much of it one request may be expected to draw.

A period begins with the first joule after the one before it ended. Two things keep its budget:

- the account: nothing is begun whose expected joules are more than what is left, so that it is exceeded by no more than
  what answers draw beyond what was expected of them;
- a ``Throttle`` (``budget.py``): requests may draw a share of what they would without a budget, and that share follows
  how far power is off what is left over what remains of the period. So the budget is spent over the whole period, and
  what was drawn too fast at first is made up for.

Pure; times are seconds by the calendar's clock (``time.time``), as the state outlives the process. Its file is
``joule_budget_file.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from joulewise.errors import UserError
from joulewise.routing.budget import Throttle, step

Period = Literal["hour", "day"]
PERIOD_S: Mapping[Period, float] = MappingProxyType({"hour": 3600.0, "day": 86400.0})
_RESPONSE_S: Mapping[Period, float] = MappingProxyType({"hour": 120.0, "day": 900.0})
"""How fast the share follows: a thirtieth of an hour or less, as a period cannot be over before it acts."""
_AIM = 0.98
"""Of the budget, what the throttle aims at: the account would refuse what it overshoots."""
_ACTS_BELOW = 0.9
"""Of a throttle's scale: options differ in steps, and a few quick answers must not cost one of them at once."""
_MOST_READINGS = 64
"""So many readings of nothing bring any share back to 1."""


@dataclass(frozen=True, slots=True)
class Window:
    """A period's account.

    Args:
        began_s: when it began.
        drawn_j: since then.
        share: of what requests would draw without a budget, what they may; the throttle's.
        power_w: smoothed, the throttle's; None before its second reading.
        at_s: of the throttle's last reading; None before the first.
    """

    began_s: float
    drawn_j: float = 0.0
    share: float = 1.0
    power_w: float | None = None
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """An answer that is under way: since when, and the joules that are expected of it.

    They count until what was drawn is told; of a process that was killed, that is for the rest of the period.
    """

    at_s: float
    expected_j: float


@dataclass(frozen=True, slots=True)
class Account:
    """What was drawn, by period, and what is under way, by the name of whoever asks."""

    windows: Mapping[Period, Window] = field(default_factory=lambda: MappingProxyType({}))
    begun: Mapping[str, Begun] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Limits:
    """Joules that may be drawn in an hour and in a day; None: any number."""

    hour_j: float | None = None
    day_j: float | None = None

    def __post_init__(self) -> None:
        """Raises UserError: no limit, or one that is no number above 0."""
        if not self.by_period:
            raise UserError("A joule budget needs a limit, by the hour or by the day: give one.")
        for period, limit_j in self.by_period.items():
            if not 0 < limit_j < math.inf:
                raise UserError(f"A joule budget by the {period} of {limit_j:g} J: give a number above 0.")

    @property
    def by_period(self) -> Mapping[Period, float]:
        """Those that there are."""
        both: dict[Period, float | None] = {"hour": self.hour_j, "day": self.day_j}
        return {period: limit_j for period, limit_j in both.items() if limit_j is not None}


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the next request may be expected to draw.

    Args:
        share: of what it would draw without a budget, above 0 and at most 1; the tightest period's.
        left_j: what the tightest period leaves, what is under way taken off.
        period: whose ``left_j`` it is.
        until_s: when that period ends.
        limit_j: that period's budget.
    """

    share: float
    left_j: float
    period: Period
    until_s: float
    limit_j: float


def at(account: Account, now_s: float) -> Account:
    """The account as it stands: periods that are over are gone, and so is what was under way before they began.

    Where the clock was put back, what lies ahead of it is taken for now.
    """
    windows = {
        period: replace(
            window,
            began_s=min(window.began_s, now_s),
            at_s=None if window.at_s is None else min(window.at_s, now_s),
        )
        for period, window in account.windows.items()
        if now_s - window.began_s < PERIOD_S[period]
    }
    begun = {
        name: replace(one, at_s=min(one.at_s, now_s))
        for name, one in account.begun.items()
        if now_s - one.at_s < PERIOD_S["day"]
    }
    return Account(windows, begun)


def allowance(account: Account, limits: Limits, now_s: float) -> Allowance:
    """What the next request may be expected to draw."""
    account = at(account, now_s)
    found: list[Allowance] = []
    for period, limit_j in limits.by_period.items():
        window = account.windows.get(period)
        if window is None:
            left_j, until_s, share = limit_j, now_s + PERIOD_S[period], 1.0
        else:
            until_s = window.began_s + PERIOD_S[period]
            left_j = limit_j - window.drawn_j
            share = _rested(window, period, limit_j, now_s).share
        since_s = now_s - PERIOD_S[period] if window is None else window.began_s
        under_way = [one for one in account.begun.values() if one.at_s >= since_s]
        left_j = max(0.0, left_j - math.fsum(one.expected_j for one in under_way))
        found.append(Allowance(share, left_j, period, until_s, limit_j))
    tightest = min(found, key=lambda one: (one.left_j, one.until_s))
    return replace(tightest, share=min(1.0, min(one.share for one in found) / _ACTS_BELOW))


def begin(account: Account, name: str, now_s: float, expected_j: float) -> Account:
    """With an answer under way, in the place of the last one of that name; periods that have none begin."""
    account = at(account, now_s)
    windows = {period: account.windows.get(period, Window(now_s)) for period in PERIOD_S}
    return Account(windows, {**account.begun, name: Begun(now_s, expected_j)})


def end(account: Account, name: str) -> Account:
    """Without what is under way by that name."""
    return replace(account, begun={other: one for other, one in account.begun.items() if other != name})


def drew(account: Account, limits: Limits, now_s: float, drawn_j: float, since_s: float) -> Account:
    """With joules that were drawn.

    Args:
        now_s: when they had been drawn.
        drawn_j: at least 0; an amount that is none counts as 0.
        since_s: when that began: the throttle takes what lies between its last reading and this for rest.
    """
    account = at(account, now_s)
    drawn_j = drawn_j if 0 <= drawn_j < math.inf else 0.0
    windows: dict[Period, Window] = {}
    for period in PERIOD_S:
        window = account.windows.get(period, Window(min(since_s, now_s)))
        if (limit_j := limits.by_period.get(period)) is not None:
            window = _rested(window, period, limit_j, min(since_s, now_s))
            window = _stepped(window, period, limit_j, now_s, drawn_j)
        windows[period] = replace(window, drawn_j=window.drawn_j + drawn_j)
    return replace(account, windows=windows)


def _rested(window: Window, period: Period, limit_j: float, now_s: float) -> Window:
    """After a time in which nothing was drawn: a reading a response, as one reading moves the share only so far."""
    if window.at_s is None or now_s <= window.at_s:
        return window if window.at_s is not None else replace(window, at_s=now_s)
    readings = min(_MOST_READINGS, math.ceil((now_s - window.at_s) / _RESPONSE_S[period]))
    length_s = (now_s - window.at_s) / readings
    for number in range(readings):
        window = _stepped(window, period, limit_j, now_s if number == readings - 1 else window.at_s + length_s, 0.0)
        assert window.at_s is not None
    return window


def _stepped(window: Window, period: Period, limit_j: float, now_s: float, drawn_j: float) -> Window:
    """The throttle's next reading, its target what is left over what remains of the period."""
    response_s = _RESPONSE_S[period]
    remains_s = max(response_s, window.began_s + PERIOD_S[period] - now_s)
    target = max(_AIM * limit_j - window.drawn_j, 1e-3 * limit_j) * 3600.0 / remains_s
    state = Throttle(target, response_s, budget_scale=window.share, power_w=window.power_w, at_s=window.at_s)
    after = step(state, now_s, drawn_j)
    return replace(window, share=after.budget_scale, power_w=after.power_w, at_s=after.at_s)
