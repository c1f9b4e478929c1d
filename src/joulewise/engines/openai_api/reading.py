"""Reads one streamed answer, each piece when the connection gives it."""

from __future__ import annotations

import asyncio
import time

import aiohttp

from joulewise.engines.openai_api.answer import Assembly, ErrorInStream, Garbage
from joulewise.engines.openai_api.events import EventParser, TooLong

BUFFER_BYTES = 4096
"""Room for what one read gives; more is read again."""


class StreamReader(asyncio.BufferedProtocol):
    """Stands between a connection and aiohttp's parser of HTTP, and takes at once what that makes of each piece.

    The usual way, a task that waits for the next piece, has to be woken for each, and a piece would be stamped only
    when it is its task's turn. And a protocol without a buffer of its own is given a new one of 256 KiB for each piece,
    which takes longer than all of the rest.

    Args:
        content: the body of the answer, whose headers have come.
        assembly: gets the payloads.
        limit: is set anew, ``idle_s`` from then on, while events come.
    """

    def __init__(
        self, content: aiohttp.StreamReader, assembly: Assembly, limit: asyncio.Timeout, idle_s: float
    ) -> None:
        self._content, self._assembly = content, assembly
        self._limit, self._idle_s, self._armed_s = limit, idle_s, 0.0
        self._events = EventParser()
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[float] = self._loop.create_future()

    async def read(self, start: bytes, connection: aiohttp.connector.Connection | None) -> float:
        """Reads to the end of the answer; gives its time.

        Args:
            start: the body's first piece.
            connection: the answer's; None where all of it has come.

        Raises:
            Garbage, TooLong, ErrorInStream: of what came.
            OSError, aiohttp.ClientError: the connection broke.
        """
        self._take(start, time.monotonic())
        if connection is not None and connection.transport is not None and connection.protocol is not None:
            self._parser, self._transport = connection.protocol, connection.transport
            self._transport.set_protocol(self)
        self._look(time.monotonic())
        return await self._ended

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        time_s = time.monotonic()
        self._parser.data_received(bytes(self._buffer[:nbytes]))
        self._look(time_s)

    def eof_received(self) -> None:
        self._parser.eof_received()
        self._look(time.monotonic())

    def connection_lost(self, exc: Exception | None) -> None:
        self._parser.connection_lost(exc)
        self._look(time.monotonic())
        # asyncio's transports hold a method of their own: a kilobyte each that only the collector of garbage would
        # find, whose passes stop all streams. Nothing is read any more.
        getattr(self._transport, "__dict__", {}).pop("_read_ready_cb", None)

    def pause_writing(self) -> None:
        self._parser.pause_writing()

    def resume_writing(self) -> None:
        self._parser.resume_writing()

    def _look(self, time_s: float) -> None:
        """Take what the parser has for us, and the end."""
        content, ended = self._content, self._ended
        if ended.done():
            return
        if (error := content.exception()) is not None:
            ended.set_exception(error)
            return
        if data := content.read_nowait():
            self._take(data, time_s)
        if content.is_eof() and not ended.done():
            self._take(b"", time_s, last=True)

    def _take(self, data: bytes, time_s: float, last: bool = False) -> None:
        assembly, ended = self._assembly, self._ended
        try:
            for payload in self._events.close() if last else self._events.feed(data):
                assembly.take(payload, time_s)
        except (Garbage, TooLong, ErrorInStream) as error:
            ended.set_exception(error)
            return
        if last or assembly.done:
            ended.set_result(time_s)
        elif assembly.events and time_s >= self._armed_s:
            # A timer a piece would cost more than all else here, so it is set anew at each eighth only.
            self._armed_s = time_s + self._idle_s / 8
            self._limit.reschedule(self._loop.time() + self._idle_s * 9 / 8)
