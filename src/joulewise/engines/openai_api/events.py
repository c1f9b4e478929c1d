"""Server-sent events: bytes as the network cuts them in, whole payloads out. Pure.

The format is that of the WHATWG HTML standard (section "Server-sent events"); of its fields only ``data`` matters here.
"""

from __future__ import annotations

MOST_EVENT_BYTES = 4 * 2**20
"""A longer event is none of a chat; without a bound, a broken server could fill the memory."""


_CR = 13


class TooLong(ValueError):
    """An event has no end within ``MOST_EVENT_BYTES``."""


class EventParser:
    """Cuts a byte stream into the payloads of its events.

    Lines may end in LF, CRLF or CR, and may be cut anywhere, within a character too; comments (keep-alives) and fields
    other than ``data`` are passed over; the ``data`` lines of one event are joined by LF.
    """

    __slots__ = ("_data", "_limit", "_rest")

    def __init__(self, limit: int = MOST_EVENT_BYTES) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._limit = limit

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are whole now that these bytes have come.

        Raises:
            TooLong: an event grows past the limit.
        """
        # Nearly always one read is one event of one line; all else is the way below.
        if (
            data.endswith(b"\n\n")
            and data.startswith(b"data: ")
            and data.find(b"\n") == len(data) - 2
            and not self._rest
            and not self._data
            and _CR not in data
        ):
            return [data[6:-2]]
        whole = self._rest + data if self._rest else data
        held = b""
        if whole.endswith(b"\r"):  # perhaps the first half of a CRLF
            whole, held = whole[:-1], b"\r"
        if _CR in whole:
            whole = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = whole.split(b"\n")
        self._rest = lines.pop() + held
        found: list[bytes] = []
        for line in lines:
            self._line(line, found)
        if len(self._rest) + sum(map(len, self._data)) > self._limit:
            raise TooLong
        return found

    def close(self) -> list[bytes]:
        """What the end of the stream completes: an event without its blank line, which servers leave out at times."""
        rest, self._rest = self._rest.removesuffix(b"\r"), b""
        found: list[bytes] = []
        for line in (rest, b""):
            self._line(line, found)
        return found

    def _line(self, line: bytes, found: list[bytes]) -> None:
        if not line:
            if self._data:
                found.append(b"\n".join(self._data))
                self._data = []
            return
        line = line.removeprefix(b"\xef\xbb\xbf")
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b" ", 5) else line[5:])
        elif line == b"data":
            self._data.append(b"")
