"""Captured forwards give what plain ones give, whatever width and length they are padded to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny_models
from joulewise.engines.engine import Sampling
from joulewise.engines.native import session as module
from joulewise.engines.native.accept import Chooser, Lot, match
from joulewise.engines.native.cache import KV
from joulewise.engines.native.draft import Draft
from joulewise.engines.native.model import DecoderModel, Hidden
from joulewise.engines.native.session import CHAIN, Captured, Eager, Judging, prompt_width, uncaptured
from joulewise.engines.native.tree import Tree, chain, path
from joulewise.engines.transformers.loading import make_neutral
from no_wait import NoWait

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def model(request: pytest.FixtureRequest) -> DecoderModel:
    made = tiny_models.build(request.param)
    return DecoderModel(make_neutral("tiny", made, tiny_models.tokenizer()), taps=(0, 1, 2))


def compare(model: DecoderModel, prompt: torch.Tensor, rounds: list[tuple[torch.Tensor, Tree]]) -> None:
    """Every node of every round, each kept whole as if it were a prefix, agrees between the two sessions."""
    plain, padded = Eager(model, 200), Captured(model, 200, uncaptured)
    with torch.inference_mode():
        plain.prefill(prompt)
        padded.prefill(prompt)
        length = len(prompt)
        for nodes, tree in rounds:
            expected, found = plain.forward(nodes, length, tree), padded.forward(nodes, length, tree)
            torch.testing.assert_close(found[1], expected[1], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(found[0].last, expected[0].last, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(found[0].taps, expected[0].taps, atol=1e-4, rtol=1e-4)
            assert len(found[1]) == len(nodes)
            length += 1  # the root stays; what the next round overwrites must not show


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_trees_in_a_row(model: DecoderModel, data: st.DataObject) -> None:
    tokens = st.integers(3, tiny_models.ROWS - 1)
    rounds = []
    for _ in range(data.draw(st.integers(1, 4))):
        parents = [data.draw(st.integers(0, max(i - 1, 0))) for i in range(data.draw(st.integers(1, 9)))]
        nodes = torch.tensor(data.draw(st.lists(tokens, min_size=len(parents), max_size=len(parents))))
        rounds.append((nodes, Tree.of(torch.tensor(parents), height=len(parents))))
    prompt = torch.tensor(data.draw(st.lists(tokens, min_size=1, max_size=20)))
    compare(model, prompt, rounds)


@pytest.mark.parametrize("count", [1, 2, 6, 7, 60])
def test_chains_at_and_between_the_widths(model: DecoderModel, count: int) -> None:
    nodes = torch.arange(3, 3 + count) % 70
    compare(model, torch.arange(3, 9), [(nodes, chain(count - 1, CPU)), (nodes[:1], chain(0, CPU))])


def test_a_length_that_crosses_into_the_next_bucket(model: DecoderModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUCKET", 8)
    nodes = torch.tensor([5, 6, 7])
    compare(model, torch.arange(3, 9), [(nodes, chain(2, CPU))] * 6)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 150])
def test_a_prompt_that_is_filled_up_leaves_what_it_leaves_alone(model: DecoderModel, count: int) -> None:
    prompt = 3 + torch.arange(count) % 60
    plain, filled = Eager(model, 200), Captured(model, 200, uncaptured)
    with torch.inference_mode():
        expected, found = plain.prefill(prompt), filled.prefill(prompt)
    torch.testing.assert_close(found.last, expected.last, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.taps, expected.taps, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(filled.cache.rows(count), plain.cache.rows(count), atol=1e-4, rtol=1e-4)


@given(tokens=st.integers(1, 100_000))
def test_a_prompt_is_filled_up_by_little_and_to_few_widths(tokens: int) -> None:
    width = prompt_width(tokens)
    assert tokens <= width < tokens + 64
    assert prompt_width(width) == width
    assert prompt_width(tokens + 1) >= width


def test_after_loading_no_prompt_is_of_a_length_that_is_new(
    model: DecoderModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROOM", 600)
    read: list[tuple[int, int]] = []
    forward = model.forward

    def noted(cache: KV, tokens: torch.Tensor, start: int, mask: None, positions: torch.Tensor) -> Hidden:
        read.append((len(tokens), int(positions.max())))
        return forward(cache, tokens, start, mask, positions)

    monkeypatch.setattr(model, "forward", noted)
    session = Captured(model, 600, uncaptured)
    with torch.inference_mode():
        session.prepare_prompts()
        known = {width for width, _ in read}
        assert len(known) == len(read) <= 10
        for count in (1, 64, 65, 333, 600):
            session.prefill(torch.zeros(count, dtype=torch.long))
            width, last = read[-1]
            assert width in known
            assert last == count - 1  # no position beyond the prompt's own


def test_prompts_for_which_there_is_no_memory_are_left(model: DecoderModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Hidden:
        raise torch.OutOfMemoryError

    session = Captured(model, 64, uncaptured)
    monkeypatch.setattr(model, "forward", full)
    session.prepare_prompts()
    with pytest.raises(torch.OutOfMemoryError):
        session.prefill(torch.arange(3, 9))


def test_each_shape_is_captured_once(model: DecoderModel) -> None:
    captured = []

    def count(run: Callable[[], None]) -> Callable[[], None]:
        captured.append(1)
        return uncaptured(run)

    session = Captured(model, 64, count)
    with torch.inference_mode():
        session.prefill(torch.arange(3, 9))
        for tokens in (1, 1, 2, 2, 1):
            session.forward(torch.arange(3, 3 + tokens), 6, chain(tokens - 1, CPU))
    assert len(captured) == 2


def test_what_is_prepared_is_captured_before_any_text(model: DecoderModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUCKET", 16)
    monkeypatch.setattr(module, "WIDTHS", (1, 2, 4, 8))
    captured = []

    def count(run: Callable[[], None]) -> Callable[[], None]:
        captured.append(1)
        return uncaptured(run)

    session, plain = Captured(model, 40, count), Eager(model, 64)
    with torch.inference_mode():
        session.prepare({None: 3})
        before = len(captured)
        assert before == 3 * session.cache.capacity // 16  # widths 1, 2, 4 at every length
        prompt = torch.arange(3, 30)
        session.prefill(prompt)
        plain.prefill(prompt)
        for tokens in (1, 3, 2):
            nodes, tree = torch.arange(3, 3 + tokens), chain(tokens - 1, CPU)
            found = session.forward(nodes, len(prompt), tree)[1]
            torch.testing.assert_close(found, plain.forward(nodes, len(prompt), tree)[1], atol=1e-4, rtol=1e-4)
        assert len(captured) == before
        session.forward(torch.arange(3, 9), len(prompt), chain(5, CPU))
    assert len(captured) == before + 1


def test_without_memory_for_a_capture_it_runs_uncaptured_and_says_so(model: DecoderModel) -> None:
    def full(_: Callable[[], None]) -> Callable[[], None]:
        raise torch.OutOfMemoryError("full")

    session, plain = Captured(model, 64, full), Eager(model, 64)
    nodes, tree = torch.tensor([5, 6]), chain(1, CPU)
    with torch.inference_mode():
        session.prefill(nodes)
        plain.prefill(nodes)
        with pytest.warns(RuntimeWarning, match="No memory is left to capture"):
            found = session.forward(nodes, 2, tree)[1]
        torch.testing.assert_close(found, plain.forward(nodes, 2, tree)[1], atol=1e-4, rtol=1e-4)
        session.forward(nodes, 2, tree)  # not tried again


def test_a_draft_wider_than_any_capture_runs_as_it_is(model: DecoderModel) -> None:
    session = Captured(model, 400, uncaptured)
    with torch.inference_mode():
        session.prefill(torch.arange(3, 9))
        logits = session.forward(torch.full((300,), 7), 6, chain(299, CPU))[1]
    assert logits.shape == (300, tiny_models.ROWS)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_captured_verdict_is_that_of_the_rule(model: DecoderModel, data: st.DataObject) -> None:
    """By match and by lot, trees and chains, round after round on the same buffers; the kept path lies in the cache."""
    plain, judging = Eager(model, 200), Captured(model, 200, uncaptured)
    prompt = torch.arange(5, 5 + data.draw(st.integers(1, 9)))
    greedy = Chooser(Sampling())
    with torch.inference_mode():
        plain.prefill(prompt)
        judging.prefill(prompt)
        length, root = len(prompt), torch.tensor([7])
        for _ in range(data.draw(st.integers(1, 4))):
            size = data.draw(st.integers(1, 12))
            parents = [data.draw(st.integers(0, max(i - 1, 0))) for i in range(size)]
            tree = Tree.of(torch.tensor(parents), size - 1) if data.draw(st.booleans()) else chain(size - 1, CPU)
            nodes = torch.cat((root, torch.tensor(data.draw(st.permutations(range(3, 60))))[: size - 1]))
            # Some of the drafted tokens are what the target says there.
            for node in range(1, size):
                if data.draw(st.booleans()):
                    said = plain.forward(nodes, length, tree).logits.argmax(-1)[tree.parents[node]]
                    siblings = [n for n in range(1, size) if n != node and tree.parents[n] == tree.parents[node]]
                    if said not in nodes[siblings]:
                        nodes[node] = said
            draft, lot = Draft(nodes[1:], tree), data.draw(st.booleans())
            made = plain.forward(nodes, length, tree)
            depth = torch.tensor([data.draw(st.integers(0, 5))])
            rule = planted(depth) if lot else match
            last, after = rule(draft, made.logits, greedy)
            way = path(tree, last)
            plain.cache.move(length + way, length)
            found = judging.forward(nodes, length, tree, Judging(depth=depth if lot else None))
            assert found.judged is not None
            accepted = int(tree.depths[last])
            told = found.judged.told.tolist()
            assert told[0] == accepted
            assert told[1 : accepted + 1] == nodes[way[1 : accepted + 1]].tolist()
            assert told[-1] == int(after)
            assert found.judged.way[: accepted + 1].tolist() == way[: accepted + 1].tolist()
            length, root = length + accepted + 1, after
            torch.testing.assert_close(judging.cache.rows(length), plain.cache.rows(length), atol=1e-4, rtol=1e-4)


def test_where_another_judges_the_cache_is_left_as_it_is(model: DecoderModel) -> None:
    plain, captured = Eager(model, 64), Captured(model, 64, uncaptured)
    tree, nodes = Tree.of(torch.tensor([0, 0, 0, 2]), 2), torch.tensor([7, 8, 9, 10])
    with torch.inference_mode():
        for session in (plain, captured):
            session.prefill(torch.arange(3, 9))
        captured.forward(nodes, 6, tree, Judging(depth=torch.tensor([2])))  # moves
        found = captured.forward(nodes, 6, tree, Judging(match=False))
        plain.forward(nodes, 6, tree)
    assert found.judged is None
    torch.testing.assert_close(captured.cache.rows(10), plain.cache.rows(10), atol=1e-5, rtol=1e-5)


def planted(depth: torch.Tensor) -> Lot:
    """A lot that falls on one depth."""
    lot = Lot((1.0,), 0, CPU)
    lot.depth = lambda: depth  # type: ignore[method-assign]
    return lot


def waiting(run: Callable[[], None]) -> Callable[[], None]:
    """Captures as a CUDA graph would: the host may not wait in it."""

    def replay() -> None:
        with NoWait():
            run()

    replay()
    return replay


@pytest.mark.parametrize("height", [None, CHAIN, 8])
def test_what_is_captured_never_waits(model: DecoderModel, height: int | None) -> None:
    session = Captured(model, 64, waiting)
    tree = Tree.of(torch.tensor([0, 0, 0, 1]), 2) if height == 8 else chain(3, CPU)
    with torch.inference_mode():
        session.prefill(torch.arange(3, 9))
        for judging in (None,) if height is None else (Judging(), Judging(depth=torch.tensor([1])), Judging(False)):
            session.forward(torch.tensor([7, 8, 9, 10]), 6, tree, judging)


def test_the_eager_verdict_never_waits(model: DecoderModel) -> None:
    session, tree = Eager(model, 64), Tree.of(torch.tensor([0, 0, 0, 1]), 2)
    draft = Draft(torch.tensor([8, 9, 10]), tree)
    with torch.inference_mode():
        session.prefill(torch.arange(3, 9))
        logits = session.forward(torch.tensor([7, 8, 9, 10]), 6, tree).logits
        with NoWait():
            last, _ = match(draft, logits, Chooser(Sampling()))
            path(tree, last)
        with pytest.raises(AssertionError, match="waits"), NoWait():
            tree.ancestors[last[0]]  # a single number as an index
