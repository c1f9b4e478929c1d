"""The generated parts of the documentation are what their sources give, and its links and commands exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest


def script(repository: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, repository / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["generate", "generate_reference"])
def test_generated_pages_are_what_their_sources_give(repository: Path, name: str) -> None:
    pages = script(repository, name).pages()
    assert len(pages) > 2
    for path, text in pages.items():
        assert path.read_text() == text, f"{path.relative_to(repository)} lags behind: run `make docs`"


def test_every_file_of_a_run_folder_is_told(repository: Path) -> None:
    """Those that the ledger's module names are in the reference, and what a plain run leaves in the tutorial's list."""
    from joulewise import ledger

    names = set(re.findall(r"^([\w.]+)(?:/|\s{2})", ledger.__doc__ or "", flags=re.M))
    assert {"plan.yaml", "run.lock", "timeline"} <= names
    reference = (repository / "docs" / "reference" / "run-folder.md").read_text()
    assert [name for name in names if f"| `{name}" not in reference] == []
    listed = (repository / "docs" / "tutorial.md").read_text().partition("## 3. The run folder")[2].split("```")[1]
    not_plain = {"skipped.json", "judgements.jsonl", "servers", "requests"}
    assert [name for name in names - not_plain if name not in listed] == []


def test_a_table_that_was_edited_by_hand_is_noticed(repository: Path) -> None:
    generate = script(repository, "generate")
    text = (repository / "README.md").read_text()
    assert generate.filled(text.replace("| cnn_dm |", "| edited |")) == text


def test_every_relative_link_leads_somewhere(repository: Path) -> None:
    pages = [repository / "README.md", repository / "CONTRIBUTING.md", *(repository / "docs").rglob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_file_that_the_docs_name_exists(repository: Path) -> None:
    for page in [repository / "README.md", repository / "CONTRIBUTING.md", *(repository / "docs").rglob("*.md")]:
        for name in re.findall(r"`((?:benchmarks|plans|docs|tests|results)/[\w./-]+\w)`", page.read_text()):
            assert (repository / name).exists(), f"{page.name} names {name}"
