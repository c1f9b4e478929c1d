"""Drafts of another tokenizer, of another width, and drafts that cannot be matched."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

import tiny_heads
import tiny_models
from joulewise.decoding import CoGA, DyGA, Vanilla
from joulewise.engines.engine import Message, Request, Sampling
from joulewise.engines.spec import TransformersSpec
from joulewise.engines.transformers import TransformersEngine
from joulewise.errors import UserError

GREEDY = Sampling()
PROMPT = "What is 17 and 25?"
SHUFFLED = "".join(random.Random(3).sample(tiny_models.ALPHABET, len(tiny_models.ALPHABET)))
DECODINGS = [CoGA(tokens=4), DyGA(tokens=3), DyGA(tokens=6, rule="confidence", threshold=0.2)]


def ask(sampling: Sampling = GREEDY) -> Request:
    return Request((Message("user", PROMPT),), 16, True, sampling)


def engine_of(target: str, draft: str) -> tuple[TransformersEngine, str]:
    engine = TransformersEngine(TransformersSpec(model=target, draft=draft, device="cpu"))
    info = engine.load(DECODINGS)
    return engine, info.drafts["coga-4"]


@pytest.mark.parametrize(("target_rows", "draft_rows"), [(80, 73), (73, 80)])
def test_padding_of_the_vocabulary_is_not_another_tokenizer(tmp_path: Path, target_rows: int, draft_rows: int) -> None:
    model = tiny_models.build("llama")
    model.generation_config.eos_token_id = None
    target = tiny_models.save(tmp_path / "target", tiny_models.with_rows(model, target_rows))
    draft = tiny_models.save(tmp_path / "draft", tiny_models.with_rows(model, draft_rows))
    engine, note = engine_of(target, draft)
    assert "tokenizer" not in note
    vanilla = engine.generate(ask(), Vanilla())
    for decoding in DECODINGS:
        generation = engine.generate(ask(), decoding)
        assert generation.token_ids == vanilla.token_ids
    # The draft is the target; only a token in rows that the draft lacks makes it err, and what comes after that.
    known = all(token < min(target_rows, draft_rows) for token in vanilla.token_ids)
    whole = engine.generate(ask(), DECODINGS[0])
    assert (whole.accepted == whole.drafted) == known
    sampled = [engine.generate(ask(Sampling(temperature=1.0)), DECODINGS[0]).token_ids for _ in range(2)]
    assert sampled[0] == sampled[1]
    assert len(sampled[0]) == 16


@pytest.mark.parametrize("rows", [tiny_models.ROWS, 72])
def test_a_draft_with_another_tokenizer_is_translated(tmp_path: Path, rows: int) -> None:
    """Also where chance gives both models equally many rows, by which the library would take them for one family."""
    model = tiny_models.build("llama")
    target = tiny_models.save(tmp_path / "target", model)
    other = tiny_models.with_rows(tiny_models.reordered(model, SHUFFLED), rows)
    draft = tiny_models.save(tmp_path / "draft", other, tiny_models.tokenizer(SHUFFLED))
    engine, note = engine_of(target, draft)
    assert "another tokenizer" in note
    vanilla = engine.generate(ask(), Vanilla())
    accepted = 0
    for decoding in DECODINGS:
        generation = engine.generate(ask(), decoding)
        assert generation.token_ids == vanilla.token_ids
        assert generation.wasted_tokens == 0
        assert generation.accepted + len(generation.rounds) == generation.output_tokens
        accepted += generation.accepted
    assert accepted > 0  # the draft is the target under other ids: without translation it would be right by chance only
    with pytest.raises(UserError, match="cannot sample"):
        engine.generate(ask(Sampling(temperature=1.0)), DECODINGS[0])


def test_a_tokenizer_that_cannot_write_the_text_is_refused_by_name(tmp_path: Path) -> None:
    model = tiny_models.build("llama")
    target = tiny_models.save(tmp_path / "target", model)
    draft = tiny_models.save(tmp_path / "draft", model, tiny_models.tokenizer("cba"))
    with pytest.raises(UserError) as caught:
        engine_of(target, draft)
    assert f"{draft} (" in str(caught.value)
    assert f"{target} (" in str(caught.value)
    assert "cannot be matched" in str(caught.value)


def test_encoder_decoder_pairs_must_share_a_tokenizer_and_a_kind(tmp_path: Path) -> None:
    t5, llama = tiny_models.build("t5"), tiny_models.build("llama")
    target = tiny_models.save(tmp_path / "t5", t5)
    shuffled = tiny_models.save(tmp_path / "shuffled", t5, tiny_models.tokenizer(SHUFFLED))
    causal = tiny_models.save(tmp_path / "llama", llama)
    with pytest.raises(UserError, match="must share one"):
        engine_of(target, shuffled)
    with pytest.raises(UserError, match="decoder-only"):
        engine_of(target, causal)
    with pytest.raises(UserError, match="is an encoder-decoder"):
        engine_of(causal, target)


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_first_layers_share_every_weight(tmp_path: Path, family: str) -> None:
    folder = tiny_models.save(tmp_path, tiny_models.build(family))
    engine, note = engine_of(folder, "first-layers:2")
    assert "first 2 of 3 layers" in note
    assert "correctness fixture" in note
    target, draft = engine._ready(DECODINGS[0])
    assert draft is not None
    theirs = {p.data_ptr() for p in target.model.parameters()}
    assert {p.data_ptr() for p in draft.loaded.model.parameters()} < theirs
    assert not any(t.is_meta for t in (*draft.loaded.model.parameters(), *draft.loaded.model.buffers()))
    assert draft.loaded.model.num_parameters() < target.model.num_parameters()
    with torch.inference_mode():
        assert draft.loaded.model.device == target.model.device


def test_more_layers_than_there_are(tmp_path: Path) -> None:
    folder = tiny_models.save(tmp_path, tiny_models.build("llama"))
    with pytest.raises(UserError, match="has 3 layers"):
        engine_of(folder, "first-layers:4")


def test_a_head_in_a_drafts_place_is_called_one(tmp_path: Path) -> None:
    target = tiny_models.save(tmp_path / "target", tiny_models.build("llama"))
    config = tiny_heads.CONFIG | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    for head, tensors, kind in (
        ("eagle", tiny_heads.eagle3(), r"a head of the family EAGLE-3.* kind: eagle3"),
        ("medusa", tiny_heads.medusa(2), r"a head of the family Medusa.* kind: medusa"),
    ):
        draft = tiny_heads.write(tmp_path / head, tensors, config)
        with pytest.raises(UserError, match=kind):
            engine_of(target, draft)
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    with pytest.raises(UserError, match="could not be loaded"):
        engine_of(target, str(nothing))
