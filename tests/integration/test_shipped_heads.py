"""The draft and heads that come with Joulewise, on the model that they were trained for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from joulewise.decoding import CoGA, DyGA, Eagle2, Eagle3, Medusa, Vanilla
from joulewise.decoding.spec import Decoding
from joulewise.engines.default_model import default_model_folder
from joulewise.engines.engine import EngineInfo, Generation, Message, Request, Sampling
from joulewise.engines.native import NativeEngine
from joulewise.engines.native.accept import Chooser, match
from joulewise.engines.native.drafters import Parts, make_drafter
from joulewise.engines.native.heads.synthetic import random_eagle2, random_eagle3, random_medusa
from joulewise.engines.native.loop import decode
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.shipped import shipped_folder
from joulewise.engines.spec import NativeSpec, TransformersSpec
from joulewise.engines.transformers import TransformersEngine
from joulewise.engines.transformers.drafts import open_draft
from joulewise.engines.transformers.prompts import encode
from joulewise.errors import EnvironmentFault

pytestmark = pytest.mark.model

PROMPT = "Tom has 3 boxes with 12 pencils each. He gives away 7. How many pencils are left?"
REQUEST = Request((Message("user", PROMPT),), 24, ignore_eos=True)
COGA = CoGA(tokens=3)
MEDUSA = Medusa(tree=((0,), (1,), (0, 0), (0, 1), (0, 0, 0)))
EAGLE2_TREE = Eagle2(nodes=8, depth=2, top_k=3)
EAGLE3_TREE = Eagle3(nodes=8, depth=2, top_k=3)
EAGLE3_CHAIN = Eagle3(nodes=4, depth=2, top_k=1)
DECODINGS: tuple[Decoding, ...] = (COGA, DyGA(tokens=3), MEDUSA, EAGLE2_TREE, EAGLE3_TREE, EAGLE3_CHAIN)


@pytest.fixture(scope="module")
def opened() -> Iterator[tuple[NativeEngine, EngineInfo]]:
    try:
        default_model_folder()
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine more of them wait for each other
    engine = NativeEngine(NativeSpec(dtype="float32", device="cpu"))
    yield engine, engine.load([Vanilla(), *DECODINGS])
    engine.close()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def vanilla(opened: tuple[NativeEngine, EngineInfo]) -> Generation:
    return opened[0].generate(REQUEST, Vanilla())


def test_the_results_say_what_drafted(opened: tuple[NativeEngine, EngineInfo]) -> None:
    drafts = opened[1].drafts
    for decoding in DECODINGS:
        kind = "draft" if decoding.needs_draft else decoding.kind
        note = drafts[decoding.label]
        assert note.startswith(f"shipped:{kind}, "), decoding.label
        folder = shipped_folder(f"shipped:{kind}")
        assert folder is not None
        trained = json.loads((folder / "recipe.json").read_bytes())["parameters_trained"]
        assert f" {trained:,} parameters" in note  # what the target lends is not counted


@pytest.mark.parametrize("decoding", DECODINGS, ids=lambda decoding: decoding.label)
def test_each_writes_what_vanilla_writes_in_fewer_rounds(
    opened: tuple[NativeEngine, EngineInfo], vanilla: Generation, decoding: Decoding
) -> None:
    generation = opened[0].generate(REQUEST, decoding)
    assert generation.token_ids == vanilla.token_ids
    assert generation.accepted > accepted_untrained(opened[0], decoding) + 2


def accepted_untrained(engine: NativeEngine, decoding: Decoding) -> int:
    """Of the same drafts by what was there before the training."""
    assert engine._loaded is not None
    target = engine._loaded.target
    fresh: dict[str, Any] = {"medusa": random_medusa, "eagle2": random_eagle2, "eagle3": random_eagle3}
    draft = DecoderModel(open_draft("first-layers:2", target.loaded).loaded) if decoding.needs_draft else None
    head = fresh[decoding.kind](target) if decoding.needs_head else None
    chooser = Chooser.of(Sampling(), 0, target.device)
    with torch.inference_mode():
        drafter = make_drafter(decoding, Parts(target, draft, head, chooser, ()))
        prompt = encode(target.loaded, REQUEST.messages)[0]
        decoded = decode(target, drafter, prompt, REQUEST.max_new_tokens, (), match, chooser)
    return sum(round_.accepted for round_ in decoded.rounds)


def test_the_library_drafts_with_the_shipped_draft_too(
    opened: tuple[NativeEngine, EngineInfo], vanilla: Generation
) -> None:
    engine = TransformersEngine(TransformersSpec(dtype="float32", device="cpu"))
    info = engine.load([COGA])
    generation = engine.generate(REQUEST, COGA)
    engine.close()
    assert info.drafts[COGA.label].startswith("shipped:draft, 7,080,768 parameters beside")
    assert generation.token_ids == vanilla.token_ids
    assert generation.accepted > 2
