"""The engine on tiny random models: what every decoding writes, and how it compares with Transformers' own loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import tiny_models
from joulewise.decoding import CoGA, DyGA, Eagle2, Medusa, PromptLookup, Vanilla
from joulewise.decoding.spec import Decoding
from joulewise.engines.engine import PHASES, Generation, Message, Request, Sampling
from joulewise.engines.native import NativeEngine
from joulewise.engines.spec import NativeSpec, TransformersSpec
from joulewise.engines.transformers import TransformersEngine

PROMPTS = ("The cat sat. The cat", "What is 17 and 25?", "abcabcabcabcab")
NEW = 16
GREEDY = Sampling()
WHOLE = f"first-layers:{tiny_models.LAYERS}"
CHAINS: list[Decoding] = [CoGA(tokens=k) for k in range(1, 9)]
ADAPTIVE: list[Decoding] = [DyGA(tokens=3), DyGA(tokens=6, rule="confidence", threshold=0.2)]
LOOKUPS: list[Decoding] = [PromptLookup(tokens=k) for k in (1, 3, 8)] + [PromptLookup(tokens=10, max_ngram=1)]
Folders = Callable[[str], dict[str, str]]


def ask(text: str, new: int = NEW, *, ignore_eos: bool = True, sampling: Sampling = GREEDY, seed: int = 0) -> Request:
    return Request((Message("user", text),), new, ignore_eos, sampling, seed)


def started(model: str, decodings: Sequence[Decoding] = (), **spec: Any) -> NativeEngine:
    engine = NativeEngine(NativeSpec(model=model, device="cpu", **spec))
    engine.load(decodings)
    return engine


def started_library(model: str, decodings: Sequence[Decoding] = (), **spec: Any) -> TransformersEngine:
    engine = TransformersEngine(TransformersSpec(model=model, device="cpu", **spec))
    engine.load(decodings)
    return engine


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """By family: the folders of a target, a copy of it, and drafts that are noisy and always wrong."""
    made: dict[str, dict[str, str]] = {}

    def get(family: str) -> dict[str, str]:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            target = tiny_models.build(family)
            variants = {
                "target": target,
                "self": target,
                "noisy": tiny_models.noisy(target),
                "wrong": tiny_models.always_wrong(target),
            }
            made[family] = {name: tiny_models.save(folder / name, model) for name, model in variants.items()}
        return made[family]

    return get


@pytest.fixture(scope="module")
def llama(folders: Folders) -> Iterator[NativeEngine]:
    """An engine with a noisy draft."""
    made = folders("llama")
    engine = started(made["target"], [*CHAINS, *ADAPTIVE, CoGA(draft=WHOLE)], draft=made["noisy"])
    yield engine
    engine.close()


def assert_counts(generation: Generation) -> None:
    """The prefill gives one token, and each round what it accepted and one more; what is not output is waste."""
    emitted = 1 + len(generation.rounds) + generation.accepted
    assert emitted == generation.output_tokens + generation.wasted_tokens
    assert all(0 <= r.accepted <= r.drafted for r in generation.rounds)


@pytest.mark.parametrize("draft", ["self", "noisy", "wrong"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_greedy_output_is_vanillas_and_the_librarys(family: str, draft: str, folders: Folders) -> None:
    made = folders(family)
    decodings = [*CHAINS, *ADAPTIVE, *LOOKUPS]
    engine = started(made["target"], decodings, draft=made[draft])
    library = started_library(made["target"])
    for prompt in PROMPTS[:2]:
        expected = library.generate(ask(prompt), Vanilla())
        vanilla = engine.generate(ask(prompt), Vanilla())
        assert (vanilla.token_ids, vanilla.text, vanilla.prompt_tokens, vanilla.finish_reason) == (
            expected.token_ids,
            expected.text,
            expected.prompt_tokens,
            "length",
        )
        assert vanilla.rounds == ()
        assert vanilla.wasted_tokens == 0
        for decoding in decodings:
            generation = engine.generate(ask(prompt), decoding)
            assert generation.token_ids == vanilla.token_ids, decoding.label
            assert generation.text == vanilla.text
            assert generation.wasted_tokens == 0
            assert_counts(generation)
            if isinstance(decoding, PromptLookup):
                continue
            if draft == "self":
                assert generation.accepted == generation.drafted, decoding.label
            if draft == "wrong":
                assert (generation.accepted, len(generation.rounds)) == (0, NEW - 1), decoding.label


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_copy_as_the_draft_gives_one_token_more_than_it_drafts(family: str, folders: Folders) -> None:
    decodings = [CoGA(tokens=k, draft=WHOLE) for k in range(1, 9)]
    engine = started(folders(family)["target"], decodings)
    for decoding in decodings:
        new = 1 + 3 * (decoding.tokens + 1)  # three whole rounds
        for sampling in (GREEDY, Sampling(temperature=1.0)):
            generation = engine.generate(ask(PROMPTS[0], new, sampling=sampling), decoding)
            assert [(r.drafted, r.accepted) for r in generation.rounds] == [(decoding.tokens, decoding.tokens)] * 3


@pytest.mark.parametrize(("family", "draft"), [("llama", "noisy"), ("llama", "wrong"), ("qwen3", "noisy")])
def test_rounds_are_the_librarys(family: str, draft: str, folders: Folders) -> None:
    """Its first draft rides on the prefill; where nothing of that was accepted, all later rounds must be the same."""
    made = folders(family)
    ours: list[Decoding] = [CoGA(tokens=1), CoGA(tokens=5), *ADAPTIVE, PromptLookup(tokens=3), LOOKUPS[-1]]
    # The heuristic has learnt from that first draft already.
    theirs = [DyGA(tokens=4) if d == DyGA(tokens=3) else d for d in ours]
    engine = started(made["target"], ours, draft=made[draft])
    library = started_library(made["target"], theirs, draft=made[draft])
    for our, their in zip(ours, theirs, strict=True):
        for prompt in (PROMPTS[1], "xyzzyq xyz", "Zebra", "0, 1, 2, 3", *PROMPTS):
            expected = library.generate(ask(prompt, 20), their).rounds
            if expected[0].accepted == 0:
                assert engine.generate(ask(prompt, 20), our).rounds == expected[1:], (prompt, our.label)
                break
        else:
            raise AssertionError(f"{our.label}: no prompt to compare")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompt=st.text(tiny_models.ALPHABET, min_size=1, max_size=30),
    new=st.integers(1, 12),
    tokens=st.integers(1, 8),
    kind=st.sampled_from(["coga", "heuristic", "confidence", "lookup"]),
)
def test_any_prompt_any_length(llama: NativeEngine, prompt: str, new: int, tokens: int, kind: str) -> None:
    decoding: Decoding = {
        "coga": CoGA(tokens=tokens),
        "heuristic": DyGA(tokens=tokens),
        "confidence": DyGA(tokens=tokens, rule="confidence", threshold=0.2),
        "lookup": PromptLookup(tokens=tokens),
    }[kind]
    vanilla = llama.generate(ask(prompt, new), Vanilla())
    generation = llama.generate(ask(prompt, new), decoding)
    assert generation.token_ids == vanilla.token_ids
    assert generation.output_tokens == new
    assert generation.finish_reason == "length"
    assert generation.wasted_tokens == 0
    assert_counts(generation)


def test_heuristic_and_confidence_follow_their_rules(llama: NativeEngine) -> None:
    for prompt in PROMPTS:
        length, left = 3, 40 - 1
        for r in llama.generate(ask(prompt, 40), DyGA(tokens=3)).rounds:
            assert r.drafted == min(length, left - 1)
            length = length + 2 if r.accepted == r.drafted else max(1, length - 1)
            left -= r.accepted + 1
    always = llama.generate(ask(PROMPTS[0]), DyGA(tokens=4, rule="confidence", threshold=0.999999))
    assert {r.drafted for r in always.rounds[:-1]} == {1}
    never = llama.generate(ask(PROMPTS[0]), DyGA(tokens=4, rule="confidence", threshold=1e-9))
    assert never.rounds[0].drafted == 4


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("at", [0, 4, 9])
def test_the_end_token_ends_every_decoding_alike(family: str, at: int, folders: Folders, tmp_path: Path) -> None:
    """The end token is one that vanilla writes at ``at``, so that it falls on every place within a draft."""
    made = folders(family)
    endless = started(made["target"]).generate(ask(PROMPTS[0]), Vanilla()).token_ids
    end = endless[at]
    length = endless.index(end) + 1
    other = next(token for token in range(tiny_models.ROWS) if token not in endless)
    folder = tiny_models.save(tmp_path, tiny_models.build(family), eos_token_id=[other, end])
    decodings = [CoGA(tokens=4), DyGA(tokens=3), CoGA(tokens=3, draft=WHOLE), CoGA(tokens=8, draft=WHOLE), *LOOKUPS]
    engine = started(folder, decodings, draft=made["noisy"])
    for decoding in [Vanilla(), *decodings]:
        generation = engine.generate(ask(PROMPTS[0], ignore_eos=False), decoding)
        assert generation.token_ids == endless[:length], decoding.label
        assert generation.finish_reason == "eos"
        # Whole rounds emit what they accept and one token more; the last may have accepted the end token.
        emitted = 1 + sum(r.accepted + 1 for r in generation.rounds[:-1])
        if generation.rounds:
            last = generation.rounds[-1]
            drafted_end = last.accepted == length - emitted
            assert generation.wasted_tokens <= (last.drafted - last.accepted + 1 if drafted_end else 0)
            assert drafted_end == (generation.wasted_tokens > 0)
        endlessly = engine.generate(ask(PROMPTS[0]), decoding)
        assert endlessly.token_ids == endless, decoding.label
        assert (endlessly.finish_reason, endlessly.wasted_tokens) == ("length", 0)


def test_what_was_accepted_behind_the_end_token_is_told_as_waste(folders: Folders, tmp_path: Path) -> None:
    endless = started(folders("llama")["target"]).generate(ask(PROMPTS[0]), Vanilla()).token_ids
    at = max(endless.index(token) for token in endless)
    folder = tiny_models.save(tmp_path, tiny_models.build("llama"), eos_token_id=endless[at])
    decoding = CoGA(tokens=at + 5, draft=WHOLE)
    generation = started(folder, [decoding]).generate(ask(PROMPTS[0], 40, ignore_eos=False), decoding)
    assert [(r.drafted, r.accepted) for r in generation.rounds] == [(at + 5, at)]
    assert generation.output_tokens == at + 1
    assert generation.wasted_tokens == 6


def test_sampling_follows_the_seed_and_leaves_the_random_state_alone(llama: NativeEngine) -> None:
    hot = Sampling(temperature=1.5)
    state = torch.random.get_rng_state()
    for decoding in [Vanilla(), CoGA(tokens=3), *ADAPTIVE, PromptLookup(tokens=3)]:
        outputs = [llama.generate(ask(PROMPTS[0], sampling=hot, seed=s), decoding).token_ids for s in (1, 2, 1)]
        assert outputs[0] == outputs[2] != outputs[1], decoding.label
        assert all(len(output) == NEW for output in outputs)
    assert torch.equal(torch.random.get_rng_state(), state)
    greedy = llama.generate(ask(PROMPTS[0]), Vanilla()).token_ids
    for narrow in (Sampling(temperature=1.0, top_k=1), Sampling(temperature=1.0, top_p=1e-6)):
        for decoding in [Vanilla(), CoGA(tokens=3), PromptLookup(tokens=3)]:
            assert llama.generate(ask(PROMPTS[0], sampling=narrow, seed=3), decoding).token_ids == greedy


def test_no_state_is_carried_from_call_to_call(llama: NativeEngine) -> None:
    decodings = [Vanilla(), *ADAPTIVE, CoGA(tokens=4), PromptLookup(tokens=3), CoGA(tokens=3, synthetic_acceptance=0.6)]
    samplings = (GREEDY, Sampling(temperature=1.0))
    calls = [(prompt, decoding, sampling) for prompt in PROMPTS for decoding in decodings for sampling in samplings]

    def results(order: Sequence[tuple[str, Decoding, Sampling]]) -> dict[Any, tuple[Any, ...]]:
        made = {}
        for prompt, decoding, sampling in order:
            generation = llama.generate(ask(prompt, 12, sampling=sampling), decoding)
            made[prompt, decoding.label, sampling] = (generation.token_ids, generation.rounds, generation.text)
        return made

    assert results(calls) == results(calls[::-1])


def test_phases_sum_to_the_generation(llama: NativeEngine) -> None:
    for decoding in [Vanilla(), CoGA(tokens=4), PromptLookup(tokens=3)]:
        generation = llama.generate(ask(PROMPTS[0]), decoding)
        assert generation.phases_s is not None
        assert set(generation.phases_s) <= set(PHASES)
        assert all(seconds >= 0 for seconds in generation.phases_s.values())
        assert sum(generation.phases_s.values()) == pytest.approx(generation.end_s - generation.start_s, abs=1e-6)
        assert generation.first_token_s is not None
        assert generation.start_s < generation.first_token_s < generation.end_s
        assert generation.phases_s["prefill"] <= generation.first_token_s - generation.start_s
    assert llama.generate(ask(PROMPTS[0], 1), Vanilla()).output_tokens == 1


# Acceptance by lot


def test_synthetic_acceptance_runs_to_the_limit(folders: Folders, tmp_path: Path) -> None:
    made = folders("llama")
    endless = started(made["target"]).generate(ask(PROMPTS[0]), Vanilla()).token_ids
    folder = tiny_models.save(tmp_path, tiny_models.build("llama"), eos_token_id=endless[2])
    all_, none = CoGA(tokens=3, synthetic_acceptance=1.0), CoGA(tokens=3, synthetic_acceptance=0.0)
    some = CoGA(tokens=3, synthetic_acceptance=(0.9, 0.5, 0.1))
    engine = started(folder, [all_, none, some], draft=made["wrong"])
    request = ask(PROMPTS[0], 60, ignore_eos=False)
    everything, nothing, mixed = (engine.generate(request, decoding) for decoding in (all_, none, some))
    for generation in (everything, nothing, mixed):
        assert (generation.output_tokens, generation.finish_reason) == (60, "length")
        assert_counts(generation)
    assert all(r.accepted == r.drafted for r in everything.rounds)
    assert (nothing.accepted, len(nothing.rounds)) == (0, 59)
    whole = [r.accepted for r in mixed.rounds if r.drafted == 3]
    assert {1, 2} <= set(whole)
    assert engine.generate(request, some).rounds == mixed.rounds
    check = engine.check_lossless(request, some, nothing.token_ids, mixed.token_ids)
    assert (check.status, check.note) == ("not_checked", f"{some.label} is lossy")


def test_synthetic_shares_over_many_rounds(llama: NativeEngine) -> None:
    """Over all seeds each position's share is the given one, within four standard errors."""
    decoding = CoGA(tokens=4, synthetic_acceptance=0.7)
    assert decoding.synthetic == pytest.approx((0.7, 0.49, 0.343, 0.2401))
    rounds = [
        r
        for seed in range(8)
        for r in llama.generate(ask(PROMPTS[0], 60, seed=seed), decoding).rounds
        if r.drafted == decoding.tokens
    ]
    assert len(rounds) > 120
    for position, rate in enumerate(decoding.synthetic or (), start=1):
        share = sum(r.accepted >= position for r in rounds) / len(rounds)
        assert abs(share - rate) < 4 * (rate * (1 - rate) / len(rounds)) ** 0.5


def test_synthetic_labels_and_rates() -> None:
    assert CoGA(tokens=5, synthetic_acceptance=0.7).label == "coga-5-synthetic-0.7"
    assert CoGA(tokens=2, synthetic_acceptance=(0.8, 0.5)).label == "coga-2-synthetic-0.8-0.5"
    assert Medusa(synthetic_acceptance=0.5).label == "medusa-synthetic-0.5"
    assert Eagle2(synthetic_acceptance=(0.8,)).label == "eagle2-60x5x10-synthetic-0.8"
    assert CoGA(tokens=2, synthetic_acceptance=(0.8, 0.5)).synthetic == (0.8, 0.5)
    assert not CoGA(synthetic_acceptance=0.0).lossless
    assert CoGA().lossless
    assert CoGA().synthetic is None
    for wrong in ((0.5, 0.8), (), 1.2, (-0.1,), (0.5, 0.5, 0.6)):
        with pytest.raises(ValidationError):
            CoGA(synthetic_acceptance=wrong)
    assert CoGA(synthetic_acceptance=(0.5, 0.5)).synthetic == (0.5, 0.5)
