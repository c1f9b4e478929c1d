"""The trees that EAGLE heads draft: their growth, their shape, and what the head keeps from round to round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import tiny_heads
from joulewise.engines.native.draft import Draft, Kept
from joulewise.engines.native.drafters import eagle as module
from joulewise.engines.native.drafters.eagle import EagleDrafter, Growth, grow, read
from joulewise.engines.native.heads.eagle import EagleHead
from joulewise.engines.native.heads.synthetic import random_eagle2, random_eagle3
from joulewise.engines.native.model import DecoderModel, Hidden
from joulewise.engines.native.session import uncaptured
from joulewise.engines.native.tree import path, walk
from joulewise.errors import UserError
from tiny_heads import ROWS, SIZE, TAPS

PROMPT = torch.arange(5, 14)
CAPACITY = 90


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def target(request: pytest.FixtureRequest) -> DecoderModel:
    shape = {"head_dim": 16} if request.param == "qwen3" else {}
    return tiny_heads.target(request.param, taps=TAPS, **shape)


@pytest.fixture(scope="module", params=["eagle2", "eagle3"])
def head(target: DecoderModel, request: pytest.FixtureRequest) -> EagleHead:
    """Random, with weights large enough for its choices to depend on what it reads."""
    made: EagleHead = random_eagle2(target) if request.param == "eagle2" else random_eagle3(target, draft_rows=40)
    for parameter in made.parameters():
        if parameter.dim() == 2:
            parameter.mul_(15)
    return made


# A head of which the next token is known: a table of log-probabilities by token.


@dataclass
class Table:
    """Stands in for a head: what follows a token has the probabilities of its row. Its states carry the token.

    ``seen`` keeps, for every forward, what each row's mask let it see: the tokens on its path.
    """

    logits_by_token: Tensor
    name: str = "table"
    seen: list[list[list[int]]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return self.logits_by_token.shape[1]

    def new_cache(self, capacity: int) -> Tensor:
        return torch.full((capacity,), -1)

    def fuse(self, hidden: Hidden) -> Tensor:
        return hidden.last

    device = torch.device("cpu")
    session: object = None
    sights = False

    def forward(self, cache: Tensor, tokens: Tensor, states: Tensor, start: int) -> Tensor:
        cache[start : start + len(tokens)] = tokens
        return tokens[:, None].float()

    def forward_at(
        self,
        cache: Tensor,
        tokens: Tensor,
        states: Tensor,
        slots: Tensor,
        span: int,
        mask: Tensor,
        positions: Tensor,
    ) -> Tensor:
        cache[slots] = tokens
        self.seen.append([cache[:span][row].tolist() for row in mask])
        assert all(len(row) == int(position) + 1 for row, position in zip(self.seen[-1], positions, strict=True))
        return tokens[:, None].float()

    def logits(self, states: Tensor) -> Tensor:
        return self.logits_by_token[states[:, 0].long()]

    def ids(self, chosen: Tensor) -> Tensor:
        return chosen


def begun(table: Table, *, root: int = 1, **how: int) -> EagleDrafter:
    drafter = EagleDrafter(table, **how)  # type: ignore[arg-type]
    drafter.reset(torch.tensor([0, 0, 0]), Hidden(torch.zeros(3, 1)), torch.tensor([root]), CAPACITY)
    return drafter


def nodes(draft: Draft) -> list[tuple[int, ...]]:
    """Each node as the tokens on its path."""
    tokens = [None, *draft.tokens.tolist()]
    return [tuple(tokens[i] for i in row.nonzero().flatten().tolist() if i) for row in draft.tree.ancestors[1:]]


def best_paths(logits: Tensor, root: int, top_k: int, depth: int, count: int) -> set[tuple[int, ...]]:
    """EAGLE-2 by plain search over paths: grow the best ``top_k`` of each level, keep the best ``count`` of all."""
    log_probabilities = logits.double().log_softmax(-1)
    scores: dict[tuple[int, ...], float] = {}
    frontier: dict[tuple[int, ...], float] = {(): 0.0}
    for _ in range(depth + 1):
        level: dict[tuple[int, ...], float] = {}
        for way, score in frontier.items():
            steps = log_probabilities[way[-1] if way else root]
            for token in steps.topk(top_k).indices.tolist():
                level[(*way, token)] = score + float(steps[token])
        scores |= level
        frontier = dict(sorted(level.items(), key=lambda item: -item[1])[:top_k])
    return set(sorted(scores, key=lambda way: -scores[way])[:count])


@given(
    seed=st.integers(0, 10**6),
    top_k=st.integers(1, 5),
    depth=st.integers(0, 4),
    count=st.integers(1, 40),
    sharp=st.floats(0.3, 4.0),
)
@settings(max_examples=30, deadline=None)
def test_the_tree_is_that_of_a_plain_search(seed: int, top_k: int, depth: int, count: int, sharp: float) -> None:
    logits = tiny_heads.draw(12, 12, seed=seed, spread=sharp)
    draft = begun(Table(logits), top_k=top_k, depth=depth, nodes=count + 1).propose(room=99)
    assert set(nodes(draft)) == best_paths(logits, 1, top_k, depth, count)


@given(
    seed=st.integers(0, 10**6),
    top_k=st.integers(1, 6),
    depth=st.integers(0, 5),
    count=st.integers(1, 60),
    room=st.integers(0, 8),
    certain=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_what_holds_for_every_tree(seed: int, top_k: int, depth: int, count: int, room: int, certain: bool) -> None:
    """Also where a child's probability is 1 in float32, so that its score ties with its parent's."""
    logits = tiny_heads.draw(12, 12, seed=seed)
    if certain:
        logits = torch.zeros(12, 12).index_put((torch.arange(12), torch.arange(12).roll(3)), torch.tensor(200.0))
    drafter = begun(Table(logits), top_k=top_k, depth=depth, nodes=count + 1)
    draft = drafter.propose(room)
    tree = draft.tree
    parents = tree.parents.tolist()
    assert all(parent < node for node, parent in enumerate(parents) if node)
    assert len(draft.tokens) == len(parents) - 1 <= drafter.most_nodes <= count
    ways = nodes(draft)
    assert len(set(ways)) == len(ways)  # siblings differ
    assert all(way[:-1] in ways for way in ways if len(way) > 1)
    assert int(tree.depths.max()) <= tree.height <= min(depth + 1, room)
    assert tree.depths[1:].tolist() == [len(way) for way in ways]
    assert tree.chain == (top_k == 1 or room == 0)
    if tree.chain:
        assert len(ways) == min(depth + 1, count, room)
    if certain and room:
        sure = [10, 7, 4, 1, 10, 7][: min(depth + 1, count, room)]
        assert tuple(sure) in ways  # the sure path is there whole, in spite of the ties


@given(
    seed=st.integers(0, 10**6),
    top_k=st.integers(1, 5),
    depth=st.integers(0, 5),
    count=st.integers(1, 60),
    room=st.integers(1, 8),
)
@settings(max_examples=30, deadline=None)
def test_a_tree_near_the_end_is_that_of_a_head_that_looks_no_further(
    seed: int, top_k: int, depth: int, count: int, room: int
) -> None:
    table = Table(tiny_heads.draw(12, 12, seed=seed))
    draft = begun(table, top_k=top_k, depth=depth, nodes=count + 1).propose(room)
    assert len(table.seen) == min(depth, count - 1, room - 1)  # forwards of the head
    lower = begun(Table(table.logits_by_token), top_k=top_k, depth=min(depth, room - 1), nodes=count + 1).propose(99)
    assert nodes(draft) == nodes(lower)


def test_every_node_sees_the_prompt_and_its_own_path() -> None:
    table = Table(tiny_heads.draw(12, 12, seed=4))
    draft = begun(table, top_k=3, depth=2, nodes=30).propose(99)
    assert len(table.seen) == 2
    ways = set(nodes(draft))
    for level, rows in enumerate(table.seen, start=1):
        assert len(rows) == 3
        for row in rows:
            assert row[:3] == [0, 0, 1]  # the prompt's pairs: its second and third token, the root
            assert len(row) == 3 + level
            assert tuple(row[3:]) in ways


def test_a_head_that_equals_the_target_is_accepted_whole() -> None:
    """The target always draws the likeliest token: the walk ends at the deepest level, for a tree and for a chain."""
    logits = tiny_heads.draw(12, 12, seed=5, spread=2.0)
    for how in ({"top_k": 4, "depth": 4, "nodes": 50}, {"top_k": 1, "depth": 4, "nodes": 50}):
        draft = begun(Table(logits), **how).propose(99)
        drawn = logits.argmax(-1)[torch.cat((torch.tensor([1]), draft.tokens))]
        last = walk(draft.tree, draft.tokens, drawn)
        assert int(draft.tree.depths[last]) == 5


def test_a_useless_head_is_never_accepted() -> None:
    logits = tiny_heads.draw(12, 12, seed=5, spread=2.0)
    draft = begun(Table(logits), top_k=4, depth=4, nodes=50).propose(99)
    drawn = logits.argmin(-1)[torch.cat((torch.tensor([1]), draft.tokens))]
    assert walk(draft.tree, draft.tokens, drawn).tolist() == [0]


def test_published_sizes() -> None:
    table = Table(tiny_heads.draw(80, 80))
    assert begun(table).most_nodes == 59
    assert begun(table, top_k=10, depth=0).most_nodes == 10
    assert begun(table, top_k=1, depth=4).most_nodes == 5
    draft = begun(table, top_k=10, depth=7, nodes=60).propose(99)
    assert (len(draft.tokens), draft.tree.height) == (59, 8)


@pytest.mark.parametrize(
    "how", [{"nodes": 257}, {"nodes": 1}, {"top_k": 0}, {"depth": -1}, {"depth": 256}, {"top_k": 13}]
)
def test_an_impossible_tree_is_refused(how: dict[str, int]) -> None:
    with pytest.raises(UserError, match=r"is not possible|than the 12 tokens"):
        begun(Table(tiny_heads.draw(12, 12)), **how)


# Real heads over a real target.


def rounds(
    target: DecoderModel, drafter: EagleDrafter, count: int, prompt: Tensor = PROMPT
) -> tuple[Tensor, list[Draft]]:
    """Decode greedily for so many rounds; every third round the target's own token is the only one kept.

    Returns:
        Prompt and output, and the drafts.
    """
    cache = target.new_cache(CAPACITY + drafter.most_nodes)
    hidden = target.forward(cache, prompt, 0, None)
    root = target.logits(hidden[-1:]).argmax(-1)
    drafter.reset(prompt, hidden, root, CAPACITY)
    text, drafts = torch.cat((prompt, root)), []
    for turn in range(count):
        draft = drafter.propose(room=99)
        drafts.append(Draft(draft.tokens.clone(), draft.tree))
        length = len(text) - 1
        tokens = torch.cat((root, draft.tokens))
        hidden = target.forward(cache, tokens, length, draft.tree.mask(length), length + draft.tree.depths)
        drawn = target.logits(hidden).argmax(-1)
        if turn % 3 != 2:  # let it accept something: rig what the target draws along the first branch
            chosen = draft.tree.parents[1:].tolist().index(0) + 1
            drawn[0] = tokens[chosen]
        last = walk(draft.tree, draft.tokens, drawn)
        way = path(draft.tree, last)[: int(draft.tree.depths[last]) + 1]
        cache.move(length + way, length)
        root = drawn[last]
        kept = torch.cat((tokens[way[1:]], root))
        drafter.observe(Kept(kept, kept.tolist(), hidden[way], length))
        text = torch.cat((text, kept))
    return text, drafts


@pytest.mark.parametrize("how", [{"top_k": 4, "depth": 3, "nodes": 20}, {"top_k": 1, "depth": 3}])
def test_after_rounds_the_cache_is_that_of_a_fresh_reading(
    target: DecoderModel, head: EagleHead, how: dict[str, int]
) -> None:
    drafter, fresh = EagleDrafter(head, **how), EagleDrafter(head, **how)
    text, drafts = rounds(target, drafter, 7)
    assert len(text) > len(PROMPT) + 1 + 7  # something was accepted
    known, root = text[:-1], text[-1:]
    hidden = target.forward(target.new_cache(len(known)), known, 0, None)
    fresh.reset(known, hidden, root, CAPACITY)
    length = len(known)
    assert drafter._length == fresh._length == length
    torch.testing.assert_close(
        drafter._session.cache.rows(length), fresh._session.cache.rows(length), rtol=1e-3, atol=1e-4
    )
    torch.testing.assert_close(drafter._state, fresh._state, rtol=1e-3, atol=1e-4)
    assert drafter.propose(99).tokens.tolist() == fresh.propose(99).tokens.tolist()
    assert all(len(draft.tokens) == drafter.most_nodes for draft in drafts)


def test_nothing_stays_from_prompt_to_prompt(target: DecoderModel, head: EagleHead) -> None:
    drafter = EagleDrafter(head, top_k=3, depth=2, nodes=12)
    first, _ = rounds(target, drafter, 4)
    rounds(target, drafter, 3, prompt=torch.arange(40, 60))
    again, _ = rounds(target, drafter, 4)
    assert again.tolist() == first.tolist()


def test_a_prompt_of_one_token(target: DecoderModel, head: EagleHead) -> None:
    text, drafts = rounds(target, EagleDrafter(head, top_k=3, depth=2, nodes=12), 3, prompt=torch.tensor([7]))
    assert len(text) >= 5
    assert all(0 <= int(token) < ROWS for draft in drafts for token in draft.tokens)


def test_a_tree_and_its_paths_agree(target: DecoderModel, head: EagleHead) -> None:
    """Each node's children are what the head says when it reads that node's path as a chain."""
    drafter = EagleDrafter(head, top_k=3, depth=2, nodes=30)
    hidden = target.forward(target.new_cache(len(PROMPT)), PROMPT, 0, None)
    root = torch.tensor([9])
    drafter.reset(PROMPT, hidden, root, CAPACITY)
    draft = drafter.propose(99)
    ways = nodes(draft)
    inner = {way for way in ways if any(other[:-1] == way for other in ways)}
    assert len(inner) >= 3
    for way in inner:
        cache = head.new_cache(CAPACITY)
        state = head(cache, torch.cat((PROMPT[1:], root)), head.fuse(hidden), 0)[-1:]
        for step, token in enumerate(way):
            state = head(cache, torch.tensor([token]), state, len(PROMPT) + step)
        children = head.ids(head.logits(state).topk(3).indices)[0].tolist()
        assert {other[-1] for other in ways if other[:-1] == way} <= set(children)


# Captured: the same work in fixed shapes.


@pytest.mark.parametrize("how", [{"top_k": 4, "depth": 3, "nodes": 21}, {"top_k": 1, "depth": 3}])
def test_captured_drafts_are_those_of_plain_work(
    target: DecoderModel, head: EagleHead, how: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over several buckets, and again with what was captured for the first prompt."""
    monkeypatch.setattr(module, "BUCKET", 16)
    monkeypatch.setattr(head, "session", None)
    captured: list[int] = []

    def counted(run: Callable[[], None]) -> Callable[[], None]:
        captured.append(1)
        return uncaptured(run)

    shapes = []
    for prompt in (PROMPT, torch.arange(40, 60), PROMPT):
        expected, plain = rounds(target, EagleDrafter(head, **how), 8, prompt)
        drafter = EagleDrafter(head, **how, capture=counted)
        found, drafts = rounds(target, drafter, 8, prompt)
        assert found.tolist() == expected.tolist()
        assert [draft.tokens.tolist() for draft in drafts] == [draft.tokens.tolist() for draft in plain]
        shapes.append(len(captured))
    assert shapes[0] < shapes[1] == shapes[2] < 16  # a read and a draft for each bucket, none made anew


@pytest.mark.filterwarnings("ignore:No memory is left to capture a forward")
def test_a_longer_run_is_captured_anew_and_a_full_device_is_told(
    target: DecoderModel, head: EagleHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Callable[[], None]) -> Callable[[], None]:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(head, "session", None)
    how = {"top_k": 3, "depth": 2, "nodes": 13}
    expected, _ = rounds(target, EagleDrafter(head, **how), 4)
    with pytest.warns(RuntimeWarning, match="No memory is left to capture a draft of the head random weights"):
        found, _ = rounds(target, EagleDrafter(head, **how, capture=full), 4)
    assert found.tolist() == expected.tolist()
    first = head.session
    hidden = target.forward(target.new_cache(9), PROMPT, 0, None)
    for capacity, kept in ((CAPACITY, True), (2 * CAPACITY, False)):
        EagleDrafter(head, **how, capture=uncaptured).reset(PROMPT, hidden, torch.tensor([3]), capacity)
        assert (head.session is first) == kept


def test_nothing_waits_for_the_device(head: EagleHead) -> None:
    """On tensors without values, whatever would bring one to the host fails."""
    growth, features = Growth(top_k=4, levels=3, nodes=20), Hidden(torch.zeros(5, SIZE), torch.zeros(5, 3 * SIZE))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        number, tokens = mode.from_tensor(torch.tensor([3])), mode.from_tensor(torch.arange(5))
        hidden = Hidden(mode.from_tensor(features.last), mode.from_tensor(features.taps))
        state = read(head, head.new_cache(40), 40, number, number, tokens, hidden.last, hidden.taps)
        draft = grow(head, head.new_cache(40), 40, growth, number, state)
        with pytest.raises(DataDependentOutputException):
            draft.tokens.tolist()
    assert (state.shape, draft.tokens.shape, draft.tree.ancestors.shape) == ((1, SIZE), (20,), (21, 21))
