"""The generated parts of the documentation are what their sources give, and its links and commands exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def generate(repository: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", repository / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_schema_is_the_code_s(generate: ModuleType) -> None:
    assert generate.SCHEMA.read_text() == generate.schema_text(), "run `make docs`"


def test_the_readme_s_table_is_the_recorded_run_s(generate: ModuleType) -> None:
    assert generate.README.read_text() == generate.readme_text(), "run `make docs`"
    assert generate.savings_table(generate.RECORDED).count("\n") > 8


def test_every_relative_link_leads_somewhere(repository: Path) -> None:
    pages = [repository / "README.md", repository / "CONTRIBUTING.md", *(repository / "docs").glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_file_that_the_docs_name_exists(repository: Path) -> None:
    for page in [repository / "README.md", repository / "CONTRIBUTING.md", *(repository / "docs").glob("*.md")]:
        for name in re.findall(r"`((?:benchmarks|plans|docs|tests|results)/[\w./-]+\w)`", page.read_text()):
            assert (repository / name).exists(), f"{page.name} names {name}"
