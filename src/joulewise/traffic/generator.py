"""Sends requests when they are due, whatever became of those before, and says how late each was sent.

A tool that waits for slow answers before it sends what was due meanwhile leaves out just those requests that would have
been slow (coordinated omission). Here an open loop sends at its due times always; latencies are counted from them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from joulewise.errors import EnvironmentFault, JoulewiseError, UserError
from joulewise.traffic.arrivals import Arrival, ClosedLoop, OpenLoop

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What became of one request.

    Args:
        number: from 0, in the order in which requests became due.
        arrival: what was to be sent.
        due_s: when, monotonic seconds. In a closed loop: when the request before it in its stream had ended.
        began_s: when it was sent; None where it never was.
        end_s: when its answer was there, or it was given up.
        answer: of the server; None where there is none.
        error: why there is none; None where it was cut off when the load ended.
    """

    number: int
    arrival: Arrival
    due_s: float
    began_s: float | None
    end_s: float
    answer: T | None
    error: JoulewiseError | None = None

    @property
    def late_s(self) -> float | None:
        """The generator's own error: how much later than due it sent; None where it never did."""
        return None if self.began_s is None else self.began_s - self.due_s


class NotSent(JoulewiseError):
    """So many requests were in flight that a further one was left out (and counted), to keep the memory bounded."""


@dataclass(frozen=True, slots=True)
class Driven:
    """How a load went.

    Args:
        start_s: monotonic seconds at its zero.
        offered_until_s: from then on nothing became due.
        end_s: when the last answer was there, or was given up.
        sent, answered, failed, cut_off, left_out: requests; ``sent`` is the sum of the three after it.
        most_in_flight: at any moment.
    """

    start_s: float
    offered_until_s: float
    end_s: float
    sent: int
    answered: int
    failed: int
    cut_off: int
    left_out: int
    most_in_flight: int


Send = Callable[[Arrival, int], Awaitable[T]]
"""Sends one request and gives its answer: what is to be sent, and the request's number."""

Take = Callable[[Outcome[T]], None]
"""Gets each outcome once, as it is there; the generator keeps none. Short: all streams wait for it."""


async def drive(
    load: ClosedLoop | OpenLoop,
    send: Send[T],
    take: Take[T],
    *,
    duration_s: float,
    start_s: float | None = None,
    drain_s: float = 60.0,
    most_requests: int | None = None,
    most_in_flight: int = 20_000,
) -> Driven:
    """Put a load on a server; best on the event loop of ``joulewise.traffic.loop``.

    Args:
        load: when what is due.
        send: an error of Joulewise's that it raises is that request's outcome, except for a ``UserError`` or an
            ``EnvironmentFault``, which no further request would be spared: these end the load.
        take: gets each outcome; what it raises ends the load.
        duration_s: for so long requests become due.
        start_s: the load's zero, monotonic seconds; None is now.
        drain_s: so long after that answers are waited for; what is not there by then is cut off.
        most_requests: no more than this become due; None sets no bound.
        most_in_flight: of an open loop; what becomes due beyond that is left out, and counted.

    Raises:
        UserError, EnvironmentFault: as ``send`` raises them, or a trace that cannot be read.
    """
    driver = _Driver(send, take, start_s, most_requests)
    try:
        async with asyncio.TaskGroup() as tasks:
            over = driver.loop.call_at(driver.start_s + duration_s + drain_s, driver.cut_off)
            if isinstance(load, ClosedLoop):
                driver.offered_until_s = driver.start_s + duration_s
                for number in range(load.most):
                    driver.spawn(tasks, driver.stream(*load.stream(number, duration_s)))
            else:
                await driver.open(tasks, load, duration_s, most_in_flight)
    except BaseExceptionGroup as group:
        raise _first(group) from None
    finally:
        over.cancel()
    return driver.driven()


AFTER_FAILURE_S = 1.0
"""A closed loop's stream waits so long after a failure: a server that refuses at once would be asked without end."""


class _Driver(Generic[T]):
    def __init__(self, send: Send[T], take: Take[T], start_s: float | None, most_requests: int | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.send, self.take = send, take
        self.most_requests = most_requests
        self.start_s = self.loop.time() if start_s is None else start_s
        self.offered_until_s = self.end_s = self.start_s
        self.due = self.sent = self.answered = self.failed = self.cut = self.left_out = 0
        self.in_flight = self.most_in_flight = 0
        self.cutting = False
        self.tasks: set[asyncio.Task[object]] = set()

    @property
    def more(self) -> bool:
        """Whether another request may become due."""
        return not self.cutting and (self.most_requests is None or self.due < self.most_requests)

    def spawn(self, tasks: asyncio.TaskGroup, work: Coroutine[Any, Any, object]) -> None:
        task = tasks.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def cut_off(self) -> None:
        self.cutting = True
        for task in self.tasks:
            task.cancel()

    async def open(self, tasks: asyncio.TaskGroup, load: OpenLoop, duration_s: float, most_in_flight: int) -> None:
        for arrival in load.arrivals(duration_s):
            if not self.more:
                return
            due_s = self.offered_until_s = self.start_s + arrival.due_s
            await self._until(due_s)
            number = self._number()
            if len(self.tasks) < most_in_flight:
                self.spawn(tasks, self._one(number, arrival, due_s))
            else:
                self.left_out += 1
                error = NotSent(f"{most_in_flight} requests were in flight, and no more are sent; lower the rate")
                self.take(Outcome(number, arrival, due_s, None, self.loop.time(), None, error))

    async def stream(self, begins_s: float, ends_s: float) -> None:
        due_s = self.start_s + begins_s
        await self._until(due_s)
        while due_s < self.start_s + ends_s and self.more:
            well = await self._one(self._number(), Arrival(due_s - self.start_s), due_s)
            due_s = self.loop.time() + (0.0 if well else AFTER_FAILURE_S)
            await self._until(due_s)

    async def _one(self, number: int, arrival: Arrival, due_s: float) -> bool:
        began_s = self.loop.time()
        self.sent += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        answer, error = None, None
        try:
            answer = await self.send(arrival, number)
            self.answered += 1
        except (UserError, EnvironmentFault):
            raise
        except JoulewiseError as failure:
            error = failure
            self.failed += 1
        except asyncio.CancelledError:
            if not self.cutting:
                raise
            self.cut += 1
        finally:
            self.in_flight -= 1
        self.end_s = self.loop.time()
        self.take(Outcome(number, arrival, due_s, began_s, self.end_s, answer, error))
        return error is None

    async def _until(self, time_s: float) -> None:
        if (wait_s := time_s - self.loop.time()) > 0.0:
            await asyncio.sleep(wait_s)

    def _number(self) -> int:
        self.due += 1
        if self.due == self.most_requests:
            self.offered_until_s = self.loop.time()
        return self.due - 1

    def driven(self) -> Driven:
        return Driven(
            self.start_s,
            self.offered_until_s,
            max(self.end_s, self.offered_until_s),
            self.sent,
            self.answered,
            self.failed,
            self.cut,
            self.left_out,
            self.most_in_flight,
        )


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
