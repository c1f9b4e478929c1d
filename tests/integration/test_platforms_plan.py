"""`plans/platforms.yaml` as it stands, and with what is commented out for GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from joulewise.cli.main import app
from joulewise.plan import load_plan

PLAN = Path(__file__).parents[2] / "plans" / "platforms.yaml"


def test_the_dry_run_tells_every_cell(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="needs the extra 'bitsandbytes'")
    done = CliRunner().invoke(app, ["run", str(PLAN), "--dry-run", "--json", "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    cells = json.loads(done.stdout)["cells"]
    assert len(cells) == 2 * 3 * 2
    assert {cell["max_new_tokens"] for cell in cells} == {16}
    assert all(cell["faults"] == [] and cell["generations"] == 6 for cell in cells)


def test_what_is_commented_out_is_a_plan_too(tmp_path: Path) -> None:
    text = PLAN.read_text()
    begin = text.index("  # - kind: endpoint")
    end = text.index("\n\ndecodings")
    file = tmp_path / "platforms.yaml"
    file.write_text(text[:begin] + text[begin:end].replace("  # ", "  ") + text[end:])
    plan = load_plan(file)
    served = [engine for engine in plan.engines if engine.kind == "endpoint"]
    assert [engine.quantisation for engine in served] == ["bfloat16", "fp8", "nf4"]
    assert {engine.base_model for engine in served} == {"default"}
    assert len(yaml.safe_load(file.read_text())["engines"]) == 9
