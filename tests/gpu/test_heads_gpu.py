"""Draft heads on a GPU: captured drafts are those of uncaptured work, and nothing waits for the device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from joulewise.engines.native.draft import Draft, Drafter, Kept
from joulewise.engines.native.drafters.eagle import EagleDrafter
from joulewise.engines.native.drafters.medusa import MedusaDrafter
from joulewise.engines.native.heads.synthetic import random_eagle2, random_eagle3, random_medusa
from joulewise.engines.native.model import DecoderModel, Hidden
from joulewise.engines.native.session import Capture, uncaptured
from joulewise.engines.transformers.loading import load

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]

KINDS = ("medusa", "eagle2", "eagle3", "chain")
ROUND = 3  # tokens kept in each


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def target(folders: tuple[str, str], request: pytest.FixtureRequest) -> Iterator[DecoderModel]:
    yield DecoderModel(load(folders[0], None, request.param, "cuda"), taps=(1, 3, 5))
    torch.cuda.empty_cache()


def made(kind: str, target: DecoderModel, capture: Capture | None) -> Drafter:
    if kind == "medusa":
        return MedusaDrafter(random_medusa(target), capture=capture)
    if kind == "eagle2":
        return EagleDrafter(random_eagle2(target), capture=capture)
    how = {"nodes": 60, "depth": 5, "top_k": 10} if kind == "eagle3" else {"nodes": 6, "depth": 4, "top_k": 1}
    return EagleDrafter(random_eagle3(target, draft_rows=40), **how, capture=capture)


class Text:
    """A text and its hidden states, handed to a drafter as if rounds had kept it."""

    def __init__(self, target: DecoderModel, prompt: int, rounds: int) -> None:
        self.length, self.tokens = prompt, torch.arange(prompt + ROUND * rounds + 1, device=target.device) % 60 + 4
        with torch.inference_mode():
            self.hidden = target.forward(target.new_cache(len(self.tokens)), self.tokens, 0, None)

    def begin(self, drafter: Drafter) -> None:
        end = self.length
        drafter.reset(self.tokens[:end], self.hidden[:end], self.tokens[end : end + 1], len(self.tokens) + 100)

    def go_on(self, drafter: Drafter, turn: int) -> None:
        start = self.length + ROUND * turn
        rows: Hidden = self.hidden[start : start + ROUND]
        drafter.observe(Kept(self.tokens[start + 1 : start + ROUND + 1], [], rows, start))  # heads read the device's


def copied(draft: Draft) -> tuple[Tensor, Tensor]:
    return draft.tokens.clone(), draft.tree.ancestors.clone()


@pytest.mark.parametrize("kind", KINDS)
def test_captured_drafts_are_those_of_uncaptured_work(target: DecoderModel, kind: str) -> None:
    """Past a bucket's end, and again for a second prompt."""
    graphs, plain = made(kind, target, None), made(kind, target, uncaptured)
    with torch.inference_mode():
        for prompt in (243, 17):
            text = Text(target, prompt, 8)
            text.begin(graphs)
            text.begin(plain)
            for turn in range(8):
                found, expected = copied(graphs.propose(99)), copied(plain.propose(99))
                assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
                text.go_on(graphs, turn)
                text.go_on(plain, turn)


@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_round_never_waits(target: DecoderModel, kind: str) -> None:
    drafter, text = made(kind, target, None), Text(target, 20, 4)
    with torch.inference_mode():
        text.begin(drafter)
        for turn in range(3):
            drafter.propose(99)
            text.go_on(drafter, turn)
        torch.cuda.set_sync_debug_mode("error")
        try:
            drafter.propose(99)
            text.go_on(drafter, 3)
        finally:
            torch.cuda.set_sync_debug_mode("default")
