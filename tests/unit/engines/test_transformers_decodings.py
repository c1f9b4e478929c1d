"""What each decoding gives on tiny random models: vanilla's tokens, and exact counts."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers.generation import candidate_generator

import tiny_models
from joulewise.decoding import CoGA, DyGA, PromptLookup, Vanilla
from joulewise.decoding.spec import Decoding
from joulewise.engines.engine import Generation, Message, Request, Sampling
from joulewise.engines.spec import TransformersSpec
from joulewise.engines.transformers import TransformersEngine

PROMPTS = ("The cat sat. The cat", "What is 17 and 25?", "abcabcabcabcab")
NEW = 16
GREEDY = Sampling()


def ask(text: str, new: int = NEW, *, ignore_eos: bool = True, sampling: Sampling = GREEDY, seed: int = 0) -> Request:
    return Request((Message("user", text),), new, ignore_eos, sampling, seed)


def drafted(draft: str | None = None) -> list[Decoding]:
    return [
        CoGA(tokens=1, draft=draft),
        CoGA(tokens=4, draft=draft),
        DyGA(tokens=3, draft=draft),
        DyGA(tokens=6, rule="confidence", threshold=0.2, draft=draft),
    ]


def started(model: str, decodings: Sequence[Decoding] = (), **spec: Any) -> TransformersEngine:
    engine = TransformersEngine(TransformersSpec(model=model, device="cpu", **spec))
    engine.load(decodings)
    return engine


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, str]]:
    """By family: the folders of a target and of drafts that are noisy and always wrong."""
    made: dict[str, dict[str, str]] = {}

    def get(family: str) -> dict[str, str]:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            target = tiny_models.build(family)
            variants = {"target": target, "noisy": tiny_models.noisy(target)}
            if family != "gpt2":  # whose head is tied to its embedding
                variants["wrong"] = tiny_models.always_wrong(target)
            made[family] = {name: tiny_models.save(folder / name, model) for name, model in variants.items()}
        return made[family]

    return get


@pytest.fixture(scope="module")
def llama(models: Callable[[str], dict[str, str]]) -> Iterator[TransformersEngine]:
    """An engine with a noisy draft that can do everything."""
    folders = models("llama")
    engine = started(folders["target"], [*drafted(), *drafted("first-layers:3")], draft=folders["noisy"])
    yield engine
    engine.close()


@pytest.mark.parametrize("decoding", [Vanilla(), CoGA(tokens=4), PromptLookup(tokens=4)], ids=lambda d: d.kind)
def test_the_seconds_of_the_phases_add_up(llama: TransformersEngine, decoding: Decoding) -> None:
    generation = llama.generate(ask("abcabcabc", 24), decoding)
    phases_s = generation.phases_s
    assert phases_s is not None
    assert phases_s.keys() == {"prefill", "verify", "host"} | ({"draft"} if decoding.kind != "vanilla" else set())
    assert sum(phases_s.values()) == pytest.approx(generation.end_s - generation.start_s, rel=1e-6)
    assert generation.first_token_s is not None
    assert phases_s["verify"] < generation.end_s - generation.first_token_s


def assert_counts(generation: Generation) -> None:
    """Each round emits what it accepted and one token more; what is not output is waste."""
    emitted = generation.accepted + len(generation.rounds)
    assert emitted == generation.output_tokens + generation.wasted_tokens
    assert all(0 <= r.accepted <= r.drafted for r in generation.rounds)


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_greedy_output_is_vanillas(family: str, models: Callable[[str], dict[str, str]]) -> None:
    folders = models(family)
    decodings = [*drafted(), CoGA(tokens=3, draft="first-layers:2"), DyGA(tokens=3, draft="first-layers:2")]
    if family != "t5":
        decodings += [PromptLookup(tokens=3), PromptLookup(tokens=10, max_ngram=1)]
    engine = started(folders["target"], decodings, draft=folders["noisy"])
    some_accepted = some_rejected = False
    for prompt in PROMPTS[:2]:
        vanilla = engine.generate(ask(prompt), Vanilla())
        assert vanilla.output_tokens == NEW
        assert vanilla.rounds == ()
        for decoding in decodings:
            generation = engine.generate(ask(prompt), decoding)
            assert generation.token_ids == vanilla.token_ids, decoding.label
            assert generation.text == vanilla.text
            assert generation.prompt_tokens == vanilla.prompt_tokens
            assert generation.wasted_tokens == 0
            assert_counts(generation)
            some_accepted |= generation.accepted > 0
            some_rejected |= generation.accepted < generation.drafted
    assert some_accepted
    assert some_rejected


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_a_draft_like_the_target_is_accepted_whole(family: str, models: Callable[[str], dict[str, str]]) -> None:
    decodings = [CoGA(tokens=k, draft=f"first-layers:{tiny_models.LAYERS}") for k in range(1, 9)]
    engine = started(models(family)["target"], decodings)
    vanilla = engine.generate(ask(PROMPTS[0]), Vanilla())
    for decoding in decodings:
        generation = engine.generate(ask(PROMPTS[0]), decoding)
        assert generation.token_ids == vanilla.token_ids
        left = NEW
        for r in generation.rounds:  # every round drafts `tokens`, fewer only at the length limit
            assert r.accepted == r.drafted == min(decoding.tokens, left - 1)
            left -= r.accepted + 1
        assert left == 0


@pytest.mark.parametrize("family", ["llama", "qwen3", "t5"])
def test_a_useless_draft_changes_nothing_but_the_counts(family: str, models: Callable[[str], dict[str, str]]) -> None:
    folders = models(family)
    engine = started(folders["target"], drafted(), draft=folders["wrong"])
    vanilla = engine.generate(ask(PROMPTS[1]), Vanilla())
    for decoding in drafted():
        generation = engine.generate(ask(PROMPTS[1]), decoding)
        assert generation.token_ids == vanilla.token_ids
        assert generation.accepted == 0
        assert len(generation.rounds) == NEW


def test_heuristic_follows_its_rule_from_the_start_of_every_prompt(llama: TransformersEngine) -> None:
    for prompt in PROMPTS:
        generation = llama.generate(ask(prompt, 40), DyGA(tokens=3))
        length, left = 3, 40
        for r in generation.rounds:
            assert r.drafted == min(length, left - 1)
            length = length + 2 if r.accepted == r.drafted else max(1, length - 1)
            left -= r.accepted + 1


def test_confidence_stops_after_the_first_doubtful_token(llama: TransformersEngine) -> None:
    never = llama.generate(ask(PROMPTS[0]), DyGA(tokens=4, rule="confidence", threshold=1e-9))
    assert never.rounds[0].drafted == 4
    always = llama.generate(ask(PROMPTS[0]), DyGA(tokens=4, rule="confidence", threshold=0.999999))
    assert {r.drafted for r in always.rounds[:-1]} == {1}
    middle = llama.generate(ask(PROMPTS[0], 40), DyGA(tokens=6, rule="confidence", threshold=0.3))
    assert len({r.drafted for r in middle.rounds}) > 1


def test_confidence_does_not_depend_on_scikit_learn(llama: TransformersEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    decoding = DyGA(tokens=6, rule="confidence", threshold=0.3)
    plain = llama.generate(ask(PROMPTS[0], 40), decoding)
    assert plain.drafted > 5  # from then on the library would adapt the threshold
    assert 0 < plain.accepted < plain.drafted

    def refuse(*_: Any) -> None:
        raise AssertionError("the threshold is adapted")

    monkeypatch.setattr(candidate_generator, "is_sklearn_available", lambda: True)
    monkeypatch.setattr(candidate_generator, "roc_curve", refuse, raising=False)
    assert llama.generate(ask(PROMPTS[0], 40), decoding).rounds == plain.rounds


def test_no_state_is_carried_from_call_to_call(llama: TransformersEngine) -> None:
    decodings = [Vanilla(), *drafted(), PromptLookup(tokens=3)]
    calls = [(prompt, decoding) for prompt in PROMPTS for decoding in decodings]

    def results(order: Sequence[tuple[str, Decoding]]) -> dict[tuple[str, str], tuple[Any, ...]]:
        made = {}
        for prompt, decoding in order:
            generation = llama.generate(ask(prompt, 16), decoding)
            made[prompt, decoding.label] = (generation.token_ids, generation.rounds, generation.text)
        return made

    assert results(calls) == results(calls[::-1])


def test_nothing_is_left_behind_in_the_model(llama: TransformersEngine) -> None:
    target, _ = llama._ready(Vanilla())
    before = target.model.generation_config.to_dict()
    gc.collect()
    gc.disable()
    try:
        for decoding in [Vanilla(), *drafted(), PromptLookup(tokens=3)]:
            llama.generate(ask(PROMPTS[0]), decoding)
        kind = candidate_generator.CandidateGenerator
        generators = [o for o in gc.get_objects() if issubclass(type(o), kind)]
    finally:
        gc.enable()
    assert generators == []  # and with them the draft's cache
    assert "_get_candidate_generator" not in vars(target.model)
    assert not target.model._forward_hooks
    assert target.model.generation_config.to_dict() == before


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompt=st.text(tiny_models.ALPHABET, min_size=1, max_size=30),
    new=st.integers(1, 12),
    tokens=st.integers(1, 8),
    kind=st.sampled_from(["coga", "heuristic", "confidence", "lookup"]),
)
def test_any_prompt_any_length(llama: TransformersEngine, prompt: str, new: int, tokens: int, kind: str) -> None:
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


def test_prompt_lookup_finds_what_stood_earlier(llama: TransformersEngine) -> None:
    generation = llama.generate(ask("xyzzyq xyz", 8), PromptLookup(tokens=3))
    assert generation.rounds[0].drafted == 3  # "yz" stood at the start, so "zyq" is proposed
    alone = llama.generate(ask("abcd", 2), PromptLookup(tokens=3))
    assert alone.rounds[0].drafted == 0


def test_prompt_lookup_leaves_room_for_the_bonus_at_the_length_limit(tmp_path: Path) -> None:
    """On a model that writes one token for ever, so that every lookup is right to its end."""
    model = tiny_models.build("llama")
    model.get_output_embeddings().weight.data.zero_()
    engine = started(tiny_models.save(tmp_path, model))
    for new in range(1, 16):
        generation = engine.generate(ask("ab", new), PromptLookup(tokens=4))
        assert generation.output_tokens == new
        assert generation.wasted_tokens == 0
        left = new
        for r in generation.rounds:
            assert r.accepted == r.drafted <= left - 1
            left -= r.accepted + 1
        assert left == 0
        assert new < 8 or generation.accepted > 0


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
@pytest.mark.parametrize("at", [0, 4, 9])
def test_the_end_token_ends_every_decoding_alike(
    family: str, at: int, models: Callable[[str], dict[str, str]], tmp_path: Path
) -> None:
    """The end token is one that vanilla writes at ``at``, so that it falls on every place within a draft."""
    folders = models(family)
    endless = started(folders["target"]).generate(ask(PROMPTS[0]), Vanilla()).token_ids
    end = endless[at]
    length = endless.index(end) + 1
    other = next(token for token in range(tiny_models.ROWS) if token not in endless)
    folder = tiny_models.save(tmp_path, tiny_models.build(family), eos_token_id=[other, end])
    whole = f"first-layers:{tiny_models.LAYERS}"
    decodings = [CoGA(tokens=4), DyGA(tokens=3), CoGA(tokens=3, draft=whole), CoGA(tokens=8, draft=whole)]
    if family != "t5":
        decodings.append(PromptLookup(tokens=5))
    engine = started(folder, decodings, draft=folders["noisy"])
    for decoding in [Vanilla(), *decodings]:
        generation = engine.generate(ask(PROMPTS[0], ignore_eos=False), decoding)
        assert generation.token_ids == endless[:length], decoding.label
        assert generation.finish_reason == "eos"
        if not isinstance(decoding, Vanilla):
            assert_counts(generation)
        # Waste is the target's token after an end token that was drafted, and nothing else.
        emitted = sum(r.accepted + 1 for r in generation.rounds[:-1])
        drafted_end = bool(generation.rounds) and generation.rounds[-1].accepted == length - emitted
        assert generation.wasted_tokens == int(drafted_end)
        endlessly = engine.generate(ask(PROMPTS[0]), decoding)
        assert endlessly.token_ids == endless, decoding.label
        assert endlessly.finish_reason == "length"
        assert endlessly.wasted_tokens == 0


def test_an_accepted_end_token_wastes_the_bonus(models: Callable[[str], dict[str, str]], tmp_path: Path) -> None:
    endless = started(models("llama")["target"]).generate(ask(PROMPTS[0]), Vanilla()).token_ids
    at = max(endless.index(token) for token in endless)
    folder = tiny_models.save(tmp_path, tiny_models.build("llama"), eos_token_id=endless[at])
    decoding = CoGA(tokens=at + 5, draft=f"first-layers:{tiny_models.LAYERS}")
    generation = started(folder, [decoding]).generate(ask(PROMPTS[0], 40, ignore_eos=False), decoding)
    assert [(r.drafted, r.accepted) for r in generation.rounds] == [(at + 1, at + 1)]
    assert generation.wasted_tokens == 1


def test_sampling_follows_the_seed_and_leaves_the_random_state_alone(llama: TransformersEngine) -> None:
    hot = Sampling(temperature=1.5)
    state = torch.random.get_rng_state()
    for decoding in [Vanilla(), CoGA(tokens=3), DyGA(tokens=3), PromptLookup(tokens=3)]:
        outputs = [llama.generate(ask(PROMPTS[0], sampling=hot, seed=s), decoding).token_ids for s in (1, 2, 1)]
        assert outputs[0] == outputs[2] != outputs[1], decoding.label
        assert all(len(output) == NEW for output in outputs)
    assert torch.equal(torch.random.get_rng_state(), state)
    greedy = llama.generate(ask(PROMPTS[0]), Vanilla())
    one = llama.generate(ask(PROMPTS[0], sampling=Sampling(temperature=1.0, top_k=1), seed=3), Vanilla())
    narrow = llama.generate(ask(PROMPTS[0], sampling=Sampling(temperature=1.0, top_p=1e-6), seed=3), Vanilla())
    assert one.token_ids == narrow.token_ids == greedy.token_ids


def test_the_first_token_lies_within_the_generation(llama: TransformersEngine) -> None:
    for decoding in [Vanilla(), CoGA(tokens=4), PromptLookup(tokens=3)]:
        generation = llama.generate(ask(PROMPTS[0]), decoding)
        assert generation.first_token_s is not None
        assert generation.start_s < generation.first_token_s < generation.end_s


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_greedy_is_a_plain_argmax_whatever_the_model_brings(family: str, tmp_path: Path) -> None:
    """A repetition penalty and the like in the model's own generation config have no effect."""
    model = tiny_models.build(family)
    prompt = torch.tensor([tiny_models.tokenizer()(PROMPTS[2])["input_ids"]])
    causal = family != "t5"
    ids = prompt if causal else torch.tensor([[tiny_models.PAD]])
    expected = []
    with torch.inference_mode():
        for _ in range(10):
            inputs = {"input_ids": ids} if causal else {"input_ids": prompt, "decoder_input_ids": ids}
            expected.append(int(model(**inputs).logits[0, -1].argmax()))
            ids = torch.cat((ids, torch.tensor([[expected[-1]]])), dim=1)
    own = {
        "repetition_penalty": 9.0,
        "no_repeat_ngram_size": 1,
        "do_sample": True,
        "top_k": 3,
        "num_assistant_tokens": 2,
    }
    folder = tiny_models.save(tmp_path, model, eos_token_id=expected[0], **own)
    engine = started(folder, drafted("first-layers:2"))
    for decoding in [Vanilla(), *drafted("first-layers:2")]:
        assert list(engine.generate(ask(PROMPTS[2], 10), decoding).token_ids) == expected
