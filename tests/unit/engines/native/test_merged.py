"""Merged projections give what the single ones give."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tiny_models
from joulewise.engines.native.merged import merge_projections


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_model_is_the_same(family: str) -> None:
    plain = tiny_models.build(family)
    merged = copy.deepcopy(plain)
    assert merge_projections(merged) == 2 * tiny_models.LAYERS
    assert sum(p.numel() for p in merged.parameters()) == sum(p.numel() for p in plain.parameters())
    for length in (1, 7):
        tokens = torch.arange(3, 3 + length)[None]
        with torch.inference_mode():
            torch.testing.assert_close(merged(tokens).logits, plain(tokens).logits, atol=1e-4, rtol=1e-4)
    assert merge_projections(merged) == 0  # nothing is left to merge


def test_biases_come_along() -> None:
    class Block(nn.Module):
        def __init__(self, biases: tuple[bool, bool]) -> None:
            super().__init__()
            self.gate_proj = nn.Linear(4, 6, bias=biases[0])
            self.up_proj = nn.Linear(4, 5, bias=biases[1])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat((self.gate_proj(x), self.up_proj(x)), dim=-1)

    x = torch.randn(3, 4)
    for biases, count in (((True, True), 1), ((False, False), 1), ((True, False), 0)):
        block = Block(biases)
        expected = block(x)
        assert merge_projections(block) == count
        torch.testing.assert_close(block(x), expected)


def test_what_is_not_a_plain_matrix_stays() -> None:
    class Quantised(nn.Linear):
        pass

    class Block(nn.Module):
        def __init__(self, first: nn.Module, second: nn.Module) -> None:
            super().__init__()
            self.gate_proj, self.up_proj = first, second

    assert merge_projections(Block(Quantised(4, 4), nn.Linear(4, 4))) == 0
    assert merge_projections(Block(nn.Linear(4, 4), nn.Linear(5, 4))) == 0
    assert merge_projections(Block(nn.Linear(4, 4), nn.Linear(4, 4, dtype=torch.float64))) == 0
    assert merge_projections(nn.Linear(4, 4)) == 0
