"""Features of a query that cost microseconds: hashed n-grams of words and characters, and what its bytes look like.

N-grams are hashed all at once: with the prefix sums H of a polynomial over the bytes, the hash of the bytes from a to b
is (H[b] - H[a]) * p^-a modulo 2^64 (p is odd, so its inverse exists). No tokenizer, no vocabulary, any script.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

BUCKET_BITS = 17
BUCKETS = 1 << BUCKET_BITS
HEAD_CHARACTERS, TAIL_CHARACTERS = 3072, 1024
"""Of longer queries only the beginning and the end are read; their whole length is a feature."""

STRUCTURE = (
    *("characters", "question", "choice mean", "choice spread", "choice digits", "choices", "digit share", "digits"),
    *("upper share", "lines", "dollars", "operators", "brackets", "backslashes", "not ascii", "question marks"),
    *("underscores", "apostrophes", "commas", "full stops", "word length", "spaces", "negated", "asks", "colon"),
    *("completes", "quotes", "code", "cyrillic and greek", "arabic and hebrew", "east asian", "emoji"),
)

Buckets = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

_CHARACTER_GRAM = 5
_PRIME = 0x9E3779B97F4A7C15
_MOST_BYTES = 4 * (HEAD_CHARACTERS + TAIL_CHARACTERS + 1)
MOST_BUCKETS = 2 * _MOST_BYTES
"""No query has more n-grams: one for each byte, and at most as many words and pairs of words."""
_CHOICE = re.compile(r"\n\(?[A-J][.):]\s")
_NEGATIONS = (" not ", " NOT ", "except", "EXCEPT")
_CODE_MARKS = ("```", "def ", "return ")


def _powers(base: int) -> npt.NDArray[np.uint64]:
    out, value = np.empty(_MOST_BYTES + 1, np.uint64), 1
    for i in range(len(out)):
        out[i] = value
        value = value * base % 2**64
    return out


def _byte_tables() -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int8]]:
    """A random value for each byte (letters folded, white space alike), and which bytes are of words."""
    folded = np.arange(256)
    folded[65:91] += 32
    folded[9:14] = 32
    values = np.random.default_rng(20261130).integers(1, 2**63, 256, dtype=np.uint64)
    word = np.zeros(256, np.int8)
    word[48:58] = word[65:91] = word[97:123] = word[128:] = 1
    return values[folded], word


_POWERS, _INVERSES = _powers(_PRIME), _powers(pow(_PRIME, -1, 2**64))
_VALUES, _WORD = _byte_tables()
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_THREE, _SHIFT, _DOWN = np.uint64(3), np.uint64(29), np.uint64(64 - BUCKET_BITS)
_SALTS = tuple(np.uint64(0x94D049BB133111EB * n % 2**64) for n in (1, 2, 3))


class Features(NamedTuple):
    """What is known of a query.

    Args:
        buckets: the distinct hashed n-grams (words, pairs of words, five characters), each below ``BUCKETS``.
        structure: one figure for each of ``STRUCTURE``.
    """

    buckets: Buckets
    structure: Floats


def features(query: str) -> Features:
    """The features of a query, which may be empty, long, or in any script."""
    length = len(query)
    if length > HEAD_CHARACTERS + TAIL_CHARACTERS:
        query = query[:HEAD_CHARACTERS] + "\n" + query[-TAIL_CHARACTERS:]
    raw = np.frombuffer(query.encode("utf-8", "surrogatepass"), np.uint8)
    return Features(_buckets(raw), _structure(query, raw, length))


def _buckets(raw: npt.NDArray[np.uint8]) -> Buckets:
    n = len(raw)
    prefix = np.zeros(n + 1, np.uint64)
    np.cumsum(_VALUES.take(raw) * _POWERS[:n], out=prefix[1:])
    inside = np.zeros(n + 2, np.int8)
    inside[1:-1] = _WORD.take(raw)
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    starts, ends = edges[::2], edges[1::2]
    words = (prefix.take(ends) - prefix.take(starts)) * _INVERSES.take(starts)
    k = _CHARACTER_GRAM
    grams = [words + _SALTS[0], words[:-1] * _THREE + words[1:] + _SALTS[1]]
    if n >= k:
        grams.append((prefix[k:] - prefix[:-k]) * _INVERSES[: n - k + 1] + _SALTS[2])
    mixed = np.concatenate(grams)
    mixed ^= mixed >> _SHIFT
    mixed *= _MIX
    mixed >>= _DOWN
    found = mixed.astype(np.int32)
    found.sort()
    first = np.empty(len(found), np.bool_)
    first[:1] = True
    np.not_equal(found[1:], found[:-1], out=first[1:])
    return found.compress(first)


def _structure(query: str, raw: npt.NDArray[np.uint8], length: int) -> Floats:
    count = np.bincount(raw, minlength=256).tolist()
    n = len(raw) + 1
    starts = [found.start() for found in _CHOICE.finditer(query)][:12]
    question = query[: starts[0]] if starts else query
    sizes = [b - a for a, b in pairwise(starts)] or [0]
    all_digits = sum(count[48:58])
    choice_digits = sum(map(query[starts[0] :].count, "0123456789")) if starts else 0
    spaces = count[32] + count[10]
    end = question.rstrip()[-1:]
    figures = (
        *(length, len(question), sum(sizes) / len(sizes), max(sizes), min(sizes), all_digits, count[10], count[36]),
        count[42] + count[43] + count[61] + count[94],
        count[40] + count[91] + count[123],
        *(count[92], 0 if query.isascii() else sum(count[128:]), count[95], spaces),
    )
    logs = [math.log1p(figure) for figure in figures]
    a, b, c, d = _NEGATIONS
    negated = a in question or b in question or c in question or d in question
    a, b, c = _CODE_MARKS
    code = a in query or b in query or c in query
    return np.array(
        [
            *(logs[0], logs[1], logs[2], logs[3] - logs[4], choice_digits / (sum(sizes) + 1), len(starts)),
            *(all_digits / n, logs[5], sum(count[65:91]) / n, logs[6], logs[7], logs[8], logs[9], logs[10], logs[11]),
            *(min(count[63], 5), logs[12], 100 * count[39] / n, 100 * count[44] / n, 100 * count[46] / n),
            *(min((n - spaces) / (spaces + 1), 20), logs[13], negated),
            *(end == "?", end == ":", end == ".", min(count[34], 8), code),
            *(sum(count[0xCE:0xD2]) / n, sum(count[0xD6:0xDC]) / n, sum(count[0xE3:0xEE]) / n, count[0xF0] / n),
        ],
        dtype=np.float64,
    )
