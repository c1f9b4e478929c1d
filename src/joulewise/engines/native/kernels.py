"""Kernels for forwards over few tokens on NVIDIA GPUs (Triton): what lies between a layer's large matrices.

At batch 1 a step reads the weights once; all else is many small kernels, each of which costs microseconds whatever it
does. Here a layer has six beside its four products, which are the library's, and the attention reads as many slots as
there are tokens, which it finds on the device: one captured forward serves all lengths. Since Hopper a kernel is
started while the one before it ends (``AHEAD``), and waits for its results before it touches anything.

Imported only where Triton is; `lean.py` says when it is used.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import subprocess
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.errors import TritonError

FAILURES: tuple[type[Exception], ...] = (OSError, RuntimeError, subprocess.SubprocessError, TritonError)
"""What Triton raises where it cannot build a kernel: no C compiler, no driver, a version that does not know the GPU."""

SPLITS = 16
"""Parts into which the slots of a text are cut, so that they are read by many multiprocessors at once; half as many
where there are more rows of queries than one program holds."""

MOST_ROWS = 64
"""Rows of queries that one program holds."""


@lru_cache
def _overlaps(device: torch.device) -> bool:
    """Whether kernels may begin before the one before them has ended."""
    return (
        device.type == "cuda"
        and hasattr(tl.extra.cuda, "gdc_wait")
        and torch.cuda.get_device_capability(device) >= (9, 0)
    )


def start(kernel: Any, grid: tuple[int, ...], tensor: Tensor, *arguments: Any, warps: int) -> None:
    """Start a kernel behind others on the device of ``tensor``; its last argument is whether it begins early."""
    early = _overlaps(tensor.device)
    kernel[grid](*arguments, early, num_warps=warps, **({"launch_pdl": True} if early else {}))


@triton.jit
def begin(AHEAD: tl.constexpr):
    """What every kernel begins with."""
    if AHEAD:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def _add_norm(
    x, more, weight, total, normed, size, eps, ADDS: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr
):  # fmt: skip
    begin(AHEAD)
    row = tl.program_id(0).to(tl.int64) * size
    at = tl.arange(0, BLOCK)
    inside = at < size
    value = tl.load(x + row + at, mask=inside, other=0.0)
    if ADDS:
        value = (value.to(tl.float32) + tl.load(more + row + at, mask=inside, other=0.0).to(tl.float32)).to(value.dtype)
        tl.store(total + row + at, value, mask=inside)
    wide = value.to(tl.float32)
    scaled = wide * tl.rsqrt(tl.sum(wide * wide, axis=0) / size + eps)
    factor = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + row + at, (scaled.to(value.dtype).to(tl.float32) * factor).to(value.dtype), mask=inside)


def add_norm(x: Tensor, more: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The sum of ``x`` and ``more``, and its RMS norm.

    Args:
        x: shape ``(..., H)``, contiguous.
        more: likewise; None: nothing is added, and the first result is ``x``.
        weight: shape ``(H,)``.
        eps: of the norm.
    """
    size = x.shape[-1]
    normed = torch.empty_like(x)
    total = x if more is None else torch.empty_like(x)
    block = triton.next_power_of_2(size)
    start(
        _add_norm, (x.numel() // size,), x,
        x, x if more is None else more, weight, total, normed, size, eps, more is not None, block,
        warps=max(1, min(16, block // 512)),
    )  # fmt: skip
    return total, normed


@triton.jit
def _place(
    projected, query, keys, values, positions, before, frequencies, scale, query_norm, key_norm, eps,
    text_stride, head_stride,
    WIDTH: tl.constexpr, FIRST: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr,
    NORMS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    begin(AHEAD)
    token, head, text = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    half: tl.constexpr = SIZE // 2
    at = tl.arange(0, half)
    row = text * WIDTH + token
    source = projected + (row * (HEADS + 2 * KV_HEADS) + head) * SIZE
    first, second = tl.load(source + at), tl.load(source + half + at)
    slot = tl.load(before + text) + FIRST + token
    if head < HEADS + KV_HEADS:
        kind = query.dtype.element_ty
        a, b = first.to(tl.float32), second.to(tl.float32)
        if NORMS:
            weights = query_norm if head < HEADS else key_norm
            factor = tl.rsqrt((tl.sum(a * a, axis=0) + tl.sum(b * b, axis=0)) / SIZE + eps)
            a = (a * factor).to(kind).to(tl.float32) * tl.load(weights + at).to(tl.float32)
            b = (b * factor).to(kind).to(tl.float32) * tl.load(weights + half + at).to(tl.float32)
            a, b = a.to(kind).to(tl.float32), b.to(kind).to(tl.float32)
        angle = tl.load(positions + row).to(tl.float32) * tl.load(frequencies + at)
        cos = (tl.cos(angle) * scale).to(kind).to(tl.float32)
        sin = (tl.sin(angle) * scale).to(kind).to(tl.float32)
        target = query + (row * HEADS + head) * SIZE
        if head >= HEADS:
            target = keys + text * text_stride + (head - HEADS) * head_stride + slot * SIZE
        tl.store(target + at, (a * cos - b * sin).to(kind))
        tl.store(target + half + at, (b * cos + a * sin).to(kind))
    else:
        written = values + text * text_stride + (head - HEADS - KV_HEADS) * head_stride + slot * SIZE
        tl.store(written + at, first)
        tl.store(written + half + at, second)


def place(
    projected: Tensor,
    keys: Tensor,
    values: Tensor,
    before: Tensor,
    positions: Tensor,
    frequencies: Tensor,
    scale: float,
    norms: tuple[Tensor, Tensor, float] | None = None,
    first: int = 0,
) -> Tensor:
    """Turn queries and keys by their rotary positions, and write keys and values to the cache behind what is there.

    Args:
        projected: queries, keys and values side by side, shape ``(texts, W, (heads + 2 kv_heads) d)``, contiguous.
        keys, values: a layer's cache, shape ``(texts, kv_heads, capacity, d)``; written from ``before + first`` on.
        before: tokens that each text has, shape ``(texts,)``.
        positions: shape ``(texts, W)``, contiguous.
        frequencies: of the rotation, float32, shape ``(d / 2,)``.
        scale: of its cosines and sines.
        norms: weights and epsilon of the norms of queries and keys, where there are any.
        first: nodes of the same draft that were written before.

    Returns:
        The queries, shape ``(texts, W, heads, d)``.
    """
    texts, width, _ = projected.shape
    kv_heads, size = keys.shape[1], keys.shape[3]
    heads = projected.shape[2] // size - 2 * kv_heads
    query = projected.new_empty(texts, width, heads, size)
    query_norm, key_norm, eps = norms or (projected, projected, 0.0)
    start(
        _place, (width, heads + 2 * kv_heads, texts), projected,
        projected, query, keys, values, positions, before, frequencies, scale, query_norm, key_norm, eps,
        keys.stride(0), keys.stride(1), width, first, heads, kv_heads, size, norms is not None,
        warps=1,
    )  # fmt: skip
    return query


@triton.jit
def _attend(
    query, keys, values, before, ancestors, parts, tops, sums, scale, text_stride, head_stride,
    WIDTH: tl.constexpr, NODES: tl.constexpr, GROUPS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr,
    ROWS: tl.constexpr, SLOTS: tl.constexpr, SPLITS: tl.constexpr, EXACT: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    begin(AHEAD)
    split, text = tl.program_id(0), tl.program_id(2)
    blocks: tl.constexpr = (WIDTH * GROUPS + ROWS - 1) // ROWS
    kv_head, block = tl.program_id(1) // blocks, tl.program_id(1) % blocks
    length = tl.load(before + text).to(tl.int32)
    total = length + NODES
    part = tl.cdiv(tl.cdiv(total, SPLITS), SLOTS) * SLOTS
    start = split * part
    end = tl.minimum(start + part, total)

    rows, at = block * ROWS + tl.arange(0, ROWS), tl.arange(0, SIZE)
    node, real = rows // GROUPS, rows < WIDTH * GROUPS
    head = kv_head * GROUPS + rows % GROUPS
    places = ((text * WIDTH + node) * (KV_HEADS * GROUPS) + head) * SIZE
    asked = tl.load(query + places[:, None] + at[None, :], mask=real[:, None], other=0.0)
    base = text * text_stride + kv_head * head_stride

    top = tl.full([ROWS], -float("inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, SIZE], tl.float32)
    for first in range(start, end, SLOTS):
        slot = first + tl.arange(0, SLOTS)
        there = slot < end
        offsets = base + slot.to(tl.int64)[:, None] * SIZE + at[None, :]
        key = tl.load(keys + offsets, mask=there[:, None], other=0.0)
        value = tl.load(values + offsets, mask=there[:, None], other=0.0)
        behind = slot - length
        drafted = there & (behind >= 0)
        kin = tl.load(
            ancestors + node[:, None] * NODES + behind[None, :], mask=real[:, None] & drafted[None, :], other=0
        )
        seen = (there & (behind < 0))[None, :] | (kin != 0)
        if EXACT:
            scores = tl.dot(asked, tl.trans(key), input_precision="ieee") * scale
        else:
            scores = tl.dot(asked, tl.trans(key)) * scale
        scores = tl.where(seen, scores, -float("inf"))
        now = tl.maximum(top, tl.max(scores, axis=1))
        base_ = tl.where(now == -float("inf"), 0.0, now)
        fade = tl.exp(top - base_)
        shares = tl.exp(scores - base_[:, None])
        weight = weight * fade + tl.sum(shares, axis=1)
        mixed = mixed * fade[:, None]
        if EXACT:
            mixed += tl.dot(shares.to(value.dtype), value, input_precision="ieee")
        else:
            mixed += tl.dot(shares.to(value.dtype), value)
        top = now
    place_ = ((text * KV_HEADS + kv_head) * SPLITS + split) * (blocks * ROWS) + rows
    tl.store(parts + place_[:, None] * SIZE + at[None, :], mixed)
    tl.store(tops + place_, top)
    tl.store(sums + place_, weight)


@triton.jit
def _merge(
    parts, tops, sums, out,
    WIDTH: tl.constexpr, GROUPS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    SPLITS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    begin(AHEAD)
    row, kv_head, text = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    each, at = tl.arange(0, SPLITS), tl.arange(0, SIZE)
    places = ((text * KV_HEADS + kv_head) * SPLITS + each) * PADDED + row
    tops_ = tl.load(tops + places)
    shares = tl.exp(tops_ - tl.max(tops_, axis=0))
    whole = tl.sum(shares * tl.load(sums + places), axis=0)
    mixed = tl.sum(tl.load(parts + places[:, None] * SIZE + at[None, :]) * shares[:, None], axis=0) / whole
    head = kv_head * GROUPS + row % GROUPS
    target = out + ((text * WIDTH + row // GROUPS) * (KV_HEADS * GROUPS) + head) * SIZE
    tl.store(target + at, mixed.to(out.dtype.element_ty))


def attend_placed(
    query: Tensor, keys: Tensor, values: Tensor, before: Tensor, ancestors: Tensor, scale: float
) -> Tensor:
    """Attention of a draft's nodes over a text and their own ancestors.

    Args:
        query: shape ``(texts, W, heads, d)``, contiguous.
        keys, values: a layer's cache, shape ``(texts, kv_heads, capacity, d)``, the nodes' own written already.
        before: tokens of each text before the nodes, shape ``(texts,)``.
        ancestors: bool, true where a node (row) sees another, shape ``(W, N)``, contiguous; the same for all texts.
            The N nodes lie behind ``before``; the W that ask are their last ones.
        scale: of the scores.

    Returns:
        Shape ``(texts, W, heads d)``.
    """
    texts, width, heads, size = query.shape
    kv_heads = keys.shape[1]
    groups = heads // kv_heads
    rows = max(16, min(MOST_ROWS, triton.next_power_of_2(width * groups)))
    blocks = triton.cdiv(width * groups, rows)
    splits = SPLITS if blocks == 1 else SPLITS // 2
    shape = (texts, kv_heads, splits, blocks * rows)
    parts = torch.empty(*shape, size, dtype=torch.float32, device=query.device)
    tops, sums = torch.empty(2, *shape, dtype=torch.float32, device=query.device)
    out = torch.empty_like(query)
    slots = 64 if rows < MOST_ROWS else 32
    start(
        _attend, (splits, kv_heads * blocks, texts), query,
        query, keys, values, before, ancestors.view(torch.uint8), parts, tops, sums, scale,
        keys.stride(0), keys.stride(1), width, ancestors.shape[1], groups, kv_heads, size,
        rows, slots, splits, query.dtype == torch.float32,
        warps=4,
    )  # fmt: skip
    start(
        _merge, (width * groups, kv_heads, texts), query,
        parts, tops, sums, out, width, groups, kv_heads, size, blocks * rows, splits,
        warps=2,
    )  # fmt: skip
    return out.view(texts, width, heads * size)


@triton.jit
def _gate(both, out, size, count, BLOCK: tl.constexpr, AHEAD: tl.constexpr):
    begin(AHEAD)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    row, column = at // size, at % size
    gate = tl.load(both + row * 2 * size + column, mask=inside, other=0.0)
    up = tl.load(both + row * 2 * size + size + column, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    open_ = (wide * tl.sigmoid(wide)).to(gate.dtype).to(tl.float32)
    tl.store(out + at, (open_ * up.to(tl.float32)).to(gate.dtype), mask=inside)


def gated(both: Tensor) -> Tensor:
    """``silu(a) b`` of ``a`` and ``b`` side by side, shape ``(..., 2 I)`` -> ``(..., I)``."""
    size = both.shape[-1] // 2
    out = both.new_empty(*both.shape[:-1], size)
    start(_gate, (triton.cdiv(out.numel(), 1024),), both, both, out, size, out.numel(), 1024, warps=4)
    return out


@triton.jit
def _most(logits, tops, places, size, stride, CHUNK: tl.constexpr, AHEAD: tl.constexpr):
    begin(AHEAD)
    row, chunk = tl.program_id(0), tl.program_id(1)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    values = tl.load(logits + row.to(tl.int64) * stride + at, mask=at < size, other=-float("inf")).to(tl.float32)
    top, place = tl.max(values, axis=0, return_indices=True)
    slot = row * tl.num_programs(1) + chunk
    tl.store(tops + slot, top)
    tl.store(places + slot, chunk * CHUNK + place)


@triton.jit
def _most_of_all(tops, places, out, count, CHUNKS: tl.constexpr, AHEAD: tl.constexpr):
    begin(AHEAD)
    row, each = tl.program_id(0), tl.arange(0, CHUNKS)
    _, chunk = tl.max(
        tl.load(tops + row * count + each, mask=each < count, other=-float("inf")), axis=0, return_indices=True
    )
    tl.store(out + row, tl.load(places + row * count + chunk).to(tl.int64))


def likeliest(logits: Tensor) -> Tensor:
    """Where each row is largest, the first place of equals.

    Args:
        logits: shape ``(..., rows)``, each row contiguous.
    """
    size = logits.shape[-1]
    flat = logits.flatten(0, -2) if logits.dim() > 2 else logits.reshape(-1, size) if logits.dim() == 1 else logits
    count = triton.cdiv(size, 2048)
    tops = torch.empty(len(flat), count, dtype=torch.float32, device=logits.device)
    places = torch.empty(len(flat), count, dtype=torch.int32, device=logits.device)
    out = torch.empty(len(flat), dtype=torch.long, device=logits.device)
    start(_most, (len(flat), count), logits, flat, tops, places, size, flat.stride(0), 2048, warps=4)
    start(_most_of_all, (len(flat),), logits, tops, places, out, count, triton.next_power_of_2(count), warps=1)
    return out.view(logits.shape[:-1])
