"""The loop on tiny random models in float32: trees and chains, the caches after every round, exact counts.

With forwards as they are, and with forwards of fixed shapes on a cache that is kept from prompt to prompt, whose
results are overwritten by the next call, as those of CUDA graphs are.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import tiny_models
from joulewise.engines.engine import PHASES, Sampling
from joulewise.engines.native import loop, session
from joulewise.engines.native.accept import Chooser, match, typical
from joulewise.engines.native.cache import KV
from joulewise.engines.native.draft import Draft, Drafter, Kept
from joulewise.engines.native.drafters import draft_model
from joulewise.engines.native.drafters.draft_model import Confidence, Constant, Heuristic, Length, ModelDrafter
from joulewise.engines.native.drafters.plain import Plain
from joulewise.engines.native.drafters.prompt_lookup import PromptLookupDrafter
from joulewise.engines.native.loop import Decoded, decode
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.session import Captured, Eager, Session
from joulewise.engines.native.tree import Tree, chain
from joulewise.engines.phases import Stopwatch
from joulewise.engines.transformers.loading import make_neutral
from random_trees import PlantedTrees

CPU = torch.device("cpu")
GREEDY = Chooser(Sampling())
TAPS = (0, 2)
LONG = 40  # true tokens that are known
CLOSE: dict[str, Any] = {"atol": 2e-4, "rtol": 1e-4}
HYPOTHESIS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


Hook = Callable[[KV, Tensor, int], None]


@dataclass
class Bench:
    """A model in the engine's hands, and an untouched copy to compare with."""

    plain: Any
    target: DecoderModel
    drafts: dict[str, DecoderModel]
    cache: KV | None = None  # the target's, of the last run
    hook: Hook | None = None  # called after each forward of a draft model
    _truths: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    def truth(self, prompt: Tensor) -> list[int]:
        """What greedy decoding writes, by whole forwards without any cache."""
        key = tuple(prompt.tolist())
        if key not in self._truths:
            ids = prompt
            with torch.inference_mode():
                for _ in range(LONG):
                    best = self.plain(ids[None], use_cache=False).logits[0, -1:].argmax(-1)
                    ids = torch.cat((ids, best))
            self._truths[key] = ids[len(prompt) :].tolist()
        return self._truths[key]


def decoder(model: Any, taps: tuple[int, ...] = ()) -> DecoderModel:
    return DecoderModel(make_neutral("tiny", model, tiny_models.tokenizer()), taps)


def like_a_graph(run: Callable[[], None]) -> Callable[[], None]:
    """Runs again each time, and leaves the results where those of the first run lie."""
    run()
    forward: Any = run.__self__  # type: ignore[attr-defined]
    hidden, logits = forward._made

    def replay() -> None:
        run()
        new_hidden, new_logits = forward._made
        hidden.last.copy_(new_hidden.last)
        logits.copy_(new_logits)
        if hidden.taps is not None:
            hidden.taps.copy_(new_hidden.taps)
        forward._made = hidden, logits

    return replay


def captured_session(model: DecoderModel, capacity: int) -> Session:
    """As ``open_session`` on a GPU."""
    kept = model.session
    if not isinstance(kept, Captured) or kept.capacity < capacity:
        kept = model.session = Captured(model, capacity, like_a_graph)
    return kept


class Spied:
    """A draft model's session that calls the bench's hook."""

    def __init__(self, inner: Session, bench: Bench) -> None:
        self._inner, self._bench = inner, bench
        self.cache, self.prefill = inner.cache, inner.prefill

    def forward(self, nodes: Tensor, length: int, tree: Tree) -> Any:
        result = self._inner.forward(nodes, length, tree)
        if self._bench.hook is not None:
            self._bench.hook(self.cache, nodes, length)
        return result


@pytest.fixture(
    scope="module", params=[("llama", "eager"), ("llama", "captured"), ("qwen3", "captured")], ids=lambda p: "-".join(p)
)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    family, sessions = request.param

    def model() -> Any:
        return tiny_models.build(family)

    variants = {
        "self": model(),
        "noisy": tiny_models.noisy(model()),
        "wrong": tiny_models.always_wrong(model()),
        "short": tiny_models.with_rows(model(), 73),
    }
    made = Bench(model(), decoder(model(), TAPS), {name: decoder(m) for name, m in variants.items()})
    open_session = captured_session if sessions == "captured" else Eager

    def open_targets(model: DecoderModel, capacity: int) -> Session:
        opened = open_session(model, capacity)
        made.cache = opened.cache
        return opened

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "BUCKET", 16)  # so that short texts cross from one into the next
        patch.setattr(loop, "open_session", open_targets)
        patch.setattr(draft_model, "open_session", lambda *arguments: Spied(open_session(*arguments), made))
        yield made


def prompt_of(seed: int, length: int = 9) -> Tensor:
    return torch.randint(3, 72, (length,), generator=torch.Generator().manual_seed(seed))


def run(
    bench: Bench, drafter: Drafter, prompt: Tensor, limit: int, ends: tuple[int, ...] = (), chooser: Chooser = GREEDY
) -> Decoded:
    with torch.inference_mode():
        return decode(bench.target, drafter, prompt, limit, ends, match, chooser)


def assert_fresh(model: DecoderModel, cache: KV | None, tokens: Tensor) -> None:
    """The cache begins with what a prefill of ``tokens`` would have left."""
    assert cache is not None
    fresh = model.new_cache(len(tokens))
    model.forward(fresh, tokens, 0, None)
    torch.testing.assert_close(cache.rows(len(tokens)), fresh.rows(len(tokens)), **CLOSE)


def assert_counts(decoded: Decoded) -> None:
    emitted = 1 + len(decoded.rounds) + sum(r.accepted for r in decoded.rounds)
    # Where an output is cut, the last round's bonus is waste, and so is what was accepted behind the cut.
    assert len(decoded.tokens) <= emitted <= len(decoded.tokens) + decoded.wasted_tokens
    assert decoded.wasted_tokens > 0 or emitted == len(decoded.tokens)
    assert all(0 <= r.accepted <= r.drafted for r in decoded.rounds)


class WatchedTrees(PlantedTrees):
    """Planted trees that look after every round at what the loop leaves."""

    def __init__(self, bench: Bench, prompt: Tensor, *args: Any) -> None:
        super().__init__(bench.truth(prompt), tiny_models.ROWS, *args)
        self.bench, self.prompt = bench, prompt

    def observe(self, kept: Kept) -> None:
        before = self._known
        super().observe(kept)
        text = torch.cat((self.prompt, torch.tensor(self._truth[: self._known])))
        assert kept.length == len(self.prompt) + before - 1
        assert kept.tokens.tolist() == self._truth[before : self._known]
        assert len(kept.tokens) == self.planted[-1] + 1
        read = text[:-1]  # the new root is not yet in the cache
        assert_fresh(self.bench.target, self.bench.cache, read)
        output = self.bench.plain(read[None], use_cache=False, output_hidden_states=True)
        seen = slice(kept.length, len(read))
        torch.testing.assert_close(kept.hidden.last, output.hidden_states[-1][0, seen], **CLOSE)
        taps = torch.cat([output.hidden_states[layer][0, seen] for layer in TAPS], dim=-1)
        assert kept.hidden.taps is not None
        torch.testing.assert_close(kept.hidden.taps, taps, **CLOSE)


@HYPOTHESIS
@given(
    seed=st.integers(0, 10_000),
    which=st.integers(0, 3),
    new=st.integers(1, 18),
    most=st.integers(1, 20),
    deep=st.sampled_from([0.0, 0.5, 0.8, 1.0]),
    end=st.none() | st.integers(0, 17),
)
def test_trees_write_what_the_target_writes(
    bench: Bench, seed: int, which: int, new: int, most: int, deep: float, end: int | None
) -> None:
    prompt = prompt_of(which)
    truth = bench.truth(prompt)
    expected = truth[:new]
    ends: tuple[int, ...] = ()
    if end is not None:
        ends = (truth[end],)
        expected = expected[: truth.index(truth[end]) + 1]
    drafter = WatchedTrees(bench, prompt, random.Random(seed), most, deep)
    decoded = run(bench, drafter, prompt, new, ends)
    assert list(decoded.tokens) == expected
    assert decoded.finish_reason == ("eos" if expected[-1] in ends else "length")
    planted = drafter.planted
    assert [r.accepted for r in decoded.rounds[:-1]] == planted[:-1]
    assert len(drafter.kept) == max(len(planted) - 1, 0)  # not after the last round
    assert decoded.wasted_tokens == 1 + sum(planted) + len(planted) - len(expected)
    if decoded.rounds:
        room = len(expected) - 1 - sum(planted[:-1]) - len(planted[:-1])
        assert decoded.rounds[-1].accepted == min(planted[-1], room)
    assert_counts(decoded)


def test_planted_trees_are_trees_in_which_much_happens(bench: Bench) -> None:
    """The test above would show little if the paths were short or straight."""
    prompt = prompt_of(0)
    drafter = PlantedTrees(bench.truth(prompt), tiny_models.ROWS, random.Random(0), 14)
    decoded = run(bench, drafter, prompt, 24)
    assert max(drafter.planted) >= 3
    assert any(r.drafted > 2 * planted > 2 for r, planted in zip(decoded.rounds, drafter.planted, strict=True))


class WatchedDrafter:
    """A draft model that is looked at in the first forward of each round."""

    def __init__(self, bench: Bench, model: DecoderModel, length: Length, prompt: Tensor, limit: int) -> None:
        self._bench, self._model, self._limit = bench, model, limit
        self._inner = ModelDrafter(model, length, GREEDY, tiny_models.ROWS)
        self._text = torch.cat((prompt, torch.tensor(bench.truth(prompt))))
        self._begin = len(prompt)
        self.most_nodes = self._inner.most_nodes
        self.reset = self._inner.reset
        self.observe = self._inner.observe
        self.checked = 0

    def propose(self, room: int) -> Draft:
        due = self._begin + self._limit - room - 1  # tokens so far, the root among them

        def look(cache: KV, tokens: Tensor, start: int) -> None:
            self._bench.hook = None
            text = self._text[:due].clamp(max=self._model.config.vocab_size - 1)
            assert start + len(tokens) == due
            assert tokens.tolist() == text[start:].tolist()
            assert_fresh(self._model, cache, text)
            self.checked += 1

        self._bench.hook = look
        draft = self._inner.propose(room)
        self._bench.hook = None
        return draft


@pytest.mark.parametrize("name", ["self", "noisy", "wrong", "short"])
@pytest.mark.parametrize(
    "length", [Constant(1), Constant(4), Constant(8), Heuristic(3), Confidence(6, 0.2)], ids=lambda x: type(x).__name__
)
def test_a_draft_models_cache_is_that_of_a_fresh_prefill(bench: Bench, name: str, length: Length) -> None:
    prompt, limit = prompt_of(1), 16
    truth = bench.truth(prompt)
    model = bench.drafts[name]
    drafter = WatchedDrafter(bench, model, length, prompt, limit)
    decoded = run(bench, drafter, prompt, limit)
    assert list(decoded.tokens) == truth[:limit]
    with torch.inference_mode():
        text = torch.cat((prompt, torch.tensor(truth[: limit - 1])))
        assert_fresh(bench.target, bench.cache, text)
    drafted = [r for r in decoded.rounds if r.drafted]
    assert drafter.checked == len(drafted) >= 2
    assert decoded.wasted_tokens == 0
    assert_counts(decoded)
    if name == "self":
        assert all(r.accepted == r.drafted for r in decoded.rounds)
    if name == "wrong":
        assert sum(r.accepted for r in decoded.rounds) == 0
        assert len(decoded.rounds) == limit - 1


@pytest.mark.parametrize("tokens", range(1, 9))
def test_every_round_drafts_as_many_and_a_copy_of_the_target_is_always_right(bench: Bench, tokens: int) -> None:
    prompt = prompt_of(2)
    for limit in (1, 2, 3, 17, 20):  # most of them end inside a draft
        drafter = ModelDrafter(bench.drafts["self"], Constant(tokens), GREEDY, tiny_models.ROWS)
        decoded = run(bench, drafter, prompt, limit)
        assert list(decoded.tokens) == bench.truth(prompt)[:limit]
        left = limit - 1
        for r in decoded.rounds:
            assert r.accepted == r.drafted == min(tokens, left - 1)
            left -= r.accepted + 1
        assert left == 0
        assert decoded.wasted_tokens == 0


def test_an_output_of_one_token_needs_no_drafter(bench: Bench) -> None:
    class Nothing:
        most_nodes = 3

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} was called")

    prompt = prompt_of(0)
    first = bench.truth(prompt)[0]
    nothing: Any = Nothing()
    assert run(bench, nothing, prompt, 1).tokens == (first,)
    ended = run(bench, nothing, prompt, 9, ends=(first,))
    assert (ended.tokens, ended.finish_reason, ended.wasted_tokens, ended.rounds) == ((first,), "eos", 0, ())


def test_an_end_token_within_what_was_accepted(bench: Bench) -> None:
    """Behind it lie accepted tokens and the bonus: all of them are waste, and are told."""
    prompt = prompt_of(3)
    truth = bench.truth(prompt)
    at = next(i for i in range(1, 6) if truth.index(truth[i]) == i)
    drafter = ModelDrafter(bench.drafts["self"], Constant(8), GREEDY, tiny_models.ROWS)
    decoded = run(bench, drafter, prompt, 30, ends=(truth[at],))
    assert list(decoded.tokens) == truth[: at + 1]
    assert decoded.finish_reason == "eos"
    (only,) = decoded.rounds
    assert (only.drafted, only.accepted) == (8, at)
    assert decoded.wasted_tokens == 8 - at + 1


def test_typical_acceptance_in_the_loop(bench: Bench) -> None:
    """Lossy, but nothing else than a path of the draft and then the target's own token."""
    prompt = prompt_of(0)
    drafter = ModelDrafter(bench.drafts["noisy"], Constant(4), GREEDY, tiny_models.ROWS)
    with torch.inference_mode():
        decoded = decode(bench.target, drafter, prompt, 20, (), typical(0.09, 0.3), GREEDY)
    assert len(decoded.tokens) == 20
    assert sum(r.accepted for r in decoded.rounds) > 0
    assert_counts(decoded)
    text = torch.cat((prompt, torch.tensor(decoded.tokens)))
    with torch.inference_mode():
        best = bench.plain(text[None], use_cache=False).logits[0].argmax(-1)
    at = len(prompt)
    for r in decoded.rounds:
        at += r.accepted + 1
        assert int(text[at]) == int(best[at - 1])


def test_phases_have_the_known_names(bench: Bench) -> None:
    prompt = prompt_of(0)
    trees = PlantedTrees(bench.truth(prompt), tiny_models.ROWS, random.Random(0), 5)
    for drafter in (Plain(), PromptLookupDrafter(3, 2, ()), trees):
        decoded = run(bench, drafter, prompt, 6)
        assert set(decoded.phases_s) == set(PHASES)
        assert all(seconds >= 0 for seconds in decoded.phases_s.values())


def test_the_stopwatch_leaves_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 11.0, 13.0, 17.0, 17.5])
    monkeypatch.setattr("joulewise.engines.phases.time.perf_counter", lambda: next(times))
    watch = Stopwatch(CPU)
    for phase in ("draft", "verify", "draft", "host"):
        watch.mark(phase)
    assert watch.seconds() == {"draft": 5.0, "verify": 2.0, "host": 0.5}


@pytest.mark.parametrize("how", ["draft model", "trees"])
def test_sampled_outputs_have_the_models_own_distribution(how: str) -> None:
    """Three tokens of a model of five, its caches and masks and all."""
    rows, samples = 5, 500
    shape = {"vocab_size": rows, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = LlamaConfig(**shape, num_attention_heads=2, initializer_range=0.4, pad_token_id=None)
        plain = LlamaForCausalLM(config).eval()
    target, draft = decoder(copy.deepcopy(plain)), decoder(tiny_models.noisy(plain, 0.4))
    prompt = torch.tensor([3, 1])
    expected = torch.empty(rows, rows, rows)
    counts = torch.zeros(rows, rows, rows)
    accepted = 0
    with torch.inference_mode():
        for a, b in product(range(rows), repeat=2):
            p = plain(torch.tensor([[3, 1, a, b]]), use_cache=False).logits[0, 1:].softmax(-1)
            expected[a, b] = p[0, a] * p[1, b] * p[2]
        for seed in range(samples):
            chooser = Chooser.of(Sampling(temperature=1.0), seed, CPU)
            drafter: Drafter = ModelDrafter(draft, Constant(2), chooser, rows)
            if how == "trees":
                drafter = PlantedTrees([seed % rows, 1, 2, 0, 3, 4], rows, random.Random(seed), 3)
            decoded = decode(target, drafter, prompt, 3, (), match, chooser)
            counts[decoded.tokens] += 1
            accepted += sum(r.accepted for r in decoded.rounds)
    assert accepted > 60
    often = expected * samples >= 5
    found = [*counts[often].tolist(), float(counts[~often].sum())]
    wanted = torch.tensor([*expected[often].tolist(), float(expected[~often].sum())], dtype=torch.double)
    assert stats.chisquare(found, (wanted / wanted.sum() * samples).tolist()).pvalue > 1e-3


def test_what_fills_a_captured_width_does_not_depend_on_earlier_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """An int8 forward depends on every token in it."""
    model = decoder(tiny_models.build("llama"))
    seen: list[tuple[Tensor, ...]] = []
    real = DecoderModel.forward_at

    def spy(self: DecoderModel, cache: KV, tokens: Tensor, slots: Tensor, span: int, mask: Any, positions: Any) -> Any:
        seen.append((tokens.clone(), slots.clone(), positions.clone()) + (() if mask is None else (mask.clone(),)))
        return real(self, cache, tokens, slots, span, mask, positions)

    monkeypatch.setattr(DecoderModel, "forward_at", spy)
    nodes, tree = torch.arange(20, 30), Tree.of(torch.tensor([0, 0, 1, 1, 2, 0, 5, 6, 7, 8]), 6)
    last = []
    with torch.inference_mode():
        for before in ([], [(torch.arange(40, 51), chain(10, CPU))], [(nodes, tree), (torch.arange(9), chain(8, CPU))]):
            made = Captured(model, 64, like_a_graph)
            made.prefill(prompt_of(0))
            for call in before:
                made.forward(call[0], 9, call[1])
            made.forward(nodes, 9, tree)
            last.append(seen[-1])
    for other in last[1:]:
        assert all(torch.equal(a, b) for a, b in zip(last[0], other, strict=True))
