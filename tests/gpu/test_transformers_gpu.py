"""The engine on a GPU: low precision, finished work, several GPUs, no memory left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch

import tiny_models
from joulewise.decoding import CoGA, DyGA, PromptLookup, Vanilla
from joulewise.decoding.spec import Decoding
from joulewise.engines.engine import EngineInfo, Message, Request, Sampling
from joulewise.engines.spec import TransformersSpec
from joulewise.engines.transformers import TransformersEngine
from joulewise.errors import EnvironmentFault

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]

NEW = 96
DECODINGS: list[Decoding] = [CoGA(tokens=5), DyGA(tokens=8), PromptLookup(tokens=10)]


@pytest.fixture(scope="module")
def opened(folders: tuple[str, str]) -> Iterator[tuple[TransformersEngine, EngineInfo]]:
    engine = TransformersEngine(TransformersSpec(model=folders[0], draft=folders[1]))
    yield engine, engine.load(DECODINGS)
    engine.close()


def ask(text: str, new: int = NEW) -> Request:
    return Request((Message("user", text),), new, ignore_eos=True)


def test_auto_is_bfloat16_on_the_gpu(opened: tuple[TransformersEngine, EngineInfo]) -> None:
    _, info = opened
    assert (info.dtype, info.devices) == ("bfloat16", ("cuda:0",))
    assert info.versions["cuda"]


def test_a_difference_in_low_precision_is_a_tie(opened: tuple[TransformersEngine, EngineInfo]) -> None:
    engine, _ = opened
    statuses: Counter[str] = Counter()
    for number in (10, 12):
        request = ask(f"prompt {number}")
        vanilla = engine.generate(request, Vanilla())
        for decoding in DECODINGS:
            generation = engine.generate(request, decoding)
            check = engine.check_lossless(request, decoding, vanilla.token_ids, generation.token_ids)
            print(decoding.label, check)
            statuses[check.status] += 1
    print(statuses)
    assert statuses["different"] == 0
    assert statuses["tie"] > 0  # else this model and these prompts test nothing


def test_a_wrong_token_is_no_tie(opened: tuple[TransformersEngine, EngineInfo]) -> None:
    engine, _ = opened
    request = ask("prompt")
    tokens = list(engine.generate(request, Vanilla()).token_ids)
    wrong = [*tokens[:20], (tokens[20] + 1) % tiny_models.ROWS, *tokens[21:]]
    assert engine.check_lossless(request, DECODINGS[0], tokens, wrong).status == "different"


def test_the_device_is_done_when_generate_returns(opened: tuple[TransformersEngine, EngineInfo]) -> None:
    engine, _ = opened
    for decoding in [Vanilla(), *DECODINGS]:
        engine.generate(ask("prompt", 8), decoding)
        assert torch.cuda.current_stream().query(), decoding.label


def test_sampling_leaves_the_gpus_random_state_alone(opened: tuple[TransformersEngine, EngineInfo]) -> None:
    engine, _ = opened
    state = torch.cuda.get_rng_state()
    request = Request((Message("user", "prompt"),), 16, True, Sampling(temperature=1.0), seed=3)
    for decoding in [Vanilla(), *DECODINGS]:
        first, second = (engine.generate(request, decoding).token_ids for _ in range(2))
        assert first == second, decoding.label
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_no_memory_left_is_one_sentence(opened: tuple[TransformersEngine, EngineInfo]) -> None:
    engine, _ = opened
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**20) / total)
    try:
        with pytest.raises(EnvironmentFault, match=r"No memory is left on cuda:0 for .* new tokens"):
            engine.generate(ask("a" * 1500, 256), Vanilla())
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert engine.generate(ask("prompt", 4), Vanilla()).output_tokens == 4


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_model_over_two_gpus(folders: tuple[str, str]) -> None:
    single = TransformersEngine(TransformersSpec(model=folders[0], dtype="float32", device="cuda:0"))
    single.load([])
    expected = single.generate(ask("prompt", 16), Vanilla()).token_ids
    single.close()
    decodings: list[Decoding] = [
        CoGA(tokens=4, draft=folders[1]),
        CoGA(tokens=4, draft="first-layers:3"),
        PromptLookup(tokens=4),
    ]
    spread = TransformersEngine(TransformersSpec(model=folders[0], dtype="float32", device="balanced"))
    info = spread.load(decodings)
    assert info.devices == ("cuda:0", "cuda:1")
    for decoding in [Vanilla(), *decodings]:
        assert spread.generate(ask("prompt", 16), decoding).token_ids == expected, decoding.label
        assert all(torch.cuda.current_stream(n).query() for n in range(2))
    spread.close()


def test_a_gpu_by_its_number(folders: tuple[str, str]) -> None:
    last = torch.cuda.device_count() - 1
    engine = TransformersEngine(TransformersSpec(model=folders[0], device=f"cuda:{last}"))
    assert engine.load([]).devices == (f"cuda:{last}",)
    assert engine.generate(ask("prompt", 4), Vanilla()).output_tokens == 4
    engine.close()
