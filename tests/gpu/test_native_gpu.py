"""The native engine on a GPU: captured forwards in low precision, phases by the device's clock, finished work."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator

import pytest
import torch

import tiny_models
from joulewise.decoding import CoGA, DyGA, PromptLookup, Vanilla
from joulewise.decoding.spec import Decoding
from joulewise.engines.engine import PHASES, EngineInfo, Message, Request, Sampling
from joulewise.engines.native import NativeEngine
from joulewise.engines.native.accept import Chooser, match
from joulewise.engines.native.loop import decode
from joulewise.engines.native.tree import Tree
from joulewise.engines.spec import NativeSpec, TransformersSpec
from joulewise.engines.transformers import TransformersEngine
from joulewise.errors import EnvironmentFault
from random_trees import PlantedTrees

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]

NEW = 96
CHAINS: list[Decoding] = [CoGA(tokens=k) for k in (1, 2, 5, 8)]
DECODINGS: list[Decoding] = [
    *CHAINS,
    DyGA(tokens=4),
    DyGA(tokens=8, rule="confidence", threshold=0.3),
    PromptLookup(tokens=10),
]


@pytest.fixture(scope="module")
def opened(folders: tuple[str, str]) -> Iterator[tuple[NativeEngine, EngineInfo]]:
    engine = NativeEngine(NativeSpec(model=folders[0], draft=folders[1]))
    yield engine, engine.load(DECODINGS)
    engine.close()


@pytest.fixture(scope="module")
def exact(folders: tuple[str, str]) -> Iterator[NativeEngine]:
    engine = NativeEngine(NativeSpec(model=folders[0], draft=folders[1], dtype="float32"))
    engine.load(DECODINGS)
    yield engine
    engine.close()


def ask(text: str, new: int = NEW, sampling: Sampling = Sampling()) -> Request:  # noqa: B008
    return Request((Message("user", text),), new, True, sampling, seed=3)


def test_auto_is_bfloat16_on_the_gpu(opened: tuple[NativeEngine, EngineInfo]) -> None:
    _, info = opened
    assert (info.engine, info.dtype, info.devices) == ("native", "bfloat16", ("cuda:0",))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_output_by_rule_4(
    opened: tuple[NativeEngine, EngineInfo], exact: NativeEngine, folders: tuple[str, str], dtype: str
) -> None:
    """Identical in float32, and to the library's own loop; in bfloat16 a difference is a tie that vanilla shows too."""
    engine = exact if dtype == "float32" else opened[0]
    for number in (10, 12):
        request = ask(f"prompt {number}")
        vanilla = engine.generate(request, Vanilla())
        for decoding in DECODINGS:
            generation = engine.generate(request, decoding)
            check = engine.check_lossless(request, decoding, vanilla.token_ids, generation.token_ids)
            print(decoding.label, check)
            assert check.status in (("identical",) if dtype == "float32" else ("identical", "tie")), decoding.label
            assert 1 + len(generation.rounds) + generation.accepted == NEW + generation.wasted_tokens
    if dtype == "float32":
        library = TransformersEngine(TransformersSpec(model=folders[0], dtype="float32"))
        library.load([])
        assert (
            library.generate(ask("prompt 10"), Vanilla()).token_ids
            == exact.generate(ask("prompt 10"), Vanilla()).token_ids
        )
        library.close()


def test_several_texts_at_once_are_what_each_is_alone(exact: NativeEngine) -> None:
    """Captured, over lengths of several buckets, twice: the second time on what was captured for the first."""
    requests = [ask("ab" * n, new) for n, new in ((3, NEW), (150, 40), (40, 17), (1, NEW))]
    for decoding in (Vanilla(), CoGA(tokens=5), DyGA(tokens=4), PromptLookup(tokens=10)):
        for _ in range(2):
            together = exact.generate_together(requests, decoding)
            for found, request in zip(together, requests, strict=True):
                assert found.token_ids == exact.generate(request, decoding).token_ids, decoding.label


def test_a_wrong_token_is_no_tie(opened: tuple[NativeEngine, EngineInfo]) -> None:
    engine, _ = opened
    tokens = list(engine.generate(ask("prompt"), Vanilla()).token_ids)
    wrong = [*tokens[:20], (tokens[20] + 1) % tiny_models.ROWS, *tokens[21:]]
    assert engine.check_lossless(ask("prompt"), DECODINGS[0], tokens, wrong).status == "different"


@pytest.mark.parametrize("seed", range(4))
def test_planted_trees(exact: NativeEngine, seed: int) -> None:
    """Captured tree forwards and the compaction between them, in float32; texts cross from one bucket into the next."""
    target = exact._ready(Vanilla()).target
    truth = exact.generate(ask("a" * 200, NEW + 40), Vanilla()).token_ids
    prompt = torch.tensor(target.loaded.tokenizer("a" * 200)["input_ids"], device=target.device)
    planted = PlantedTrees(truth, tiny_models.ROWS, random.Random(seed), 30, 0.6)

    class OnTheGpu:
        most_nodes = planted.most_nodes
        reset, observe = planted.reset, planted.observe

        def propose(self, room: int):  # type: ignore[no-untyped-def]
            draft = planted.propose(room)
            tree = Tree.of(draft.tree.parents.to(target.device), draft.tree.height)
            return type(draft)(draft.tokens.to(target.device), tree)

    with torch.inference_mode():
        decoded = decode(target, OnTheGpu(), prompt, NEW, (), match, Chooser(Sampling()))
    assert decoded.tokens == truth[:NEW]
    assert [r.accepted for r in decoded.rounds[:-1]] == planted.planted[:-1]


def test_phases_by_events_fill_the_generation(opened: tuple[NativeEngine, EngineInfo]) -> None:
    engine, _ = opened
    for decoding in [Vanilla(), CoGA(tokens=5), PromptLookup(tokens=10)]:
        engine.generate(ask("prompt"), decoding)  # captures
        generation = engine.generate(ask("prompt"), decoding)
        assert torch.cuda.current_stream().query(), decoding.label  # the device is done
        assert generation.phases_s is not None
        assert set(generation.phases_s) <= set(PHASES)
        seconds = generation.end_s - generation.start_s
        assert sum(generation.phases_s.values()) == pytest.approx(seconds, rel=0.05, abs=1e-3)
        assert generation.phases_s["verify"] > 0


def test_what_was_captured_changes_nothing(opened: tuple[NativeEngine, EngineInfo]) -> None:
    """Prompts of all lengths in any order, on caches and graphs that are kept; the GPU's random state is left alone."""
    engine, _ = opened
    state = torch.cuda.get_rng_state()
    hot = Sampling(temperature=1.0)
    requests = [ask("ab" * n, 24, sampling) for n in (3, 150, 40) for sampling in (Sampling(), hot)]
    calls = [(request, decoding) for request in requests for decoding in [Vanilla(), CoGA(tokens=5), DyGA(tokens=4)]]
    first = [engine.generate(*call) for call in calls]
    again = [engine.generate(*call) for call in reversed(calls)][::-1]
    assert [(g.token_ids, g.rounds) for g in first] == [(g.token_ids, g.rounds) for g in again]
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_no_memory_left_is_one_sentence(opened: tuple[NativeEngine, EngineInfo]) -> None:
    engine, _ = opened
    total = torch.cuda.get_device_properties(0).total_memory
    engine._ready(Vanilla()).target.rows.clear()  # so that the cache must be made anew
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**20) / total)
    try:
        with pytest.raises(EnvironmentFault, match=r"No memory is left on cuda:0 for .* new tokens"):
            engine.generate(ask("a" * 1500, 256), Vanilla())
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert engine.generate(ask("prompt", 4), Vanilla()).output_tokens == 4


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one NVIDIA GPU")
def test_the_second_gpu_gives_what_the_first_does(exact: NativeEngine, folders: tuple[str, str]) -> None:
    second = NativeEngine(NativeSpec(model=folders[0], draft=folders[1], dtype="float32", device="cuda:1"))
    decodings = (Vanilla(), CoGA(tokens=5), PromptLookup(tokens=10))
    assert second.load(decodings).devices == ("cuda:1",)
    try:
        found = [second.generate(ask("prompt"), decoding).token_ids for decoding in decodings]
    finally:
        second.close()
        torch.cuda.set_device(0)
    assert found == [exact.generate(ask("prompt"), decoding).token_ids for decoding in decodings]
