"""Kernels that grow a draft's tree on an NVIDIA GPU (Triton): a dozen small sorts and gathers a level, as four kernels.

See ``kernels.py`` for what they have in common, and ``drafters/eagle.py`` for the same in torch's operations.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from joulewise.engines.native.kernels import begin, start

_CHUNK = 1024


@triton.jit
def _best_of_parts(
    logits, tops, sums, values, places, size, stride, scale, K: tl.constexpr, CHUNK: tl.constexpr, AHEAD: tl.constexpr
):  # fmt: skip
    begin(AHEAD)
    row, chunk, each = tl.program_id(0), tl.program_id(1), tl.arange(0, CHUNK)
    at = chunk * CHUNK + each
    found = tl.load(logits + row.to(tl.int64) * stride + at, mask=at < size, other=0.0).to(tl.float32) * scale
    found = tl.where(at < size, found, -float("inf"))
    top = tl.max(found, axis=0)
    slot = row * tl.num_programs(1) + chunk
    tl.store(tops + slot, top)
    tl.store(sums + slot, tl.sum(tl.exp(found - top), axis=0))
    for number in tl.static_range(K):
        best, place = tl.max(found, axis=0, return_indices=True)
        tl.store(values + slot * K + number, best)
        tl.store(places + slot * K + number, chunk * CHUNK + place)
        found = tl.where(each == place, -float("inf"), found)


@triton.jit
def _best_children(
    tops, sums, values, places, ids, scores, numbers, new_scores, new_tokens, new_parents, count,
    K: tl.constexpr, CHUNKS: tl.constexpr, CANDIDATES: tl.constexpr, MAPPED: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    begin(AHEAD)
    row, chunk, at = tl.program_id(0), tl.arange(0, CHUNKS), tl.arange(0, CANDIDATES)
    here = row * count
    top = tl.load(tops + here + chunk, mask=chunk < count, other=-float("inf"))
    most = tl.max(top, axis=0)
    weight = tl.load(sums + here + chunk, mask=chunk < count, other=0.0) * tl.exp(top - most)
    base = tl.load(scores + row) - most - tl.log(tl.sum(weight, axis=0))
    number = tl.load(numbers + row)
    found = tl.load(values + here * K + at, mask=at < count * K, other=-float("inf"))
    for child in tl.static_range(K):
        best, place = tl.max(found, axis=0, return_indices=True)
        token = tl.load(places + here * K + place).to(tl.int64)
        if MAPPED:
            token = tl.load(ids + token)
        tl.store(new_scores + row * K + child, base + best)
        tl.store(new_tokens + row * K + child, token)
        tl.store(new_parents + row * K + child, number)
        found = tl.where(at == place, -float("inf"), found)


def children(
    logits: Tensor,
    scale: float,
    ids: Tensor | None,
    scores: Tensor,
    numbers: Tensor,
    out: tuple[Tensor, Tensor, Tensor],
) -> None:
    """The likeliest children of each node, the first of equals first.

    Args:
        logits: of what follows each node, shape ``(n, rows)``, each row contiguous.
        scale: of the logits.
        ids: the token of each row, where that is not its number.
        scores: log-probabilities of the paths to the nodes, float32, shape ``(n,)``.
        numbers: of the nodes, shape ``(n,)``.
        out: filled in: log-probabilities of the paths to the children, their tokens, their parents' numbers; shape
            ``(n k,)`` each, contiguous.
    """
    nodes, size = logits.shape
    k = len(out[0]) // nodes
    chunks = triton.cdiv(size, _CHUNK)
    parts = torch.empty(2, nodes, chunks, dtype=torch.float32, device=logits.device)
    values = torch.empty(nodes, chunks, k, dtype=torch.float32, device=logits.device)
    places = torch.empty(nodes, chunks, k, dtype=torch.int32, device=logits.device)
    start(
        _best_of_parts, (nodes, chunks), logits,
        logits, *parts, values, places, size, logits.stride(0), scale, k, _CHUNK,
        warps=2,
    )  # fmt: skip
    start(
        _best_children, (nodes,), logits,
        *parts, values, places, places if ids is None else ids, scores, numbers, *out, chunks,
        k, triton.next_power_of_2(chunks), triton.next_power_of_2(chunks * k), ids is not None,
        warps=1,
    )  # fmt: skip


@triton.jit
def _ranks(scores, count, COUNT: tl.constexpr, PART: tl.constexpr):
    """How many scores go before each: those that are higher, and the earlier of equals."""
    at = tl.arange(0, COUNT)
    mine = tl.load(scores + at, mask=at < count, other=-float("inf"))
    rank = tl.zeros([COUNT], tl.int32)
    for first in range(0, count, PART):
        other = first + tl.arange(0, PART)
        theirs = tl.load(scores + other, mask=other < count, other=-float("inf"))
        earlier = other[None, :] < at[:, None]
        before = (theirs[None, :] > mine[:, None]) | ((theirs[None, :] == mine[:, None]) & earlier)
        rank += tl.sum((before & (other < count)[None, :]).to(tl.int32), axis=1)
    return rank


@triton.jit
def _follow(
    scores, tokens, states, seen, new_scores, new_tokens, new_numbers, new_states, new_seen, made, count, size, width,
    K: tl.constexpr, COUNT: tl.constexpr, SEEN: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    begin(AHEAD)
    row, at = tl.program_id(0), tl.arange(0, COUNT)
    rank = _ranks(scores, count, COUNT, PART)
    place = tl.sum(tl.where((rank == row) & (at < count), at, 0), axis=0)
    best = tl.load(scores + place)
    origin = place // K
    tl.store(new_scores + row, best)
    tl.store(new_tokens + row, tl.load(tokens + place))
    tl.store(new_numbers + row, (made + place).to(tl.int64))
    column = tl.arange(0, SEEN)
    kin = tl.load(seen + origin * width + column, mask=column < width, other=0)
    kin = tl.where(column == width + row, 1, kin)
    tl.store(new_seen + row * (width + K) + column, kin.to(tl.uint8), mask=column < width + K)
    for first in range(0, size, BLOCK):
        each = first + tl.arange(0, BLOCK)
        tl.store(
            new_states + row * size + each, tl.load(states + origin * size + each, mask=each < size), mask=each < size
        )


def follow(
    scores: Tensor, tokens: Tensor, states: Tensor, seen: Tensor, made: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The nodes of a level that are followed further: those with the highest scores, the first of equals first.

    Args:
        scores, tokens: of the level's nodes, those of one parent side by side; shape ``(k k,)``.
        states: of their parents, shape ``(k, H)``, contiguous.
        seen: bool, what their parents see of the nodes that were followed, themselves included, ``(k, w)``, contiguous.
        made: the number of the level's first node.

    Returns:
        Scores, tokens, numbers, parents' states of the followed nodes, and what they see, shape ``(k, w + k)``.
    """
    k, size = states.shape
    width = seen.shape[1]
    new = scores.new_empty(k), tokens.new_empty(k), tokens.new_empty(k), torch.empty_like(states)
    sees = torch.empty(k, width + k, dtype=torch.bool, device=seen.device)
    start(
        _follow, (k,), scores,
        scores, tokens, states, seen.view(torch.uint8), *new, sees.view(torch.uint8), made, len(scores), size, width,
        k, triton.next_power_of_2(len(scores)), triton.next_power_of_2(width + k), 32, 1024,
        warps=4,
    )  # fmt: skip
    return *new, sees


@triton.jit
def _keep(
    scores, tokens, parents, kept_tokens, kept_parents, places, count, nodes,
    COUNT: tl.constexpr, PART: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    begin(AHEAD)
    at = tl.arange(0, COUNT)
    rank = _ranks(scores, count, COUNT, PART)
    kept = (rank < nodes) & (at < count)
    place = tl.cumsum(kept.to(tl.int32), axis=0)
    tl.store(places + 1 + at, tl.where(kept, place, 0), mask=at < count)
    tl.store(places + at, 0, mask=at < 1)
    tl.store(kept_parents + at, tl.zeros([COUNT], tl.int64), mask=at < 1)
    tl.store(kept_tokens + place - 1, tl.load(tokens + at, mask=at < count, other=0), mask=kept)
    tl.store(kept_parents + place, tl.load(parents + at, mask=at < count, other=0), mask=kept)


@triton.jit
def _link(
    kept_parents, places, parents, ancestors, depths, width, LEVELS: tl.constexpr, WIDTH: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    begin(AHEAD)
    row, column = tl.program_id(0), tl.arange(0, WIDTH)
    kin = column == row
    node, depth = row, row * 0
    for level in tl.static_range(LEVELS):
        depth += (node > 0).to(tl.int32)
        node = tl.load(places + tl.load(kept_parents + node))
        kin = kin | (column == node)
        if level == 0:
            tl.store(parents + row, node.to(tl.int64))
    tl.store(ancestors + row * width + column, kin.to(tl.uint8), mask=column < width)
    tl.store(depths + row, depth.to(tl.int64))


def keep(
    scores: Tensor, tokens: Tensor, parents: Tensor, nodes: int, levels: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The tree of the nodes with the highest scores; of equal ones the earlier stays, so a parent before its children.

    Args:
        scores, tokens: of all nodes but the root, in the order of their numbers, from 1 on; at most 1024.
        parents: numbers of their parents; the root is 0.
        nodes: how many are kept, the root apart.
        levels: of the tree.

    Returns:
        Tokens of the kept nodes, shape ``(nodes,)``; parents, ancestors and depths as ``Tree`` has them, of
        ``nodes + 1``.
    """
    kept_tokens, width = tokens.new_empty(nodes), nodes + 1
    kept_parents, linked, depths = tokens.new_empty(3, width)
    places = torch.empty(len(scores) + 1, dtype=torch.int32, device=scores.device)
    ancestors = torch.empty(width, width, dtype=torch.bool, device=scores.device)
    start(
        _keep, (1,), scores,
        scores, tokens, parents, kept_tokens, kept_parents, places, len(scores), nodes,
        triton.next_power_of_2(len(scores)), 32,
        warps=8,
    )  # fmt: skip
    start(
        _link, (width,), scores,
        kept_parents, places, linked, ancestors.view(torch.uint8), depths, width,
        levels, triton.next_power_of_2(width),
        warps=1,
    )  # fmt: skip
    return kept_tokens, linked, ancestors, depths
