"""Choosing and asking within a joule budget: what is expected is held against it, and what was drawn is booked."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Context
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from joulewise.errors import JoulewiseError, UserError
from joulewise.routing.joule_budget import Account, Allowance, Limits, Period, allowance, begin, drew, end
from joulewise.routing.joule_budget_file import change_account, read_account
from joulewise.routing.policy import Choice, Goal

if TYPE_CHECKING:
    from joulewise.run_result import Progress

clock_s = time.time
"""The present, where nobody brings another clock: seconds by the calendar, as the account outlives the process."""


_EACH: Mapping[Period, str] = MappingProxyType({"hour": "an hour", "day": "a day"})


class BudgetSpentError(UserError):
    """Not even the cheapest option fits what is left of a joule budget."""


@dataclass(slots=True)
class Foreseen:
    """A budget as it will stand when the choices so far have been answered, by what is expected of them.

    Args:
        account, limits: as they are now.
        now_s: the present, by the calendar's clock; it goes on with each choice.
    """

    account: Account
    limits: Limits
    now_s: float

    def choose(self, choose: Callable[[Goal], Choice], goal: Goal) -> Choice:
        """The choice for the next question, no dearer than the budget allows.

        Args:
            choose: the choice that a goal gives.

        Raises:
            BudgetSpentError: not even the cheapest option fits.
        """
        choice = choose(goal)
        least_j = min(
            v.estimate.energy_j.mean for v in choice.verdicts if v.cost is not None and v.estimate is not None
        )
        for period, limit_j in self.limits.by_period.items():
            if least_j > limit_j:
                raise BudgetSpentError(_too_small(period, limit_j, least_j))
        allowed = allowance(self.account, self.limits, self.now_s)
        if least_j > allowed.left_j:
            raise BudgetSpentError(_spent(allowed, least_j))
        wanted_j = choice.estimate.energy_j.mean
        most_j = min(max(least_j, allowed.share * wanted_j), allowed.left_j)
        if wanted_j > most_j:
            without = choice
            choice = choose(replace(goal, affordable_j=most_j))
            told = (
                f"the joule budget leaves {_joules(most_j)} J for this request, so not {without.option} with "
                f"{without.estimate.accuracy:.1%} for {_joules(wanted_j)} J ({words_of(allowed)})"
            )
            choice = replace(choice, reasons=(*choice.reasons, told))
        seconds = 0.0 if choice.estimate.total_s is None else choice.estimate.total_s.mean
        began_s, self.now_s = self.now_s, self.now_s + seconds
        self.account = drew(self.account, self.limits, self.now_s, choice.estimate.energy_j.mean, began_s)
        return choice


@dataclass(frozen=True, slots=True)
class Purse:
    """A joule budget and the file that keeps its account.

    Args:
        file: made when something is drawn.
        limits: joules by the hour and by the day.
        clock: the present, in seconds by the calendar.
        name: under which this process has answers under way.
    """

    file: Path
    limits: Limits
    clock: Callable[[], float] = field(default_factory=lambda: clock_s)
    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    def foreseen(self) -> Foreseen:
        """The budget as it stands, to choose by."""
        return Foreseen(read_account(self.file), self.limits, self.clock())

    def begin(self, expected_j: float) -> None:
        """An answer begins; until what it drew is told, what is expected counts."""
        change_account(self.file, lambda account: begin(account, self.name, self.clock(), expected_j))

    def drew(self, drawn_j: float, lasted_s: float = 0.0, least_j: float = 0.0, next_j: float = 0.0) -> bool:
        """So many joules were drawn, in the seconds that end now; whether there is something left for the next answer.

        Args:
            least_j: of all answers that may come next, what the cheapest is expected to draw.
            next_j: the same, the dearest: if anything is left, it is under way from now on. 0 where none comes.
        """
        fits = True

        def booked(account: Account) -> Account:
            nonlocal fits
            now_s = self.clock()
            account = end(drew(account, self.limits, now_s, drawn_j, now_s - lasted_s), self.name)
            fits = least_j <= allowance(account, self.limits, now_s).left_j
            return begin(account, self.name, now_s, next_j) if fits and next_j else account

        change_account(self.file, booked)
        return fits

    def fits(self, least_j: float) -> bool:
        """Whether an answer that is expected to draw so much may begin."""
        return least_j <= allowance(read_account(self.file), self.limits, self.clock()).left_j

    def end(self) -> None:
        """Nothing of this process is under way any more."""
        change_account(self.file, lambda account: end(account, self.name))

    def left(self) -> str:
        """What each period leaves, in a sentence."""
        account, now_s = read_account(self.file), self.clock()
        alone = [
            allowance(account, Limits(**{f"{period}_j": limit_j}), now_s)
            for period, limit_j in self.limits.by_period.items()
        ]
        return "; ".join(map(words_of, alone))


class Booking:
    """Books what the answers of a run draw, one by one, and says when too little is left for any further one.

    Within its block an answer may be under way. Where a kill or a second Ctrl-C ends it, what is expected of that
    answer stays booked.

    Args:
        purse: where.
        waiting: by answer its option and the joules that are expected of it.
        tell: who is told of the run's progress.
    """

    def __init__(self, purse: Purse, waiting: Sequence[tuple[str, float]], tell: Callable[[Progress], None]) -> None:
        self.short = False
        self._purse, self._tell = purse, tell
        self._waiting: dict[str, list[float]] = {}
        for option, expected_j in waiting:
            self._waiting.setdefault(option, []).append(expected_j)

    def __enter__(self) -> Booking:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, JoulewiseError):
            self._purse.end()

    def told(self, progress: Progress) -> None:
        """Of a step of the run."""
        if progress.stage in ("load", "warm-up"):  # servers have no warm-up
            self._purse.begin(max(self._left(), default=0.0))
        if (trial := progress.trial) is not None:
            mine = self._waiting.get(f"{trial.engine}/{trial.decoding}/{trial.reasoning}", [])
            expected_j = mine.pop() if mine else 0.0
            drawn_j = trial.window().total.energy_j
            if drawn_j is None:
                drawn_j = expected_j if trial.status == "ok" else 0.0
            left = self._left()
            fits = self._purse.drew(drawn_j, trial.duration_s, min(left, default=0.0), max(left, default=0.0))
            self.short = self.short or (bool(left) and not fits)
        self._tell(progress)

    def enough(self) -> bool:
        """Whether nothing more may be asked."""
        return self.short

    def _left(self) -> list[float]:
        return [expected_j for mine in self._waiting.values() for expected_j in mine]


def words_of(allowed: Allowance) -> str:
    """What a period leaves, in words."""
    return f"{_joules(allowed.left_j)} of {_joules(allowed.limit_j)} J left {_until(allowed)}"


def _spent(allowed: Allowance, least_j: float) -> str:
    each = _EACH[allowed.period]
    return (
        f"the joule budget of {_joules(allowed.limit_j)} J {each} is used up: {_joules(allowed.left_j)} J are left, "
        f"and the cheapest option is expected to draw {_joules(least_j)} J; wait {_until(allowed)}, or raise "
        f"--joules-per-{allowed.period}"
    )


def _too_small(period: Period, limit_j: float, least_j: float) -> str:
    # Rounded up, as the number that is told must do.
    enough = _joules(least_j, ROUND_CEILING)
    return (
        f"the joule budget of {_joules(limit_j)} J {_EACH[period]} is too small for any option, even where nothing is "
        f"drawn: the cheapest is expected to draw {enough} J; raise --joules-per-{period} above {enough}"
    )


def _joules(value: float, rounding: str = ROUND_HALF_EVEN) -> str:
    """Four significant digits without an exponent: ``19,790``, ``4.73``."""
    return f"{Context(prec=4, rounding=rounding).create_decimal(repr(float(value))).normalize():,f}"


def _until(allowed: Allowance) -> str:
    return f"until {datetime.fromtimestamp(math.ceil(allowed.until_s)).astimezone():%Y-%m-%d %H:%M:%S}"
