"""Training: it learns, it goes on after any kill as if there had been none, and it publishes what it trained."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

import tiny_heads
import tiny_models
from joulewise.engines.engine import Message
from joulewise.engines.native.heads import open_head, published_taps
from joulewise.engines.native.heads.eagle import EagleHead
from joulewise.engines.native.heads.medusa import MedusaHead
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.training import students
from joulewise.engines.native.training.check import check, kind_of
from joulewise.engines.native.training.data import open_texts
from joulewise.engines.native.training.files import alone_in
from joulewise.engines.native.training.students import Kind, Recipe, Student, new_student, open_target, require_fits
from joulewise.engines.native.training.train import CHECKPOINT, Trained, agreement, learning_rate, train
from joulewise.engines.native.training.write import Writing, write_texts
from joulewise.engines.transformers.drafts import open_draft
from joulewise.engines.transformers.loading import Loaded, load, make_neutral
from joulewise.errors import UserError

KINDS: tuple[Kind, ...] = ("medusa", "eagle2", "eagle3", "draft")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random target of eight layers, and texts that it wrote."""
    root = tmp_path_factory.mktemp("target")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = tiny_models.llama(num_hidden_layers=tiny_heads.LAYERS).eval()
        model.lm_head.weight.data *= 3  # surer of its tokens than a random model is
    name = tiny_models.save(root / "model", model)
    prompts = [(Message("user", f"what is {i} and {7 * i}?"),) for i in range(60)]
    how = Writing(1200, max_new_tokens=24, batch=60)
    with alone_in(root / "data"):
        write_texts(loaded_of(name), root / "data", how, prompts, "mine.jsonl")
    return root


def loaded_of(name: str) -> Loaded:
    return load(name, None, "auto", "cpu")


def target_of(folder: Path) -> Loaded:
    return loaded_of(str(folder / "model"))


def recipe_of(kind: Kind, **other: Any) -> Recipe:
    usual: dict[str, Any] = {"epochs": 2, "lr": 3e-3, "batch_tokens": 512, "draft_rows": 40, "clip": 5.0}
    return Recipe(kind=kind, **(usual | other))


def trained(folder: Path, out: Path, recipe: Recipe, **other: Any) -> Trained:
    target = target_of(folder)
    with alone_in(out):
        return train(recipe, target, open_texts(folder / "data", target), out, **other)


def tensors(out: Path) -> dict[str, Tensor]:
    return load_file(out / "model.safetensors")


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_falls_and_the_acceptance_rises(folder: Path, tmp_path: Path, kind: Kind) -> None:
    texts = open_texts(folder / "data").first(5)
    prompts = [texts.prompt(int(i)) for i in texts.where(held_out=False)]

    def length(epochs: int, **other: Any) -> float:
        out = tmp_path / str(epochs)
        with alone_in(out):
            done = train(recipe_of(kind, epochs=epochs, lr=0.01), target_of(folder), texts, out, **other)
        curve = done.report["curve"]
        if other:
            assert (done.step, done.finished, curve) == (0, False, [])
        else:
            assert done.finished
            assert curve[-1]["loss"] < 0.7 * curve[0]["loss"]
            assert curve[-1]["agreement"][0] > (0.5 if kind == "medusa" else 0.8)
        found = check(str(out), kind, target_of(folder), prompts, 20)[0].everything.length
        assert found is not None
        return found

    assert length(60) > length(1, deadline_s=-math.inf) + 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_in_bfloat16_the_weights_are_trained_in_float32_and_published_in_bfloat16(
    folder: Path, tmp_path: Path, kind: Kind
) -> None:
    texts = open_texts(folder / "data").first(5)
    target = load(str(folder / "model"), None, "bfloat16", "cpu")
    with alone_in(tmp_path):
        done = train(recipe_of(kind, epochs=25, lr=0.01), target, texts, tmp_path)
    curve = done.report["curve"]
    assert curve[-1]["loss"] < 0.8 * curve[0]["loss"]
    with safe_open(tmp_path / CHECKPOINT, framework="pt") as opened:
        assert {opened.get_tensor(name).dtype for name in opened.keys()} == {torch.float32}  # noqa: SIM118
    assert {t.dtype for t in tensors(tmp_path).values()} <= {torch.bfloat16, torch.int64, torch.bool}
    prompts = [texts.prompt(int(i)) for i in texts.where(held_out=False)]
    found = check(str(tmp_path), kind, load(str(folder / "model"), None, "bfloat16", "cpu"), prompts, 12)
    assert found[0].everything.length is not None


class Killed(Exception):
    pass


def raises_at(last: int) -> Any:
    def after(step: int) -> None:
        if step == last:
            raise Killed

    return after


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_goes_on_after_a_kill_to_the_same_bits(folder: Path, tmp_path: Path, kind: Kind) -> None:
    recipe = recipe_of(kind)
    whole = trained(folder, tmp_path / "whole", recipe)
    assert whole.steps >= 6

    out = tmp_path / "killed"
    with pytest.raises(Killed):  # before the first checkpoint
        trained(folder, out, recipe, after_step=raises_at(2))
    assert not (out / CHECKPOINT).exists()
    with pytest.raises(Killed):  # with one after each step but the last
        trained(folder, out, recipe, checkpoint_every_s=0.0, after_step=raises_at(4))
    (out / "training" / ".checkpoint.safetensors.part").write_bytes(b"half a checkpoint")
    said: list[str] = []
    stopped = trained(folder, out, recipe, deadline_s=-math.inf, say=said.append)
    assert said == [f"going on from step 3 of {whole.steps}"]
    assert (stopped.step, stopped.finished) == (3, False)
    assert stopped.report["step"] == 3
    done = trained(folder, out, recipe)
    assert done.finished
    expected, found = tensors(tmp_path / "whole"), tensors(out)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert done.report["curve"] == whole.report["curve"]
    assert done.report["tokens_seen"] == whole.report["tokens_seen"]
    assert done.report["held_out"] == whole.report["held_out"]


def kept_student(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Student]]:
    """What is built while a head is trained, to compare with what is published."""
    built: list[Any] = []
    for name in ("build", "random_medusa"):
        make = getattr(students, name)

        def keep(*args: Any, make: Any = make, **named: Any) -> Any:
            built.append(make(*args, **named))
            return built[-1]

        monkeypatch.setattr(students, name, keep)
    return built


@pytest.mark.parametrize(
    ("kind", "other", "names"),
    [
        ("medusa", {}, {f"{i}.0.linear.{part}" for i in range(4) for part in ("weight", "bias")}),
        ("eagle2", {}, {"fc.weight", "layers.0.post_attention_layernorm.weight"}),
        ("eagle3", {}, {"fc.weight", "norm.weight", "d2t", "t2d", "midlayer.hidden_norm.weight"}),
        ("eagle3", {"own_output": True}, {"fc.weight", "norm.weight", "d2t", "t2d", "lm_head.weight"}),
        ("eagle3", {"draft_rows": 0}, {"fc.weight", "norm.weight", "midlayer.input_layernorm.weight"}),
        ("eagle3", {"draft_rows": 0, "own_output": True}, {"fc.weight", "norm.weight", "lm_head.weight"}),
    ],
)
def test_a_published_head_is_the_trained_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, other: dict[str, Any], names: set[str]
) -> None:
    built = kept_student(monkeypatch)
    trained(folder, tmp_path, recipe_of(kind, **other))
    inner = {n for n in tensors(tmp_path) if ".self_attn." in n or ".mlp." in n}
    assert len(inner) == (0 if kind == "medusa" else 7)
    assert names <= set(tensors(tmp_path))
    assert ("lm_head.weight" in tensors(tmp_path)) == ("lm_head.weight" in names)
    assert ("d2t" in tensors(tmp_path)) == ("d2t" in names)
    target = DecoderModel(target_of(folder), published_taps(tiny_heads.LAYERS))
    head, mine = open_head(str(tmp_path), target, kind), built[0]
    tokens = torch.arange(10, 20)
    with torch.no_grad():
        hidden = target.forward(target.new_cache(16), tokens, 0, None)
        if isinstance(head, MedusaHead):
            torch.testing.assert_close(head.logits(hidden.last[-1:]), mine.logits(hidden.last[-1:]), atol=0, rtol=0)
            return
        assert isinstance(head, EagleHead)
        assert head.rows == (40 if kind == "eagle3" and other.get("draft_rows", 40) else tiny_models.ROWS)
        found, expected = (h.logits(h(h.new_cache(16), tokens, h.fuse(hidden), 0)) for h in (head, mine))
        torch.testing.assert_close(found, expected, atol=0, rtol=0)
        if head.rows == 40:
            frequent = open_texts(folder / "data").frequent(40)
            assert head.ids(torch.arange(40)).tolist() == frequent.tolist()
            assert tensors(tmp_path)["t2d"].nonzero().flatten().tolist() == frequent.tolist()


def test_a_published_draft_is_an_ordinary_model_with_the_targets_vocabulary(folder: Path, tmp_path: Path) -> None:
    trained(folder, tmp_path, recipe_of("draft"))
    draft, target = (AutoModelForCausalLM.from_pretrained(p) for p in (tmp_path, folder / "model"))
    assert draft.config.num_hidden_layers == 2
    assert draft.generation_config.eos_token_id in (tiny_models.EOS, [tiny_models.EOS])
    assert "joulewise" not in (tmp_path / "config.json").read_text()
    for get in ("get_input_embeddings", "get_output_embeddings"):
        assert torch.equal(getattr(draft, get)().weight, getattr(target, get)().weight)
    first = draft.model.layers[0].mlp.up_proj.weight
    assert not torch.equal(first, target.model.layers[0].mlp.up_proj.weight)
    assert not any(p.name.startswith(".draft.") for p in tmp_path.iterdir())


def test_a_draft_without_embeddings_is_the_same_draft_on_its_target(folder: Path, tmp_path: Path) -> None:
    trained(folder, tmp_path / "whole", recipe_of("draft"))
    trained(folder, tmp_path / "layers", recipe_of("draft", without_embeddings=True))
    assert not any("embed" in name or "lm_head" in name for name in tensors(tmp_path / "layers"))
    assert {p.name for p in (tmp_path / "layers").iterdir() if p.is_file()} == {
        ".lock",
        "config.json",
        "model.safetensors",
        "recipe.json",
    }
    assert "joulewise" not in (tmp_path / "layers" / "config.json").read_text()
    assert kind_of(str(tmp_path / "layers")) == "draft"
    target = target_of(folder)
    whole, layers = (open_draft(str(tmp_path / name), target) for name in ("whole", "layers"))
    assert layers.same_tokenizer
    assert layers.loaded.model.get_input_embeddings() is target.model.get_input_embeddings()
    tokens = torch.arange(5, 25)[None]
    with torch.no_grad():
        found, expected = (draft.loaded.model(tokens).logits for draft in (layers, whole))
        torch.testing.assert_close(found, expected, atol=0, rtol=0)
    other = make_neutral("other", tiny_models.with_rows(tiny_models.llama(), 90), tiny_models.tokenizer())
    with pytest.raises(UserError, match=r"embeddings of the shape \(80, 32\), and those of other have \(90, 32\)"):
        open_draft(str(tmp_path / "layers"), other)
    stored = tensors(tmp_path / "layers")
    del stored["model.norm.weight"]
    save_file(stored, tmp_path / "layers" / "model.safetensors")
    with pytest.raises(UserError, match=r"is not whole: model.norm.weight"):
        open_draft(str(tmp_path / "layers"), target)
    (tmp_path / "layers" / "config.json").write_text("{")
    with pytest.raises(UserError, match="could not be read as JSON"):
        open_draft(str(tmp_path / "layers"), target)


def test_a_new_draft_is_the_targets_first_layers(folder: Path) -> None:
    recipe, texts = recipe_of("draft", draft_layers=3), open_texts(folder / "data")
    student = new_student(recipe, *open_target(recipe, target_of(folder)), texts)
    for number in range(3):
        layer = target_of(folder).model.base_model.layers[number].state_dict()
        assert all(torch.equal(layer[n], student.trained[f"layers.{number}.{n}"]) for n in layer)
    with pytest.raises(UserError, match=r"--draft-layers 9 is not possible: .* has 8 layers"):
        open_target(recipe_of("draft", draft_layers=9), target_of(folder))


def test_nothing_of_the_target_is_trained(folder: Path, tmp_path: Path) -> None:
    for kind in KINDS:
        target, before = target_of(folder), DecoderModel(target_of(folder)).model.state_dict()
        with alone_in(tmp_path / kind):
            train(recipe_of(kind, epochs=1), target, open_texts(folder / "data"), tmp_path / kind)
        after = target.model.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())


def test_the_recipe_says_what_was_done(folder: Path, tmp_path: Path) -> None:
    done = trained(folder, tmp_path, recipe_of("eagle3"))
    told = json.loads((tmp_path / "recipe.json").read_text())
    assert told == done.report
    assert told["target"].endswith("model")
    assert told["data"]["origins"][0]["prompts"] == "mine.jsonl"
    assert told["recipe"]["seed"] == 0
    assert told["step"] == told["steps"] == done.steps
    assert told["tokens_seen"] > 2 * told["data"]["answer_tokens"]
    assert len(told["held_out"]["agreement"]) == 7
    assert told["curve"][-1]["step"] == done.steps - 1
    assert {"torch", "transformers", "joulewise"} <= set(told["versions"])
    published = json.loads((tmp_path / "config.json").read_text())
    assert published["draft_vocab_size"] == 40
    assert published["num_hidden_layers"] == 1


def test_another_recipe_in_the_same_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    trained(folder, tmp_path, recipe_of("medusa"))
    with pytest.raises(UserError, match=r"began otherwise \(lr 0.003 instead of 0.01\)"):
        trained(folder, tmp_path, recipe_of("medusa", lr=0.01))
    (tmp_path / CHECKPOINT).write_bytes(b"no checkpoint")
    with pytest.raises(UserError, match="is no checkpoint of a training"):
        trained(folder, tmp_path, recipe_of("medusa"))


def test_a_training_keeps_to_the_texts_that_it_began_with(folder: Path, tmp_path: Path) -> None:
    texts = open_texts(folder / "data")
    with alone_in(tmp_path):
        few = train(recipe_of("medusa"), target_of(folder), texts.first(20), tmp_path)
        more = train(recipe_of("medusa"), target_of(folder), texts, tmp_path)
    assert more.finished
    assert more.steps == few.steps
    assert more.report["data"]["texts"] == 20
    with alone_in(tmp_path), pytest.raises(UserError, match=r"holds 19 texts, and the training in .* began with 20"):
        train(recipe_of("medusa"), target_of(folder), texts.first(19), tmp_path)


def test_nothing_to_train_on_is_told(folder: Path, tmp_path: Path) -> None:
    texts = open_texts(folder / "data").first(0)
    with alone_in(tmp_path), pytest.raises(UserError, match="holds no text to train on"):
        train(recipe_of("medusa"), target_of(folder), texts, tmp_path)


def test_a_training_that_goes_astray_says_so_and_keeps_what_was_saved(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Killed):
        trained(folder, tmp_path, recipe_of("medusa"), checkpoint_every_s=0.0, after_step=raises_at(3))
    saved = (tmp_path / CHECKPOINT).read_bytes()
    plain = students.medusa_loss

    def astray(*args: Any) -> Any:
        outcome = plain(*args)
        return students.Outcome(outcome.loss * math.nan, outcome.agreement)

    monkeypatch.setattr(students, "medusa_loss", astray)
    with pytest.raises(UserError, match=r"went astray at step 2: .* lower --lr than 0.003"):
        trained(folder, tmp_path, recipe_of("medusa"))
    assert (tmp_path / CHECKPOINT).read_bytes() == saved


def test_a_target_of_another_shape_gets_medusa_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = open_texts(folder / "data")
    monkeypatch.setattr(students, "_SHAPE", (*students._SHAPE, "a_field_of_llamas"))
    with pytest.raises(UserError, match=r"LlamaForCausalLM\) has no a_field_of_llamas"):
        open_target(recipe_of("eagle2"), target_of(folder))
    target, small = open_target(recipe_of("medusa"), target_of(folder))
    assert len(new_student(recipe_of("medusa"), target, small, texts).trained) == 8


def test_eagle3_needs_the_layers_that_it_reads(folder: Path) -> None:
    loaded = target_of(folder)
    loaded.model.config.num_hidden_layers = 2
    with pytest.raises(UserError, match=r"reads three layers of its target, and .* has 2 in all"):
        require_fits(recipe_of("eagle3"), loaded)


def test_agreement_is_told_in_words() -> None:
    assert agreement([0.234]) == "best token agrees with the target's in 23 %"
    told = "best token agrees with the target's in 23, 10, 6 % for drafted tokens 1 to 3"
    assert agreement([0.23, 0.1, 0.06]) == told


def test_the_learning_rate_rises_and_falls() -> None:
    recipe = recipe_of("medusa", warm_up=0.1)
    rates = [learning_rate(recipe, step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(recipe.lr / 10, rel=0.01)
    assert max(rates) == pytest.approx(recipe.lr, rel=0.03)
    assert rates.index(max(rates)) == 9
    assert all(a > b for a, b in pairwise(rates[9:]))
    assert rates[-1] < 0.001 * recipe.lr
