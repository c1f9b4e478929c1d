"""The example workflows are valid and pinned, and every joulewise command in them and in the how-to page parses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml

from joulewise.cli.main import app
from joulewise.plan import load_plan

EXAMPLES = ("energy-gate-gpu.yml", "energy-gate-no-gpu.yml")


def workflow(repository: Path, name: str) -> dict[str, Any]:
    return yaml.safe_load((repository / "examples" / "ci" / name).read_text())


def steps(repository: Path, name: str) -> list[dict[str, Any]]:
    return [step for job in workflow(repository, name)["jobs"].values() for step in job["steps"]]


def joulewise_commands(shell: str) -> Iterator[list[str]]:
    """Arguments of every joulewise command of a script."""
    for line in shell.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words and Path(words[0]).name == "joulewise":
            yield words[1:]


def parse(arguments: list[str], folder: Path) -> None:
    """Parse a command line without running it.

    Raises:
        click.ClickException: the command or an option does not exist, or a value is wrong.
    """
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group) or hasattr(group, "commands")
    command = group.commands[arguments[0]]
    command.make_context(arguments[0], [a.replace("$GITHUB_STEP_SUMMARY", str(folder / "s.md")) for a in arguments[1:]])


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_joulewise_command_of_a_workflow_parses(repository: Path, tmp_path: Path, name: str) -> None:
    scripts = [step["run"] for step in steps(repository, name) if "run" in step]
    commands = [command for script in scripts for command in joulewise_commands(script)]
    assert {"run", "compare"} <= {command[0] for command in commands}
    assert sum("joulewise" in w for s in scripts for w in s.split()) == len(commands) + sum(
        s.count("install --quiet joulewise") for s in scripts
    )
    for command in commands:
        parse(command, tmp_path)


def test_a_wrong_command_would_be_found(tmp_path: Path) -> None:
    (command,) = joulewise_commands("a/bin/joulewise compare x y --fail-over 5%")
    with pytest.raises(Exception, match="--fail-over"):
        parse(command, tmp_path)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_workflow_is_one_and_pins_what_it_uses(repository: Path, name: str) -> None:
    whole = workflow(repository, name)
    assert whole["permissions"] == {"contents": "read"}
    assert all("runs-on" in job and job["steps"] for job in whole["jobs"].values())
    used = [step["uses"] for step in steps(repository, name) if "uses" in step]
    assert used
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", action) for action in used)


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_compared_has_been_measured(repository: Path, name: str) -> None:
    for job in workflow(repository, name)["jobs"].values():
        script = "\n".join(step.get("run", "") for step in job["steps"])
        made = set(re.findall(r"--out (runs/\S+)", script))
        compared = [c for c in joulewise_commands(script) if c[0] == "compare"]
        assert len(compared) == 1
        used = {word for word in compared[0] if word.startswith("runs/")}
        assert used == made


def test_the_plan_is_one(repository: Path) -> None:
    assert len(load_plan(repository / "examples" / "ci" / "plan.yaml").cells()) == 1


def test_every_command_of_the_how_to_page_parses(repository: Path, tmp_path: Path) -> None:
    page = (repository / "docs" / "how-to" / "gate-your-ci.md").read_text()
    scripts = re.findall(r"```(?:sh|console)?\n(.*?)```", page, re.DOTALL)
    commands = [command for script in scripts for command in joulewise_commands(script)]
    assert len(commands) >= 3
    for command in commands:
        parse(command, tmp_path)
