"""Quantised targets in the native engine, on a CPU with tiny random weights."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import tiny_models
from joulewise.decoding import CoGA, Eagle2, PromptLookup, Vanilla
from joulewise.decoding.spec import Decoding
from joulewise.engines.engine import Message, Request
from joulewise.engines.native import NativeEngine
from joulewise.engines.spec import NativeSpec

pytestmark = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="the extra `bitsandbytes` is not installed")

PROMPTS = ("prompt 0", "prompt 1", "prompt 2")


def ask(text: str, new: int = 24) -> Request:
    return Request((Message("user", text),), new, ignore_eos=True)


def open_(model: str, *decodings: Decoding, **spec: Any) -> NativeEngine:
    engine = NativeEngine(NativeSpec(model=model, device="cpu", **spec))
    info = engine.load([Vanilla(), *decodings])
    assert info.quantisation == spec["quantisation"]
    return engine


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    model = tiny_models.build("llama")
    for layer in model.model.layers:  # some activations are outliers to int8, some are not
        layer.input_layernorm.weight.data *= 3.0
    folder = tmp_path_factory.mktemp("models")
    draft = tiny_models.noisy(model, 0.3)
    return tiny_models.save(folder / "target", model), tiny_models.save(folder / "draft", draft)


@pytest.mark.parametrize("how", ["nf4", "int8"])
def test_no_output_is_called_different(folders: tuple[str, str], how: str) -> None:
    target, draft = folders
    decodings = [CoGA(tokens=4, draft=draft), PromptLookup(tokens=4)]
    engine = open_(target, *decodings, quantisation=how)
    statuses = set()
    for prompt in PROMPTS:
        vanilla = engine.generate(ask(prompt), Vanilla())
        for decoding in decodings:
            generation = engine.generate(ask(prompt), decoding)
            verdict = engine.check_lossless(ask(prompt), decoding, vanilla.token_ids, generation.token_ids)
            statuses.add(verdict.status)
    assert statuses <= {"identical", "tie"}
    if how == "int8":
        assert "tie" in statuses  # else this model and these prompts test nothing


@pytest.mark.parametrize("how", ["nf4", "int8"])
def test_a_wrong_token_is_called_different(folders: tuple[str, str], how: str) -> None:
    engine = open_(folders[0], PromptLookup(tokens=4), quantisation=how)
    tokens = list(engine.generate(ask(PROMPTS[0]), Vanilla()).token_ids)
    wrong = [*tokens[:5], (tokens[5] + 1) % tiny_models.ROWS, *tokens[6:]]
    assert engine.check_lossless(ask(PROMPTS[0]), PromptLookup(tokens=4), tokens, wrong).status == "different"


def test_an_int8_tree_is_judged_by_its_own_forwards(folders: tuple[str, str]) -> None:
    by_merit = Eagle2(head="random", nodes=6, depth=2, top_k=3)
    engine = open_(folders[0], Eagle2(head="random", synthetic_acceptance=0.5), quantisation="int8")
    engine.refuses = lambda _: None  # type: ignore[method-assign]
    statuses = set()
    for prompt in PROMPTS:
        vanilla = engine.generate(ask(prompt), Vanilla()).token_ids
        tokens = engine.generate(ask(prompt), by_merit).token_ids
        statuses.add(engine.check_lossless(ask(prompt), by_merit, vanilla, tokens).status)
        wrong = [tokens[0], tokens[1] ^ 1, *tokens[2:]]
        assert engine.check_lossless(ask(prompt), by_merit, tokens, wrong).status == "different"
    assert statuses == {"tie"}  # each forward's rejected tokens moved the logits


def test_the_target_s_first_layers_draft_as_they_are_quantised(folders: tuple[str, str], tmp_path: Path) -> None:
    engine = open_(folders[0], CoGA(tokens=3, draft=f"first-layers:{tiny_models.LAYERS}"), quantisation="nf4")
    generation = engine.generate(ask(PROMPTS[0]), CoGA(tokens=3, draft=f"first-layers:{tiny_models.LAYERS}"))
    assert generation.accepted > 0.8 * generation.drafted
