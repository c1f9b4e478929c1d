"""The draft and heads that come with Joulewise: their files, their names, and what takes them."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from pathlib import Path
from typing import get_args

import pytest

import joulewise
import tiny_heads
from joulewise.decoding import CoGA, DyGA, Eagle2, Eagle3, Medusa, PromptLookup
from joulewise.engines.native import NativeEngine
from joulewise.engines.native.checkpoints import Family, open_checkpoint
from joulewise.engines.native.engine import head_of
from joulewise.engines.native.heads import open_head
from joulewise.engines.native.training.check import kind_of
from joulewise.engines.shipped import ShippedKind, shipped_folder, shipped_for
from joulewise.engines.spec import NativeSpec, TransformersSpec
from joulewise.engines.transformers import TransformersEngine
from joulewise.engines.transformers.drafts import open_draft
from joulewise.engines.transformers.info import draft_name
from joulewise.errors import EnvironmentFault, UserError

KINDS: tuple[ShippedKind, ...] = get_args(ShippedKind)
HEADS: tuple[Family, ...] = ("medusa", "eagle2", "eagle3")
MOST_BYTES = 36_000_000
REPOSITORY = Path(__file__).parents[3]


def folder_of(kind: str) -> Path:
    folder = shipped_folder(f"shipped:{kind}")
    assert folder is not None
    return folder


@pytest.mark.parametrize(
    ("spec", "decoding", "message"),
    [
        (
            NativeSpec(model="other"),
            Medusa(head="shipped:medusa"),
            "trained for the default model and drafts for no other",
        ),
        (NativeSpec(model="other", draft="shipped:draft"), CoGA(), "name one of other's own"),
        (TransformersSpec(model="other", draft="shipped:draft"), CoGA(), "name one of other's own"),
        (NativeSpec(model="default", draft="shipped:eagle3"), CoGA(), "stands where shipped:draft belongs"),
        (NativeSpec(model="default"), Medusa(head="shipped:eagle2"), "stands where shipped:medusa belongs"),
    ],
)
def test_what_it_was_not_made_for_is_refused_before_loading(
    spec: NativeSpec | TransformersSpec, decoding: CoGA | Medusa, message: str
) -> None:
    engine = NativeEngine(spec) if isinstance(spec, NativeSpec) else TransformersEngine(spec)
    assert message in (engine.refuses(decoding) or "")


# The files


def test_all_of_it_is_small() -> None:
    everything = [file for file in (REPOSITORY / "assets").rglob("*") if file.is_file()]
    assert {file.parent.name for file in everything if file.suffix == ".safetensors"} == set(KINDS)
    assert sum(file.stat().st_size for file in everything) <= MOST_BYTES


@pytest.mark.parametrize("kind", KINDS)
def test_each_tells_how_it_was_made_and_names_no_machine(kind: str) -> None:
    folder = folder_of(kind)
    recipe = json.loads((folder / "recipe.json").read_bytes())
    assert (recipe["recipe"]["kind"], recipe["target"]) == (kind, "default")
    assert recipe["data"]["answer_tokens"] > 0
    for file in folder.glob("*.json"):
        assert not [word for word in ("/root", "/home", "/tmp", "/work") if word in file.read_text()], file


@pytest.mark.parametrize("kind", KINDS)
def test_each_is_what_it_is_called(kind: str) -> None:
    assert kind_of(f"shipped:{kind}") == kind


def test_a_wheel_carries_them_where_they_are_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert "assets/heads" in wheel["only-include"]
    installed = tmp_path / wheel["sources"]["assets"] / "heads"
    shutil.copytree(REPOSITORY / "assets" / "heads", installed, copy_function=os.symlink)
    monkeypatch.setattr(joulewise, "__file__", str(tmp_path / "joulewise" / "__init__.py"))
    for kind in KINDS:
        assert installed in folder_of(kind).parents


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_missing_file_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str) -> None:
    installed = tmp_path / "joulewise" / "assets" / "heads"
    shutil.copytree(REPOSITORY / "assets" / "heads", installed, copy_function=os.symlink)
    monkeypatch.setattr(joulewise, "__file__", str(tmp_path / "joulewise" / "__init__.py"))
    (folder_of("eagle3") / file).unlink()
    with pytest.raises(EnvironmentFault, match=rf"{file} is not there: install Joulewise again, or .* --kind eagle3"):
        open_checkpoint("shipped:eagle3")
    assert open_checkpoint("shipped:eagle2").family == "eagle2"


# Names


@pytest.mark.parametrize("name", ["shipped:", "shipped:eagle", "shipped:eagle3/", "shipped:../medusa"])
def test_an_unknown_name_is_told(name: str) -> None:
    with pytest.raises(UserError, match=r"There is no .*shipped:draft, shipped:medusa, shipped:eagle2, shipped:eagle3"):
        open_checkpoint(name)
    with pytest.raises(UserError, match="There is no"):
        open_draft(name, tiny_heads.target().loaded)


def test_other_names_are_left_alone() -> None:
    for name in ("default", "random", "owner/shipped", "first-layers:2", str(REPOSITORY)):
        assert shipped_folder(name) is None
    assert shipped_for("owner/model", "draft") is None


def test_the_default_model_takes_them_where_nothing_is_named() -> None:
    native, library = NativeSpec(), TransformersSpec()
    for decoding in (Medusa(), Eagle2(), Eagle3()):
        assert head_of(native, decoding) == (f"shipped:{decoding.kind}", decoding.kind)
        assert NativeEngine(native).refuses(decoding) is None
    for speculative in (CoGA(), DyGA()):
        assert draft_name(native, speculative) == draft_name(library, speculative) == "shipped:draft"
        assert NativeEngine(native).refuses(speculative) is None
        assert TransformersEngine(library).refuses(speculative) is None
    assert draft_name(native, PromptLookup()) is None


def test_what_is_named_goes_before_them() -> None:
    spec = NativeSpec(draft="first-layers:3", heads={"medusa": "mine"})
    assert head_of(spec, Medusa()) == ("mine", "medusa")
    assert head_of(spec, Medusa(head="random")) == ("random", "medusa")
    assert draft_name(spec, CoGA()) == "first-layers:3"
    assert draft_name(spec, CoGA(draft="other")) == "other"


# On other models


@pytest.mark.parametrize("kind", HEADS)
def test_another_model_is_refused_a_shipped_head(kind: Family) -> None:
    with pytest.raises(UserError, match=f"The head shipped:{kind} was made for another model"):
        open_head(f"shipped:{kind}", tiny_heads.target(taps=tiny_heads.TAPS), kind)


def test_a_shipped_draft_keeps_to_its_target_and_dtype() -> None:
    target = tiny_heads.target().loaded
    with pytest.raises(UserError, match=r"The draft shipped:draft was made for a target with embeddings .*49152, 576"):
        open_draft("shipped:draft", target)
    with pytest.raises(UserError, match="holds its layers alone, which draft_quantisation: nf4 cannot change"):
        open_draft("shipped:draft", target, "nf4")


def test_a_head_is_no_draft_and_the_other_way_round() -> None:
    target = tiny_heads.target()
    with pytest.raises(UserError, match="The draft shipped:medusa is no model: it holds a head of the family Medusa"):
        open_draft("shipped:medusa", target.loaded)
    with pytest.raises(UserError, match="shipped:draft holds no Medusa, EAGLE-1/2 or EAGLE-3 head"):
        open_head("shipped:draft", target)
    with pytest.raises(UserError, match="shipped:medusa holds a head of the family Medusa, not EAGLE-3"):
        open_head("shipped:medusa", target, "eagle3")
