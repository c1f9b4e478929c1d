"""Output that cannot be written, and crashes: never exit code 1, which says that a gate failed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from joulewise.cli import main as command
from joulewise.errors import EnvironmentFault
from joulewise.table import RunTable
from synthetic_table import row, table

JOULEWISE = [sys.executable, "-c", "from joulewise.cli.main import main; main()"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("arguments", [["schema"], ["compare", "DEMO", "DEMO"], ["report", "DEMO", "--markdown", "-"]])
def test_a_full_disk_behind_standard_output_is_one_sentence(repository: Path, arguments: list[str]) -> None:
    demo = str(repository / "results" / "h200" / "demo")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*JOULEWISE, *(demo if a == "DEMO" else a for a in arguments)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "joulewise: the output cannot be written (No space left on device)"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "DEMO", "--html", "kept"],
        ["report", "DEMO", "--markdown", "kept"],
        ["compare", "DEMO", "DEMO", "--markdown", "kept"],
        ["explain", "DEMO", "--markdown", "kept"],
        ["meter", "--json", "kept", "--", "true"],
        ["export", "DEMO", "--trials", "kept.csv"],
    ],
)
def test_a_disk_that_fills_up_leaves_the_file_that_was_there(
    repository: Path, tmp_path: Path, arguments: list[str]
) -> None:
    demo = str(repository / "results" / "h200" / "demo")
    file = tmp_path / next(a for a in arguments if a.startswith("kept"))
    file.write_text("old")
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 1; exec "$@"', "sh", *JOULEWISE, *(demo if a == "DEMO" else a for a in arguments)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert f"{file.name}: cannot be written (" in done.stderr.splitlines()[-1]
    assert "File too large" in done.stderr.splitlines()[-1]
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="the system has no /dev/stdout")
def test_standard_output_may_be_named_as_a_file(repository: Path) -> None:
    demo = str(repository / "results" / "h200" / "demo")
    for target in ("/dev/stdout", "/dev/null"):
        done = subprocess.run(
            [*JOULEWISE, "compare", demo, demo, "--markdown", target],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert ("| --- |" in done.stdout) == (target == "/dev/stdout")
        assert "joules per output token rose" in done.stdout


def test_a_crash_ends_with_2_and_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def crash() -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(command, "app", crash)
    monkeypatch.setattr(command, "_drop_output", lambda: None)
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert "ZeroDivisionError: planted" in told
    assert "please report it" in told


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "mt_bench.yaml", "--dry-run", "--data", "closed"],
        ["run", "starter-maths.yaml", "--resume", "--out", "closed"],
        ["sweep", "default", "--resume", "--dry-run", "--out", "closed"],
    ],
)
def test_a_folder_that_may_not_be_read_is_one_sentence(tmp_path: Path, arguments: list[str]) -> None:
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root reads everything, and without setpriv it cannot give that right up")
    for task in ("mt_bench", "starter-maths"):
        plan = f"name: a\nengines: [{{kind: native}}]\ndecodings: [vanilla]\ntasks: [{task}]\n"
        (tmp_path / f"{task}.yaml").write_text(plan)
    (tmp_path / "closed").mkdir(mode=0)
    caps = "-dac_override,-dac_read_search"
    bare = ["setpriv", f"--bounding-set={caps}", f"--inh-caps={caps}"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*bare, *JOULEWISE, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    (sentence,) = done.stderr.splitlines()
    assert "closed" in sentence
    assert "ermission" in sentence


@pytest.mark.parametrize("view", ["pandas", "polars"])
def test_a_view_whose_extra_is_missing_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, view: str) -> None:
    monkeypatch.setattr("joulewise.table.find_spec", lambda name: None)
    shown: RunTable = table([row()])
    with pytest.raises(EnvironmentFault, match=rf"pip install 'joulewise\[{view}\]'"):
        getattr(shown, f"to_{view}")()
