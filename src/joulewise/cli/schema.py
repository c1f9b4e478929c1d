"""``joulewise schema``."""

from __future__ import annotations

import json

import typer


def schema() -> None:
    """Print the JSON schema of plan files, for editors and for checks in CI."""
    from joulewise.plan import plan_schema

    typer.echo(json.dumps(plan_schema(), indent=2))
