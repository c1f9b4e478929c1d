"""The engine on real weights: the default model, with its own first layers as the draft."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from joulewise.decoding import CoGA, DyGA, PromptLookup, Vanilla
from joulewise.decoding.spec import Decoding
from joulewise.engines import open_engine
from joulewise.engines.default_model import default_model_folder
from joulewise.engines.engine import Engine, EngineInfo, Message, Request, Sampling
from joulewise.engines.spec import Quantisation, TransformersSpec
from joulewise.errors import EnvironmentFault

pytestmark = pytest.mark.model

PROMPTS = (
    "Repeat exactly: one two three, one two three, one two three.",
    "What is the capital of France?",
    "A farmer has 12 hens and buys 30 more. How many hens does he have?",
)
DECODINGS: list[Decoding] = [
    CoGA(tokens=4),
    DyGA(tokens=5),
    DyGA(tokens=8, rule="confidence", threshold=0.4),
    PromptLookup(tokens=3),
]


@pytest.fixture(scope="module")
def opened() -> Iterator[tuple[Engine, EngineInfo]]:
    try:
        default_model_folder()
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    engine = open_engine(TransformersSpec(draft="first-layers:26", dtype="float32", device="cpu"))
    yield engine, engine.load([Vanilla(), *DECODINGS])
    engine.close()


def test_info(opened: tuple[Engine, EngineInfo]) -> None:
    _, info = opened
    assert (info.model, info.model_class, info.parameters) == ("default", "LlamaForCausalLM", 134_515_008)
    assert (info.dtype, info.devices, info.context_length) == ("float32", ("cpu",), 8192)
    assert any("Q4_1" in note for note in info.notes)
    assert set(info.drafts) == {"coga-4", "dyga-5", "dyga-8-confidence-0.4"}
    assert "correctness fixture" in info.drafts["coga-4"]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_every_decoding_writes_what_vanilla_writes(opened: tuple[Engine, EngineInfo], prompt: str) -> None:
    engine, _ = opened
    request = Request((Message("user", prompt),), 12)
    vanilla = engine.generate(request, Vanilla())
    assert vanilla.text.strip()
    for decoding in DECODINGS:
        generation = engine.generate(request, decoding)
        check = engine.check_lossless(request, decoding, vanilla.token_ids, generation.token_ids)
        assert check.status == "identical", decoding.label
        assert generation.text == vanilla.text
        assert generation.accepted + len(generation.rounds) == generation.output_tokens + generation.wasted_tokens
        assert generation.first_token_s is not None
        assert generation.start_s < generation.first_token_s <= generation.end_s


def test_the_answer_ends_at_the_end_token(opened: tuple[Engine, EngineInfo]) -> None:
    engine, _ = opened
    request = Request((Message("user", "What is the capital of France?"),), 40)
    answer = engine.generate(request, Vanilla())
    assert answer.finish_reason == "eos"
    assert "Paris" in answer.text
    assert "<|im_end|>" not in answer.text
    fixed = engine.generate(Request(request.messages, answer.output_tokens + 3, ignore_eos=True), Vanilla())
    assert fixed.finish_reason == "length"
    assert fixed.token_ids[: answer.output_tokens] == answer.token_ids
    assert fixed.output_tokens == answer.output_tokens + 3


def test_sampling_with_a_draft(opened: tuple[Engine, EngineInfo]) -> None:
    engine, _ = opened
    request = Request((Message("user", PROMPTS[1]),), 8, sampling=Sampling(temperature=0.8, top_p=0.9), seed=5)
    first, second = (engine.generate(request, CoGA(tokens=4)) for _ in range(2))
    assert first.token_ids == second.token_ids
    assert engine.check_lossless(request, CoGA(tokens=4), first.token_ids, second.token_ids).status == "not_checked"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="the extra `bitsandbytes` is not installed")
@pytest.mark.parametrize("how", ["nf4", "int8"])
@pytest.mark.usefixtures("opened")
def test_quantised(how: Quantisation) -> None:
    decoding = CoGA(tokens=2, draft="first-layers:26")
    engine = open_engine(TransformersSpec(dtype="bfloat16", device="cpu", quantisation=how))
    info = engine.load([decoding])
    assert (info.quantisation, info.dtype, info.parameters) == (how, "bfloat16", 134_515_008)
    assert f"quantised: {how} by bitsandbytes, as it was loaded; 106,168,320 of 134,515,008 weights" in info.notes
    request = Request((Message("user", PROMPTS[1]),), 8)
    vanilla = engine.generate(request, Vanilla())
    assert "Paris" in vanilla.text
    generation = engine.generate(request, decoding)
    assert generation.accepted > 0
    check = engine.check_lossless(request, decoding, vanilla.token_ids, generation.token_ids)
    assert check.status in ("identical", "tie"), check
    engine.close()
