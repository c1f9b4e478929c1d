"""YAML files into pydantic models, with errors that name file, line and field and suggest the nearest right name."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from joulewise.errors import UserError

Model = TypeVar("Model", bound=BaseModel)
Path_ = tuple[str | int, ...]

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""The pattern of names that become parts of labels and file names."""
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
"""The pattern of names of environment variables, which hold what must stand in no file."""

_PATTERNS = {
    NAME: "must consist of letters, digits, '.', '_' and '-', and begin with a letter or digit",
    VARIABLE: "must be the name of an environment variable, not what it holds: letters, digits and '_', no digit first",
}
"""What must match, in words; a choice such as ``^(a|b)$`` needs none. A value that is no VARIABLE is never shown."""

_KINDS = {
    ("tuple_type", "list_type"): "must be a list, such as [a, b]",
    ("dict_type", "model_type", "model_attributes_type"): "must be a mapping, such as {key: value}",
    ("int_type", "int_parsing", "int_from_float"): "must be a whole number",
    ("float_type", "float_parsing"): "must be a number",
    ("bool_type", "bool_parsing"): "must be true or false",
    ("string_type", "path_type"): "must be a text",
}
"""What pydantic calls by the names of Python's types, in words for people who write YAML."""
_WORDS = {kind: words for kinds, words in _KINDS.items() for kind in kinds}

_FOUND = {list: "a list", str: "a text", type(None): "nothing: the file is empty"}
"""What may stand at the top of a file instead of a mapping."""


class FaultAt(ValueError):
    """A fault that a validator found further down than where it stands.

    Args:
        place: the way from the validated value to the fault, such as ``("tasks", 1)``.
        message: what is wrong.
    """

    def __init__(self, place: Path_, message: str) -> None:
        super().__init__(message)
        self.place = place


def load_yaml(
    path: Path, model: type[Model], context: Mapping[str, Any] | None = None, *, where_missing: str = ""
) -> Model:
    """Read and validate one YAML file.

    Args:
        path: the file.
        model: what it must hold.
        context: handed to the model's validators.
        where_missing: what to do where there is no such file.

    Raises:
        UserError: no such file, not YAML, a key given twice, or content that the model refuses; all faults at once,
            each with its line and field.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file{where_missing and f'; {where_missing}'}") from None
    except IsADirectoryError:
        raise UserError(f"{path}: a folder; name the YAML file in it") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error.reason}); save the file as UTF-8") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; check the file and its permissions") from error
    return parse_yaml(text, model, str(path), context)


def parse_yaml(text: str, model: type[Model], name: str, context: Mapping[str, Any] | None = None) -> Model:
    """As ``load_yaml``, for text that is at hand; ``name`` stands for the file in messages."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        lines: dict[Path_, int] = {}
        if node is not None:
            _map_lines(node, (), lines, name)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark is not None else name
        problem = getattr(error, "problem", None) or "cannot be parsed"
        raise UserError(f"{where}: not valid YAML: {problem}") from error
    if not isinstance(data, dict):
        found = _FOUND.get(type(data), repr(data))
        raise UserError(f"{name}: expected a mapping of keys to values at the top, found {found}")
    try:
        return model.model_validate(data, context=context)
    except ValidationError as error:
        errors = error.errors()
        inner = [e["loc"][: len(e["loc"]) - i] for e in errors for i in range(1, len(e["loc"]))]
        # Pydantic also calls a list too short whose items were refused; that would only confuse.
        told = [e for e in errors if e["type"] != "too_short" or e["loc"] not in inner]
        # A default that depends on a refused value is no fault of its own.
        told = [e for e in told if e["type"] != "default_factory_not_called"]
        # Where a value may be of several kinds and is a wrong one of its own kind, that it is of no other kind is no
        # help.
        places = [(_data_path(e["loc"], data, e["type"] == "missing"), e["type"].endswith("_type")) for e in told]
        wrong = [place for place, other_kind in places if not other_kind]
        told = [
            error
            for error, (place, other_kind) in zip(told, places, strict=True)
            if not (other_kind and any(fault[: len(place)] == place for fault in wrong))
        ]
        explained = dict.fromkeys(_explain(e, data, lines, name, model) for e in _as_one(told, data))
        raise UserError("\n".join(explained)) from error


def _as_one(errors: Sequence[ErrorDetails], data: Any) -> list[ErrorDetails]:
    """Errors, those of a value that may be of several kinds and is of none of them as one."""
    found: dict[tuple[Path_, bool], ErrorDetails] = {}
    for number, error in enumerate(errors):
        if error["type"] not in _WORDS:
            found[((number,), False)] = error
            continue
        key = (_data_path(error["loc"], data, absent=False), True)
        if key not in found:
            found[key] = error
        elif (words := in_words(error)) not in (before := in_words(found[key])):
            told = f"{before} or {words.removeprefix('must be ')}"
            found[key] = {**found[key], "type": "value_error", "msg": told}
    return list(found.values())


def line_of(path: Path, key: str) -> int:
    """The line, from 1, of a key at the top of a file that ``load_yaml`` has read."""
    lines: dict[Path_, int] = {}
    node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    assert node is not None
    _map_lines(node, (), lines, str(path))
    return lines[(key,)]


def _map_lines(node: yaml.Node, path: Path_, lines: dict[Path_, int], name: str) -> None:
    """Note the line of every value, keys by their own line; refuse keys given twice (YAML itself keeps the last)."""
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            at = (*path, str(key.value))
            if at in lines:
                raise UserError(f"{name}:{key.start_mark.line + 1}: {_dotted(at)}: the key is given twice; remove one")
            lines[at] = key.start_mark.line + 1
            _map_lines(value, at, lines, name)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _map_lines(value, (*path, index), lines, name)


def _explain(error: ErrorDetails, data: Any, lines: dict[Path_, int], name: str, model: type[BaseModel]) -> str:
    cause = error.get("ctx", {}).get("error")
    found_at = (*error["loc"], *(cause.place if isinstance(cause, FaultAt) else ()))
    at = _data_path(found_at, data, error["type"] == "missing" or isinstance(cause, FaultAt))
    line = next(lines[at[:n]] for n in range(len(at), -1, -1) if at[:n] in lines)
    where = f"{name}:{line}: {_dotted(at) or 'the file'}"
    if error["type"] == "extra_forbidden":
        return f"{where}: unknown key{_right_key(str(at[-1]), _fields_beside(model, error['loc']))}"
    if error["type"] == "missing":
        return f"{where}: this key is missing"
    if error["type"] == "string_too_short":
        return f"{where}: is empty: name something, or leave the key out"
    if error["type"] == "union_tag_not_found":
        kinds = [node.get("const") for node in _fields_beside(model, (*error["loc"], "kind")).get("kind", [])]
        return f"{where}: the key 'kind' is missing; known kinds: {', '.join(filter(None, kinds))}"
    if error["type"] == "union_tag_invalid":
        context = error.get("ctx", {})
        tags = [t.strip(" '") for t in str(context.get("expected_tags", "")).split(",")]
        return f"{where}: unknown kind {context.get('tag')!r}{suggest(str(context.get('tag')), tags)}"
    message = in_words(error)
    value = None if error.get("ctx", {}).get("pattern") == VARIABLE else error["input"]
    shown = f" (found {value!r})" if isinstance(value, (str, int, float, bool)) and repr(value) not in message else ""
    if error["type"] == "string_type" and isinstance(value, (int, float)):
        shown += "; put it in quotes"
    return f"{where}: {message}{shown}"


def in_words(error: ErrorDetails) -> str:
    """What is wrong with a value, as the end of a sentence, without its place."""
    if error["type"] in _WORDS:
        return _WORDS[error["type"]]
    if error["type"] == "string_pattern_mismatch":
        pattern = str(error.get("ctx", {}).get("pattern"))
        if pattern in _PATTERNS:
            return _PATTERNS[pattern]
        if pattern.startswith("^(") and pattern.endswith(")$"):
            *most, last = pattern[2:-2].replace(r"\d+", "N").split("|")
            return f"must be {', '.join(most)} or {last}"
    if error["type"] == "missing":
        return "is missing"
    if error["type"] == "too_short":
        return "is empty: give at least one"
    message = error["msg"].removeprefix("Value error, ")
    if message.startswith("Input should be "):
        return f"must be {message.removeprefix('Input should be ')}"
    return message[0].lower() + message[1:] if not message[:2].isupper() else message


def suggest(wrong: str, names: Sequence[str]) -> str:
    """``; did you mean 'x'?`` or the list of right names, for the end of an error message."""
    near = difflib.get_close_matches(wrong, names, n=1, cutoff=0.5)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; known: {', '.join(sorted(names))}" if names else ""


def _right_key(wrong: str, beside: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """As ``suggest``, or below which of the keys at this place the wrong one belongs."""
    for name, nodes in beside.items():
        if any(wrong in node.get("properties", {}) for node in nodes):
            return f"; did you mean '{name}: {{{wrong}: ...}}'?"
    hint = suggest(wrong, list(beside))
    free = [name for name, nodes in beside.items() if any(node.get("additionalProperties") is True for node in nodes)]
    return hint + "".join(f"; others go below '{name}'" for name in free if "known" in hint)


def _data_path(loc: Sequence[str | int], data: Any, absent: bool) -> Path_:
    """The error's place in the file, which may be absent from it.

    Pydantic puts the tags of unions between, and at the end where they are at fault as wholes; the file has none.
    """
    path: list[str | int] = []
    here = data
    for i, step in enumerate(loc):
        if isinstance(here, dict) and (step in here or (absent and i == len(loc) - 1)):
            path.append(step)
            here = here.get(step)
        elif isinstance(here, list) and isinstance(step, int) and step < len(here):
            path.append(step)
            here = here[step]
    return tuple(path)


def _dotted(path: Sequence[Hashable]) -> str:
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).lstrip(".")


def _fields_beside(model: type[BaseModel], loc: Sequence[str | int]) -> dict[str, list[dict[str, Any]]]:
    """The right names at the place of an unknown key, its neighbours in the JSON schema, and what each may hold."""
    schema = model.model_json_schema()
    defs = schema.get("$defs", {})

    def resolve(node: dict[str, Any]) -> dict[str, Any]:
        return defs[node["$ref"].rsplit("/", 1)[-1]] if "$ref" in node else node

    def options(node: dict[str, Any]) -> list[dict[str, Any]]:
        node = resolve(node)
        branches = node.get("anyOf", []) + node.get("oneOf", [])
        return [node] + [o for b in branches for o in options(b)]

    here = [schema]
    for step in loc[:-1]:
        following = []
        for node in (o for h in here for o in options(h)):
            if isinstance(step, int):
                if "items" in node:
                    following.append(node["items"])
            elif step in node.get("properties", {}):
                following.append(node["properties"][step])
            elif node.get("properties", {}).get("kind", {}).get("const") == step:
                following.append(node)
            elif isinstance(node.get("additionalProperties"), dict):  # a mapping from names of the user's own
                following.append(node["additionalProperties"])
        here = following
    found: dict[str, list[dict[str, Any]]] = {}
    for properties in (o.get("properties", {}) for h in here for o in options(h)):
        for name, node in properties.items():
            found.setdefault(name, []).extend(options(node))
    return found
