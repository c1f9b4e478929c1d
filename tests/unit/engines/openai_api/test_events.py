"""Payloads come out whole however the network cuts the bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.engines.openai_api.events import EventParser, TooLong


def parsed(stream: bytes, cuts: list[int], limit: int = 10_000) -> list[bytes]:
    parser = EventParser(limit)
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    found = [p for start, end in pairwise(edges) for p in parser.feed(stream[start:end])]
    return found + parser.close()


@given(
    payloads=st.lists(st.lists(st.text("aé😀: {}", max_size=9), min_size=1, max_size=3), max_size=6),
    ending=st.sampled_from(["\n", "\r\n", "\r"]),
    comments=st.lists(st.sampled_from([": ping", "event: x", "id: 7", "retry: 3", ""]), min_size=1),
    space=st.booleans(),
    cuts=st.lists(st.integers(0, 500)),
)
def test_any_cut_of_any_lines_gives_the_same_payloads(
    payloads: list[list[str]], ending: str, comments: list[str], space: bool, cuts: list[int]
) -> None:
    lines: list[str] = []
    for number, payload in enumerate(payloads):
        lines += [comments[number % len(comments)]]
        lines += [f"data:{' ' if space or part.startswith(' ') else ''}{part}" for part in payload]
        lines += [""]
    stream = "".join(line + ending for line in lines).encode()
    assert parsed(stream, cuts) == ["\n".join(payload).encode() for payload in payloads]


@pytest.mark.parametrize(
    ("stream", "payloads"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a", [b"a"]),
        (b"data: a\r", [b"a"]),
        (b"data: a\n\ndata: b\n", [b"a", b"b"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data\n\n", [b""]),
        (b": only a comment\n\n", []),
        (b"database: a\n\n", []),
        (b"", []),
    ],
)
def test_what_servers_send(stream: bytes, payloads: list[bytes]) -> None:
    assert parsed(stream, []) == payloads
    assert parsed(stream, list(range(len(stream)))) == payloads


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 200, b"data: xxxxxxxxxx\n" * 20, b"<html>" * 40])
def test_an_event_without_end_does_not_fill_the_memory(stream: bytes) -> None:
    parsed(stream, list(range(0, 400, 10)), limit=400)
    with pytest.raises(TooLong):
        parsed(stream, list(range(0, 400, 10)), limit=100)
