"""Trees for acceptance by lot keep a path of full height, whatever the head thinks of it."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

import tiny_heads
from joulewise.decoding import CoGA, Eagle2, Eagle3, Medusa
from joulewise.decoding.spec import Decoding
from joulewise.engines.native.drafters.eagle import EagleDrafter
from joulewise.engines.native.heads.synthetic import random_eagle2, random_eagle3
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.session import Eager
from tiny_heads import TAPS

PROMPT = torch.arange(5, 14)


@pytest.fixture(scope="module")
def target() -> DecoderModel:
    return tiny_heads.target("llama", taps=TAPS)


@pytest.mark.parametrize("kind", ["eagle2", "eagle3"])
@pytest.mark.parametrize("shape", [(7, 5, 4), (20, 4, 3), (60, 5, 10), (3, 5, 2)])
def test_the_flat_tree_of_a_random_head_is_made_as_deep_as_it_can_be(
    target: DecoderModel, kind: str, shape: tuple[int, int, int]
) -> None:
    nodes, depth, top_k = shape
    head = random_eagle2(target) if kind == "eagle2" else random_eagle3(target)
    heights = {}
    for whole in (False, True):
        with torch.inference_mode():
            drafter = EagleDrafter(head, nodes, depth, top_k, whole=whole)
            hidden = Eager(target, 32).prefill(PROMPT)
            drafter.reset(PROMPT, hidden, torch.tensor([14]), 80)
            draft = drafter.propose(30)
        parents = draft.tree.parents.tolist()
        assert len(draft.tokens) == nodes - 1
        assert all(parent < node for node, parent in enumerate(parents) if node)
        pairs = list(zip(parents[1:], draft.tokens.tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)  # siblings differ
        heights[whole] = int(draft.tree.depths.max())
    assert heights[True] == min(depth + 1, nodes - 1) >= heights[False]
    if shape == (60, 5, 10):
        assert heights[False] < 6  # else there was nothing to make deeper


@pytest.mark.parametrize(
    ("kind", "fields", "most"),
    [(CoGA, {"tokens": 2}, 2), (Eagle2, {"depth": 1}, 2), (Eagle3, {"top_k": 1, "depth": 3}, 4), (Medusa, {}, 4)],
)
def test_no_more_shares_than_a_path_has_tokens(kind: type[Decoding], fields: dict[str, int], most: int) -> None:
    kind(**fields, synthetic_acceptance=(0.5,) * most)
    with pytest.raises(ValidationError, match=f"at most {most} drafted tokens"):
        kind(**fields, synthetic_acceptance=(0.5,) * (most + 1))


def test_an_empty_list_of_shares_is_called_empty() -> None:
    with pytest.raises(ValidationError, match="the list is empty"):
        CoGA(synthetic_acceptance=())
