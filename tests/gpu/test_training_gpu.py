"""Heads on a GPU: batches as CUDA graphs, and all kinds trained in bfloat16."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import tiny_models
from joulewise.engines.engine import Message, Sampling
from joulewise.engines.native.accept import Chooser
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.session import uncaptured
from joulewise.engines.native.training import batch
from joulewise.engines.native.training.check import check
from joulewise.engines.native.training.data import open_texts
from joulewise.engines.native.training.files import alone_in
from joulewise.engines.native.training.students import Kind, Recipe
from joulewise.engines.native.training.train import train
from joulewise.engines.native.training.write import Writing, write_texts
from joulewise.engines.transformers.loading import load

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]


@pytest.fixture
def model(tmp_path: Path) -> str:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = tiny_models.llama(num_hidden_layers=8, hidden_size=64, num_attention_heads=4).eval()
    made.lm_head.weight.data *= 3
    return tiny_models.save(tmp_path / "model", made)


def test_a_batch_as_cuda_graphs_writes_what_an_uncaptured_one_writes(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "BUCKET", 16)  # several graphs
    monkeypatch.setattr(batch, "FEW_LEFT", 0.0)
    target = DecoderModel(load(model, None, "float32", "cuda"))
    rows = [list(range(5, 5 + size)) for size in (3, 20, 11, 8)]
    greedy = Chooser.of(Sampling(), 0, target.device)
    with torch.inference_mode():
        captured = batch.write_batch(target, rows, 50, [], greedy)
        plain = batch.write_batch(target, rows, 50, [], greedy, uncaptured)
        drawn = [
            batch.write_batch(target, rows, 20, [], Chooser.of(Sampling(1.0, 0.95), 3, target.device)) for _ in range(2)
        ]
    assert captured == plain
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("kind", ["medusa", "eagle2", "eagle3", "draft"])
def test_every_kind_is_trained_and_accepted_in_bfloat16(model: str, tmp_path: Path, kind: Kind) -> None:
    prompts = [(Message("user", f"what is {i} and {7 * i}?"),) for i in range(8)]
    with alone_in(tmp_path / "data"):
        how = Writing(10**6, max_new_tokens=24, batch=8)
        write_texts(load(model, None, "bfloat16", "cuda"), tmp_path / "data", how, prompts, "mine")
    texts = open_texts(tmp_path / "data")
    recipe = Recipe(kind=kind, epochs=120, lr=0.01, batch_tokens=1024, draft_rows=40, clip=5.0)
    with alone_in(tmp_path / "out"):
        done = train(recipe, load(model, None, "bfloat16", "cuda"), texts, tmp_path / "out", math.inf)
    curve = done.report["curve"]
    assert done.finished
    assert curve[-1]["loss"] < 0.8 * curve[0]["loss"]
    numbers = texts.where(held_out=False)
    checked = check(
        str(tmp_path / "out"),
        kind,
        load(model, None, "bfloat16", "cuda"),
        [texts.prompt(int(number)) for number in numbers],
        20,
    )
    assert checked[0].everything.length is not None
    assert checked[0].everything.length > 1.3
