"""``joulewise heads``: data, train and check on a tiny target, from its own texts to its acceptance."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from typer.testing import CliRunner, Result

import tiny_models
from joulewise.cli.main import app
from joulewise.engines.native.training import train as training
from joulewise.engines.native.training import write
from joulewise.engines.native.training.data import Writer
from joulewise.errors import EnvironmentFault, UserError

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}.{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}a.{% endif %}"
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(write, "TURN_TOKENS", 30)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target, prompts, and data written from them."""
    root = tmp_path_factory.mktemp("heads")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = tiny_models.llama(num_hidden_layers=8).eval()
    model.lm_head.weight.data *= 3
    tiny_models.save(root / "target", model, tiny_models.tokenizer(chat_template=TEMPLATE))
    rows = [json.dumps({"question": f"what is {i} and {7 * i}?", "answer": "?"}) for i in range(48)]
    (root / "prompts.jsonl").write_text("\n".join(rows))
    result = heads(root, "data", "target", "--out", "data", "--prompts", "prompts.jsonl", "--tokens", "500", *SIZES)
    assert result.exit_code == 0, result.output
    assert "data holds " in result.output
    return root


SIZES = ("--max-new-tokens", "24", "--batch", "48")


def heads(root: Path, *arguments: str) -> Result:
    """The command, with names of files and folders relative to ``root``."""
    known = ("target", "data", "prompts.jsonl", "head", "more", "new", "checked.json")
    placed = [str(root / a) if a in known and i else a for i, a in enumerate(arguments)]
    return CliRunner().invoke(app, ["heads", *placed])


@pytest.mark.parametrize("kind", ["medusa", "eagle2", "eagle3", "draft"])
def test_from_texts_to_acceptance(place: Path, tmp_path: Path, kind: str) -> None:
    out = str(tmp_path / "out")
    train = [
        "train",
        "target",
        "--kind",
        kind,
        "--data",
        "data",
        "--out",
        out,
        "--epochs",
        "1",
        "--batch-tokens",
        "512",
    ]
    result = heads(place, *train, "--minutes", "0")
    assert result.exit_code == 0, result.output
    assert "Stopped at step 0 of" in result.output
    assert "Check it" not in result.output
    result = heads(place, *train)
    assert result.exit_code == 0, result.output
    assert "Held-out texts: loss" in result.output
    assert "best token agrees with the target's in " in result.output
    assert f"joulewise heads check {out} {place / 'target'} --data {place / 'data'}\n" in result.output
    assert json.loads((tmp_path / "out" / "recipe.json").read_text())["finished"] is True
    file = tmp_path / "checked.json"
    check = ["check", out, "target", "--data", "data", "--questions", "1", "--max-new-tokens", "12"]
    result = heads(place, *check, "--json", str(file))
    figures: dict[str, Any] = json.loads(file.read_text())
    assert figures["kind"] == kind
    labels = [one["label"] for one in figures["decodings"]]
    own = {
        "draft": ["coga-5"],
        "medusa": ["medusa"],
        "eagle2": ["eagle2-60x5x10", "eagle2-chain-5"],
        "eagle3": ["eagle3-60x5x10", "eagle3-chain-5"],
    }
    assert labels == [*own[kind], "prompt-lookup-10"]
    first = figures["decodings"][0]["everything"]
    assert (first["outputs"], first["interval"], len(first["by_output"])) == (1, None, 1)
    assert first["length"] == pytest.approx(1 + sum(first["per_position"]))
    accepted = round(sum(first["per_position"]) * first["rounds"])
    assert first["tokens"] in (1 + first["rounds"] + accepted, first["rounds"] + accepted)  # the end may be a draft's
    below = first["length"] <= 1.3
    assert result.exit_code == int(below), result.output
    assert ("Below the gate" in result.output) == below


def test_an_untrained_head_fails_the_gate(place: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    heads(place, "train", "target", "--kind", "draft", "--data", "data", "--out", out, "--minutes", "0")
    result = heads(
        place, "check", out, "target", "--prompts", "prompts.jsonl", "--questions", "2", "--max-new-tokens", "20"
    )
    assert result.exit_code == 1
    assert "Below the gate: coga-5 keeps 1." in result.output


def test_a_draft_that_is_the_target_keeps_all_it_drafts(place: Path) -> None:
    result = heads(
        place, "check", "first-layers:8", "target", "--prompts", "prompts.jsonl", "--questions", "2",
        "--max-new-tokens", "19",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "coga-5 6.00, n 2" in " ".join(result.output.split())
    assert "Only 2 prompts: fewer than 5 give no interval" in result.output
    assert "100 100 100 100 100" in result.output


def signal_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, *numbers: signal.Signals) -> None:
    """Let this process get signals after the given call of ``owner.name``."""
    plain, calls = getattr(owner, name), [0]

    def then_signalled(*args: Any) -> Any:
        done = plain(*args)
        calls[0] += 1
        for number in numbers if calls[0] == call else ():
            signal.raise_signal(number)
        return done

    monkeypatch.setattr(owner, name, then_signalled)


STEPS = ("train", "target", "--kind", "medusa", "--data", "data", "--epochs", "3", "--batch-tokens", "256", "--out")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_training_saves_its_step_and_goes_on(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    with monkeypatch.context() as patched:
        signal_at(patched, training._Run, "_learn", 2, number)
        stopped = heads(place, *STEPS, str(tmp_path))
    assert stopped.exit_code == 130, stopped.output
    steps = json.loads((tmp_path / "recipe.json").read_text())["steps"]
    assert f"Stopped at step 2 of {steps}; the same command goes on.\n" in stopped.output
    assert signal.getsignal(number) is before
    again = heads(place, *STEPS, str(tmp_path))
    assert again.exit_code == 0, again.output
    assert f"going on from step 2 of {steps}" in again.output


def test_a_training_that_is_stopped_twice_tells_what_is_lost(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal_at(monkeypatch, training._Run, "_learn", 2, signal.SIGINT, signal.SIGINT)
    stopped = heads(place, *STEPS, str(tmp_path))
    assert stopped.exit_code == 130, stopped.output
    assert "in the middle of a step; the steps since the last checkpoint are lost; the same command" in stopped.output


def test_stopped_writing_keeps_its_batches(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data = ("data", "target", "--prompts", "prompts.jsonl", "--max-new-tokens", "8", "--batch", "4")
    arguments = (*write_data, "--tokens", "100", "--out", str(tmp_path))
    with monkeypatch.context() as patched:
        signal_at(patched, Writer, "add", 2, signal.SIGTERM)
        stopped = heads(place, *arguments)
    assert stopped.exit_code == 130, stopped.output
    assert "holds 8 texts with" in stopped.output
    assert "Stopped; finished batches are kept, and the same command goes on." in stopped.output
    with monkeypatch.context() as patched:
        signal_at(patched, write, "write_batch", 1, signal.SIGINT, signal.SIGINT)
        stopped = heads(place, *arguments)
    assert stopped.exit_code == 130, stopped.output
    assert "Stopped in the middle of a batch; finished batches are kept; the same command goes on." in stopped.output
    assert (tmp_path / "index.bin").stat().st_size == 8 * 12
    assert heads(place, *arguments).exit_code == 0


@pytest.mark.parametrize("kind", ["medusa", "draft"])
def test_a_full_disk_while_training_is_one_sentence_and_loses_nothing(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The disk is full for one file after the other; each time the same command goes on from what is whole."""
    steps = ["train", "target", "--kind", kind, "--data", "data", "--epochs", "2", "--batch-tokens", "512"]

    def train(out: str, files: int) -> Result:
        left = iter(range(files))

        def write_bytes(self: Path, content: bytes) -> int:
            if next(left, None) is None:
                self.touch()
                raise OSError(28, "No space left on device", str(self))
            return self.open("wb").write(content)

        def write_text(self: Path, text: str, encoding: str = "utf-8") -> int:
            return write_bytes(self, text.encode(encoding))

        with monkeypatch.context() as patched:
            patched.setattr(Path, "write_bytes", write_bytes)
            patched.setattr(Path, "write_text", write_text)
            return heads(place, *steps, "--out", str(tmp_path / out))

    whole = train("whole", 100)
    assert whole.exit_code == 0, whole.output
    done = train("out", 0)
    assert isinstance(done.exception, EnvironmentFault)
    for files in range(1, 10):
        done = train("out", files)
        assert not list((tmp_path / "out").rglob(".*.part"))
        if done.exit_code == 0:
            break
        assert "going on from step" in done.output or files == 1
        assert isinstance(done.exception, EnvironmentFault)
        told = str(done.exception)
        assert "cannot be written (No space left on device): make room there, and run the same command again." in told
        assert "\n" not in told
    assert done.exit_code == 0, done.output
    assert files > 1
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize(
    ("writer", "fault"),
    [
        (PreTrainedModel, SafetensorError("I/O error: No space left on device (os error 28)")),
        (PreTrainedTokenizerBase, Exception("No space left on device (os error 28)")),
    ],
)
def test_a_full_disk_under_a_drafts_files_is_one_sentence(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: type, fault: Exception
) -> None:
    def full(*_: object, **__: object) -> None:
        raise fault

    steps = ("train", "target", "--kind", "draft", "--data", "data", "--epochs", "1", "--out", str(tmp_path / "out"))
    with monkeypatch.context() as patched:
        patched.setattr(writer, "save_pretrained", full)
        done = heads(place, *steps)
    assert isinstance(done.exception, EnvironmentFault)
    assert f"{tmp_path / 'out'} cannot be written ({fault}): make room there" in str(done.exception)
    assert not list((tmp_path / "out").glob(".draft.*"))
    done = heads(place, *steps)
    assert done.exit_code == 0, done.output
    assert "going on from step" in done.output


def test_without_held_out_texts_prompts_are_named_for_the_check(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "data", tmp_path / "all")
    index = np.fromfile(tmp_path / "all" / "index.bin", np.int32).reshape(-1, 3)
    index[:, 2] = 0
    index.tofile(tmp_path / "all" / "index.bin")
    out = str(tmp_path / "out")
    train = ("train", "target", "--kind", "medusa", "--data", str(tmp_path / "all"), "--epochs", "1", "--out", out)
    result = heads(place, *train)
    assert result.exit_code == 0, result.output
    assert f"Check it: joulewise heads check {out} {place / 'target'} --prompts FILE\n" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("data", "target", "--out", ""),
        ("data", "", "--out", "new"),
        ("data", "target", "--out", "new", "--prompts", ""),
        ("data", "target", "--out", "new", "--exclude", " "),
        ("train", "target", "--kind", "medusa", "--data", "data", "--out", ""),
        ("train", "target", "--kind", "medusa", "--data", "", "--out", "new"),
        ("check", "", "target"),
        ("check", "target", "target", "--data", ""),
        ("check", "target", "target", "--data", "data", "--json", ""),
    ],
)
def test_empty_names_are_refused(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = heads(place, *arguments)
    assert isinstance(result.exception, UserError)
    assert "is empty; give " in str(result.exception)
    assert os.listdir(tmp_path) == []


def test_training_writes_its_own_data_where_none_is_named(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    train = ("train", "target", "--kind", "medusa", "--out", str(out), "--tokens", "60", "--epochs", "1")
    stopped = heads(place, *train, "--minutes", "0")
    assert stopped.exit_code == 0, stopped.output
    assert "go on with the same command" in stopped.output
    assert not (out / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("train", "target", "--kind", "medusa", "--data", "more", "--out", "new"), "more holds no texts"),
        (
            ("train", "target", "--kind", "medusa", "--data", "data", "--out", "new", "--lr", "0"),
            "--lr must be above 0",
        ),
        (("check", "target", "target", "--data", "data", "--prompts", "prompts.jsonl"), "either --data"),
        (("check", "target", "target"), "either --data"),
        (("check", "data", "target", "--data", "data"), "holds no Medusa, EAGLE-1/2 or EAGLE-3 head"),
        (("check", "target", "target", "--data", "data", "--max-new-tokens", "90"), "exceed the 96 positions"),
        (("data", "target", "--out", "new", "--prompts", "more"), "could not be read as text"),
    ],
)
def test_wrong_input_is_told(place: Path, arguments: tuple[str, ...], fault: str) -> None:
    result = heads(place, *arguments)
    assert isinstance(result.exception, UserError)
    assert fault in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("train", "--kind", "draft", "--data", "data", "--draft-layers", "99"), "--draft-layers 99 is not possible"),
        (("train", "--kind", "draft", "--draft-layers", "9"), "target has 8 layers"),
        (("train", "--kind", "medusa", "--data", "data", "--device", "cuda:99"), "cuda:99"),
        (("data", "--max-new-tokens", "96"), "has 96 positions for a prompt and its answer"),
    ],
)
def test_what_cannot_be_made_leaves_no_folder(
    place: Path, tmp_path: Path, arguments: tuple[str, ...], fault: str
) -> None:
    result = heads(place, arguments[0], "target", *arguments[1:], "--out", str(tmp_path / "new" / "out"))
    assert result.exit_code != 0
    assert fault in f"{result.exception} {result.output}"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("file", "fault"), [("none/checked.json", "there is no folder"), ("", "is a folder")])
def test_a_place_for_the_figures_is_looked_for_before_the_check(
    place: Path, tmp_path: Path, file: str, fault: str
) -> None:
    result = heads(place, "check", "first-layers:8", "no-such-target", "--data", "data", "--json", str(tmp_path / file))
    assert isinstance(result.exception, UserError)
    assert fault in str(result.exception)


def test_short_contexts_get_short_answers(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    train = ("train", "target", "--kind", "medusa", "--out", str(out), "--tokens", "60", "--epochs", "1")
    done = heads(place, *train)
    assert done.exit_code == 0, done.output
    assert json.loads((out / "recipe.json").read_text())["finished"] is True


@pytest.mark.parametrize("arguments", [("data",), ("train", "--kind", "draft")])
def test_a_seed_below_0_is_refused(place: Path, arguments: tuple[str, ...]) -> None:
    command, *more = arguments
    result = heads(place, command, "target", *more, "--out", "new", "--seed", "-1")
    assert result.exit_code == 2
    assert "Invalid value for '--seed'" in result.output
    assert not (place / "new").exists()
