"""Batches of prompts of a given length, and a sweep of a tiny random model over them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import tiny_models
from joulewise import sweep
from joulewise.analysis.curve_points import run_points
from joulewise.analysis.design import Box
from joulewise.decoding import Vanilla
from joulewise.energy.meter import Meter
from joulewise.engines.native import NativeEngine
from joulewise.engines.native import given as given_module
from joulewise.engines.native.drafters.chains import NoChains
from joulewise.engines.native.given import Given
from joulewise.engines.native.given_up import give_up
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.session import BUCKET, uncaptured
from joulewise.engines.native.together import Rows, decode_together, prepare_rows
from joulewise.engines.spec import NativeSpec
from joulewise.engines.transformers.loading import make_neutral
from joulewise.errors import EnvironmentFault, UserError
from joulewise.ledger import load


@pytest.fixture(scope="module")
def model() -> DecoderModel:
    torch.set_num_threads(1)
    return DecoderModel(make_neutral("tiny", tiny_models.build("llama"), tiny_models.tokenizer()))


def test_batches_have_the_lengths_asked_for_and_do_the_same_each_time(model: DecoderModel) -> None:
    given = Given(model, 60)
    outputs = []
    for running in (1, 3):
        run = given.batch(running, 20, 7)
        made = run()
        assert [(g.prompt_tokens, g.output_tokens, g.finish_reason) for g in made] == [(20, 7, "length")] * running
        assert len({(g.start_s, g.end_s) for g in made}) == 1
        assert [g.token_ids for g in run()] == [g.token_ids for g in made]
        outputs.append(made[0].token_ids)
    assert outputs[0] == outputs[1]  # the first prompt of a length is the same at any load


def test_rows_of_a_load_are_made_once(model: DecoderModel, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def rows(of: DecoderModel, texts: int, capacity: int, capture: None) -> Rows:
        made.append(texts)
        return Rows(of, texts, capacity, capture)

    monkeypatch.setattr(given_module, "Rows", rows)
    given = Given(model, 90)
    for running, prompt, output in ((2, 80, 10), (4, 5, 3), (2, 5, 1), (4, 30, 30), (1, 9, 9)):
        given.batch(running, prompt, output)()
    assert made == [2, 4]


def out_of_memory(times: int) -> Callable[..., Rows]:
    left = [times]

    def rows(*arguments: object) -> Rows:
        if left[0]:
            left[0] -= 1
            raise torch.OutOfMemoryError("full")
        return Rows(*arguments)  # type: ignore[arg-type]

    return rows


def test_caches_of_other_loads_give_way(model: DecoderModel, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Given(model, 60)
    given.batch(2, 5, 3)()
    monkeypatch.setattr(given_module, "Rows", out_of_memory(1))
    assert len(given.batch(3, 5, 3)()) == 3


def test_what_could_not_be_captured_stands_beside_every_later_batch_of_that_load(
    model: DecoderModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = Given(model, 60)
    capture, load = Given._capture, [3]

    def without_memory(self: Given, running: int, first: int, last: int) -> None:
        if [running] == load:
            load.clear()
            give_up(f"steps of {running} texts")
        capture(self, running, first, last)

    monkeypatch.setattr(Given, "_capture", without_memory)
    with pytest.warns(RuntimeWarning, match="No memory is left to capture steps of 3 texts"):
        noted = given.batch(3, 5, 3)()
    assert {one.note for one in noted} == {
        "no memory was left to capture steps of 3 texts: from then on it runs uncaptured, which is slower"
    }
    assert {one.note for one in given.batch(2, 5, 3)()} == {None}
    assert {one.note for one in given.batch(3, 9, 3)()} == {noted[0].note}
    monkeypatch.setattr(given_module, "Rows", out_of_memory(1))
    given.batch(4, 5, 3)  # caches of other loads give way, and are captured anew
    assert {one.note for one in given.batch(3, 5, 3)()} == {None}


def test_no_memory_is_told_with_the_batch(model: DecoderModel, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Given(model, 60)
    monkeypatch.setattr(given_module, "Rows", out_of_memory(2))
    with pytest.raises(EnvironmentFault, match="for 8 texts of 5 prompt and 3 new tokens of tiny"):
        given.batch(8, 5, 3)


def test_prepared_rows_capture_nothing_more() -> None:
    shape = {"max_position_embeddings": 4 * BUCKET}
    model = DecoderModel(make_neutral("long", tiny_models.llama(**shape).eval(), tiny_models.tokenizer()))
    captured: list[object] = []

    def capture(run: Callable[[], None]) -> Callable[[], None]:
        captured.append(run)
        return uncaptured(run)

    prompts = [torch.arange(4, 4 + BUCKET - 3) % 60, torch.arange(9, 9 + BUCKET - 3) % 60]
    limits, length = [9, 9], BUCKET - 3 + 9
    with torch.inference_mode():
        rows = Rows(model, 2, length + 2, capture)
        prepare_rows(rows, NoChains(), BUCKET - 2, length)
        prepared = len(captured)
        assert prepared == 2  # the output reaches over the end of a bucket
        made = decode_together(model, NoChains(), prompts, limits, (), rows=rows)
        assert len(captured) == prepared
        plain = decode_together(model, NoChains(), prompts, limits, ())
    assert [one.tokens for one in made] == [one.tokens for one in plain]


def test_a_tiny_model_is_swept(tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "LEAST_S", 0.0)
    folder = tiny_models.save(tmp_path / "model", tiny_models.build("llama"))
    spec = NativeSpec(model=folder, device="cpu")
    box = Box((4, 60), (1, 20), (1, 3))
    sweep.sweep(NativeEngine(spec), spec, box, tmp_path / "run", meter=meter, points=14)
    points = run_points(load(tmp_path / "run")).points
    assert len(points) == 14
    assert set(points.running) == {1.0, 2.0, 3.0}
    assert (points.prompt_tokens.min(), points.prompt_tokens.max()) == (4.0, 60.0)
    assert (points.output_tokens.min(), points.output_tokens.max()) == (1.0, 20.0)
    assert (points.energy_j > 0.0).all()


def test_a_context_that_is_too_short_is_refused(tmp_path: Path, meter: Meter) -> None:
    folder = tiny_models.save(tmp_path / "model", tiny_models.build("llama"))
    spec = NativeSpec(model=folder, device="cpu")
    with pytest.raises(UserError, match=f"{tiny_models.CONTEXT}: lower"):
        sweep.sweep(NativeEngine(spec), spec, Box((4, 90), (1, 20)), tmp_path / "run", meter=meter)


def test_given_needs_a_loaded_engine() -> None:
    with pytest.raises(RuntimeError, match=Vanilla().label):
        NativeEngine(NativeSpec()).given(100)
