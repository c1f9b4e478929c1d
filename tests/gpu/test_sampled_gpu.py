"""Samples side by side on a GPU: captured steps, each text from its own seed as it would be alone."""

from __future__ import annotations

import pytest
import torch

from joulewise.decoding import Vanilla
from joulewise.engines.engine import Message, Request, Sampling
from joulewise.engines.native import NativeEngine
from joulewise.engines.spec import NativeSpec, TransformersSpec
from joulewise.engines.transformers import TransformersEngine

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]


@pytest.mark.parametrize("kind", ["native", "transformers"])
def test_a_batch_of_samples_is_what_each_is_alone(folders: tuple[str, str], kind: str) -> None:
    engine: NativeEngine | TransformersEngine
    if kind == "native":
        engine = NativeEngine(NativeSpec(model=folders[0], dtype="float32"))
    else:
        engine = TransformersEngine(TransformersSpec(model=folders[0], dtype="float32"))
    engine.load([Vanilla()])
    try:
        turn = (Message("user", "how many, then?"),)
        requests = [
            Request(turn, 48, sampling=Sampling(0.8, 0.95), seed=seed, log_probability=True) for seed in range(5)
        ]
        alone = [engine.generate(request, Vanilla()) for request in requests]
        batches = [engine.generate_together(requests[:n], Vanilla()) for n in (5, 3, 5)]
    finally:
        engine.close()
    for batch in batches:
        assert [g.token_ids for g in batch] == [g.token_ids for g in alone[: len(batch)]]
        for one, other in zip(batch, alone, strict=False):
            assert one.log_probability == pytest.approx(other.log_probability, abs=0.05)
    assert len({g.token_ids for g in alone}) == 5
