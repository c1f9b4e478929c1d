"""`joulewise` as a user types it, in a folder with a small plan: the engine is scripted, everything else is real."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from joulewise.cli.main import main
from joulewise.engines import ENGINES

SCRIPTED = (
    "import joulewise.engines as e; e.ENGINES['transformers'] = 'scripted_engine:ScriptedEngine'; "
    "from joulewise.cli.main import main; main()"
)
TASK = """\
name: words
questions: words.jsonl
id: id
prompt: '{text}'
reference: answer
scorer: exact
max_new_tokens: 8
"""
PLAN = """\
name: small
engines: [{kind: transformers, name: toy, draft: x}]
decodings: [vanilla, {kind: coga, tokens: 5}]
tasks: [words.yaml]
idle_baseline_s: 0
"""


def write_plan(folder: Path) -> None:
    """The plan, its task and six questions."""
    (folder / "plan.yaml").write_text(PLAN)
    (folder / "words.yaml").write_text(TASK)
    questions = [{"id": f"q{i}", "text": f"question {i}", "answer": "1"} for i in range(6)]
    (folder / "words.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions))


def environment(**more: str) -> dict[str, str]:
    here = str(Path(__file__).parent)
    return {**os.environ, "PYTHONPATH": here, "COLUMNS": "100", "HF_HUB_OFFLINE": "1", **more}


def joulewise(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPTED, *arguments],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def called(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """As `joulewise`, but in this process: for the many cases of a command whose own process another test starts."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENGINES, "transformers", "scripted_engine:ScriptedEngine")
        patch.chdir(folder)
        for name, value in {"COLUMNS": "100", **more}.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["joulewise", *arguments])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as end:
                code = end.code or 0
    assert isinstance(code, int), code
    return subprocess.CompletedProcess(["joulewise", *arguments], code, out.getvalue(), err.getvalue())
