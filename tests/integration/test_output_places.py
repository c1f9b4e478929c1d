"""Files to be written are looked at before any work: nothing is told that is not kept then; the way out is right."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from joulewise.cli.main import app
from joulewise.cli.named_file import output_file
from joulewise.errors import EnvironmentFault, UserError

COMMANDS = [
    (("report", "DEMO"), "--html", "joulewise report RUN"),
    (("report", "DEMO"), "--markdown", "joulewise report RUN"),
    (("report", "DEMO"), "--latex", "joulewise report RUN"),
    (("explain", "DEMO"), "--markdown", "joulewise explain RUN"),
    (("curve", "DEMO"), "--json", "joulewise curve RUN"),
    (("requests", "DEMO"), "--csv", "joulewise requests RUN"),
    (("compare", "DEMO", "DEMO"), "--markdown", "joulewise compare BASE NEW"),
    (("route", "simulate", "trace.csv", "--router", "router.npz"), "--json", "joulewise route simulate TRACE"),
    (("route", "evaluate", "router.npz", "--on", "a.csv"), "--json", "joulewise route evaluate ROUTER --on DATA"),
]


@pytest.mark.parametrize(("arguments", "option", "command"), COMMANDS)
def test_a_place_that_is_not_there_is_told_before_anything_else(
    repository: Path, arguments: tuple[str, ...], option: str, command: str
) -> None:
    demo = str(repository / "results" / "h200" / "demo")
    done = CliRunner().invoke(app, [*(demo if a == "DEMO" else a for a in arguments), option, "nowhere/file"])
    assert isinstance(done.exception, EnvironmentFault), done.output
    assert str(done.exception) == (
        "nowhere/file: cannot be written (No such file or directory); name another place with "
        f"`{command} {option} FILE`"
    )
    assert done.stdout == ""


def test_what_kind_of_place_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("kept")
    for name, why in (("file/in", "Not a directory"), (".", "Is a directory")):
        with pytest.raises(EnvironmentFault, match=why):
            output_file(name, "--json", "joulewise curve RUN")
    with pytest.raises(UserError, match="--json is empty"):
        output_file(" ", "--json", "joulewise curve RUN")
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(EnvironmentFault, match="Permission denied"):
        output_file("new", "--json", "joulewise curve RUN")
    assert output_file("-", "--json", "joulewise curve RUN") == Path("-")
    assert output_file(None, "--json", "joulewise curve RUN") is None
    assert Path("file").read_text() == "kept"
