"""Several texts sampled side by side are what each would be alone with its seed, in both engines."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny_models
from joulewise.decoding import CoGA, DyGA, Medusa, PromptLookup, Vanilla
from joulewise.decoding.spec import Decoding
from joulewise.engines.engine import Generation, Message, Request, Sampling
from joulewise.engines.native import NativeEngine
from joulewise.engines.native.accept import Chooser
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.sampled import open_sampling, sample_together
from joulewise.engines.native.session import uncaptured
from joulewise.engines.native.together import Rows
from joulewise.engines.spec import NativeSpec, TransformersSpec
from joulewise.engines.together import refuses_together
from joulewise.engines.transformers import TransformersEngine
from joulewise.engines.transformers.loading import make_neutral
from joulewise.errors import ContextLengthError, UserError

Opened = NativeEngine | TransformersEngine
FAMILIES = {
    "native": ("llama", "qwen3"),
    "transformers": ("llama", "gpt2", "t5"),
}


@pytest.fixture(
    scope="module", params=[(kind, family) for kind, families in FAMILIES.items() for family in families], ids="/".join
)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    kind, family = request.param
    folder = tiny_models.save(tmp_path_factory.mktemp(family), tiny_models.build(family))
    opened: Opened
    if kind == "native":
        opened = NativeEngine(NativeSpec(model=folder, device="cpu"))
    else:
        opened = TransformersEngine(TransformersSpec(model=folder, device="cpu"))
    opened.load([Vanilla()])
    return opened


def ask(text: str, seed: int, limit: int = 20, **sampling: float) -> Request:
    how = Sampling(**({"temperature": 0.9} | sampling))  # type: ignore[arg-type]
    return Request((Message("user", text),), limit, sampling=how, seed=seed)


def said(generation: Generation) -> tuple[object, ...]:
    g = generation
    return g.text, g.token_ids, g.prompt_tokens, g.finish_reason, g.wasted_tokens, g.rounds


@pytest.mark.parametrize("sampling", [{}, {"top_p": 0.8}, {"top_k": 5, "temperature": 2.0}], ids=str)
def test_samples_of_one_prompt_are_what_each_would_be_alone(engine: Opened, sampling: dict[str, float]) -> None:
    requests = [ask("how many, then?", seed, **sampling) for seed in range(6)]
    together = engine.generate_together(requests, Vanilla())
    assert [said(g) for g in together] == [said(engine.generate(r, Vanilla())) for r in requests]
    assert len({g.token_ids for g in together}) > 3
    assert len({(g.start_s, g.end_s) for g in together}) == 1


def test_a_smaller_batch_is_the_first_of_a_larger_one(engine: Opened) -> None:
    requests = [ask("go on", seed) for seed in range(5)]
    five = engine.generate_together(requests, Vanilla())
    three = engine.generate_together(requests[:3], Vanilla())
    assert [said(g) for g in three] == [said(g) for g in five[:3]]


def test_prompts_and_limits_may_differ(engine: Opened) -> None:
    requests = [ask("a", 1, 9), ask("a longer prompt", 2, 3), ask("and another one here", 3, 20)]
    together = engine.generate_together(requests, Vanilla())
    assert [said(g) for g in together] == [said(engine.generate(r, Vanilla())) for r in requests]
    assert [g.output_tokens <= r.max_new_tokens for g, r in zip(together, requests, strict=True)] == [True] * 3


def test_greedy_texts_go_together_too(engine: Opened) -> None:
    requests = [ask(text, 0, temperature=0.0) for text in ("one", "and two")]
    together = engine.generate_together(requests, Vanilla())
    assert [g.token_ids for g in together] == [engine.generate(r, Vanilla()).token_ids for r in requests]


def test_an_end_token_ends_one_text_alone(engine: Opened) -> None:
    together = engine.generate_together([ask("x", seed, 40, temperature=9.0) for seed in range(12)], Vanilla())
    for g in together:
        assert (g.finish_reason == "eos") == (g.token_ids[-1] == tiny_models.EOS)
        assert tiny_models.EOS not in g.token_ids[:-1]
    if engine.load([Vanilla()]).model_class != "T5ForConditionalGeneration":  # whose scores lie too far apart
        assert {g.finish_reason for g in together} == {"eos", "length"}


def test_a_batch_leaves_nothing_behind(engine: Opened) -> None:
    request = ask("again", 7)
    before = said(engine.generate(request, Vanilla()))
    state = torch.random.get_rng_state()
    engine.generate_together([request, ask("other", 8)], Vanilla())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert said(engine.generate(request, Vanilla())) == before
    assert engine.generate_together([], Vanilla()) == ()


def test_what_does_not_go_together_is_refused(engine: Opened) -> None:
    with pytest.raises(UserError, match="end by one rule"):
        engine.generate_together([ask("a", 1), Request((Message("user", "a"),), 5, ignore_eos=True)], Vanilla())
    with pytest.raises(UserError, match="sampled by one rule"):
        engine.generate_together([ask("a", 1), ask("a", 1, temperature=0.5)], Vanilla())
    if engine.load([Vanilla()]).context_length is None:
        return
    with pytest.raises(ContextLengthError):
        engine.generate_together([ask("a", 1), ask("a" * tiny_models.CONTEXT * 2, 1, 200)], Vanilla())


@pytest.mark.parametrize("decoding", [CoGA(tokens=2), PromptLookup(), DyGA(rule="confidence"), Medusa()], ids=str)
def test_drafts_of_samples_side_by_side_are_refused(decoding: Decoding) -> None:
    for engine in (NativeEngine(NativeSpec(draft="x")), TransformersEngine(TransformersSpec(draft="x"))):
        reason = refuses_together(engine, decoding, greedy=False)
        assert reason is not None
        assert decoding.label in reason
        with pytest.raises(UserError, match="several texts at once"):
            engine.generate_together([ask("a", 1)], decoding)


def test_an_engine_of_one_request_at_a_time_is_refused() -> None:
    assert refuses_together(object(), Vanilla(), greedy=True) == "it runs one request at a time"  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model() -> DecoderModel:
    return DecoderModel(make_neutral("target", tiny_models.build("llama"), tiny_models.tokenizer()))


def sampled(
    model: DecoderModel, prompts: list[list[int]], capture: Callable[..., object] | None = None
) -> list[object]:
    choosers = [Chooser.of(Sampling(1.0), seed, torch.device("cpu")) for seed in range(len(prompts))]
    with torch.inference_mode():
        rows = Rows(model, len(prompts), max(map(len, prompts)) + 12, capture)  # type: ignore[arg-type]
        made = sample_together(
            open_sampling(rows), [torch.tensor(p) for p in prompts], [12] * len(prompts), (), choosers
        )
    return [one.tokens for one in made]


def test_a_shared_prompt_is_read_once(model: DecoderModel, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, ...]] = []
    decoder = type(model.decoder).forward

    def counted(*args: object, **kwargs: object) -> object:
        read.append(tuple(kwargs["input_ids"].shape))  # type: ignore[attr-defined]
        return decoder(*args, **kwargs)

    prompt = list(range(4, 24))
    monkeypatch.setattr(type(model.decoder), "forward", counted)
    sampled(model, [prompt] * 4)
    assert (1, 20) in read
    assert {shape for shape in read if shape != (1, 20)} == {(4, 1)}
    read.clear()
    sampled(model, [prompt, [*prompt[:-1], 9]])
    assert (2, 20) in read


@settings(max_examples=10, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=5), same=st.booleans())
def test_captured_steps_give_the_same(model: DecoderModel, lengths: list[int], same: bool) -> None:
    prompts = [[4 + (i * 7 + 3 * n) % 60 for i in range(n)] for n in (lengths[:1] * len(lengths) if same else lengths)]
    assert sampled(model, prompts, uncaptured) == sampled(model, prompts)
