"""Every layout of EAGLE heads, from a file to its outputs, against a plain forward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny_heads
from joulewise.engines.native.heads import open_head, taps_of
from joulewise.engines.native.heads.eagle import Eagle2Head, Eagle3Head, EagleHead
from joulewise.engines.native.model import DecoderModel, Hidden
from tiny_heads import CONFIG, LAYERS, ROWS, SIZE, TAPS, Tensors, draw, rms

TOKENS = torch.arange(5, 17)
W = len(TOKENS)


@pytest.fixture(scope="module")
def plain() -> DecoderModel:
    return tiny_heads.target()


@pytest.fixture(scope="module")
def tapped() -> DecoderModel:
    return tiny_heads.target(taps=TAPS)


def embed(target: DecoderModel) -> Tensor:
    return target.model.get_input_embeddings().weight.detach()


def output(target: DecoderModel) -> Tensor:
    return target.head.weight.detach()


def run(head: EagleHead, hidden: Hidden) -> tuple[Tensor, Tensor]:
    """States and logits of one forward, after asserting that a forward in three parts gives the same."""
    states = head.fuse(hidden)
    whole = head(head.new_cache(W), TOKENS, states, start=0)
    cache = head.new_cache(W)
    parts = [head(cache, TOKENS[a:b], states[a:b], start=a) for a, b in ((0, 5), (5, 6), (6, W))]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-4, atol=1e-5)
    return whole, head.logits(whole)


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


# EAGLE-1/2


def reference_eagle2(tensors: Tensors, target: DecoderModel, feature: Tensor) -> Tensor:
    both = torch.cat((embed(target)[TOKENS], feature), dim=-1)
    fused = both @ tensors["fc.weight"].T + tensors.get("fc.bias", torch.zeros(()))
    return tiny_heads.reference_layer(tensors, "layers.0", fused, fused)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
def test_the_original_layout_of_eagle2(tmp_path: Path, plain: DecoderModel, bias: bool, file: str) -> None:
    tensors = tiny_heads.eagle2(plain, bias)
    name = tiny_heads.write(tmp_path, tensors, CONFIG | {"bias": bias}, file)
    feature = draw(W, SIZE, seed=7)
    head = open_head(name, plain, "eagle2")
    states, logits = run(head, Hidden(feature))
    expected = reference_eagle2(tensors, plain, feature)
    same(states, expected)
    same(logits, expected @ output(plain).T)
    assert isinstance(head, Eagle2Head)
    assert taps_of(name, LAYERS) == ()


def test_renamed_eagle2_with_a_second_layer_and_biases(tmp_path: Path, plain: DecoderModel) -> None:
    tensors = tiny_heads.eagle2(plain) | tiny_heads.layer("layers.1", norms=("input_layernorm",), seed=30)
    tensors |= {f"layers.0.self_attn.{part}_proj.bias": draw(16 if part in "kv" else 32, seed=9) for part in "qkv"}
    copies = {"lm_head.weight": output(plain)}
    name = tiny_heads.write(tmp_path, tiny_heads.renamed(tensors, ("", "model.")) | copies, CONFIG)
    feature = draw(W, SIZE, seed=7)
    states, _ = run(open_head(name, plain), Hidden(feature))
    first = reference_eagle2(tensors, plain, feature)
    normed = rms(first, tensors["layers.1.input_layernorm.weight"])
    same(states, tiny_heads.reference_layer(tensors, "layers.1", normed, first))


# EAGLE-3


def run_eagle3(name: str, target: DecoderModel, width: int = SIZE) -> tuple[Eagle3Head, Tensor, Tensor, Tensor]:
    taps = draw(W, len(target.taps) * width, seed=8)
    head = open_head(name, target, "eagle3")
    assert isinstance(head, Eagle3Head)
    return head, *run(head, Hidden(draw(W, width, seed=7), taps)), taps


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
def test_the_original_layout_of_eagle3(tmp_path: Path, tapped: DecoderModel, file: str) -> None:
    tensors = tiny_heads.eagle3()
    name = tiny_heads.write(tmp_path, tensors, CONFIG | {"draft_vocab_size": 24}, file)
    assert taps_of(name, LAYERS) == TAPS
    head, states, logits, taps = run_eagle3(name, tapped)
    expected = tiny_heads.reference_eagle3(tensors, embed(tapped)[TOKENS], taps @ tensors["fc.weight"].T)
    same(states, expected)
    same(logits, rms(expected, tensors["norm.weight"]) @ tensors["lm_head.weight"].T)
    assert head.rows == 24
    assert head.ids(torch.arange(24)).tolist() == tensors["t2d"].nonzero().flatten().tolist()


def test_the_full_vocabulary_and_no_aux_layers(tmp_path: Path, plain: DecoderModel) -> None:
    """``use_aux_hidden_state: false``: the feature is the last hidden state and there is no fc."""
    tensors = {name: t for name, t in tiny_heads.eagle3(rows=ROWS).items() if name not in ("d2t", "t2d", "fc.weight")}
    name = tiny_heads.write(tmp_path, tensors, CONFIG | {"eagle_config": {"use_aux_hidden_state": False}})
    assert taps_of(name, LAYERS) == ()
    feature = draw(W, SIZE, seed=7)
    head = open_head(name, plain)
    states, _ = run(head, Hidden(feature))
    same(states, tiny_heads.reference_eagle3(tensors, embed(plain)[TOKENS], feature))
    assert head.ids(torch.arange(ROWS)).tolist() == list(range(ROWS))


def test_padded_rows_of_the_output_are_cut_to_the_targets(tmp_path: Path, tapped: DecoderModel) -> None:
    tensors = {name: t for name, t in tiny_heads.eagle3(rows=ROWS).items() if name not in ("d2t", "t2d")}
    tensors["lm_head.weight"] = torch.cat((tensors["lm_head.weight"], torch.ones(5, SIZE)))
    head, _, logits, _ = run_eagle3(tiny_heads.write(tmp_path, tensors, CONFIG), tapped)
    assert (head.rows, logits.shape) == (ROWS, (W, ROWS))


@pytest.mark.parametrize("names", ["fc_norm", "aux_norm"])
def test_renamed_heads_of_specforge_and_sglang(tmp_path: Path, names: str) -> None:
    """Layers named by their outputs, a norm for each third, a head_dim of its own, a second layer with hidden_norm."""
    target = tiny_heads.target(taps=(2, 3, 6))
    legacy = {"aux_norm": ("low", "mid", "high"), "fc_norm": ("0", "1", "2")}[names]
    joint = "_" if names == "aux_norm" else "."
    thirds = [1 + draw(SIZE, seed=70 + i) for i in range(3)]
    later = tiny_heads.layer("layers.1", head_dim=16, norms=("hidden_norm", "input_layernorm"), seed=30)
    tensors = tiny_heads.eagle3("layers.0", head_dim=16) | later
    stored = tensors | {f"{names}{joint}{part}.weight": third for part, third in zip(legacy, thirds, strict=True)}
    stored["embed_tokens.weight"] = embed(target)
    nested = {"eagle_aux_hidden_state_layer_ids": [1, 2, 5], "use_aux_hidden_state": True}
    config = CONFIG | {"architectures": ["LlamaForCausalLMEagle3"], "head_dim": 16, "eagle_config": nested}
    name = tiny_heads.write(tmp_path, stored, config | {"rope_theta": 500.0, "num_hidden_layers": 2})
    assert taps_of(name, LAYERS) == (2, 3, 6)
    head, states, _, taps = run_eagle3(name, target)
    fused = torch.cat([rms(part, w) for part, w in zip(taps.chunk(3, -1), thirds, strict=True)], -1)
    first = tiny_heads.reference_eagle3(
        tensors, embed(target)[TOKENS], fused @ tensors["fc.weight"].T, "layers.0", base=500.0
    )
    normed = rms(first, tensors["layers.1.hidden_norm.weight"])
    same(states, tiny_heads.reference_layer(tensors, "layers.1", normed, first, base=500.0))
    assert head.embed_tokens is None  # a copy of the target's is not kept twice


def speculators(**fields: Any) -> dict[str, Any]:
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 24,
        "transformer_layer_config": CONFIG | {"model_type": "llama", "rope_theta": 700.0},
        "speculators_config": {"verifier": {"name_or_path": "/somebody/elses/folder"}},
        "eagle_aux_hidden_state_layer_ids": None,
        **fields,
    }


@pytest.mark.parametrize("stated", [None, True, False])
def test_the_speculators_format(tmp_path: Path, tapped: DecoderModel, stated: bool | None) -> None:
    """Own embeddings, a norm over all thirds, and a residual after the norm where the file does not say otherwise."""
    tensors = tiny_heads.eagle3("layers.0") | {"input_norm.weight": 1 + draw(3 * SIZE, seed=71)}
    tensors["embed_tokens.weight"] = draw(ROWS, SIZE, seed=72)
    verifier = {"verifier_norm.weight": torch.ones(SIZE), "verifier_lm_head.weight": draw(24, SIZE)}
    config = speculators(norm_before_fc=True, **({} if stated is None else {"norm_before_residual": stated}))
    name = tiny_heads.write(tmp_path, tensors | verifier, config)
    assert taps_of(name, LAYERS) == TAPS
    _, states, logits, taps = run_eagle3(name, tapped)
    expected = tiny_heads.reference_eagle3(
        tensors,
        tensors["embed_tokens.weight"][TOKENS],
        rms(taps, tensors["input_norm.weight"]) @ tensors["fc.weight"].T,
        "layers.0",
        norm_before_residual=stated is not False,
        base=700.0,
    )
    same(states, expected)
    same(logits, rms(expected, tensors["norm.weight"]) @ tensors["lm_head.weight"].T)


def test_speculators_with_several_layers_query_norms_and_the_normed_output_fed_back(tmp_path: Path) -> None:
    target = tiny_heads.target(taps=(1, 3, 7))
    tensors = tiny_heads.eagle3("layers.0") | tiny_heads.layer("layers.1", norms=("input_layernorm",), seed=30)
    tensors |= {f"layers.{i}.self_attn.{part}_norm.weight": 1 + draw(8, seed=73) for i in (0, 1) for part in "qk"}
    config = speculators(norm_output=True, norm_before_residual=False, eagle_aux_hidden_state_layer_ids=[1, 3, 7])
    name = tiny_heads.write(tmp_path, tensors, config)
    assert taps_of(name, LAYERS) == (1, 3, 7)
    _, states, logits, taps = run_eagle3(name, target)
    features = taps @ tensors["fc.weight"].T
    first = tiny_heads.reference_eagle3(tensors, embed(target)[TOKENS], features, "layers.0", base=700.0)
    normed = rms(first, tensors["layers.1.input_layernorm.weight"])
    second = tiny_heads.reference_layer(tensors, "layers.1", normed, first, base=700.0)
    same(states, rms(second, tensors["norm.weight"]))
    same(logits, rms(second, tensors["norm.weight"]) @ tensors["lm_head.weight"].T)


@pytest.mark.parametrize("reduced", [True, False])
def test_the_output_may_be_the_targets_own_matrix_or_rows_of_it(
    tmp_path: Path, tapped: DecoderModel, reduced: bool
) -> None:
    left_out = ("lm_head.weight", "t2d") if reduced else ("lm_head.weight", "t2d", "d2t")
    tensors = {name: tensor for name, tensor in tiny_heads.eagle3().items() if name not in left_out}
    name = tiny_heads.write(tmp_path, tensors, CONFIG)
    head, states, logits, _ = run_eagle3(name, tapped)
    rows = tensors["d2t"] + torch.arange(24) if reduced else torch.arange(ROWS)
    same(logits, rms(states, tensors["norm.weight"]) @ output(tapped)[rows].T)
    assert head.ids(torch.arange(len(rows))).tolist() == rows.tolist()


def test_a_target_of_another_width_a_scale_and_a_window(tmp_path: Path) -> None:
    target = tiny_heads.target(taps=TAPS, hidden_size=64)
    tensors = tiny_heads.eagle3(width=64) | {"embed_tokens.weight": draw(ROWS, SIZE, seed=72)}
    own = {"target_hidden_size": 64, "logit_scale": 0.5, "sliding_window": 4, "layer_types": ["sliding_attention"]}
    name = tiny_heads.write(tmp_path, tensors, CONFIG | own)
    _, states, logits, taps = run_eagle3(name, target, width=64)
    embedded = tensors["embed_tokens.weight"][TOKENS]
    expected = tiny_heads.reference_eagle3(tensors, embedded, taps @ tensors["fc.weight"].T, window=4)
    same(states, expected)
    same(logits, rms(expected, tensors["norm.weight"]) @ tensors["lm_head.weight"].T * 0.5)


def test_a_bare_file_with_its_config_beside_it(tmp_path: Path, tapped: DecoderModel) -> None:
    name = tiny_heads.write(tmp_path, tiny_heads.eagle3(), CONFIG, "head.safetensors")
    assert isinstance(open_head(f"{name}/head.safetensors", tapped), Eagle3Head)


def test_a_qwen3_target_with_wide_heads(tmp_path: Path) -> None:
    target = tiny_heads.target("qwen3", taps=TAPS, head_dim=16)
    tensors = tiny_heads.eagle3(head_dim=16)
    name = tiny_heads.write(tmp_path, tensors, CONFIG | {"head_dim": 16})
    head, states, _, taps = run_eagle3(name, target)
    same(states, tiny_heads.reference_eagle3(tensors, embed(target)[TOKENS], taps @ tensors["fc.weight"].T))
    assert head.new_cache(4).rows(4).shape == (1, 2, 1, 2, 4, 16)


def test_positions_are_scaled_as_the_head_says(tmp_path: Path, tapped: DecoderModel) -> None:
    """Linear scaling by 2 is every frequency halved: position 2i then turns as i did."""
    tensors = tiny_heads.eagle3()
    plain = open_head(tiny_heads.write(tmp_path / "a", tensors, CONFIG), tapped)
    scaled = CONFIG | {"rope_scaling": {"type": "linear", "factor": 2.0}}
    head = open_head(tiny_heads.write(tmp_path / "b", tensors, scaled), tapped)
    assert isinstance(head, EagleHead)
    assert isinstance(plain, EagleHead)
    states = draw(W, SIZE, seed=7)
    doubled = head(head.new_cache(W), TOKENS, states, 0, positions=2 * torch.arange(W))
    same(doubled, plain(plain.new_cache(W), TOKENS, states, 0))


def test_positions_go_past_the_2048_that_published_configurations_state(tmp_path: Path, tapped: DecoderModel) -> None:
    name = tiny_heads.write(tmp_path, tiny_heads.eagle3(), CONFIG | {"max_position_embeddings": 2048})
    head = open_head(name, tapped)
    assert isinstance(head, EagleHead)
    states, near, far = draw(W, SIZE, seed=7), torch.arange(W), torch.arange(W) + 5000
    found = head(head.new_cache(W), TOKENS, states, 0, positions=far)
    # Rotary attention sees distances alone.
    torch.testing.assert_close(found, head(head.new_cache(W), TOKENS, states, 0, positions=near), rtol=1e-2, atol=1e-2)


def test_llama3_scaling_is_read(tmp_path: Path, tapped: DecoderModel) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    config = CONFIG | {"rope_theta": 100.0, "rope_scaling": scaling}
    tensors = tiny_heads.eagle3()
    head, found, _, taps = run_eagle3(tiny_heads.write(tmp_path, tensors, config), tapped)
    unscaled = tiny_heads.reference_eagle3(tensors, embed(tapped)[TOKENS], taps @ tensors["fc.weight"].T, base=100.0)
    # By the rule, frequency i of 4 turns 32 f / (2 pi) times over the old context: kept above 4, an eighth below 1.
    frequencies = 100.0 ** -(torch.arange(4) / 4)
    turns = 32 * frequencies / (2 * torch.pi)
    share = ((turns - 1) / 3).clamp(0, 1)
    cos, _ = head._rotary(torch.tensor([1]), torch.float32)
    same(cos[0, 0, :4], (frequencies * (share + (1 - share) / 8)).cos())
    assert (found - unscaled).abs().max() > 1e-3
