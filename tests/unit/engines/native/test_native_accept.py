"""What is drawn and what is accepted: by the library's own processors, by chi-square, and by plain references."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from joulewise.engines.engine import Sampling
from joulewise.engines.native.accept import Chooser, Lot, match, typical
from joulewise.engines.native.draft import Draft, Drafter, Kept
from joulewise.engines.native.drafters.draft_model import Constant, ModelDrafter
from joulewise.engines.native.drafters.plain import Plain
from joulewise.engines.native.loop import Decoded, decode
from joulewise.engines.native.model import DecoderModel, Hidden
from joulewise.engines.native.tree import Tree, chain

CPU = torch.device("cpu")
HOT = Sampling(temperature=1.0)


def p_value(counts: Tensor, probabilities: Tensor) -> float:
    """Of a chi-square test; what cannot happen did not, and rare outcomes are taken together."""
    counts, probabilities = counts.flatten().double(), probabilities.flatten().double()
    assert int(counts[probabilities == 0].sum()) == 0
    expected = probabilities * counts.sum()
    often = expected >= 5
    found, wanted = counts[often].tolist(), expected[often].tolist()
    if rest := float(expected[~often].sum()):
        found.append(float(counts[~often].sum()))
        wanted.append(rest)
    scale = sum(found) / sum(wanted)
    return float(stats.chisquare(found, [w * scale for w in wanted]).pvalue)


# The chooser


@settings(max_examples=60, deadline=None)
@given(
    logits=st.lists(st.integers(-400, 400), min_size=2, max_size=12, unique=True),
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.9]),
    top_k=st.integers(0, 14),
    top_p=st.sampled_from([1.0, 0.95, 0.8, 0.5, 0.05]),
)
def test_probabilities_are_those_of_the_librarys_processors(
    logits: list[int], temperature: float, top_k: int, top_p: float
) -> None:
    scores = torch.tensor([logits]) / 100
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    before = warpers(None, scores.clone()).softmax(-1)[0].sort(descending=True).values.cumsum(0)
    assume(bool(((before - top_p).abs() > 1e-5).all()))  # where rounding decides, either is right
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    found = Chooser.of(Sampling(temperature, top_p, top_k), 0, CPU).probabilities(scores)
    torch.testing.assert_close(found, warpers(None, scores.clone()).softmax(-1), atol=1e-6, rtol=1e-5)


def test_greedy_takes_the_best_and_uses_no_chance() -> None:
    logits = torch.randn(50, 9, generator=torch.Generator().manual_seed(0))
    chooser = Chooser.of(Sampling(), 3, CPU)
    assert chooser.greedy
    assert torch.equal(chooser.draw(logits), logits.argmax(-1))
    assert not Chooser.of(HOT, 3, CPU).greedy
    for narrow in (Sampling(1.0, top_k=1), Sampling(1.0, top_p=1e-6)):
        assert torch.equal(Chooser.of(narrow, 3, CPU).draw(logits), logits.argmax(-1))


def test_draws_follow_the_probabilities() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 0.5, -6.0])
    for sampling in (HOT, Sampling(0.6), Sampling(1.5, top_k=3), Sampling(1.0, top_p=0.7)):
        chooser = Chooser.of(sampling, 1, CPU)
        drawn = chooser.draw(logits.expand(20_000, -1))
        assert p_value(drawn.bincount(minlength=5), chooser.probabilities(logits[None])[0]) > 1e-3, sampling
    weights = torch.tensor([0.0, 3.0, 0.0, 1.0])  # they need not add up to 1
    drawn = Chooser.of(HOT, 1, CPU).draw_from(weights.expand(20_000, -1))
    assert p_value(drawn.bincount(minlength=4), weights / 4) > 1e-3


def test_the_seed_alone_decides() -> None:
    logits = torch.zeros(64, 50)
    one, same, other = (Chooser.of(HOT, seed, CPU) for seed in (7, 7, 8))
    torch.manual_seed(0)
    first = one.draw(logits)
    torch.manual_seed(1)
    assert torch.equal(first, same.draw(logits))
    assert not torch.equal(first, other.draw(logits))
    assert not torch.equal(first, one.draw(logits))
    uniform = one.uniform(1000, CPU)
    assert uniform.dtype == torch.float64
    assert 0 <= float(uniform.min()) < 0.01 < 0.99 < float(uniform.max()) < 1


# The joint distribution of two sampled tokens. The target is a table: what comes next depends on the last token alone,
# so one long output is many samples, and they fall on every place in a round.


class Table:
    """What the loop needs of a model. ``logits[t]`` are those of the token after ``t``."""

    device = CPU

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits
        self.config = SimpleNamespace(vocab_size=len(logits))

    def new_cache(self, capacity: int) -> Any:
        return SimpleNamespace(move=lambda origins, target: None)

    def forward(self, cache: Any, tokens: Tensor, start: int, mask: Any, positions: Any = None) -> Hidden:
        return Hidden(tokens)

    def logits(self, hidden: Hidden) -> Tensor:
        return self._logits[hidden.last]


class Fixed:
    """After each token always the same draft, whatever chance says."""

    def __init__(self, drafts: list[Draft]) -> None:
        self.most_nodes = max(len(draft.tokens) for draft in drafts)
        self._drafts = drafts

    def reset(self, prompt: Tensor, hidden: Hidden, root: Tensor, capacity: int) -> None:
        self._root = int(root)

    def propose(self, room: int) -> Draft:
        return self._drafts[self._root]

    def observe(self, kept: Kept) -> None:
        self._root = int(kept.tokens[-1])


ROWS, TOKENS = 4, 4000
Make = Callable[[Chooser], Drafter]


def random_table(seed: int, only: tuple[int, ...] = tuple(range(ROWS))) -> DecoderModel:
    logits = torch.randn(ROWS, ROWS, generator=torch.Generator().manual_seed(seed)) * 1.5
    logits[:, [t for t in range(ROWS) if t not in only]] = -torch.inf
    return cast(DecoderModel, Table(logits))


def table_of(model: DecoderModel, sampling: Sampling = HOT) -> Tensor:
    """Row ``t``: the distribution of the token after ``t``."""
    return Chooser.of(sampling, 0, CPU).probabilities(model.logits(Hidden(torch.arange(ROWS))))


def sample(make: Make, model: DecoderModel, sampling: Sampling = HOT) -> Decoded:
    chooser = Chooser.of(sampling, 1, CPU)
    return decode(model, make(chooser), torch.tensor([0]), TOKENS, (), match, chooser)


def joint(decoded: Decoded, model: DecoderModel, sampling: Sampling = HOT) -> float:
    """The p-value of pairs of tokens, each given the token before them."""
    p = table_of(model, sampling)
    assert len(decoded.tokens) == TOKENS
    counts = torch.zeros(ROWS, ROWS, ROWS)
    for i in range(1, TOKENS - 1, 2):
        counts[decoded.tokens[i - 1 : i + 2]] += 1
    before = counts.sum((1, 2)) / counts.sum()
    return p_value(counts, before[:, None, None] * p[:, :, None] * p[None])


def assert_accepted(decoded: Decoded, likely: Tensor) -> None:
    """The first level of a draft after ``t`` is accepted with probability ``likely[t]``."""
    expected, variance, found, at = 0.0, 0.0, 0, 0
    for r in decoded.rounds[:-3]:  # the last ones may have been cut
        probability = float(likely[decoded.tokens[at]])
        expected += probability
        variance += probability * (1 - probability)
        found += r.accepted > 0
        at += r.accepted + 1
    assert len(decoded.rounds) > 500
    assert abs(found - expected) <= 4 * math.sqrt(variance) + 1e-3


def chains(tokens: list[list[int]], probabilities: bool) -> list[Draft]:
    return [
        Draft(
            torch.tensor(one),
            chain(len(one), CPU),
            torch.nn.functional.one_hot(torch.tensor(one), ROWS).float() if probabilities else None,
        )
        for one in tokens
    ]


def test_vanilla_samples_from_the_target() -> None:
    model = random_table(0)
    assert joint(sample(lambda _: Plain(), model), model) > 1e-3


@pytest.mark.parametrize("sampling", [HOT, Sampling(0.7, top_p=0.9, top_k=3)], ids=["plain", "narrowed"])
def test_a_sampled_chain_by_the_residual_rule(sampling: Sampling) -> None:
    model, draft = random_table(0), random_table(1)
    decoded = sample(lambda chooser: ModelDrafter(draft, Constant(2), chooser, ROWS), model, sampling)
    assert joint(decoded, model, sampling) > 1e-3
    assert_accepted(decoded, torch.minimum(table_of(model, sampling), table_of(draft, sampling)).sum(1))
    assert {r.accepted for r in decoded.rounds} == {0, 1, 2}


def test_a_sampled_draft_like_the_target_is_always_accepted() -> None:
    model = random_table(0)
    decoded = sample(lambda chooser: ModelDrafter(model, Constant(2), chooser, ROWS), model)
    assert joint(decoded, model) > 1e-3
    assert all(r.accepted == r.drafted for r in decoded.rounds)


@pytest.mark.parametrize("told", [False, True], ids=["match", "residual"])
def test_a_draft_without_chance(told: bool) -> None:
    """Matched, or judged by the residual rule with all of its probability on the drafted token."""
    model = random_table(0)
    drafts = chains([[1, 2], [3, 3], [0, 1], [2, 0]], told)
    decoded = sample(lambda _: Fixed(drafts), model)
    assert joint(decoded, model) > 1e-3
    assert_accepted(decoded, table_of(model)[range(ROWS), [1, 3, 0, 2]])


@pytest.mark.parametrize("how", ["match", "residual", "sampled"])
def test_a_draft_of_what_the_target_never_says(how: str) -> None:
    model, draft = random_table(0, only=(0, 1)), random_table(1, only=(2, 3))
    drafts = chains([[2, 3], [3, 3], [2, 2], [2, 3]], how == "residual")
    make: Make = lambda _: Fixed(drafts)  # noqa: E731
    if how == "sampled":
        make = lambda chooser: ModelDrafter(draft, Constant(2), chooser, ROWS)  # noqa: E731
    decoded = sample(make, model)
    assert joint(decoded, model) > 1e-3
    assert sum(r.accepted for r in decoded.rounds) == 0


def test_a_tree() -> None:
    model = random_table(0)
    tree = Tree.of(torch.tensor([0, 0, 0, 1, 1, 2, 3]), 3)
    drafts = [Draft(torch.tensor([(t + 1) % ROWS, (t + 2) % ROWS, 0, 3, 1, 2]), tree) for t in range(ROWS)]
    decoded = sample(lambda _: Fixed(drafts), model)
    assert joint(decoded, model) > 1e-3
    p = table_of(model)
    assert_accepted(decoded, torch.stack([p[t, (t + 1) % ROWS] + p[t, (t + 2) % ROWS] for t in range(ROWS)]))
    assert {r.accepted for r in decoded.rounds} == {0, 1, 2, 3}


def test_a_draft_that_lies_about_its_distribution_is_found_out() -> None:
    """The test of these tests: drafting by argmax while claiming the softmax is a known fault."""
    model, draft = random_table(0), random_table(1)
    q = table_of(draft)
    best = q.argmax(1)
    drafts = [
        Draft(torch.stack((best[t], best[best[t]])), chain(2, CPU), torch.stack((q[t], q[best[t]])))
        for t in range(ROWS)
    ]
    assert joint(sample(lambda _: Fixed(drafts), model), model) < 1e-6


def test_where_target_and_draft_agree_to_the_bit_nothing_is_left_to_draw_from() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.5, 0.25]])
    draft = Draft(torch.tensor([1]), chain(1, CPU), p[:1])
    for seed in range(50):
        last, token = match(draft, p.log(), Chooser.of(HOT, seed, CPU))
        assert last.tolist() == [1]
        assert token.item() in range(3)


# Lossy rules


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    near=st.integers(1, 12),
    spread=st.sampled_from([0.5, 2.0, 5.0]),
    epsilon=st.sampled_from([0.09, 0.3]),
    alpha=st.sampled_from([0.3, 0.9]),
    greedy=st.booleans(),
)
def test_typical_acceptance_by_its_definition(
    seed: int, near: int, spread: float, epsilon: float, alpha: float, greedy: bool
) -> None:
    chance = torch.Generator().manual_seed(seed)
    width, rows = 12, 6
    parents = [0] + [max(0, n - int(torch.randint(1, near + 1, (1,), generator=chance))) for n in range(1, width)]
    tokens = torch.randint(0, rows, (width - 1,), generator=chance)
    logits = torch.randn(width, rows, generator=chance) * spread
    temperature = 1.0 if greedy else 0.7
    p = (logits / temperature).softmax(-1).tolist()
    paths: dict[int, tuple[int, float]] = {0: (0, 0.0)}  # node -> length, log-probability
    for node in range(1, width):
        parent = parents[node]
        entropy = -sum(x * math.log(x) for x in p[parent] if x > 0)
        x = p[parent][int(tokens[node - 1])]
        if parent in paths and x > min(epsilon, alpha * math.exp(-entropy)):
            paths[node] = (paths[parent][0] + 1, paths[parent][1] + math.log(x))
    chooser = Chooser.of(Sampling() if greedy else Sampling(temperature), seed, CPU)
    last, token = typical(epsilon, alpha)(Draft(tokens, Tree.of(torch.tensor(parents), width - 1)), logits, chooser)
    length, likely = max(paths.values())
    assert paths[int(last)][0] == length
    assert paths[int(last)][1] == pytest.approx(likely, abs=1e-4)
    assert last.shape == token.shape == (1,)
    if greedy:
        assert int(token) == int(logits[int(last)].argmax())


def test_typical_acceptance_takes_what_the_target_would_not_choose() -> None:
    logits = torch.tensor([[1.0, 0.9, -9.0], [0.0, 3.0, 0.0]])
    greedy = Chooser(Sampling())
    for token, accepted in ((0, 1), (1, 1), (2, 0)):
        last, _ = typical(0.09, 0.3)(Draft(torch.tensor([token]), chain(1, CPU)), logits, greedy)
        assert int(last) == accepted
    assert int(match(Draft(torch.tensor([1]), chain(1, CPU)), logits, greedy)[0]) == 0


RATES = (0.8, 0.5, 0.1)


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_synthetic_acceptance_has_the_given_shares(shape: str) -> None:
    # Of the tree's four levels the last is deeper than the rates go.
    tree = chain(4, CPU) if shape == "chain" else Tree.of(torch.tensor([0, 0, 0, 1, 2, 2, 4, 6, 3, 7]), 9)
    draft = Draft(torch.arange(len(tree.parents) - 1), tree)
    logits = torch.randn(len(tree.parents), 7, generator=torch.Generator().manual_seed(0))
    rule, greedy = Lot(RATES, 5, CPU), Chooser(Sampling())
    counts = torch.zeros(4)
    for _ in range(3000):
        last, token = rule(draft, logits, greedy)
        assert int(token) == int(logits[int(last)].argmax())
        counts[int(tree.depths[int(last)])] += 1
    edges = torch.tensor([1.0, *RATES, 0.0], dtype=torch.float64)
    assert p_value(counts, edges[:-1] - edges[1:]) > 1e-3
    again = Lot(RATES, 5, CPU)
    first = Lot(RATES, 5, CPU)
    assert [int(again(draft, logits, greedy)[0]) for _ in range(20)] == [
        int(first(draft, logits, greedy)[0]) for _ in range(20)
    ]


def test_synthetic_acceptance_of_everything_and_of_nothing() -> None:
    draft = Draft(torch.arange(2), chain(2, CPU))
    logits = torch.zeros(3, 5)
    for rates, depth in (((1.0, 1.0), 2), ((1.0, 0.0), 1), ((0.0,), 0), ((1.0,) * 8, 2)):
        rule = Lot(rates, 0, CPU)
        assert {int(rule(draft, logits, Chooser(Sampling()))[0]) for _ in range(100)} == {depth}
