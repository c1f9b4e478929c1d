"""Files that are no head, or not this target's: what is said about them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors import safe_open
from safetensors.torch import save_file

import tiny_heads
from joulewise.engines.native import checkpoints
from joulewise.engines.native.heads import open_head, taps_of
from joulewise.engines.native.heads.eagle import Eagle3Head, EagleHead
from joulewise.engines.native.heads.synthetic import random_eagle2, random_eagle3, random_medusa
from joulewise.engines.native.model import DecoderModel, Hidden
from joulewise.errors import UserError
from tiny_heads import CONFIG, LAYERS, ROWS, SIZE, TAPS, Tensors, draw


@pytest.fixture(scope="module")
def plain() -> DecoderModel:
    return tiny_heads.target()


@pytest.fixture(scope="module")
def tapped() -> DecoderModel:
    return tiny_heads.target(taps=TAPS)


def refused(name: str, target: DecoderModel, message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_head(name, target)


# No head at all.


def test_no_such_thing(plain: DecoderModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: Any, **__: Any) -> str:
        raise LocalEntryNotFoundError("no network\nat all")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", nothing)
    refused("somebody/head", plain, "neither a folder nor a file here nor to be had from the model hub .no network.")


def test_a_hubs_pickles_are_fetched_only_where_there_are_no_safetensors(
    tmp_path: Path, tapped: DecoderModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_heads.write(tmp_path / "pickled", tiny_heads.eagle3(), CONFIG, "pytorch_model.bin")
    tiny_heads.write(tmp_path / "safe", tiny_heads.eagle3(), CONFIG)
    asked: list[list[str]] = []

    def fetch(name: str, allow_patterns: list[str], **_: Any) -> str:
        asked.append(allow_patterns)
        empty = tmp_path / "empty"
        empty.mkdir(exist_ok=True)
        there = name == "safe" or any(pattern.endswith(".bin") for pattern in allow_patterns)
        return str(tmp_path / name if there else empty)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    open_head("safe", tapped)
    assert asked == [["*.json", "*.safetensors"]]
    open_head("pickled", tapped)
    assert asked[1:] == [["*.json", "*.safetensors"], ["*.json", "pytorch_model*.bin", "medusa_lm_head*.pt"]]


@pytest.mark.parametrize(
    ("tensors", "held"), [(None, "holds no .*safetensors"), ({"x": torch.ones(1)}, "its tensors are x")]
)
def test_a_folder_without_a_head(tmp_path: Path, plain: DecoderModel, tensors: Tensors | None, held: str) -> None:
    if tensors is not None:
        tiny_heads.write(tmp_path, tensors)
    refused(str(tmp_path), plain, f"holds no Medusa, EAGLE-1/2 or EAGLE-3 head .*{held}")


def test_the_target_itself_is_no_head(tmp_path: Path, plain: DecoderModel) -> None:
    save_file({name: t.clone() for name, t in plain.model.state_dict().items()}, tmp_path / "model.safetensors")
    refused(str(tmp_path), plain, "holds no Medusa, .*not the target's")


def test_a_file_of_another_kind(tmp_path: Path, plain: DecoderModel) -> None:
    (tmp_path / "head.txt").write_text("no weights", encoding="utf-8")
    refused(str(tmp_path / "head.txt"), plain, "is no file of weights")


@pytest.mark.parametrize("kind", ["peagle", "dflash"])
def test_other_speculators_are_refused_by_name(tmp_path: Path, plain: DecoderModel, kind: str) -> None:
    tiny_heads.write(tmp_path, tiny_heads.eagle3(), CONFIG | {"speculators_model_type": kind})
    refused(str(tmp_path), plain, f"is of the kind '{kind}'")


def test_parallel_drafting_is_refused_by_name(tmp_path: Path, tapped: DecoderModel) -> None:
    tiny_heads.write(tmp_path, tiny_heads.eagle3() | {"mask_hidden": torch.ones(1, SIZE)}, CONFIG)
    refused(str(tmp_path), tapped, "P-EAGLE: it holds the tensor mask_hidden")


# Damaged files.


class Harmful:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return exec, ("raise SystemExit('the pickle was run')",)


def pickled(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Harmful(), protocol=2))


def zipped(folder: Path) -> None:
    torch.save({"fc.weight": Harmful()}, folder / "pytorch_model.bin")


def cut(folder: Path) -> None:
    tiny_heads.write(folder, tiny_heads.eagle3(), CONFIG)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def emptied(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, emptied])
def test_a_file_that_is_damaged(tmp_path: Path, plain: DecoderModel, damage: Callable[[Path], None]) -> None:
    damage(tmp_path)
    refused(str(tmp_path), plain, "could not be read as tensors alone")


@pytest.mark.parametrize("damage", [pickled, zipped])
def test_a_pickle_of_more_than_tensors_is_not_opened(
    tmp_path: Path, plain: DecoderModel, damage: Callable[[Path], None], recwarn: pytest.WarningsRecorder
) -> None:
    """Nor is torch's advice passed on, to open it without its safeguard."""
    damage(tmp_path)
    with pytest.raises(UserError, match=r"holds more than tensors.* is not opened.* safetensors") as caught:
        open_head(str(tmp_path), plain)
    assert "weights_only" not in str(caught.value)
    assert not recwarn.list


def test_an_odd_pickle_gives_no_warning(tmp_path: Path, plain: DecoderModel, recwarn: pytest.WarningsRecorder) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"x": 1}, protocol=4))
    with pytest.raises(UserError):
        open_head(str(tmp_path), plain)
    assert not recwarn.list


def test_a_pickle_of_something_else(tmp_path: Path, plain: DecoderModel) -> None:
    torch.save([1, 2], tmp_path / "pytorch_model.bin")
    refused(str(tmp_path), plain, "holds no table of tensors by name")


def test_a_pickle_from_before_zip_files_is_read(tmp_path: Path, tapped: DecoderModel) -> None:
    tiny_heads.write(tmp_path, {}, CONFIG, "pytorch_model.bin")
    torch.save(tiny_heads.eagle3(), tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert open_head(str(tmp_path), tapped).family == "eagle3"


@pytest.mark.parametrize(("text", "message"), [("{", "could not be read as JSON"), ("[]", "holds no JSON object")])
def test_a_damaged_configuration(tmp_path: Path, tapped: DecoderModel, text: str, message: str) -> None:
    tiny_heads.write(tmp_path, tiny_heads.eagle3())
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    refused(str(tmp_path), tapped, message)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "num_attention_heads: is missing"),
        (CONFIG | {"hidden_act": "magic"}, "hidden_act: .*no activation 'magic'"),
        (CONFIG | {"num_attention_heads": 5}, "states 5 attention heads"),
        (CONFIG | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic'"),
        (
            CONFIG | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "0.5",
        ),
        (CONFIG | {"num_aux_hidden_states": 4}, "reads 4 layers of its target, and its config.json names 0"),
        (CONFIG | {"eagle_config": "none"}, "eagle_config: must be a mapping"),
        (
            CONFIG | {"eagle_config": {"layer_ids": ["low"]}},
            r"eagle_config\.layer_ids\.0: must be a whole number",
        ),
        (CONFIG | {"eagle_aux_hidden_state_layer_ids": 2}, "eagle_aux_hidden_state_layer_ids: must be a list"),
        (CONFIG | {"rope_scaling": {"rope_type": "llama3"}}, "how its positions are rotated .*Missing required keys"),
        (CONFIG | {"rope_scaling": "twice"}, "how its positions are rotated"),
    ],
)
def test_a_configuration_that_does_not_do(
    tmp_path: Path, tapped: DecoderModel, config: dict[str, Any], message: str
) -> None:
    tiny_heads.write(tmp_path, tiny_heads.eagle3(), config)
    refused(str(tmp_path), tapped, message)


@pytest.mark.parametrize(
    "missing",
    [
        "layers.0.mlp.up_proj.weight",
        "layers.0.hidden_norm.weight",
        "norm.weight",
        "fc.weight",
        "layers.0.self_attn.q_proj.weight",
        "layers.0.self_attn.o_proj.weight",
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, tapped: DecoderModel, missing: str) -> None:
    tensors = tiny_heads.eagle3("layers.0")
    del tensors[missing]
    tiny_heads.write(tmp_path, tensors, CONFIG)
    refused(str(tmp_path), tapped, f"has no tensor {missing}")


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ([], "midlayer.mlp.up_proj.weight"),
        ([], "midlayer.hidden_norm.weight"),
        ([], "midlayer.self_attn.q_proj.weight"),
        ([], "fc.weight"),
        ([("midlayer.", "model.layers.0.")], "model.layers.0.mlp.up_proj.weight"),
        ([("midlayer.", "model.midlayer."), ("fc.", "model.fc.")], "model.midlayer.mlp.up_proj.weight"),
    ],
)
def test_a_missing_tensor_is_named_as_its_file_would(
    tmp_path: Path, tapped: DecoderModel, changes: list[tuple[str, str]], missing: str
) -> None:
    tensors = tiny_heads.renamed(tiny_heads.eagle3(), *changes)
    del tensors[missing]
    tiny_heads.write(tmp_path, tensors, CONFIG)
    refused(str(tmp_path), tapped, rf"has no tensor {missing} \(it has ")


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ([], "1.0.linear.weight"),
        ([("", "medusa_head.")], "medusa_head.1.0.linear.weight"),
        ([(f"{i}.0.linear.", f"blocks.{i}.layers.0.") for i in range(2)], "blocks.1.layers.0.weight"),
    ],
)
def test_a_missing_tensor_of_medusa_is_named_as_its_file_would(
    tmp_path: Path, plain: DecoderModel, changes: list[tuple[str, str]], missing: str
) -> None:
    tensors = tiny_heads.renamed(tiny_heads.medusa(2), *changes)
    del tensors[missing]
    tiny_heads.write(tmp_path, tensors)
    refused(str(tmp_path), plain, rf"has no tensor {missing} \(it has ")


@pytest.mark.parametrize(
    "missing", ["fc.weight", "layers.0.self_attn.q_proj.weight", "layers.0.self_attn.o_proj.weight"]
)
def test_a_tensor_missing_from_the_older_family(tmp_path: Path, plain: DecoderModel, missing: str) -> None:
    tensors = tiny_heads.eagle2(plain)
    del tensors[missing]
    tiny_heads.write(tmp_path, tensors, CONFIG)
    refused(str(tmp_path), plain, f"has no tensor {missing}")


def test_a_later_layer_without_a_norm(tmp_path: Path, plain: DecoderModel) -> None:
    tiny_heads.write(tmp_path, tiny_heads.eagle2(plain) | tiny_heads.layer("layers.1"), CONFIG)
    refused(str(tmp_path), plain, "has no tensor layers.1.input_layernorm.weight")


def test_a_missing_layer_and_a_missing_head(tmp_path: Path, plain: DecoderModel) -> None:
    tensors = tiny_heads.eagle2(plain) | tiny_heads.layer("layers.2", norms=("input_layernorm",))
    tiny_heads.write(tmp_path / "eagle", tensors, CONFIG)
    refused(str(tmp_path / "eagle"), plain, r"has the tensor layers.2.input_.* and none like it with 1 in place of 2")
    gap = {name: t for name, t in tiny_heads.medusa(3).items() if not name.startswith("1.")}
    tiny_heads.write(tmp_path / "medusa", gap)
    refused(str(tmp_path / "medusa"), plain, r"has the tensor 2.0.linear.bias, and none like it with 1 in place of 2")
    fewer = {name: t for name, t in tiny_heads.medusa(3).items() if name != "2.1.weight"}
    tiny_heads.write(tmp_path / "fewer", fewer)
    refused(str(tmp_path / "fewer"), plain, "has 3 Medusa heads and 2 output matrices")


def test_tensors_without_a_place_are_not_left_out_silently(tmp_path: Path, tapped: DecoderModel) -> None:
    tiny_heads.write(tmp_path, tiny_heads.eagle3() | {"parallel_head.0.weight": torch.ones(3)}, CONFIG)
    refused(str(tmp_path), tapped, "no place in its family: parallel_head.0.weight")


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float8_e5m2])
def test_numbers_that_are_none_are_refused(
    tmp_path: Path, tapped: DecoderModel, value: float, kind: torch.dtype
) -> None:
    tensors = tiny_heads.eagle3("layers.0")
    tensors["layers.0.mlp.up_proj.weight"][2, 3] = value
    tensors["layers.0.mlp.up_proj.weight"] = tensors["layers.0.mlp.up_proj.weight"].to(kind)
    tiny_heads.write(tmp_path, tensors, CONFIG)
    refused(str(tmp_path), tapped, r"The tensor layers.0.mlp.up_proj.weight .in model.safetensors. .* holds NaN")


# A head for another target.


def test_another_width(tmp_path: Path, tapped: DecoderModel, plain: DecoderModel) -> None:
    wide = tiny_heads.target(taps=TAPS, hidden_size=64)
    tiny_heads.write(tmp_path / "eagle3", tiny_heads.eagle3(), CONFIG)
    refused(str(tmp_path / "eagle3"), wide, r"fc.weight .in model.safetensors. has the shape .32, 96., not .32, 192.")
    tiny_heads.write(tmp_path / "eagle2", tiny_heads.eagle2(plain), CONFIG)
    refused(str(tmp_path / "eagle2"), wide, "was made for another model.* has the shape")
    tiny_heads.write(tmp_path / "medusa", tiny_heads.medusa(2))
    refused(str(tmp_path / "medusa"), wide, r"its tensor 0.0.linear.bias .* has the shape .32,., not .64.")
    projecting = tiny_heads.eagle3(width=64)
    tiny_heads.write(tmp_path / "narrow", projecting, CONFIG)
    refused(str(tmp_path / "narrow"), wide, "32 wide without embeddings of its own, which are 64 wide")
    own = projecting | {"embed_tokens.weight": draw(ROWS, SIZE)}
    tiny_heads.write(tmp_path / "bare", {n: t for n, t in own.items() if n not in ("lm_head.weight", "d2t")}, CONFIG)
    refused(str(tmp_path / "bare"), wide, "32 wide without an output matrix")
    last = {n: t for n, t in own.items() if n != "fc.weight"}
    tiny_heads.write(tmp_path / "last", last, CONFIG | {"eagle_config": {"use_aux_hidden_state": False}})
    refused(str(tmp_path / "last"), tiny_heads.target(hidden_size=64), "reads only the last hidden state")


@pytest.mark.parametrize("rows", [ROWS - 20, ROWS + 2000])
def test_another_vocabulary(tmp_path: Path, plain: DecoderModel, tapped: DecoderModel, rows: int) -> None:
    said = f"has {rows} rows, and the vocabulary of tiny llama has 72 tokens in 80 rows"
    tiny_heads.write(tmp_path / "medusa", tiny_heads.medusa(1) | {"0.1.weight": draw(rows, SIZE)})
    refused(str(tmp_path / "medusa"), plain, said)
    tiny_heads.write(tmp_path / "eagle2", tiny_heads.eagle2(plain) | {"embed_tokens.weight": draw(rows, SIZE)}, CONFIG)
    refused(str(tmp_path / "eagle2"), plain, said)
    full = {n: t for n, t in tiny_heads.eagle3().items() if n != "d2t"} | {"lm_head.weight": draw(rows, SIZE)}
    tiny_heads.write(tmp_path / "eagle3", full, CONFIG)
    refused(str(tmp_path / "eagle3"), tapped, said)


def test_a_copy_of_other_embeddings(tmp_path: Path, plain: DecoderModel) -> None:
    copy = tiny_heads.eagle2(plain)["embed_tokens.weight"]
    close = {"embed_tokens.weight": copy + 0.1 * draw(ROWS, SIZE)}
    assert open_head(tiny_heads.write(tmp_path / "tuned", tiny_heads.eagle2(plain) | close, CONFIG), plain)
    other = {"embed_tokens.weight": copy.roll(1, dims=0)}
    tiny_heads.write(tmp_path / "other", tiny_heads.eagle2(plain) | other, CONFIG)
    refused(str(tmp_path / "other"), plain, "copy of the embeddings is not like those of tiny llama .cosine")


@pytest.mark.parametrize(
    ("row", "offset", "message"),
    [
        (23, 60, "points to token 83, and tiny llama has 80 rows"),
        (0, -1, "points to token -1"),
        (1, -1, "names a token twice"),
    ],
)
def test_a_draft_vocabulary_that_is_not_the_targets(
    tmp_path: Path, tapped: DecoderModel, row: int, offset: int, message: str
) -> None:
    tensors = tiny_heads.eagle3() | {"d2t": torch.zeros(24, dtype=torch.long)}
    tensors["d2t"][row] = offset
    tiny_heads.write(tmp_path, tensors, CONFIG)
    refused(str(tmp_path), tapped, message)


def test_another_family(tmp_path: Path, plain: DecoderModel) -> None:
    name = tiny_heads.write(tmp_path, tiny_heads.eagle2(plain), CONFIG)
    with pytest.raises(UserError, match="a head of the family EAGLE-1/2, not EAGLE-3: choose the decoding"):
        open_head(name, plain, "eagle3")


# Taps.


def test_missing_tap_layers(tmp_path: Path, plain: DecoderModel) -> None:
    name = tiny_heads.write(tmp_path, tiny_heads.eagle3(), CONFIG)
    refused(name, plain, r"reads the inputs of the layers 2, 4, 5 .*opened without them .tapped: none.")
    refused(name, tiny_heads.target(taps=(2, 4, 6)), "tapped: 2, 4, 6")


def test_heads_that_read_other_layers_share_a_target(tmp_path: Path, plain: DecoderModel) -> None:
    """The target taps what all of its heads read, in order; each head takes its own, in its own order."""
    target = tiny_heads.target(taps=(1, 2, 4, 5, 7))
    taps = draw(6, 5 * SIZE)
    rows = dict(zip(target.taps, taps.unflatten(-1, (5, SIZE)).unbind(1), strict=True))
    for own in ((2, 4, 5), (7, 1, 4)):
        tensors = tiny_heads.eagle3()
        config = CONFIG | {"eagle_aux_hidden_state_layer_ids": list(own)}
        head = open_head(tiny_heads.write(tmp_path / str(own[0]), tensors, config), target)
        assert isinstance(head, Eagle3Head)
        expected = torch.cat([rows[layer] for layer in own], dim=-1) @ tensors["fc.weight"].T
        torch.testing.assert_close(head.fuse(Hidden(draw(6, SIZE), taps)), expected)
    head = open_head(tiny_heads.write(tmp_path / "eagle2", tiny_heads.eagle2(plain), CONFIG), target)
    assert isinstance(head, EagleHead)
    assert torch.equal(head.fuse(Hidden(draw(6, SIZE), taps)), draw(6, SIZE))


def test_a_head_says_what_it_is(tmp_path: Path, tapped: DecoderModel) -> None:
    name = tiny_heads.write(tmp_path, tiny_heads.eagle3(), CONFIG)
    first = open_head(name, tapped)
    assert first.note.startswith(f"{name}, EAGLE-3 head, 13,696 parameters, sha256 ")
    assert open_head(name, tapped).note == first.note
    tiny_heads.write(tmp_path, tiny_heads.eagle3() | {"norm.weight": torch.ones(SIZE)}, CONFIG)
    assert open_head(name, tapped).note != first.note
    assert random_eagle3(tapped).note == "random weights, EAGLE-3 head, 15,488 parameters"


@pytest.mark.parametrize(
    ("config", "layers"), [({"eagle_aux_hidden_state_layer_ids": [2, 4, LAYERS]}, LAYERS), ({}, 2)]
)
def test_layers_that_the_target_has_not(tmp_path: Path, config: dict[str, Any], layers: int) -> None:
    name = tiny_heads.write(tmp_path, tiny_heads.eagle3(), CONFIG | config)
    with pytest.raises(UserError, match=f"and the target has {layers} layers"):
        taps_of(name, layers)


class NamesAlone:
    """A file of safetensors that fails as soon as a tensor is read."""

    def __init__(self, file: Path, framework: str) -> None:
        self._file = safe_open(file, framework)
        self.keys, self.get_slice = self._file.keys, self._file.get_slice

    def get_tensor(self, name: str) -> None:
        pytest.fail(f"{name} was read")


def test_taps_are_read_without_reading_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = tiny_heads.write(tmp_path, tiny_heads.eagle3(), CONFIG | {"eagle_aux_hidden_state_layer_ids": [1, 3, 7]})
    monkeypatch.setattr(checkpoints, "safe_open", NamesAlone)
    assert taps_of(name, LAYERS) == (1, 3, 7)


# Random heads.


def test_a_random_eagle3_head_reads_the_published_layers_among_others() -> None:
    assert random_eagle3(tiny_heads.target(taps=(1, *TAPS))).fc.weight.shape == (SIZE, 3 * SIZE)
    assert random_eagle3(tiny_heads.target(taps=(1, 7))).fc.weight.shape == (SIZE, 2 * SIZE)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_random_heads_have_the_targets_shape(family: str) -> None:
    target = tiny_heads.target(family, taps=TAPS, **({"head_dim": 16} if family == "qwen3" else {}))
    head_dim = 16 if family == "qwen3" else 8
    eagle2, eagle3 = random_eagle2(target, seed=1), random_eagle3(target, draft_rows=30, seed=1)
    assert eagle2.new_cache(3).rows(3).shape == eagle3.new_cache(3).rows(3).shape == (1, 2, 1, 2, 3, head_dim)
    assert (eagle2.rows, eagle3.rows) == (ROWS, 30)
    assert random_medusa(target, heads=3, layers=2).heads == 3
    for make in (random_eagle2, random_eagle3, random_medusa):
        one, same, other = (make(target, seed=seed).state_dict() for seed in (1, 1, 2))
        assert all(torch.equal(one[name], same[name]) for name in one)
        assert not all(torch.equal(one[name], other[name]) for name in one)
