"""What drafts are taught: against plain loops over places, and the unroll against drafting token by token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tiny_heads
from joulewise.engines.native.checkpoints import Checkpoint, in_memory
from joulewise.engines.native.heads import build
from joulewise.engines.native.heads.eagle import EagleHead
from joulewise.engines.native.heads.synthetic import random_eagle2, random_eagle3, random_medusa
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.training import losses
from joulewise.engines.native.training.data import Batch
from joulewise.engines.native.training.losses import (
    Wanted,
    draft_loss,
    eagle_loss,
    medusa_loss,
    soft_cross_entropy,
    unrolled,
)

WIDTH = 9


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def target() -> DecoderModel:
    return tiny_heads.target(taps=tiny_heads.TAPS)


def batch(seed: int = 0) -> Batch:
    """Two texts, the second one shorter and filled up; answers begin in the middle."""
    tokens = torch.randint(4, tiny_heads.ROWS, (2, WIDTH), generator=torch.Generator().manual_seed(seed))
    answer = torch.zeros(2, WIDTH, dtype=torch.bool)
    answer[0, 3:], answer[1, 2:7] = True, True
    tokens[1, 7:] = 0
    return Batch(tokens, answer)


def eagle3_over(target: DecoderModel, rows: int | None = None) -> EagleHead:
    tensors = tiny_heads.eagle3(rows=rows or 24)
    if rows is None:
        del tensors["d2t"], tensors["lm_head.weight"]
    stored = {name.replace("midlayer.", "layers.0."): t for name, t in tensors.items() if name != "t2d"}
    head = build(Checkpoint("h", "eagle3", tiny_heads.CONFIG, in_memory(stored)), target)
    assert isinstance(head, EagleHead)
    return head


def cross(student: Tensor, teacher: Tensor) -> float:
    """Of two rows of logits."""
    return float(-(teacher.softmax(-1) * student.log_softmax(-1)).sum())


def by_hand(head: EagleHead, tokens: Tensor, fused: Tensor, place: int, step: int) -> Tensor:
    """What the head drafts ``step`` tokens after it read the pairs up to ``place``: one at a time, on its cache."""
    cache = head.new_cache(64)
    state = head(cache, tokens[1 : place + 2], fused[: place + 1], 0)[-1:]
    for j in range(1, step + 1):
        state = head(cache, tokens[place + 1 + j][None], state, place + j)
    return state[0]


@pytest.mark.parametrize("family", ["eagle2", "eagle3"])
def test_the_unroll_is_what_drafting_token_by_token_gives(target: DecoderModel, family: str) -> None:
    head: EagleHead = eagle3_over(target, 24) if family == "eagle3" else random_eagle2(target)
    tokens = batch().tokens
    with torch.no_grad():
        fused = head.fuse(target.read(tokens)[:, :-1])
        steps = unrolled(head, tokens, fused, 4)
        assert len(steps) == 4
        for text in range(2):
            for step, states in enumerate(steps):
                for place in range(WIDTH - 1 - step):
                    expected = by_hand(head, tokens[text], fused[text], place, step)
                    torch.testing.assert_close(states[text, place], expected, atol=2e-5, rtol=1e-4)


def test_the_targets_reading_of_texts_side_by_side_is_its_reading_of_each(target: DecoderModel) -> None:
    tokens = batch().tokens
    with torch.no_grad():
        together = target.read(tokens)
        for text, length in enumerate((WIDTH, 7)):
            alone = target.forward(target.new_cache(16), tokens[text, :length], 0, None)
            torch.testing.assert_close(together.last[text, :length], alone.last, atol=2e-5, rtol=1e-4)
            assert together.taps is not None
            torch.testing.assert_close(together.taps[text, :length], alone.taps, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_soft_cross_entropy_and_its_gradient_are_the_plain_ones(
    target: DecoderModel, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    its = batch()
    monkeypatch.setattr(losses, "_LOGITS_AT_ONCE", tiny_heads.ROWS * pieces)
    features = target.read(its.tokens).last.detach()
    wanted = Wanted(target, features, its.answer)
    places = its.answer[:, 1:]
    student = torch.randn(int(places.sum()), 11, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(tiny_heads.ROWS, 11, generator=torch.Generator().manual_seed(1), requires_grad=True)
    loss, agreement = soft_cross_entropy(lambda x: x @ weight.T, student, wanted, wanted.numbers(places, 0))
    (found,) = torch.autograd.grad(loss, weight)
    logits, teacher = student @ weight.T, target.head(features[:, :-1][places]).detach()
    plain = -(teacher.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
    (expected,) = torch.autograd.grad(plain, weight)
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(found, expected)
    assert float(agreement) == pytest.approx(float((logits.argmax(-1) == teacher.argmax(-1)).float().mean()))


def test_over_a_reduced_vocabulary_places_whose_best_token_is_outside_teach_nothing(target: DecoderModel) -> None:
    its = batch()
    places = its.answer[:, 1:]
    features = target.read(its.tokens).last.detach()
    teacher = target.head(features[:, :-1][places]).detach()
    best = teacher.argmax(-1)
    ids = torch.cat((best[:3], torch.arange(5, 12))).unique()
    inside = torch.isin(best, ids)
    assert 0 < int(inside.sum()) < len(best)
    wanted = Wanted(target, features, its.answer, ids)
    guesses = torch.randn(len(best), len(ids), generator=torch.Generator().manual_seed(0))
    loss, agreement = soft_cross_entropy(lambda x: x, guesses, wanted, wanted.numbers(places, 0))
    expected = [cross(guesses[i], teacher[i, ids]) for i in range(len(best)) if inside[i]]
    assert float(loss) == pytest.approx(sum(expected) / len(expected), rel=1e-5)
    assert float(agreement) == pytest.approx(float((ids[guesses.argmax(-1)] == best).float().mean()))
    empty, _ = soft_cross_entropy(lambda x: x, guesses[:0], wanted, torch.zeros(0, dtype=torch.long))
    assert float(empty) == 0.0


@pytest.mark.parametrize("rows", [None, 24])
def test_eagle3_guesses_the_token_after_each_that_it_read(target: DecoderModel, rows: int | None) -> None:
    head = eagle3_over(target, rows)
    its = batch()
    ids = None if rows is None else head.ids(torch.arange(rows))
    outcome = eagle_loss(target, head, its, steps=3, decay=0.5)
    total = 0.0
    with torch.no_grad():
        hidden = target.read(its.tokens)
        fused = head.fuse(hidden[:, :-1])
        for step in range(3):
            every = []
            for text in range(2):
                for place in range(WIDTH - 2 - step):
                    last = place + 2 + step  # the token that is guessed
                    if not (its.answer[text, place + 1] and its.answer[text, last]):
                        continue
                    state = by_hand(head, its.tokens[text], fused[text], place, step)
                    teacher = target.logits(hidden[text, last - 1 : last])[0]
                    if ids is None:
                        every.append(cross(head.logits(state[None])[0], teacher))
                    elif int(teacher.argmax()) in ids.tolist():
                        every.append(cross(head.logits(state[None])[0], teacher[ids]))
            total += 0.5**step * sum(every) / max(len(every), 1)
    assert outcome.loss.item() == pytest.approx(total, rel=1e-4)
    assert outcome.agreement.shape == (3,)


def test_eagle2_is_also_drawn_to_the_targets_features(target: DecoderModel) -> None:
    head, its = random_eagle2(target), batch()
    plain = eagle_loss(target, head, its, steps=1, decay=1.0)
    drawn = eagle_loss(target, head, its, steps=1, decay=1.0, feature_weight=10.0)
    with torch.no_grad():
        hidden = target.read(its.tokens)
        states = unrolled(head, its.tokens, hidden.last[:, :-1], 1)[0]
        apart = [
            torch.nn.functional.smooth_l1_loss(states[text, i], hidden.last[text, i + 1])
            for text in range(2)
            for i in range(WIDTH - 2)
            if its.answer[text, i + 1] and its.answer[text, i + 2]
        ]
    assert (drawn.loss - plain.loss).item() == pytest.approx(10 * float(torch.stack(apart).mean()), rel=1e-4)


def test_the_noise_on_eagle2s_features_is_the_generators_alone(target: DecoderModel) -> None:
    head, its = random_eagle2(target), batch()

    def loss(seed: int | None) -> float:
        noise = None if seed is None else torch.Generator().manual_seed(seed)
        return eagle_loss(target, head, its, 1, 1.0, noise=noise).loss.item()

    assert loss(1) == loss(1)
    assert len({loss(1), loss(2), loss(None)}) == 3


def test_medusas_head_guesses_as_many_tokens_further(target: DecoderModel) -> None:
    head, its = random_medusa(target, heads=3, own_output=False), batch()
    outcome = medusa_loss(target, head, its, decay=0.5)
    total = 0.0
    with torch.no_grad():
        hidden = target.read(its.tokens)
        for number in (1, 2, 3):
            every = [
                cross(
                    head.logits(hidden.last[text, t][None])[number - 1],
                    target.logits(hidden[text, t + number][None])[0],
                )
                for text in range(2)
                for t in range(WIDTH - 1 - number)
                if its.answer[text, t + 1] and its.answer[text, t + 1 + number]
            ]
            total += 0.5**number * sum(every) / len(every)
    assert outcome.loss.item() == pytest.approx(total, rel=1e-4)


def test_a_draft_that_is_the_target_agrees_everywhere(target: DecoderModel) -> None:
    its = batch()
    outcome = draft_loss(target, target.decoder, its)
    with torch.no_grad():
        logits = target.logits(target.read(its.tokens))
        entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)
    assert float(outcome.agreement) == 1.0
    assert outcome.loss.item() == pytest.approx(float(entropy[:, :-1][its.answer[:, 1:]].mean()), rel=1e-4)


def test_texts_too_short_for_every_step_teach_the_first_ones(target: DecoderModel) -> None:
    its = Batch(torch.full((1, 4), 9), torch.tensor([[False, True, True, True]]))
    three: Any = eagle_loss(target, random_eagle3(target), its, steps=7, decay=0.8)
    assert torch.isfinite(three.loss)
    assert three.agreement.shape == (2,)
    assert medusa_loss(target, random_medusa(target, heads=4, own_output=False), its, 0.8).agreement.shape == (2,)
