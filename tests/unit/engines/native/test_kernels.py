"""Our kernels give what torch's operations give: by Triton's interpreter on a CPU, for real where there is a GPU."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

import tiny_models
from joulewise.decoding import CoGA, Eagle2, Vanilla
from joulewise.engines.native import NativeEngine
from joulewise.engines.native.attention import attend_tokens, turn, turned
from joulewise.engines.native.drafters.chains import NoChains
from joulewise.engines.native.lean import Rotary
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.session import Captured, Eager, Judging, uncaptured
from joulewise.engines.native.together import decode_together
from joulewise.engines.native.tree import Tree, chain
from joulewise.engines.spec import NativeSpec
from joulewise.engines.transformers.loading import make_neutral

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CLOSE = {torch.float32: {"atol": 2e-5, "rtol": 2e-5}, torch.float16: {"atol": 1e-2, "rtol": 1e-2}}
KINDS = pytest.mark.parametrize(
    "dtype", CLOSE, ids=["float32", "float16"]
)  # the interpreter knows no bfloat16 matrices
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    pytest.importorskip("triton", reason="Triton is not installed: it exists for Linux alone")
    if DEVICE.type == "cpu":
        assert os.environ["TRITON_INTERPRET"] == "1", "tests/conftest.py sets it before anything imports Triton"
    from joulewise.engines.native import kernels

    return kernels


def made(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def tree_of(parents: list[int]) -> Tree:
    return Tree.of(torch.tensor(parents, device=DEVICE), height=len(parents))


@KINDS
@pytest.mark.parametrize("size", [96, 128])
def test_a_sum_and_its_norm(kernels: ModuleType, dtype: torch.dtype, size: int) -> None:
    x, more, weight = made(2, 3, size, dtype=dtype), made(2, 3, size, dtype=dtype, seed=1), made(size, dtype=dtype)
    total, normed = kernels.add_norm(x, more, weight, 1e-5)
    torch.testing.assert_close(total, x + more, **CLOSE[dtype])
    torch.testing.assert_close(normed, rms_norm(x + more, (size,), weight, 1e-5), **CLOSE[dtype])
    same, normed = kernels.add_norm(x, None, weight, 1e-5)
    assert same is x
    torch.testing.assert_close(normed, rms_norm(x, (size,), weight, 1e-5), **CLOSE[dtype])


@KINDS
@pytest.mark.parametrize("shape", [(80,), (3, 2100), (2, 3, 5000)])
def test_the_likeliest(kernels: ModuleType, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    logits = made(*shape, dtype=dtype)
    assert torch.equal(kernels.likeliest(logits), logits.argmax(dim=-1))
    part = logits[..., : shape[-1] - 7]
    assert torch.equal(kernels.likeliest(part), part.argmax(dim=-1))
    assert not kernels.likeliest(torch.zeros_like(logits)).any()  # the first of equals


@KINDS
def test_gates(kernels: ModuleType, dtype: torch.dtype) -> None:
    both = made(2, 5, 2 * 600, dtype=dtype)
    gate, up = both.chunk(2, dim=-1)
    torch.testing.assert_close(kernels.gated(both), silu(gate) * up, **CLOSE[dtype])


@KINDS
@pytest.mark.parametrize(
    ("befores", "parents", "groups", "size", "norms"),
    [
        ([0], [0], 1, 16, False),
        ([200], [0], 3, 64, True),
        ([5, 130, 63], [0, 0, 1, 2], 2, 32, True),
        ([100], [0, 0, 0, 1, 1, 2, 5, 5], 9, 16, False),  # more rows than one program holds
    ],
)
def test_placing_and_attention(
    kernels: ModuleType,
    dtype: torch.dtype,
    befores: list[int],
    parents: list[int],
    groups: int,
    size: int,
    norms: bool,
) -> None:
    texts, width, kv_heads, capacity = len(befores), len(parents), 2, 256
    heads, tree = groups * kv_heads, tree_of(parents)
    projected = made(texts, width, (heads + 2 * kv_heads) * size, dtype=dtype)
    cache = made(2, texts, kv_heads, capacity, size, dtype=dtype, seed=1)
    before = torch.tensor(befores, device=DEVICE)
    positions = before[:, None] + tree.depths
    frequencies = 1e4 ** -(torch.arange(0, size, 2, device=DEVICE) / size)
    weights = made(2, size, dtype=dtype, seed=2)
    keys, values = cache.clone()
    query = kernels.place(
        projected, keys, values, before, positions, frequencies, 1.1, (*weights, 1e-6) if norms else None
    )
    found = kernels.attend_placed(query, keys, values, before, tree.ancestors, size**-0.5)

    angles = (positions[..., None] * frequencies).repeat(1, 1, 2)
    both, value = projected.split(((heads + kv_heads) * size, kv_heads * size), dim=-1)
    parts = both.view(texts, width, -1, size).split((heads, kv_heads), dim=2)
    if norms:
        parts = tuple(rms_norm(part, (size,), weight, 1e-6) for part, weight in zip(parts, weights, strict=True))
    both = turned(torch.cat(parts, dim=2), *turn(*((angles.cos() * 1.1).to(dtype), (angles.sin() * 1.1).to(dtype))))
    asked, key = both.split((heads, kv_heads), dim=2)
    value = value.view(texts, width, kv_heads, size)
    seen = torch.zeros(texts, 1, width, capacity, dtype=torch.bool, device=DEVICE)
    for text, start in enumerate(befores):
        cache[0, text, :, start : start + width] = key[text].transpose(0, 1)
        cache[1, text, :, start : start + width] = value[text].transpose(0, 1)
        seen[text, :, :, :start] = True
        seen[text, :, :, start : start + width] = tree.ancestors
    torch.testing.assert_close(query, asked, **CLOSE[dtype])
    torch.testing.assert_close(keys, cache[0], **CLOSE[dtype])
    assert torch.equal(values, cache[1])
    torch.testing.assert_close(found, attend_tokens(asked, *cache, seen, size**-0.5), **CLOSE[dtype])


def built(family: str) -> Any:
    torch.manual_seed(0)
    if family == "qwen2":
        model: Any = Qwen2ForCausalLM(Qwen2Config(**tiny_models.TOKENS, **SHAPE))
        for layer in model.model.layers:
            torch.nn.init.normal_(layer.self_attn.q_proj.bias)
    elif family == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**tiny_models.TOKENS, **SHAPE))
    else:
        rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
        rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
        scaled = {"rope_parameters": rope} if family == "llama3" else {}
        model = LlamaForCausalLM(LlamaConfig(**tiny_models.TOKENS, **SHAPE, **scaled))
    return model.eval().to(DEVICE)


def decoder(model: Any) -> DecoderModel:
    return DecoderModel(make_neutral("tiny", model, tiny_models.tokenizer()), taps=(0, 1))


def split_less(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the interpreter each program takes 10 to 30 ms; the kernels' own tests use all parts."""
    if DEVICE.type == "cpu":
        monkeypatch.setattr(kernels, "SPLITS", 2)


@pytest.fixture
def pair(
    request: pytest.FixtureRequest, kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> tuple[DecoderModel, DecoderModel]:
    """A model as it is without our kernels, and with them."""
    split_less(kernels, monkeypatch)
    model = built(request.param)
    monkeypatch.setattr("joulewise.engines.native.lean.kernels_run", lambda _: False)
    plain = decoder(copy.deepcopy(model))
    monkeypatch.setattr("joulewise.engines.native.lean.kernels_run", lambda _: True)
    fast = decoder(model)
    assert (plain.sights, fast.sights) == (False, True)
    assert (plain.kernels, fast.kernels) == ("torch's", "Joulewise's own")
    return plain, fast


@pytest.mark.parametrize("pair", ["llama3", "qwen2", "qwen3"], indirect=True)
def test_a_model_is_the_same_at_every_node_and_length(pair: tuple[DecoderModel, DecoderModel]) -> None:
    plain, fast = (Eager(pair[0], 400), Captured(pair[1], 400, uncaptured))
    prompt = torch.arange(3, 12, device=DEVICE)
    with torch.inference_mode():
        torch.testing.assert_close(fast.prefill(prompt).last, plain.prefill(prompt).last, atol=1e-4, rtol=1e-4)
        length = len(prompt)
        for tree in (chain(0, DEVICE), tree_of([0, 0, 0, 1, 1]), chain(3, DEVICE), tree_of([0, 0, 1])):
            nodes = torch.arange(5, 5 + len(tree.parents), device=DEVICE)
            expected, found = plain.forward(nodes, length, tree), fast.forward(nodes, length, tree, Judging())
            torch.testing.assert_close(found.logits, expected.logits, atol=2e-4, rtol=2e-4)
            torch.testing.assert_close(found.hidden.taps, expected.hidden.taps, atol=2e-4, rtol=2e-4)
            length += 1
    assert len(fast._forwards) == 4  # none for another length


@pytest.mark.parametrize("pair", ["qwen2", "qwen3"], indirect=True)  # biases; norms of queries and keys
def test_several_texts_are_what_each_is_alone(pair: tuple[DecoderModel, DecoderModel]) -> None:
    prompts = [torch.arange(3, 3 + count, device=DEVICE) for count in (4, 17, 9)]
    with torch.inference_mode():
        expected, found = (
            [text.tokens for text in decode_together(model, NoChains(), prompts, [4, 2, 3], (), None, uncaptured)]
            for model in pair
        )
    assert found == expected


def test_a_model_is_refused_our_kernels_where_they_are_wrong(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    split_less(kernels, monkeypatch)
    monkeypatch.setattr("joulewise.engines.native.lean.kernels_run", lambda _: True)
    monkeypatch.setattr(kernels, "gated", lambda both: both[..., : both.shape[-1] // 2])
    with pytest.warns(RuntimeWarning, match="off by .* tiny runs on torch's, which is slower"):
        model = decoder(built("llama"))
    assert not model.sights
    rotary = model.decoder.rotary_emb
    assert isinstance(rotary, Rotary)
    assert rotary.needed


def test_where_kernels_cannot_be_built_torch_s_are_used(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("Failed to find C compiler.")

    monkeypatch.setattr("joulewise.engines.native.lean.kernels_run", lambda _: True)
    monkeypatch.setattr(kernels, "start", fail)
    with pytest.warns(RuntimeWarning, match="cannot be built here .Failed to find C compiler.*tiny runs on torch's"):
        assert not decoder(built("llama")).sights


def test_the_record_says_whose_kernels_ran(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also that they should have been others, in words that name no file of this machine; heads do as the target."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("cannot compile /tmp/abc.c")

    folder = tiny_models.save(tmp_path, built("llama"))
    eagle2 = Eagle2(head="random", synthetic_acceptance=0.5)

    def told() -> list[str]:
        engine = NativeEngine(NativeSpec(model=folder, draft="first-layers:1", device=DEVICE.type, dtype="float32"))
        try:
            return [note for note in engine.load([Vanilla(), CoGA(tokens=2), eagle2]).notes if "kernels" in note]
        finally:
            engine.close()

    def let_run(able: bool) -> None:
        for module in ("lean", "heads.eagle"):
            monkeypatch.setattr(f"joulewise.engines.native.{module}.kernels_run", lambda _: able)

    let_run(False)
    assert told() == ["kernels: torch's"]
    let_run(True)
    monkeypatch.setattr(kernels, "start", fail)
    with pytest.warns(RuntimeWarning, match=r"cannot be built here \(cannot compile /tmp/abc"):
        assert told() == ["kernels: torch's, since Joulewise's own cannot be built here"]
