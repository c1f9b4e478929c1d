"""The loop's parts one by one: prompt lookup, the lengths of drafts, attention and the cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from joulewise.engines.native import attention
from joulewise.engines.native.cache import KV
from joulewise.engines.native.drafters.draft_model import LONGEST, Heuristic
from joulewise.engines.native.drafters.prompt_lookup import Places, PromptLookupDrafter

CPU = torch.device("cpu")


@settings(max_examples=100, deadline=None)
@given(
    sequence=st.lists(st.integers(0, 3), min_size=1, max_size=24),
    count=st.integers(1, 6),
    ngram=st.integers(1, 4),
    ends=st.sampled_from([(), (2,)]),
)
def test_prompt_lookup_finds_what_the_library_finds(
    sequence: list[int], count: int, ngram: int, ends: tuple[int, ...]
) -> None:
    library = PromptLookupCandidateGenerator(
        eos_token_id=torch.tensor(ends) if ends else None,
        num_output_tokens=count,
        max_matching_ngram_size=ngram,
        max_length=10_000,
    )
    ids = torch.tensor([sequence])
    expected = library.get_candidates(ids)[0][0, len(sequence) :].tolist()
    drafter = PromptLookupDrafter(count, ngram, ends)
    hidden: Any = None
    drafter.reset(ids[0, :-1], hidden, ids[0, -1:], 0)
    assert drafter.propose(99).tokens.tolist() == expected
    assert len(drafter.propose(2).tokens) <= 2
    assert drafter.propose(0).tokens.tolist() == []


def look_up(tokens: list[int], count: int, max_ngram: int) -> list[int]:
    places = Places(max_ngram)
    places.add(tokens)
    return places.look_up(count)


def test_the_earliest_place_and_the_longest_ngram_win() -> None:
    assert look_up([1, 2, 9, 1, 2, 8, 1, 2], 2, 2) == [9, 1]
    assert look_up([7, 2, 9, 1, 2, 8, 1, 2], 2, 2) == [8, 1]
    assert look_up([7, 2, 9, 1, 2, 8, 1, 2], 2, 1) == [9, 1]
    assert look_up([1, 1], 5, 2) == [1]
    assert look_up([1, 2, 3], 5, 2) == []


def test_the_heuristic_starts_afresh_and_has_bounds() -> None:
    length = Heuristic(3)
    seen = []
    for accepted in (3, 5, 0, 0):
        seen.append(length.next())
        length.learn(length.next(), accepted)
    assert [*seen, length.next()] == [3, 5, 7, 6, 5]
    length.reset()
    assert length.next() == 3
    for _ in range(9):
        length.learn(length.next(), -1)
    assert length.next() == 1
    for _ in range(200):
        length.learn(length.next(), length.next())
    assert length.next() == length.most == LONGEST
    assert Heuristic(200).most == 200


# Attention and cache


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    kv=st.integers(1, 3),
    groups=st.integers(1, 3),
    width=st.integers(1, 5),
    before=st.integers(0, 6),
    scale=st.sampled_from([None, 0.3]),
    causal=st.booleans(),
)
def test_attention_by_its_definition(
    seed: int, kv: int, groups: int, width: int, before: int, scale: float | None, causal: bool
) -> None:
    chance = torch.Generator().manual_seed(seed)
    span = width if causal else before + width
    q, k, v = (torch.randn(1, h, n, 4, generator=chance) for h, n in ((kv * groups, width), (kv, span), (kv, span)))
    mask = torch.rand(width, span, generator=chance) < 0.5
    mask[:, span - width :].fill_diagonal_(True)
    if causal:
        mask = torch.ones(width, width).tril().bool()
    expected = torch.empty_like(q)
    for head in range(kv * groups):
        scores = q[0, head] @ k[0, head // groups].T * (0.5 if scale is None else scale)
        expected[0, head] = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v[0, head // groups]
    found = attention.attend(q, k, v, None if causal else mask, scale)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_attention_takes_kernels_that_leave_another_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the memory-efficient kernel on a GPU does: tokens before heads."""
    real = attention.scaled_dot_product_attention
    chance = torch.Generator().manual_seed(0)
    q, k = torch.randn(1, 4, 3, 8, generator=chance), torch.randn(1, 2, 5, 8, generator=chance)
    mask = torch.ones(3, 5, dtype=torch.bool)
    expected = attention.attend(q, k, k, mask)

    def other_layout(*args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = real(*args, **kwargs)
        return result.transpose(1, 2).contiguous().transpose(1, 2)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", other_layout)
    torch.testing.assert_close(attention.attend(q, k, k, mask), expected)


def test_the_cache_writes_at_its_slots_and_moves_overlapping_rows() -> None:
    cache = KV(2, 2, 3, 8, torch.float32, CPU)
    rows = torch.randn(1, 2, 5, 3)
    cache.slots, cache.span = torch.arange(2, 7), 7
    keys, values = cache.update(rows, -rows, 1)
    assert keys.shape == values.shape == (1, 2, 7, 3)
    torch.testing.assert_close(keys[:, :, 2:], rows)
    assert int(cache.rows(8)[0].count_nonzero()) == 0  # the other layer
    cache.move(torch.tensor([2, 4, 5]), 2)
    torch.testing.assert_close(cache.rows(5)[1, 0, :, :, 2:], rows[:, :, [0, 2, 3]])
    torch.testing.assert_close(cache.rows(5)[1, 1, :, :, 2:], -rows[:, :, [0, 2, 3]])
