"""An output as it was after some of its tokens, told by both engines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tiny_models
from joulewise.decoding import CoGA, Vanilla
from joulewise.engines.engine import Message, Request, Sampling
from joulewise.engines.native import NativeEngine
from joulewise.engines.spec import NativeSpec, TransformersSpec
from joulewise.engines.transformers import TransformersEngine


@pytest.mark.parametrize("kind", ["native", "transformers"])
def test_the_text_so_far_and_when_it_was_there(kind: str, tmp_path: Path) -> None:
    model = tiny_models.build("llama")
    name = tiny_models.save(tmp_path / "target", model)
    draft = tiny_models.save(tmp_path / "draft", tiny_models.noisy(model))
    engine: NativeEngine | TransformersEngine
    if kind == "native":
        engine = NativeEngine(NativeSpec(model=name, draft=draft, device="cpu"))
    else:
        engine = TransformersEngine(TransformersSpec(model=name, draft=draft, device="cpu"))
    engine.load([Vanilla(), CoGA(tokens=3)])
    ask = Request((Message("user", "go on"),), 20, ignore_eos=True, cuts=(1, 5, 12, 20, 30))
    made = [engine.generate(ask, decoding) for decoding in (Vanilla(), CoGA(tokens=3))]
    made += engine.generate_together([ask, ask], Vanilla())
    sampled = replace(ask, sampling=Sampling(1.0))
    made += [engine.generate(sampled, Vanilla()), *engine.generate_together([sampled] * 2, Vanilla())]
    for generation in made:
        assert [cut.tokens for cut in generation.cuts] == [1, 5, 12]  # there is nothing after the end
        for cut in generation.cuts:
            assert generation.text.startswith(cut.text)
            assert len(cut.text) <= cut.tokens
        assert generation.cuts[-1].text
        if kind == "transformers" and generation.rounds:  # a forward may give several tokens
            assert {cut.time_s for cut in generation.cuts} == {None}
            continue
        times = [generation.first_token_s, *(cut.time_s for cut in generation.cuts), generation.end_s]
        assert times == sorted(times)
        if kind == "native":
            assert generation.cuts[0].time_s == generation.first_token_s
    assert engine.generate(replace(ask, cuts=()), Vanilla()).cuts == ()
