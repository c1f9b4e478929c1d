"""Trees that our own kernels grow are those of torch's operations: see ``test_kernels.py`` on where they run."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from test_kernels import DEVICE, SHAPE, kernels, made, split_less  # noqa: F401
from transformers import LlamaConfig, LlamaForCausalLM

import tiny_models
from joulewise.engines.engine import Sampling
from joulewise.engines.native import loop
from joulewise.engines.native.accept import Chooser, match
from joulewise.engines.native.draft import Kept
from joulewise.engines.native.drafters import eagle as module
from joulewise.engines.native.drafters.eagle import EagleDrafter, Growth, grow
from joulewise.engines.native.heads.eagle import EagleHead
from joulewise.engines.native.heads.synthetic import random_eagle2, random_eagle3
from joulewise.engines.native.model import DecoderModel, Hidden
from joulewise.engines.native.session import Captured, uncaptured
from joulewise.engines.transformers.loading import make_neutral


@pytest.fixture(scope="module")
def draft_kernels(kernels: ModuleType) -> ModuleType:  # noqa: F811
    from joulewise.engines.native import draft_kernels

    return draft_kernels


@pytest.mark.parametrize("mapped", [False, True])
def test_children(draft_kernels: ModuleType, mapped: bool) -> None:
    nodes, rows, k = 3, 2500, 4
    logits, scores = made(nodes, rows + 5, dtype=torch.float32)[:, :rows], made(nodes, dtype=torch.float32, seed=1)
    ids = torch.randperm(9000, device=DEVICE)[:rows] if mapped else None
    numbers = torch.tensor([4, 9, 2], device=DEVICE)
    found = scores.new_empty(nodes * k), numbers.new_empty(nodes * k), numbers.new_empty(nodes * k)
    draft_kernels.children(logits, 1.7, ids, scores, numbers, found)
    best = (logits * 1.7).log_softmax(-1).topk(k, dim=-1)
    torch.testing.assert_close(found[0], (scores[:, None] + best.values).flatten(), atol=1e-5, rtol=1e-5)
    assert torch.equal(found[1], (best.indices if ids is None else ids[best.indices]).flatten())
    assert torch.equal(found[2], numbers.repeat_interleave(k))


def test_of_equals_the_first(draft_kernels: ModuleType) -> None:
    """So a parent is kept before its child, and a draft does not depend on the kind of GPU."""
    scores, tokens = torch.zeros(16, device=DEVICE), torch.arange(16, device=DEVICE)
    states, seen = made(4, 32, dtype=torch.float32), torch.eye(4, dtype=torch.bool, device=DEVICE)
    score, token, numbers, new, sees = draft_kernels.follow(scores, tokens, states, seen, 5)
    assert token.tolist() == [0, 1, 2, 3]
    assert numbers.tolist() == [5, 6, 7, 8]
    assert torch.equal(new, states[:1].expand(4, -1))
    assert sees.tolist() == torch.cat((seen[:1].expand(4, -1), seen), dim=1).tolist()
    assert not score.any()
    parents = torch.tensor([0, 1, 2, 0, 4], device=DEVICE)
    kept = draft_kernels.keep(torch.zeros(5, device=DEVICE), torch.arange(30, 35, device=DEVICE), parents, 3, 4)
    assert [part.tolist() for part in kept[:2]] == [[30, 31, 32], [0, 0, 1, 2]]
    assert kept[3].tolist() == [0, 1, 2, 3]


def tiny_llama() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**tiny_models.TOKENS, **SHAPE | {"num_hidden_layers": 3})).eval().to(DEVICE)


@pytest.fixture(scope="module")
def target(kernels: ModuleType) -> DecoderModel:  # noqa: F811
    return DecoderModel(make_neutral("tiny", tiny_llama(), tiny_models.tokenizer()), taps=(0, 1, 2))


@pytest.fixture(params=["eagle2", "eagle3"])
def head(request: pytest.FixtureRequest, target: DecoderModel) -> EagleHead:
    made_: EagleHead = random_eagle2(target) if request.param == "eagle2" else random_eagle3(target, draft_rows=40)
    for parameter in made_.parameters():
        if parameter.dim() == 2:
            parameter.mul_(6)  # uneven guesses, but none so sure that all paths are equal
    return made_


GROWTHS = [Growth(4, 4, 20), Growth(1, 4, 4), Growth(3, 1, 3), Growth(5, 3, 40, whole=True)]


@pytest.mark.parametrize("growth", GROWTHS, ids=str)
def test_trees_are_those_of_torch(target: DecoderModel, head: EagleHead, growth: Growth) -> None:
    prompt = torch.arange(3, 12, device=DEVICE)
    with torch.inference_mode():
        hidden = target.forward(target.new_cache(40), prompt, 0, None)
        cache, length = head.new_cache(80), torch.tensor([len(prompt)], device=DEVICE)
        state = head.forward(cache, prompt, head.fuse(hidden), 0)[-1:]
        drafts = []
        for sights in (False, True):
            head._sights = sights
            drafts.append(grow(head, cache, len(prompt) + growth.width, growth, length, state))
    plain, found = drafts
    assert found.tokens.tolist() == plain.tokens.tolist()
    for name in ("parents", "ancestors", "depths"):
        assert getattr(found.tree, name).tolist() == getattr(plain.tree, name).tolist(), name
    assert (found.tree.height, found.tree.chain) == (plain.tree.height, plain.tree.chain)


def test_rounds_are_those_of_torch(
    kernels: ModuleType,  # noqa: F811
    target: DecoderModel,
    head: EagleHead,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kept tokens are read by our kernels, too, and one captured draft serves all lengths."""
    split_less(kernels, monkeypatch)
    prompt = torch.arange(3, 12, device=DEVICE)
    dice = torch.Generator().manual_seed(0)
    texts = [torch.randint(3, 60, (count,), generator=dice).to(DEVICE) for count in (1, 3, 2, 4)]
    captured: list[Any] = []

    def counted(run: Any) -> Any:
        captured.append(run)
        return uncaptured(run)

    drafts = []
    with torch.inference_mode():
        hidden = target.forward(target.new_cache(40), prompt, 0, None)
        for sights in (False, True):
            head._sights, head.session = sights, None
            drafter = EagleDrafter(head, nodes=12, depth=3, top_k=3, capture=counted)
            drafter.reset(prompt, hidden, prompt[:1], 600)
            captured.clear()
            length = len(prompt)
            for text in texts:
                drafts.append(drafter.propose(99).tokens.tolist())
                rows = Hidden(hidden.last[: len(text)], None if hidden.taps is None else hidden.taps[: len(text)])
                drafter.observe(Kept(text, text.tolist(), rows, length))
                length += len(text)
            drafts.append(drafter.propose(99).tokens.tolist())
    assert drafts[: len(drafts) // 2] == drafts[len(drafts) // 2 :]
    assert len(captured) == 2


def test_a_tree_too_large_for_the_kernels_is_grown_without(
    target: DecoderModel, head: EagleHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_NODES_GROWN", 5)
    test_trees_are_those_of_torch(target, head, GROWTHS[0])


def test_a_draft_that_begins_before_the_host_knows_is_the_same(
    kernels: ModuleType,  # noqa: F811
    target: DecoderModel,
    head: EagleHead,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trees and chains, to the end of a budget and to an end token."""
    prompt, chooser = torch.arange(3, 12, device=DEVICE), Chooser(Sampling())
    monkeypatch.setattr(module, "MOST_NODES_GROWN", 0)  # growing by the interpreter takes minutes
    split_less(kernels, monkeypatch)
    monkeypatch.setattr(loop, "open_session", lambda m, capacity: Captured(m, capacity, uncaptured))
    begun: list[bool] = []
    real = EagleDrafter.foresee

    def spied(drafter: EagleDrafter, *args: Any) -> bool:
        begun.append(real(drafter, *args))
        return begun[-1]

    monkeypatch.setattr(EagleDrafter, "foresee", spied)
    head._sights = True
    tree, single = {"nodes": 12, "depth": 3, "top_k": 3}, {"nodes": 5, "depth": 3, "top_k": 1}
    some = tuple(range(0, 72, 6))
    for how, limit, ends in ((tree, 7, ()), (tree, 20, some), (single, 7, ())):
        outputs = []
        for witness in (lambda *_: None, None):  # a witness sees drafts as they were, so nothing begins early
            head.session = None
            begun.clear()
            drafter = EagleDrafter(head, **how, capture=uncaptured)
            with torch.inference_mode():
                outputs.append(loop.decode(target, drafter, prompt, limit, ends, match, chooser, witness))
            assert any(begun) == (witness is None and len(outputs[-1].rounds) > 0)
        assert outputs[0].tokens == outputs[1].tokens
        assert outputs[0].rounds == outputs[1].rounds
        assert outputs[0].wasted_tokens == outputs[1].wasted_tokens
        assert (outputs[0].tokens[-1] in ends) == (len(outputs[0].tokens) < limit)
