"""A router's commands as a person gives them, on an engine without a model."""

from __future__ import annotations

from click.testing import Result
from typer.testing import CliRunner

from fake_source import SteadySource
from joulewise.cli.main import app
from joulewise.energy.meter import Meter
from joulewise.errors import JoulewiseError

PLAN = """
name: learnt
engines:
  - {kind: transformers, model: small}
  - {kind: transformers, model: large}
decodings: [vanilla, {kind: prompt_lookup, tokens: 3}]
reasonings: [direct, {kind: vote, samples: 3}]
tasks: [{name: starter-maths, questions: 15}]
exclude: [{reasoning: vote*, decoding: prompt*}]
idle_baseline_s: 0
"""
DIRECT = [f"{m}@transformers/{d}/direct" for m in ("large", "small") for d in ("prompt-lookup-3", "vanilla")]


def steady() -> Meter:
    return Meter([SteadySource("gpu", 100.0), SteadySource("cpu", 30.0)])


def said(*words: str, code: int = 0, **more: str) -> Result:
    done = CliRunner().invoke(app, list(words), **more)  # type: ignore[arg-type]
    if done.exception is not None and not isinstance(done.exception, (SystemExit, JoulewiseError)):
        raise done.exception
    assert (2 if isinstance(done.exception, JoulewiseError) else done.exit_code) == code, done.output
    return done


def refused(*words: str) -> str:
    """What is told of a person's mistake."""
    done = CliRunner().invoke(app, list(words))
    assert isinstance(done.exception, JoulewiseError), done.output
    return str(done.exception)
