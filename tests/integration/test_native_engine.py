"""The native engine on real weights: the default model, with its own first layers as the draft, and planted trees."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from joulewise.decoding import CoGA, DyGA, PromptLookup, Vanilla
from joulewise.decoding.spec import Decoding
from joulewise.engines.default_model import default_model_folder
from joulewise.engines.engine import EngineInfo, Message, Request, Sampling
from joulewise.engines.native import NativeEngine
from joulewise.engines.native.accept import Chooser, match
from joulewise.engines.native.loop import decode
from joulewise.engines.spec import NativeSpec, TransformersSpec
from joulewise.engines.transformers import TransformersEngine
from joulewise.engines.transformers.prompts import encode
from joulewise.errors import EnvironmentFault
from random_trees import PlantedTrees

pytestmark = pytest.mark.model

PROMPT = "Repeat exactly: one two three, one two three."
NEW = 10
DECODINGS: list[Decoding] = [
    CoGA(tokens=4),
    DyGA(tokens=2),
    DyGA(tokens=8, rule="confidence", threshold=0.4),
    PromptLookup(tokens=3),
]


@pytest.fixture(scope="module")
def opened() -> Iterator[tuple[NativeEngine, EngineInfo]]:
    try:
        default_model_folder()
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine more of them wait for each other
    engine = NativeEngine(NativeSpec(draft="first-layers:26", dtype="float32", device="cpu"))
    yield engine, engine.load([Vanilla(), *DECODINGS])
    engine.close()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def library(opened: tuple[NativeEngine, EngineInfo]) -> tuple[int, ...]:
    """What Transformers' own loop writes, some tokens more than are asked for."""
    engine = TransformersEngine(TransformersSpec(dtype="float32", device="cpu"))
    engine.load([])
    tokens = engine.generate(Request((Message("user", PROMPT),), NEW + 8, ignore_eos=True), Vanilla()).token_ids
    engine.close()
    return tokens


def test_info(opened: tuple[NativeEngine, EngineInfo]) -> None:
    _, info = opened
    assert (info.engine, info.model, info.model_class) == ("native", "default", "LlamaForCausalLM")
    assert (info.dtype, info.devices, info.context_length) == ("float32", ("cpu",), 8192)
    assert any("Q4_1" in note for note in info.notes)
    assert set(info.drafts) == {d.label for d in DECODINGS if d.needs_draft}


def test_every_decoding_writes_what_the_library_writes(
    opened: tuple[NativeEngine, EngineInfo], library: tuple[int, ...]
) -> None:
    engine, _ = opened
    request = Request((Message("user", PROMPT),), NEW, ignore_eos=True)
    vanilla = engine.generate(request, Vanilla())
    assert vanilla.token_ids == library[:NEW]
    accepted = 0
    for decoding in DECODINGS:
        generation = engine.generate(request, decoding)
        assert generation.token_ids == vanilla.token_ids, decoding.label
        assert generation.text == vanilla.text
        emitted = 1 + generation.accepted + len(generation.rounds)
        assert emitted == generation.output_tokens + generation.wasted_tokens
        accepted += generation.accepted
    assert accepted > 0


def test_the_answer_ends_at_the_end_token(opened: tuple[NativeEngine, EngineInfo]) -> None:
    engine, _ = opened
    request = Request((Message("user", "What is the capital of France?"),), 30)
    vanilla = engine.generate(request, Vanilla())
    assert vanilla.finish_reason == "eos"
    assert "Paris" in vanilla.text
    assert "<|im_end|>" not in vanilla.text
    drafted = engine.generate(request, CoGA(tokens=4))
    assert (drafted.token_ids, drafted.finish_reason) == (vanilla.token_ids, "eos")


@pytest.mark.parametrize("seed", range(2))
def test_planted_trees(opened: tuple[NativeEngine, EngineInfo], library: tuple[int, ...], seed: int) -> None:
    """Random trees with what the library writes on a random path: masks, positions and compaction at the true size."""
    engine, _ = opened
    target = engine._ready(Vanilla()).target
    prompt = encode(target.loaded, [Message("user", PROMPT)])[0]
    drafter = PlantedTrees(library, target.loaded.vocabulary_rows, random.Random(seed), 16, 0.7)
    with torch.inference_mode():
        decoded = decode(target, drafter, prompt, NEW, (), match, Chooser(Sampling()))
    assert decoded.tokens == library[:NEW]
    assert [r.accepted for r in decoded.rounds[:-1]] == drafter.planted[:-1]
    assert sum(drafter.planted) > 0


def test_sampling_with_a_draft(opened: tuple[NativeEngine, EngineInfo]) -> None:
    engine, _ = opened
    sampling = Sampling(temperature=0.8, top_p=0.9)
    request = Request((Message("user", PROMPT),), 6, sampling=sampling, seed=5)
    first, second = (engine.generate(request, CoGA(tokens=4)) for _ in range(2))
    assert first.token_ids == second.token_ids
    assert engine.check_lossless(request, CoGA(tokens=4), first.token_ids, second.token_ids).status == "not_checked"


def test_half_precision_is_not_taken_for_a_wrong_model() -> None:
    """Over its special tokens the model in bfloat16 is off by four times its spread, though nothing is wrong."""
    engine = NativeEngine(NativeSpec(dtype="bfloat16", device="cpu"))
    assert engine.load([Vanilla()]).dtype == "bfloat16"
    engine.close()
