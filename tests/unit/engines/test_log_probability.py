"""The log-probability of an output is what the model itself gives its tokens, however they were drawn."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tiny_models
from joulewise.decoding import CoGA, PromptLookup, Vanilla
from joulewise.decoding.spec import Decoding
from joulewise.engines.engine import Generation, Message, Request, Sampling
from joulewise.engines.native import NativeEngine
from joulewise.engines.spec import NativeSpec, TransformersSpec
from joulewise.engines.transformers import TransformersEngine

Opened = NativeEngine | TransformersEngine
FAMILIES = [("native", "llama"), ("transformers", "llama"), ("transformers", "t5")]
TEXT = "so it goes, so it g"


@pytest.fixture(scope="module", params=FAMILIES, ids="/".join)
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Opened, str, list[Decoding]]:
    kind, family = request.param
    model = tiny_models.build(family)
    folder = tiny_models.save(tmp_path_factory.mktemp(family), model)
    draft = tiny_models.save(tmp_path_factory.mktemp("draft"), tiny_models.noisy(model))
    decodings: list[Decoding] = [Vanilla(), CoGA(tokens=3)] + [PromptLookup(tokens=3)] * (family != "t5")
    engine: Opened
    if kind == "native":
        engine = NativeEngine(NativeSpec(model=folder, draft=draft, device="cpu"))
    else:
        engine = TransformersEngine(TransformersSpec(model=folder, draft=draft, device="cpu"))
    engine.load(decodings)
    return engine, family, decodings


def expected(family: str, generation: Generation) -> float:
    """By one forward over prompt and output."""
    prompt = tiny_models.tokenizer()(TEXT, return_tensors="pt")["input_ids"]
    output = torch.tensor([generation.token_ids])
    with torch.inference_mode():
        model = tiny_models.build(family)
        if family == "t5":
            start = torch.tensor([[tiny_models.PAD]])
            logits = model(prompt, decoder_input_ids=torch.cat((start, output), dim=1)[:, :-1]).logits[0]
        else:
            logits = model(torch.cat((prompt, output), dim=1)).logits[0, prompt.shape[1] - 1 : -1]
    return float(logits.log_softmax(dim=-1).gather(1, output[0, :, None]).sum())


def ask(seed: int, temperature: float, **more: object) -> Request:
    how = Sampling(temperature, **more)  # type: ignore[arg-type]
    return Request((Message("user", TEXT),), 24, sampling=how, seed=seed, log_probability=True)


@pytest.mark.parametrize("temperature", [0.0, 0.8, 2.0])
def test_it_is_what_the_model_gives_the_tokens(opened: tuple[Opened, str, list[Decoding]], temperature: float) -> None:
    engine, family, decodings = opened
    for decoding in decodings:
        for seed in range(3):
            request = ask(seed, temperature)
            generation = engine.generate(request, decoding)
            assert generation.log_probability == pytest.approx(expected(family, generation), rel=1e-4, abs=1e-3)
            unasked = engine.generate(replace(request, log_probability=False), decoding)
            assert unasked.log_probability is None
            assert unasked.token_ids == generation.token_ids


def test_side_by_side_too(opened: tuple[Opened, str, list[Decoding]]) -> None:
    engine, family, _ = opened
    requests = [ask(seed, 1.5, top_k=9) for seed in range(5)]
    together = engine.generate_together(requests, Vanilla())
    for generation in together:
        assert generation.log_probability == pytest.approx(expected(family, generation), rel=1e-4, abs=1e-3)
    unasked = engine.generate_together([replace(r, log_probability=False) for r in requests], Vanilla())
    assert [g.log_probability for g in unasked] == [None] * 5
    assert [g.token_ids for g in unasked] == [g.token_ids for g in together]
