"""Loads for one NVIDIA GPU, in a process of their own, so that Python starves neither them nor who measures them.

    python benchmarks/gpu_load.py     # reads orders, one JSON array a line: see ORDERS

A load is a queue of *units* of 0.5 ms, in each of which a number of the GPU's multiprocessors multiply matrices and the
rest do nothing. So the power is even within a millisecond, without the host's help, and goes up and down by single
multiprocessors. All of a unit's work lies in the multiprocessors: it takes the same time however many they are, as long
as the card is below its power limit, and what a sensor sees does not depend on when it looks.

Needs torch with CUDA, and its Triton. Times are ``time.monotonic``, the same for all processes of a machine.
"""

from __future__ import annotations

import json
import random
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

ORDERS = ("idle", "steady", "locked", "phases")
"""``["idle"]``; ``["steady"]``, until the next order; ``["locked", first_s, period_s, count, burst_s]``: so many bursts
at set times; ``["phases", [[name, seconds], ...]]``: idle, steady, bursts, ramps one after another."""

UNIT_S = 0.0005
SHARE = 0.6
"""Of the multiprocessors, at full power: fewer than all, so that the power limit changes nothing."""

RAMP_S = 1.935
"""A ramp goes up, or down, in so long; no multiple of the counter's step."""

BURST_S = (0.03, 0.3)
CHUNK_S = 0.01
AHEAD = 30
"""So many chunks of even load lie in the queue: whoever reads the card's sensors may hold up who fills it."""

SETTLE_S = 2.0
SEED = 1


def counts(shares: Sequence[float], multiprocessors: int) -> list[int]:
    """How many multiprocessors are busy in each unit, so that their sum follows ``shares`` all the time; never none."""
    found, owed = [], 0.0
    for share in shares:
        owed += share * multiprocessors
        found.append(min(multiprocessors, max(1, round(owed))))
        owed -= found[-1]
    return found


class Units:
    """Queues of units on the GPU.

    Args:
        torch: the module.
    """

    def __init__(self, torch: Any) -> None:
        from busy_kernel import BusyKernel

        self._torch, self._work = torch, BusyKernel(torch)
        self._rounds = 1000
        self._seconds(1000)  # the clock goes up
        self._rounds = max(1, round(self._rounds * UNIT_S / self._seconds(200)))
        self.unit_s = self._seconds(200)

    def _seconds(self, count: int) -> float:
        busy = round(SHARE * self._work.multiprocessors)
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            self._work(busy, self._rounds)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000 / count

    def queue(self, shares: Sequence[float]) -> Callable[[], None]:
        """What puts units with these shares into the GPU's queue, at one stroke where it can."""
        busy = counts(shares, self._work.multiprocessors)

        def each() -> None:
            for count in busy:
                self._work(count, self._rounds)

        graph = self._torch.cuda.CUDAGraph()
        try:
            with self._torch.cuda.graph(graph):
                each()
        except RuntimeError as error:
            print(f"no CUDA graph ({error}); units are queued one by one", file=sys.stderr)
            return each
        return lambda: graph.replay()

    def even(self, seconds: float, share: float = SHARE) -> Callable[[], None]:
        """A queue at one share."""
        return self.queue([share] * max(1, round(seconds / self.unit_s)))

    def ramp(self) -> Callable[[], None]:
        """A queue that goes from no product to the full share and back."""
        count = round(RAMP_S / self.unit_s)
        return self.queue([SHARE * (1 - abs((i + 0.5) / count - 1)) for i in range(2 * count)])

    def done(self) -> Any:
        """A mark in the queue, to be waited for by ``synchronize``."""
        event = self._torch.cuda.Event()
        event.record()
        return event


class GpuLoad:
    """What the process does by the orders."""

    def __init__(self, torch: Any, tell: Callable[[Any], None]) -> None:
        self._units = Units(torch)
        self._tell = tell
        self._chunk = self._units.even(CHUNK_S)
        self._ramp: Callable[[], None] | None = None
        self._bursts: dict[float, Callable[[], None]] = {}

    def steady(self, more: Callable[[], bool]) -> None:
        """Even power while ``more`` says so, and until the queue is empty."""
        marks: deque[Any] = deque()
        while more():
            self._chunk()
            marks.append(self._units.done())
            if len(marks) > AHEAD:
                marks.popleft().synchronize()
        self._units.done().synchronize()

    def until(self, end_s: float) -> None:
        """Even power up to a moment, to within a chunk."""
        chunks = iter(range(max(1, round((end_s - time.monotonic()) / CHUNK_S))))
        self.steady(lambda: next(chunks, None) is not None)

    def locked(self, first_s: float, period_s: float, count: int, burst_s: float) -> list[tuple[float, float]]:
        """Bursts at set times, and when each began and ended."""
        if burst_s not in self._bursts:
            self._bursts[burst_s] = self._units.even(burst_s)
            self._units.done().synchronize()
        bursts = []
        for number in range(count):
            due_s = first_s + number * period_s
            time.sleep(max(0.0, due_s - time.monotonic() - 0.002))
            while (start_s := time.monotonic()) < due_s:
                pass
            self._bursts[burst_s]()
            self._units.done().synchronize()
            bursts.append((start_s, time.monotonic()))
        return bursts

    def phases(self, phases: Sequence[tuple[str, float]]) -> None:
        """The phases one after another; what begins, and each event, is told as it comes."""
        draw = random.Random(SEED)
        if any(name == "ramps" for name, _ in phases) and self._ramp is None:
            self._ramp = self._units.ramp()
            self._ramp()  # the first time takes longer
        self.until(time.monotonic() + 0.5)
        time.sleep(SETTLE_S)
        for name, seconds in phases:
            start_s = time.monotonic()
            self._tell(["phase", name, start_s])
            self._phase(name, start_s + seconds, draw)
        self._tell(["phase", None, time.monotonic()])

    def _phase(self, name: str, end_s: float, draw: random.Random) -> None:
        if name == "steady":
            self.until(end_s)
        elif name == "bursts":
            while (now_s := time.monotonic()) < end_s:
                self.until(min(end_s, now_s + draw.uniform(*BURST_S)))
                done_s = time.monotonic()
                self._tell(["event", now_s, 1])  # afterwards: telling takes time
                self._tell(["event", done_s, 0])
                time.sleep(draw.uniform(*BURST_S))
        elif name == "ramps":
            assert self._ramp is not None
            before = self._units.done()
            while time.monotonic() < end_s:  # the next one is queued before the last has ended
                self._ramp()
                now = self._units.done()
                before.synchronize()
                self._tell(["event", time.monotonic(), 2])
                before = now
            before.synchronize()
        else:
            time.sleep(end_s - time.monotonic())


class Load(Protocol):
    """A load as those see it who measure."""

    def idle(self) -> None:
        """Nothing from now on."""

    def steady(self) -> None:
        """Even power from now on."""

    def locked(self, first_s: float, period_s: float, count: int, burst_s: float) -> list[tuple[float, float]]:
        """Bursts at set times; when each began and ended."""

    def phases(self, phases: Sequence[tuple[str, float]]) -> Iterator[list[Any]]:
        """Phases one after another: ``["phase", name, start_s]``, and ``["event", time_s, kind]``.

        The last phase's name is None: nothing more. Kinds: 0 idle, 1 a burst begins, 2 a ramp up and down again begins.
        """

    def close(self) -> None:
        """No more."""


class LoadProcess:
    """``Load`` by this file's process. It ends with the one that started it.

    Raises:
        SystemExit: the process could not start, or has died.
    """

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).resolve())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self._answer()[1]

    def idle(self) -> None:
        """Nothing from now on."""
        self._ask("idle")

    def steady(self) -> None:
        """Even power from now on."""
        self._ask("steady")

    def locked(self, first_s: float, period_s: float, count: int, burst_s: float) -> list[tuple[float, float]]:
        """Bursts at set times; when each began and ended."""
        return [(start, end) for start, end in self._ask("locked", first_s, period_s, count, burst_s)[1]]

    def phases(self, phases: Sequence[tuple[str, float]]) -> Iterator[list[Any]]:
        """Phases one after another, what happens as it comes."""
        answer = self._ask("phases", [list(p) for p in phases])
        while answer[0] != "done":
            yield answer
            answer = self._answer()

    def close(self) -> None:
        """No more."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10.0)

    def _ask(self, *order: Any) -> list[Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> list[Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the load's process has ended: see its message above")
        answer: list[Any] = json.loads(line)
        return answer


def serve() -> None:
    """Carry out orders until there are no more."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device: the load needs an NVIDIA GPU and a torch built for CUDA")

    def tell(what: Any) -> None:
        print(json.dumps(what), flush=True)

    load = GpuLoad(torch, tell)
    about = {"torch": torch.__version__, "unit_s": load._units.unit_s, "share": SHARE}
    tell(["ready", about])
    while line := sys.stdin.readline():
        order, *details = json.loads(line)
        if order == "steady":
            tell(["done", None])
            load.steady(lambda: not select.select([sys.stdin], [], [], 0.0)[0])
        elif order == "locked":
            tell(["done", load.locked(*details)])
        elif order == "phases":
            load.phases(*details)
            tell(["done", None])
        else:
            tell(["done", None])


if __name__ == "__main__":
    serve()
