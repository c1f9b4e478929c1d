"""Heads through the whole engine, from their published files: the output is vanilla's whatever they guess."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny_heads
import tiny_models
from joulewise.decoding import Eagle2, Eagle3, Medusa, Vanilla
from joulewise.decoding.spec import Decoding
from joulewise.engines.engine import Message, Request, Sampling
from joulewise.engines.native import NativeEngine
from joulewise.engines.spec import NativeSpec
from joulewise.errors import UserError
from no_wait import NoWait
from tiny_heads import CONFIG, LAYERS, ROWS, SIZE

pytestmark = pytest.mark.filterwarnings("ignore:.*over the first 10 answers")

NEW = 14
GREEDY = Sampling()
FAMILIES = ("llama", "qwen3")
TREES: list[Decoding] = [
    Medusa(),
    Medusa(tree=((0,), (1,), (0, 0))),
    Eagle2(nodes=20, depth=3, top_k=4),
    Eagle3(nodes=40, depth=5, top_k=6),
    Eagle3(nodes=2, depth=0, top_k=1),
]
CHAINS: list[Decoding] = [kind(nodes=depth + 2, depth=depth, top_k=1) for kind in (Eagle2, Eagle3) for depth in (2, 7)]


def ask(text: str, new: int = NEW, sampling: Sampling = GREEDY, seed: int = 0) -> Request:
    return Request((Message("user", text),), new, True, sampling, seed)


def guessing(model: Any) -> dict[str, Tensor]:
    """Medusa heads that often guess right: without blocks' effect, over a copy of the target's own matrix."""
    own = model.get_output_embeddings().weight.detach()
    tensors = tiny_heads.medusa(4)
    for head in range(4):
        tensors[f"{head}.0.linear.weight"] *= 0.01
        tensors[f"{head}.1.weight"] = own + 0.2 * own.std() * tensors[f"{head}.1.weight"]
    return tensors


@pytest.fixture(scope="module", params=FAMILIES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeEngine]:
    folder = tmp_path_factory.mktemp(request.param)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        shape = {"num_hidden_layers": LAYERS} | ({"head_dim": 16} if request.param == "qwen3" else {})
        model = tiny_models.FAMILIES[request.param](**shape).eval()  # type: ignore[call-arg]
    eagle2 = tiny_heads.layer("layers.0") | {"fc.weight": tiny_heads.draw(SIZE, 2 * SIZE)}
    heads = {
        "medusa": tiny_heads.write(folder / "medusa", guessing(model), {}, "medusa_lm_head.pt"),
        "eagle2": tiny_heads.write(folder / "eagle2", eagle2, CONFIG, "pytorch_model.bin"),
        "eagle3": tiny_heads.write(folder / "eagle3", tiny_heads.eagle3(), CONFIG),
    }
    target = tiny_models.save(folder / "target", model)
    made = NativeEngine(NativeSpec(model=target, device="cpu", dtype="float32", heads=heads))
    info = made.load([Vanilla(), *TREES, *CHAINS])
    assert info
    yield made
    made.close()


@pytest.mark.parametrize("decoding", [*TREES, *CHAINS], ids=lambda decoding: decoding.label)
def test_greedy_output_is_vanillas(engine: NativeEngine, decoding: Decoding) -> None:
    for text in ("The cat sat.", "2+2"):
        expected = engine.generate(ask(text), Vanilla())
        found = engine.generate(ask(text), decoding)
        assert found.token_ids == expected.token_ids
        assert found.output_tokens == NEW
        assert 1 + len(found.rounds) + found.accepted == NEW + found.wasted_tokens
        assert all(0 <= r.accepted <= r.drafted for r in found.rounds)


@pytest.mark.parametrize("decoding", [Vanilla(), *TREES, *CHAINS], ids=lambda decoding: decoding.label)
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.8, top_p=0.9)], ids=["greedy", "sampled"])
def test_the_host_waits_for_what_was_accepted_and_for_nothing_else(
    engine: NativeEngine, decoding: Decoding, sampling: Sampling
) -> None:
    with NoWait():  # it does not see `tolist`, which the loop calls once a round
        assert engine.generate(ask("The cat sat.", sampling=sampling), decoding).output_tokens == NEW


def test_heads_that_guess_well_are_accepted(engine: NativeEngine) -> None:
    """The near copies of the target's own matrix are right now and then, and the accepted tokens are counted."""
    found = engine.generate(ask("aaaa bbbb", 40), Medusa())
    assert found.accepted > 0
    assert len(found.rounds) < 39


def test_the_order_of_prompts_changes_nothing(engine: NativeEngine) -> None:
    for decoding in TREES[:4]:
        first = engine.generate(ask("The cat sat."), decoding)
        engine.generate(ask("Something else, and longer than that", 9), decoding)
        again = engine.generate(ask("The cat sat."), decoding)
        assert (again.token_ids, again.rounds) == (first.token_ids, first.rounds)


@pytest.mark.parametrize("decoding", TREES[:4], ids=lambda decoding: decoding.label)
def test_budgets_are_exact_down_to_one_token(engine: NativeEngine, decoding: Decoding) -> None:
    whole = engine.generate(ask("The cat", 9), Vanilla()).token_ids
    for new in (1, 2, 3, 6):
        assert engine.generate(ask("The cat", new), decoding).token_ids == whole[:new]


@pytest.mark.parametrize("decoding", TREES[:4], ids=lambda decoding: decoding.label)
def test_sampled_output_has_the_targets_tokens_alone(engine: NativeEngine, decoding: Decoding) -> None:
    """With top-k 1 sampling is greedy, by the path of chance."""
    sampling = Sampling(temperature=0.7, top_k=1)
    found = engine.generate(ask("The cat", sampling=sampling, seed=3), decoding)
    assert found.token_ids == engine.generate(ask("The cat"), Vanilla()).token_ids
    free = Sampling(temperature=1.5)
    one, same = (engine.generate(ask("The cat", sampling=free, seed=3), decoding) for _ in range(2))
    assert one.token_ids == same.token_ids
    assert all(0 <= token < ROWS for token in one.token_ids)


def test_a_head_that_is_never_accepted_is_told_of(engine: NativeEngine) -> None:
    decoding = Eagle2(nodes=3, depth=1, top_k=1)
    for _ in range(9):
        engine.generate(ask("The cat", 6), decoding)
    with pytest.warns(RuntimeWarning, match=r"eagle2-chain-2: a round gives 1\.\d+ tokens over the first 10 answers"):
        engine.generate(ask("The cat", 6), decoding)


def test_a_head_of_another_kind_is_refused(tmp_path: Path) -> None:
    target = tiny_models.save(tmp_path / "target", tiny_models.build("llama"))
    head = tiny_heads.write(tmp_path / "head", tiny_heads.medusa(4))
    made = NativeEngine(NativeSpec(model=target, device="cpu", heads={"eagle2": head}))
    with pytest.raises(UserError, match="a head of the family Medusa, not EAGLE-1/2"):
        made.load([Eagle2()])
