"""Batches of a sweep on a GPU: all that they need is captured before they run."""

from __future__ import annotations

import pytest
import torch

from joulewise.decoding import Vanilla
from joulewise.engines.native import NativeEngine
from joulewise.engines.native import together as together_module
from joulewise.engines.native.ahead import Ahead
from joulewise.engines.native.session import BUCKET, Captured
from joulewise.engines.spec import NativeSpec

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]


@pytest.mark.parametrize("running", [1, 3])
def test_what_a_batch_needs_is_captured_before_it_runs(
    folders: tuple[str, str], running: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = NativeEngine(NativeSpec(model=folders[0]))
    engine.load([Vanilla()])
    try:
        run = engine.given(3 * BUCKET).batch(running, BUCKET - 5, BUCKET + 20)

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("captured within the window")

        monkeypatch.setattr(together_module, "Recorded", refuse)
        monkeypatch.setattr(Ahead, "_captured", refuse)
        monkeypatch.setattr(Captured, "_try_to_capture", refuse)
        made = run()
        again = run()
    finally:
        engine.close()
    assert [(g.prompt_tokens, g.output_tokens) for g in made] == [(BUCKET - 5, BUCKET + 20)] * running
    assert [g.token_ids for g in made] == [g.token_ids for g in again]
