"""Quantised targets and drafts on tiny random models: what loads, what is said of it, what is refused."""

from __future__ import annotations

import importlib.util
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_models
from joulewise.decoding import CoGA, PromptLookup, Vanilla
from joulewise.decoding.spec import Decoding
from joulewise.engines.engine import EngineInfo, Message, Request
from joulewise.engines.spec import TransformersSpec
from joulewise.engines.transformers import TransformersEngine, quantisation
from joulewise.engines.transformers.check import Step, explain_difference
from joulewise.engines.transformers.loading import Loaded
from joulewise.engines.transformers.prompts import encode
from joulewise.engines.transformers.quantisation import describe, loading_config, parameters, spare_odd_shapes, stated
from joulewise.errors import EnvironmentFault, UserError

pytest.importorskip("bitsandbytes", reason="the extra `bitsandbytes` is not installed")

LINEAR = tiny_models.LAYERS * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48)
"""Weights of the tiny Llama's linear layers, the head's left out."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_models.save(tmp_path_factory.mktemp("llama"), tiny_models.build("llama"))


def open_(model: str, *decodings: Decoding, **spec: Any) -> tuple[TransformersEngine, EngineInfo]:
    engine = TransformersEngine(TransformersSpec(**{"model": model, "device": "cpu"} | spec))
    return engine, engine.load(decodings)


def ask(text: str, new: int = 12) -> Request:
    return Request((Message("user", text),), new, ignore_eos=True)


def layer_types(model: Any) -> set[str]:
    return {type(m).__name__ for m in model.modules() if type(m).__name__.startswith("Linear")}


@pytest.mark.parametrize(("family", "dtype"), [("llama", "bfloat16"), ("gpt2", "float32"), ("t5", "float32")])
@pytest.mark.parametrize("how", ["nf4", "int8"])
def test_every_decoding_on_a_quantised_target(tmp_path: Path, family: str, dtype: str, how: str) -> None:
    model = tiny_models.build(family)
    name = tiny_models.save(tmp_path, model)
    decodings: list[Decoding] = [CoGA(tokens=3, draft="first-layers:2"), CoGA(tokens=3, draft=name)]
    if family != "t5":
        decodings.append(PromptLookup(tokens=3))
    engine, info = open_(name, *decodings, quantisation=how, dtype=dtype)
    assert (info.quantisation, info.dtype, info.parameters) == (how, dtype, model.num_parameters())
    assert info.versions["bitsandbytes"]
    target, _ = engine._ready(Vanilla())
    assert {"nf4": "Linear4bit", "int8": "Linear8bitLt"}[how] in layer_types(target.model)
    vanilla = engine.generate(ask("The cat sat."), Vanilla())
    assert vanilla.output_tokens == 12
    for decoding in decodings:
        generation = engine.generate(ask("The cat sat."), decoding)
        assert generation.accepted + len(generation.rounds) == generation.output_tokens + generation.wasted_tokens
        check = engine.check_lossless(ask("The cat sat."), decoding, vanilla.token_ids, generation.token_ids)
        assert check.status in ("identical", "tie"), decoding.label


def test_info_says_how_much_is_quantised(folder: str) -> None:
    _, info = open_(folder, CoGA(draft="first-layers:1"), quantisation="nf4")
    whole = tiny_models.build("llama").num_parameters()
    assert f"quantised: nf4 by bitsandbytes, as it was loaded; {LINEAR:,} of {whole:,} weights" in info.notes
    assert f"{whole - LINEAR * 2 // 3 - 2 * 64:,} parameters, all shared" in info.drafts["coga-5"]
    assert open_(folder)[1].quantisation is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_int8_tells_no_cast_and_keeps_what_else_its_library_says(
    folder: str, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    target, _ = open_(folder, quantisation="int8", dtype=dtype)[0]._ready(Vanilla())
    with torch.inference_mode():
        target.model(torch.tensor([[1, 2, 3]]))
    assert not [record for record in caplog.records if "MatMul8bitLt" in record.getMessage()]
    logging.getLogger("bitsandbytes.autograd._functions").warning("something else")
    assert [record.getMessage() for record in caplog.records] == ["something else"]


def test_int8_warns_of_its_activations(folder: str) -> None:
    assert any("int8: activations" in note for note in open_(folder, quantisation="int8")[1].notes)


def test_the_first_layers_are_the_targets_quantised_ones(folder: str) -> None:
    decoding = CoGA(tokens=3, draft=f"first-layers:{tiny_models.LAYERS}")
    for how in ("nf4", "int8"):
        engine, _ = open_(folder, decoding, quantisation=how)
        target, draft = engine._ready(decoding)
        assert draft is not None
        ours = {id(p) for p in target.model.parameters()}
        assert {id(p) for p in draft.loaded.model.parameters()} <= ours
        # The whole target drafts for itself. Near-ties apart (some CPUs multiply NF4 in bfloat16), nothing is rejected.
        generation = engine.generate(ask("The cat sat."), decoding)
        assert generation.accepted > generation.drafted / 2


def test_target_and_draft_are_quantised_separately(folder: str, tmp_path: Path) -> None:
    padded = tiny_models.with_rows(tiny_models.build("llama"), tiny_models.ROWS + 8)
    name = tiny_models.save(tmp_path, padded)  # its rows are cut to the target's, quantised or not
    decoding = CoGA(tokens=3, draft=name)
    for target_how, draft_how in (("none", "nf4"), ("none", "int8"), ("int8", "nf4")):
        engine, info = open_(folder, decoding, quantisation=target_how, draft_quantisation=draft_how)
        target, draft = engine._ready(decoding)
        assert draft is not None
        assert (target.quantisation or "none", draft.loaded.quantisation) == (target_how, draft_how)
        assert f"quantised: {draft_how} by bitsandbytes" in info.drafts["coga-3"]
        assert info.versions["bitsandbytes"]
        vanilla = engine.generate(ask("The cat sat."), Vanilla())
        generation = engine.generate(ask("The cat sat."), decoding)
        check = engine.check_lossless(ask("The cat sat."), decoding, vanilla.token_ids, generation.token_ids)
        assert check.status in ("identical", "tie")
        # A quantised draft of an unquantised float32 target has no excuse.
        assert check.status == "identical" or target_how == "int8"


def test_labels_tell_quantisations_apart() -> None:
    labels = [
        TransformersSpec(model="org/some-model", quantisation=target, draft_quantisation=draft).label
        for target, draft in (("none", "none"), ("nf4", "none"), ("int8", "none"), ("none", "nf4"), ("nf4", "int8"))
    ]
    assert labels == [
        "some-model@transformers",
        "some-model-nf4@transformers",
        "some-model-int8@transformers",
        "some-model+nf4-draft@transformers",
        "some-model-nf4+int8-draft@transformers",
    ]
    assert TransformersSpec(quantisation="nf4", name="mine").label == "mine"


def with_outliers() -> Any:
    """A model some of whose activations are outliers to int8 for some tokens and not for others."""
    model = tiny_models.build("llama")
    for layer in model.model.layers:
        layer.input_layernorm.weight.data *= 3.0
    return model


def test_int8_is_judged_by_what_was_really_drafted(tmp_path: Path) -> None:
    """A rejected draft moves the logits of the tokens before it, so a reading must put the same draft through."""
    model = with_outliers()
    name = tiny_models.save(tmp_path / "target", model)
    draft = tiny_models.save(tmp_path / "draft", tiny_models.noisy(model, 0.3))
    decoding = CoGA(tokens=4, draft=draft)
    engine, _ = open_(name, decoding, quantisation="int8")
    target, _ = engine._ready(Vanilla())
    verdicts, without = [], []
    for number in range(3):
        request = ask(f"prompt {number}", 24)
        vanilla = engine.generate(request, Vanilla())
        generation = engine.generate(request, decoding)
        check = engine.check_lossless(request, decoding, vanilla.token_ids, generation.token_ids)
        verdicts.append(check.status)
        if check.status != "identical":
            prompt = encode(target, request.messages)
            own = [Step(r.drafted, r.accepted) for r in generation.rounds]
            other = explain_difference(target, prompt, vanilla.token_ids, generation.token_ids, [5], own)
            without.append(other.status)
    assert set(verdicts) <= {"identical", "tie"}
    assert "different" in without  # else this model and these prompts test nothing


def test_a_wrong_token_of_a_quantised_target_is_no_tie(folder: str) -> None:
    for how in ("nf4", "int8"):
        engine, _ = open_(folder, quantisation=how)
        tokens = list(engine.generate(ask("The cat sat."), Vanilla()).token_ids)
        wrong = [*tokens[:5], (tokens[5] + 1) % tiny_models.ROWS, *tokens[6:]]
        assert engine.check_lossless(ask("The cat sat."), PromptLookup(), tokens, wrong).status == "different"


def test_files_that_are_quantised_already(tmp_path: Path, folder: str) -> None:
    target, _ = open_(folder, quantisation="nf4")[0]._ready(Vanilla())
    name = tiny_models.save(tmp_path, target.model)
    engine, info = open_(name)
    assert info.quantisation == "nf4"
    assert any("quantised: nf4 in the files" in note for note in info.notes)
    assert engine.generate(ask("abc"), Vanilla()).output_tokens == 12
    with pytest.raises(UserError, match=r"int8 takes unquantised files.*already \(nf4\)"):
        open_(name, quantisation="int8")


def test_gptq_takes_a_gptq_checkpoint(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantisation, "find_spec", lambda name: object())
    with pytest.raises(UserError, match=r"files that GPTQ has made, and those of .* are not quantised"):
        open_(folder, quantisation="gptq")


def gptq_folder(folder: Path) -> str:
    """A model whose config says that GPTQ has made it; its weights do not."""
    name = tiny_models.save(folder, tiny_models.build("llama"))
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    (folder / "config.json").write_text(json.dumps(config))
    return name


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(quantisation, "find_spec", lambda name: None if name in missing else real(name))


def test_a_missing_package_names_its_extra(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "bitsandbytes", "gptqmodel", "optimum")
    for field in ("quantisation", "draft_quantisation"):
        for how in ("nf4", "int8"):
            with pytest.raises(EnvironmentFault, match=rf"{field}: {how} needs bitsandbytes: .*joulewise\[bitsandb"):
                TransformersEngine(TransformersSpec(model=folder, **{field: how}))
        with pytest.raises(EnvironmentFault, match=rf"{field}: gptq needs gptqmodel and optimum: .*joulewise\[gptq\]"):
            TransformersEngine(TransformersSpec(model=folder, **{field: "gptq"}))
    with pytest.raises(EnvironmentFault, match=r"files are quantised \(gptq, 4 bits\), needs gptqmodel and optimum"):
        open_(gptq_folder(tmp_path))


def test_a_shared_draft_cannot_be_quantised_for_itself(folder: str) -> None:
    engine = TransformersEngine(TransformersSpec(model=folder, draft="first-layers:2", draft_quantisation="nf4"))
    assert "shares the target's weights" in str(engine.refuses(CoGA()))
    assert engine.refuses(CoGA(draft=folder)) is None
    assert engine.refuses(PromptLookup()) is None


def test_nothing_that_could_be_quantised() -> None:
    with pytest.raises(UserError, match=r"has no layers that int8 can quantise"):
        describe("some", torch.nn.Embedding(3, 3), "int8", None)


def test_files_that_were_dequantised() -> None:
    quantised, notes = describe("some", torch.nn.Linear(3, 3), "none", "mxfp4")
    assert quantised is None
    assert "dequantised as they were loaded" in notes[0]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, None),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "nf4"),
        ({"load_in_4bit": True}, "fp4"),
        ({"quant_method": "gptq", "bits": 4}, "gptq, 4 bits"),
        ({"quant_method": "fp8"}, "fp8"),
        ({}, "unknown"),
    ],
)
def test_what_files_say_of_themselves(config: dict[str, Any] | None, expected: str | None) -> None:
    class Config:
        quantization_config = config

    assert stated(Config()) == expected


def test_nothing_is_told_where_nothing_is_wanted() -> None:
    assert loading_config("some", "none", None, torch.float32) is None
    assert describe("some", torch.nn.Linear(3, 3), "none", None) == (None, ())


def test_packed_kernels_of_some_cpus(folder: str) -> None:
    """What bitsandbytes sets where the CPU has AVX-512 BF16: told, and taken off layers that it could not pack."""
    from bitsandbytes.nn import Linear4bit

    model = open_(folder, quantisation="nf4")[0]._ready(Vanilla())[0].model
    fits, odd = Linear4bit(64, 32), model.model.layers[0].mlp.up_proj
    for layer in (fits, odd):
        layer.support_avx512bf16_for_cpu = True
    note = "nf4: this CPU multiplies quantised weights in bfloat16, whatever the dtype"
    assert note in describe("some", model, "nf4", None)[1]
    for part in (model, torch.nn.Sequential(fits)):
        spare_odd_shapes(part)
    assert (fits.support_avx512bf16_for_cpu, odd.support_avx512bf16_for_cpu) == (True, False)
    assert note not in describe("some", model, "nf4", None)[1]


def test_parameters_of_an_unquantised_model() -> None:
    for family in tiny_models.FAMILIES:
        model = tiny_models.build(family)
        assert parameters(model) == model.num_parameters()


@pytest.fixture(scope="module")
def gptq(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A real GPTQ checkpoint of a tiny model; gptqmodel compiles its packing (about a minute) the first time."""
    pytest.importorskip("gptqmodel", reason="the extra `gptq` is not installed")
    from transformers import AutoModelForCausalLM, GPTQConfig

    plain = tiny_models.save(
        tmp_path_factory.mktemp("plain"), tiny_models.llama(hidden_size=128, intermediate_size=256)
    )
    texts = ["The cat sat on the mat. It was red, and it was old."] * 8
    how = GPTQConfig(bits=4, tokenizer=tiny_models.tokenizer(), group_size=32, dataset=texts)
    model = AutoModelForCausalLM.from_pretrained(plain, device_map="cpu", quantization_config=how)
    return tiny_models.save(tmp_path_factory.mktemp("gptq"), model)


def test_a_gptq_checkpoint(gptq: str, capfd: pytest.CaptureFixture[str]) -> None:
    decodings: list[Decoding] = [CoGA(tokens=3, draft="first-layers:2"), PromptLookup(tokens=3)]
    capfd.readouterr()
    engine, info = open_(gptq, *decodings, quantisation="gptq")
    assert capfd.readouterr().out == ""
    plain = tiny_models.llama(hidden_size=128, intermediate_size=256)
    assert (info.quantisation, info.parameters) == ("gptq, 4 bits", plain.num_parameters())
    assert set(info.versions) >= {"gptqmodel", "optimum"}
    target, draft = engine._ready(decodings[0])
    assert isinstance(draft and draft.loaded, Loaded)
    vanilla = engine.generate(ask("The cat sat."), Vanilla())
    for decoding in decodings:
        generation = engine.generate(ask("The cat sat."), decoding)
        check = engine.check_lossless(ask("The cat sat."), decoding, vanilla.token_ids, generation.token_ids)
        assert check.status in ("identical", "tie"), decoding.label
    assert open_(gptq)[1].quantisation == "gptq, 4 bits"
    with pytest.raises(UserError, match="already"):
        open_(gptq, quantisation="nf4")
    assert target.quantisation == "gptq, 4 bits"
