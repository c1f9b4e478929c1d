"""Write docs/reference/ anew from the code: `make docs`. A test fails when the pages lag behind it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import joulewise
from joulewise import errors
from joulewise.cli.main import app
from joulewise.decoding import DECODINGS
from joulewise.docstring import parse_docstring
from joulewise.energy.sources import SOURCES
from joulewise.engines import ENGINES
from joulewise.engines.endpoint_spec import EndpointSpec, ServerSpec
from joulewise.engines.spec import NativeSpec, TransformersSpec
from joulewise.judge.record import Call, Judgement
from joulewise.plan import Exclusion, Plan, Pollution, SamplingSpec, SloSpec, Stop, Target, TaskSpec
from joulewise.reasoning import REASONINGS
from joulewise.records import (
    Check,
    EnergyRecord,
    GenerationRecord,
    LoadRecord,
    ProbeRecord,
    ReadingRecord,
    SpreadRecord,
    TallyRecord,
    Trial,
)
from joulewise.table import LOAD, SCHEMA
from joulewise.tasks import GROUPS, LM_EVAL, OPTIONS, TASKS, options_of
from joulewise.tasks.custom import CustomTask
from joulewise.traffic.loads import ClosedLoads, PoissonLoads, ReplayLoads

FOLDER = Path(__file__).parent / "reference"
WRITTEN = "<!-- Written by docs/generate_reference.py (`make docs`); change the code's docstrings instead. -->"


def pages() -> dict[Path, str]:
    """Every page and its text."""
    texts = {
        "commands": commands_page(),
        "plan": plan_page(),
        "tasks": tasks_page(),
        "run-folder": run_folder_page(),
        "python": python_page(),
    }
    return {FOLDER / f"{name}.md": text.rstrip() + "\n" for name, text in texts.items()}


def commands_page() -> str:
    """The command line."""
    lines = ["# Commands", "", WRITTEN, "", f"{app.info.help} {app.info.epilog}", ""]
    for command, info in _commands():
        assert info.callback is not None
        hints = get_type_hints(info.callback, include_extras=True)
        rows, usage = [], []
        for name in inspect.signature(info.callback).parameters:
            kind, option = hints[name].__origin__, hints[name].__metadata__[0]
            metavar = option.metavar or ("" if kind is bool else _metavar(kind))
            if isinstance(option, typer.models.ArgumentInfo):
                title = f"`{metavar}`"
                usage.append(f"{metavar}..." if get_origin(kind) is list else metavar)
            else:
                named = [
                    o for o in (option.default, *(option.param_decls or ())) if isinstance(o, str) and o[:1] == "-"
                ]
                title = ", ".join(f"`{o}`" for o in named or [f"--{name.replace('_', '-')}"])
                title += f" `{metavar}`" if metavar else ""
            rows.append(f"| {_cell(title)} | {_cell(option.help or '')} |")
        lines += [
            f"## joulewise {command}",
            "",
            "```",
            " ".join(["joulewise", command, "[OPTIONS]", *usage]),
            "```",
        ]
        lines += ["", inspect.cleandoc(info.callback.__doc__ or ""), ""]
        if rows:
            lines += ["| argument or option | meaning |", "| --- | --- |", *rows, ""]
        lines += [str(info.epilog), ""] if info.epilog else []
    return "\n".join(lines)


def _commands() -> Iterator[tuple[str, Any]]:
    """Every command with its name, those of groups too."""
    yield from ((str(info.name), info) for info in app.registered_commands)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from ((f"{group.name} {info.name}", info) for info in group.typer_instance.registered_commands)


def plan_page() -> str:
    """Every key of a plan."""
    lines = ["# Plans", "", WRITTEN, "", "A plan is a YAML file. Its JSON schema, for editors: `joulewise schema`.", ""]
    lines += _model("The plan", Plan)
    for title, model in [
        *((f"engines, kind {kind}", spec) for kind, spec in ENGINE_SPECS.items()),
        ("server, of an engine of kind endpoint", ServerSpec),
        *((f"decodings, kind {kind}", spec) for kind, spec in DECODINGS.items()),
        *((f"reasonings, kind {kind}", spec) for kind, spec in REASONINGS.items()),
        ("tasks", TaskSpec),
        ("sampling", SamplingSpec),
        ("stop", Stop),
        ("exclude", Exclusion),
        ("target", Target),
        ("pollution", Pollution),
        ("loads, kind closed", ClosedLoads),
        ("loads, kind poisson", PoissonLoads),
        ("loads, kind replay", ReplayLoads),
        ("slo", SloSpec),
    ]:
        lines += _model(title, model)
    return "\n".join(lines)


def tasks_page() -> str:
    """The shipped tasks, and the file of a custom one."""
    lines = ["# Tasks", "", WRITTEN, "", "Prompts, scorers and sources: [tasks](../tasks.md).", ""]
    lines += ["| task | what it is |", "| --- | --- |"]
    lines += [f"| `{name}` | {_cell(_first(opener))} |" for name, opener in TASKS.items()]
    lines += [f"| `{name}` | stands for {', '.join(f'`{m}`' for m in members)} |" for name, members in GROUPS.items()]
    lines.append("")
    for name, model in OPTIONS.items():
        if model.model_fields:
            lines += _model(f"Options of {name}", model)
    lines += _model("Options of tasks of lm-eval", options_of(LM_EVAL))
    return "\n".join([*lines, *_model("The YAML file of a custom task", CustomTask)])


def run_folder_page() -> str:
    """What a run leaves behind."""
    lines = ["# The run folder", "", WRITTEN, ""]
    lines += ["| file | holds |", "| --- | --- |"]
    lines += [f"| `{name}` | {text} |" for name, text in RUN_FOLDER.items()]
    lines += ["", "## Columns of the table", "", "`joulewise.load(RUN).arrow` has one row a Trial.", ""]
    lines += [inspect.cleandoc(_constant_doc(joulewise.table, "SCHEMA")), "", "| column | type |", "| --- | --- |"]
    lines += [f"| `{c.name}` | {'LoadRecord' if c.type == LOAD else c.type} |" for c in SCHEMA]
    lines += ["", "## Lines of the ledger", "", _paragraphs(parse_docstring(inspect.getmodule(Trial)).summary), ""]
    records = (Trial, Check, GenerationRecord, EnergyRecord, ReadingRecord, ProbeRecord, TallyRecord)
    for model in (*records, LoadRecord, SpreadRecord):
        lines += _model(model.__name__, model, level=3)
    lines += ["## Lines of judgements.jsonl", ""]
    for model in (Judgement, Call):
        lines += _model(model.__name__, model, level=3)
    return "\n".join(lines)


def python_page() -> str:
    """What ``import joulewise`` offers."""
    lines = [
        "# Python",
        "",
        WRITTEN,
        "",
        "Everything here is loaded on first use; `import joulewise` costs next to nothing.",
        "",
    ]
    for name in (n for n in joulewise.__all__ if not n.startswith("_")):
        lines += _callable(f"joulewise.{name}", getattr(joulewise, name))
    lines += ["## Errors", "", "| exception | meaning |", "| --- | --- |"]
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, Exception):
            lines.append(f"| `joulewise.errors.{name}` | {_cell(_paragraphs(parse_docstring(value).summary))} |")
    lines += [
        "",
        "## Registries",
        "",
        "A new member is one file and one line ([architecture](../architecture.md)).",
        "",
    ]
    registries: Mapping[str, Mapping[str, object]] = {
        "engine": {name: ENGINE_SPECS[name] for name in ENGINES},
        "decoding": DECODINGS,
        "reasoning": REASONINGS,
        "task": TASKS,
        "energy source": SOURCES,
    }
    lines += ["| registry | name | what it is |", "| --- | --- | --- |"]
    for registry, members in registries.items():
        lines += [f"| {registry} | `{name}` | {_cell(_first(member))} |" for name, member in members.items()]
    return "\n".join(lines)


ENGINE_SPECS = {"transformers": TransformersSpec, "native": NativeSpec, "endpoint": EndpointSpec}

RUN_FOLDER = {
    "plan.yaml": "the plan as it was run",
    "environment.json": "versions, devices, drivers, power limits, engines, energy sources",
    "idle.json": "idle power with the weights loaded, before and after an engine's Trials",
    "skipped.json": "broken lines of task data that were left out, where there were any (`--skip-bad`)",
    "judgements.jsonl": "what a judge said of the answers, where one was asked (`joulewise judge`)",
    "cross_check.json": "each counter against its device's power readings, over the whole run",
    "servers/": "the logs of servers that were started, secrets removed",
    "ledger.jsonl": "one line a Trial or Check, appended and flushed as each ends; everything else follows from it",
    "requests/": "under load: every request of each Trial, due, sent, first token, end (gzip, JSON lines)",
    "timeline/": "raw sensor readings in between (Parquet)",
    "ledger.jsonl.torn": "what a kill had cut off from the ledger's last line, where one had",
    "report.html": "the page",
    "run.lock": "empty; held while a run writes here",
}


def _model(title: str, model: type[BaseModel], level: int = 2) -> list[str]:
    doc = parse_docstring(model)
    lines = [f"{'#' * level} {title}", "", _paragraphs(doc.summary), ""]
    if not model.model_fields:
        return lines
    lines += ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    arguments = {k: v for base in reversed(model.__mro__) for k, v in parse_docstring(base).arguments.items()}
    for name, info in model.model_fields.items():
        if name == "kind":
            continue
        follows = info.default_factory is not None and info.default_factory_takes_validated_data
        default = PydanticUndefined if follows else info.get_default(call_default_factory=True)
        shown = "" if default is PydanticUndefined else f"`{_default(default)}`"
        lines.append(f"| `{name}` | {_cell(_type(info.annotation))} | {shown} | {_cell(arguments.get(name, ''))} |")
    return [*lines, ""]


def _callable(name: str, value: Any) -> list[str]:
    doc = parse_docstring(value)
    signature = (
        ""
        if isinstance(value, type) and issubclass(value, BaseModel)
        else str(inspect.signature(value)).replace("'", "")
    )
    lines = [f"## {name}", ""]
    if signature:
        lines += ["```python", f"{name.rpartition('.')[2]}{signature}", "```", ""]
    lines += [_paragraphs(doc.summary), ""]
    lines += [f"- `{argument}`: {_paragraphs(text)}" for argument, text in doc.arguments.items()]
    lines += [""] if doc.arguments else []
    for title, text in doc.sections.items():
        lines += [f"{title}: {_paragraphs(text)}", ""]
    if isinstance(value, type):
        for member, attribute in vars(value).items():
            if not member.startswith("_") and (isinstance(attribute, property) or inspect.isfunction(attribute)):
                lines.append(f"- `.{member}`: {_paragraphs(parse_docstring(attribute).summary)}")
        lines.append("")
    return lines


def _first(value: object) -> str:
    return _paragraphs(parse_docstring(value).summary.split("\n\n")[0])


def _metavar(annotation: Any) -> str:
    shown = _type(annotation).split(" or ")[0]
    return shown if "|" in shown else shown.upper()


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is None or annotation is NoneType:
        return "null"
    if origin is Literal:
        return " or ".join(f"`{a}`" for a in arguments)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_type(a) for a in arguments))
    if origin is tuple:
        return f"list of {_type(arguments[0])}" if arguments[-1] is ... else f"({', '.join(map(_type, arguments))})"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "|".join(str(member.value) for member in annotation)
    if origin is not None and arguments:
        return _type(arguments[0]) if hasattr(annotation, "__metadata__") else getattr(origin, "__name__", str(origin))
    names = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(value: object) -> str:
    if isinstance(value, BaseModel):
        changed = value.model_dump(mode="json")
        return "{" + ", ".join(f"{k}: {_default(v)}" for k, v in changed.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_default, value)) + "]"
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return str(value)


def _constant_doc(module: Any, name: str) -> str:
    """The string that stands below a constant."""
    lines = inspect.getsource(module).split(f"\n{name} =")[1].split('"""')
    return lines[1]


def _paragraphs(text: str) -> str:
    return re.sub(r"(?<!`)``(?!`)", "`", text)


def _cell(text: str) -> str:
    return _paragraphs(text).replace("\n\n", " ").replace("\n", " ").replace("|", "\\|")


def main() -> None:
    """Write the pages."""
    FOLDER.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
