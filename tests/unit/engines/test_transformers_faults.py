"""One clear sentence for each thing that can be wrong."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError

import joulewise.engines.transformers
import tiny_models
from joulewise.decoding import CoGA, DyGA, PromptLookup, Vanilla
from joulewise.decoding.spec import Decoding
from joulewise.engines.engine import Message, Request, Role
from joulewise.engines.spec import TransformersSpec
from joulewise.engines.transformers import TransformersEngine, loading
from joulewise.errors import ContextLengthError, EnvironmentFault, UserError, first_paragraph


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_models.save(tmp_path_factory.mktemp("llama"), tiny_models.build("llama"))


def ask(text: str, new: int = 4, role: Role = "user") -> Request:
    return Request((Message(role, text),), new, True)


def load(model: str, decodings: list[Decoding] | None = None, **spec: Any) -> TransformersEngine:
    engine = TransformersEngine(TransformersSpec(**{"model": model, "device": "cpu"} | spec))
    engine.load(decodings or [])
    return engine


class Wishful(Decoding):
    """A decoding that no engine knows."""

    lossless: ClassVar[bool] = False
    kind: Literal["wishful"] = "wishful"


def test_refusals_have_a_reason(folder: str, tmp_path: Path) -> None:
    engine = TransformersEngine(TransformersSpec(model=folder))
    assert engine.refuses(Vanilla()) is None
    assert engine.refuses(PromptLookup()) is None
    assert engine.refuses(CoGA(draft="first-layers:2")) is None
    assert "needs a draft model" in str(engine.refuses(CoGA(tokens=5)))
    assert "needs a draft model" in str(engine.refuses(DyGA()))
    assert "wishful" in str(engine.refuses(Wishful()))
    for name in ("first-layers:", "first-layers:0", "first-layers:-1", "first-layers:two"):
        assert "first-layers:N" in str(engine.refuses(CoGA(draft=name)))
    t5 = tiny_models.save(tmp_path, tiny_models.build("t5"))
    assert "encoder" in str(TransformersEngine(TransformersSpec(model=t5)).refuses(PromptLookup()))
    assert TransformersEngine(TransformersSpec(model="nobody/has-this")).refuses(PromptLookup()) is None


def test_what_is_refused_is_not_loaded_or_run(folder: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs a draft model"):
        load(folder, [CoGA()])
    t5 = load(tiny_models.save(tmp_path, tiny_models.build("t5")))
    with pytest.raises(UserError, match="encoder-decoder"):
        t5.generate(ask("abc"), PromptLookup())


def test_a_state_that_cannot_be_rolled_back(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load(folder)
    target, _ = engine._ready(Vanilla())
    monkeypatch.setattr(type(target.model), "_is_stateful", True)
    assert engine.refuses(Vanilla()) is None
    assert "rolled back" in str(engine.refuses(PromptLookup()))


def test_opening_and_refusing_load_no_torch(folder: str) -> None:
    code = (
        "import sys\n"
        "from joulewise.decoding import CoGA, PromptLookup\n"
        "from joulewise.engines import open_engine\n"
        "from joulewise.engines.spec import TransformersSpec\n"
        f"engine = open_engine(TransformersSpec(model={folder!r}))\n"
        "assert engine.refuses(CoGA()) and engine.refuses(PromptLookup()) is None\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else real(name, *rest))
    with pytest.raises(EnvironmentFault, match=r"torch: pip install 'joulewise\[transformers\]'"):
        importlib.reload(joulewise.engines.transformers)


def test_a_model_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> str:
        raise LocalEntryNotFoundError("The hub cannot be reached.\nA long story.")

    monkeypatch.setattr(loading, "snapshot_download", unreachable)
    with pytest.raises(UserError) as caught:
        load("nobody/has-this")
    message = str(caught.value)
    assert "'nobody/has-this'" in message
    assert "The hub cannot be reached" in message
    assert "spelling" in message
    assert "hf download" in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["./nowhere/at/all", "two words"])
def test_names_that_are_neither_folder_nor_hub_name(name: str) -> None:
    with pytest.raises(UserError, match="neither a folder here nor"):
        load(name)


def test_folders_that_are_no_model(folder: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match="could not be loaded"):
        load(str(empty))

    torn = Path(tiny_models.save(tmp_path / "torn", tiny_models.build("llama")))
    weights = torn / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(UserError, match="could not be loaded"):
        load(str(torn))

    pickled = Path(tiny_models.save(tmp_path / "pickled", tiny_models.build("llama")))
    (pickled / "model.safetensors").unlink()
    torch.save(tiny_models.build("llama").state_dict(), pickled / "pytorch_model.bin")
    with pytest.raises(UserError, match="could not be loaded"):
        load(str(pickled))


def test_a_model_without_a_tokenizer(tmp_path: Path) -> None:
    tiny_models.build("llama").save_pretrained(tmp_path)
    with pytest.raises(UserError, match=str(tmp_path)):
        load(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Take one of:\n(1) a file,\n(2) a folder.\n\nA long story.", "Take one of: (1) a file, (2) a folder"),
        ("Nothing follows:\n", "Nothing follows"),
        ("", "ValueError"),
        ("word " * 100, "word " * 59 + "..."),
    ],
)
def test_a_librarys_error_is_told_in_one_line(text: str, said: str) -> None:
    assert first_paragraph(ValueError(text)) == said


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "balanced"])
def test_a_gpu_that_is_not_there(folder: str, device: str) -> None:
    with pytest.raises(EnvironmentFault, match=device):
        load(folder, device=device)


def test_a_gpu_number_that_is_not_there(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(EnvironmentFault, match=r"cuda:7 is not there: torch sees 2 GPU"):
        load(folder, device="cuda:7")


def test_no_memory_left(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load(folder)
    target, _ = engine._ready(Vanilla())

    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(target.model, "generate", full)
    with pytest.raises(EnvironmentFault, match=r"3 prompt and 4 new tokens .* \(vanilla\)"):
        engine.generate(ask("abc"), Vanilla())


def test_the_context_is_checked_to_the_token(folder: str) -> None:
    whole = f"first-layers:{tiny_models.LAYERS}"
    decodings: list[Decoding] = [CoGA(tokens=8, draft=whole), PromptLookup(tokens=8)]
    engine = load(folder, decodings)
    for decoding in [Vanilla(), *decodings]:
        fits = engine.generate(ask("ab" * 40, tiny_models.CONTEXT - 80), decoding)
        assert fits.prompt_tokens + fits.output_tokens == tiny_models.CONTEXT
        with pytest.raises(ContextLengthError, match=r"80 prompt tokens and 17 new ones need 97 positions.* has 96"):
            engine.generate(ask("ab" * 40, tiny_models.CONTEXT - 79), decoding)


def test_the_drafts_context_counts_too(folder: str, tmp_path: Path) -> None:
    short = tiny_models.build("llama")
    short.config.max_position_embeddings = 32
    draft = tiny_models.save(tmp_path, short)
    decoding = CoGA(draft=draft)
    engine = load(folder, [decoding])
    assert engine.generate(ask("ab" * 15, 8), Vanilla()).output_tokens == 8
    with pytest.raises(ContextLengthError, match=f"{draft} has 32"):
        engine.generate(ask("ab" * 15, 8), decoding)


def test_relative_positions_have_no_end(tmp_path: Path) -> None:
    engine = TransformersEngine(
        TransformersSpec(model=tiny_models.save(tmp_path, tiny_models.build("t5")), device="cpu")
    )
    assert engine.load([]).context_length is None
    assert engine.generate(ask("ab" * 100, 3), Vanilla()).prompt_tokens == 200


def test_an_empty_prompt(folder: str) -> None:
    with pytest.raises(UserError, match="no tokens"):
        load(folder).generate(ask(""), Vanilla())


def test_generating_before_loading(folder: str) -> None:
    engine = TransformersEngine(TransformersSpec(model=folder))
    with pytest.raises(RuntimeError, match="load"):
        engine.generate(ask("abc"), Vanilla())
    engine.close()
    engine.close()


def test_closing_frees_the_model(folder: str) -> None:
    engine = load(folder, [CoGA(draft="first-layers:1")])
    engine.close()
    with pytest.raises(RuntimeError, match="load"):
        engine.generate(ask("abc"), Vanilla())


TEMPLATE = (
    "{% if messages[0].role == messages[1].role %}{{ raise_exception('no, no') }}{% endif %}"
    "{% for m in messages %}<s>{{ m.role[0] }} {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>a {% endif %}"
)


def test_the_chat_template_is_applied_where_there_is_one(tmp_path: Path, folder: str) -> None:
    model = tiny_models.build("llama")
    chat = load(tiny_models.save(tmp_path, model, tiny_models.tokenizer(chat_template=TEMPLATE)))
    turns = (Message("system", "be"), Message("user", "hi"))
    assert chat.generate(Request(turns, 2), Vanilla()).prompt_tokens == len("<s be>") + len("<u hi>") + len("<a ")
    begun = (*turns, Message("assistant", "so"))
    assert chat.generate(Request(begun, 2), Vanilla()).prompt_tokens == len("<s be>") + len("<u hi>") + len("<a so")
    rewritten = TEMPLATE.replace("m.content }}", "m.content.split('t')[-1] }}")  # as Qwen3's drops a <think> block
    other = load(tiny_models.save(tmp_path / "rewrites", model, tiny_models.tokenizer(chat_template=rewritten)))
    begun = (*turns, Message("assistant", "sot so"))
    assert other.generate(Request(begun, 2), Vanilla()).prompt_tokens == len("<s be>") + len("<u hi>") + len(
        "<a sot so"
    )
    with pytest.raises(UserError, match="refuses the roles user, user: no, no"):
        chat.generate(Request((turns[1], turns[1]), 2), Vanilla())
    plain = load(folder)
    assert plain.generate(Request(turns, 2), Vanilla()).prompt_tokens == len("be\n\nhi")


def test_info_says_what_ran(folder: str) -> None:
    engine = TransformersEngine(TransformersSpec(model=folder, draft="first-layers:1", dtype="bfloat16", device="cpu"))
    info = engine.load([Vanilla(), CoGA(tokens=2), PromptLookup()])
    assert (info.engine, info.model, info.model_class) == ("transformers", folder, "LlamaForCausalLM")
    assert (info.dtype, info.devices, info.context_length) == ("bfloat16", ("cpu",), tiny_models.CONTEXT)
    assert set(info.drafts) == {"coga-2"}
    assert info.versions["torch"] == torch.__version__
    assert f"torch threads: {torch.get_num_threads()}" in info.notes
    assert info.parameters == tiny_models.build("llama").num_parameters()
