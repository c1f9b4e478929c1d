"""The event loop that looks at the clock often."""

from __future__ import annotations

import asyncio
import gc
import selectors
import socket
import sys
import weakref
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from joulewise.traffic import loop
from joulewise.traffic.loop import EVENTS_AT_A_TIME, run


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    with ExitStack() as stack:
        made = [socket.socketpair() for _ in range(3 * EVENTS_AT_A_TIME)]
        for pair in made:
            for end in pair:
                stack.enter_context(end)
        yield made


@pytest.mark.skipif(not hasattr(selectors, "EpollSelector"), reason="there is no epoll here")
def test_few_events_at_a_time_and_none_forgotten(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    selector = loop._FewAtATime()
    try:
        for number, (near, far) in enumerate(pairs):
            selector.register(near, selectors.EVENT_READ, number)
            far.send(b"x")
        seen: set[int] = set()
        for _ in range(3):
            ready = selector.select(0.0)
            assert len(ready) == EVENTS_AT_A_TIME
            assert all(events == selectors.EVENT_READ for _, events in ready)
            seen |= {key.data for key, _ in ready}
        assert seen == set(range(len(pairs)))
    finally:
        selector.close()


@pytest.mark.skipif(not hasattr(selectors, "EpollSelector"), reason="there is no epoll here")
def test_it_registers_as_other_selectors_do(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    selector = loop._FewAtATime()
    near, far = pairs[0]
    try:
        selector.register(near, selectors.EVENT_READ, "read")
        with pytest.raises(KeyError):
            selector.register(near, selectors.EVENT_READ)
        assert selector.select(0.0) == []
        selector.modify(near, selectors.EVENT_READ | selectors.EVENT_WRITE, "both")
        assert [(key.data, events) for key, events in selector.select(0.0)] == [("both", selectors.EVENT_WRITE)]
        far.send(b"x")
        assert [events for _, events in selector.select(0.0)] == [selectors.EVENT_READ | selectors.EVENT_WRITE]
        assert selector.get_key(near).data == "both"
        assert list(selector.get_map()) == [near.fileno()]
        far.close()  # the end of a stream is readable
        selector.modify(near, selectors.EVENT_READ)
        assert [events for _, events in selector.select(0.0)] == [selectors.EVENT_READ]
        selector.unregister(near)
        assert selector.select(0.0) == []
        with pytest.raises(KeyError):
            selector.unregister(near)
    finally:
        selector.close()


def test_a_timer_does_not_wait_for_all_that_is_ready(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    """A timer that is due is called before the last of the sockets that were ready with it."""
    order: list[str] = []

    async def main() -> None:
        here = asyncio.get_running_loop()
        done = here.create_future()

        def read(near: socket.socket) -> None:
            near.recv(1)
            order.append("read")
            if len(order) == 1:
                here.call_soon(order.append, "soon")
            if order.count("read") == len(pairs):
                done.set_result(None)

        for near, far in pairs:
            here.add_reader(near, read, near)
            far.send(b"x")
        await done
        for near, _ in pairs:
            here.remove_reader(near)

    run(main())
    assert order.index("soon") <= EVENTS_AT_A_TIME


def test_the_interpreter_is_as_before_even_after_a_failure() -> None:
    async def fails() -> None:
        assert not gc.isenabled()
        assert sys.getswitchinterval() < before[1]
        raise ValueError("no")

    before = True, sys.getswitchinterval()
    with pytest.raises(ValueError, match="no"):
        run(fails())
    assert (gc.isenabled(), sys.getswitchinterval()) == before
    assert gc.get_freeze_count() == 0


def test_garbage_is_collected_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class Knot:
        pass

    async def waits() -> None:
        knot = Knot()
        knot.itself = knot  # type: ignore[attr-defined]
        gone = asyncio.get_running_loop().create_future()
        ref = weakref.ref(knot, lambda _: gone.set_result(None))
        del knot
        await asyncio.wait_for(gone, 20.0)
        assert ref() is None

    monkeypatch.setattr(loop, "_BETWEEN_COLLECTIONS_S", 0.01)
    run(waits())


def test_elsewhere_it_is_the_usual_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def kind() -> type[asyncio.AbstractEventLoop]:
        return type(asyncio.get_running_loop())

    monkeypatch.delattr(loop.select, "epoll", raising=False)
    assert run(kind()) is type(asyncio.new_event_loop())
