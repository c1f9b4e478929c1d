"""Quantised models on a GPU: NF4 and int8 by bitsandbytes, on random and on real weights."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec

import pytest
import torch

from joulewise.decoding import CoGA, DyGA, PromptLookup, Vanilla
from joulewise.decoding.spec import Decoding
from joulewise.engines.default_model import default_model_folder
from joulewise.engines.engine import EngineInfo, Message, Request
from joulewise.engines.spec import Quantisation, TransformersSpec
from joulewise.engines.transformers import TransformersEngine
from joulewise.errors import EnvironmentFault

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
    pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="the extra `bitsandbytes` is not installed"),
]

DECODINGS: list[Decoding] = [CoGA(tokens=5), DyGA(tokens=8), PromptLookup(tokens=10)]
PROMPTS = (
    "What is the capital of France?",
    "A farmer has 12 hens and buys 30 more. How many hens does he have?",
    "Repeat exactly: one two three, one two three, one two three.",
    "Write a short story about a cat who learns to swim.",
)


def verdicts(spec: TransformersSpec, prompts: tuple[str, ...], new: int = 64) -> tuple[EngineInfo, Counter[str]]:
    """Every decoding against vanilla, on every prompt; prints what a reader of a failure needs."""
    engine = TransformersEngine(spec)
    info = engine.load(DECODINGS)
    print(f"\n{spec.label}: {info}")
    statuses: Counter[str] = Counter()
    try:
        for prompt in prompts:
            request = Request((Message("user", prompt),), new, ignore_eos=True)
            vanilla = engine.generate(request, Vanilla())
            for decoding in DECODINGS:
                generation = engine.generate(request, decoding)
                check = engine.check_lossless(request, decoding, vanilla.token_ids, generation.token_ids)
                accepted = f"{generation.accepted}/{generation.drafted} accepted"
                print(f"{prompt[:20]!r} {decoding.label}: {accepted}, {check}")
                statuses[check.status] += 1
    finally:
        engine.close()
    print(statuses)
    return info, statuses


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("how", ["nf4", "int8"])
def test_a_quantised_target_with_an_unquantised_draft(folders: tuple[str, str], how: Quantisation, dtype: str) -> None:
    spec = TransformersSpec(model=folders[0], draft=folders[1], quantisation=how, dtype=dtype)  # type: ignore[arg-type]
    info, statuses = verdicts(spec, ("prompt 10", "prompt 12"))
    assert (info.quantisation, info.dtype, info.devices) == (how, dtype, ("cuda:0",))
    assert statuses["different"] == 0


@pytest.mark.parametrize("how", ["nf4", "int8"])
def test_a_quantised_draft_of_an_unquantised_target(folders: tuple[str, str], how: Quantisation) -> None:
    spec = TransformersSpec(model=folders[0], draft=folders[0], draft_quantisation=how)
    info, statuses = verdicts(spec, ("prompt 10", "prompt 12"))
    assert info.quantisation is None
    assert f"quantised: {how} by bitsandbytes" in info.drafts["coga-5"]
    assert statuses["different"] == 0


def test_less_memory_is_held(folders: tuple[str, str]) -> None:
    held = {}
    how: Quantisation
    for how in ("none", "int8", "nf4"):
        engine = TransformersEngine(TransformersSpec(model=folders[0], quantisation=how))
        before = torch.cuda.memory_allocated()
        engine.load([])
        held[how] = torch.cuda.memory_allocated() - before
        engine.close()
        assert torch.cuda.memory_allocated() <= before + 2**20, how
    print(held)
    assert held["nf4"] < held["int8"] < held["none"]


@pytest.mark.model
@pytest.mark.parametrize("how", ["nf4", "int8"])
def test_the_default_model(how: Quantisation) -> None:
    try:
        default_model_folder()
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    info, statuses = verdicts(TransformersSpec(draft="first-layers:26", quantisation=how), PROMPTS)
    assert (info.quantisation, info.parameters) == (how, 134_515_008)
    assert statuses["different"] == 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("how", ["nf4", "int8"])
def test_a_quantised_model_over_two_gpus(folders: tuple[str, str], how: Quantisation) -> None:
    spec = TransformersSpec(model=folders[0], draft="first-layers:3", quantisation=how, device="balanced")
    info, statuses = verdicts(spec, ("prompt 10",))
    assert info.devices == ("cuda:0", "cuda:1")
    assert statuses["different"] == 0
