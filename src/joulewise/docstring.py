"""The parts of the project's docstrings, for what is generated from them: the plan's schema and the reference pages."""

from __future__ import annotations

import inspect
import re
import textwrap
from dataclasses import dataclass, field

_SECTION = re.compile(r"^(Args|Raises|Returns|Yields):\s*$")
_ENTRY = re.compile(r"^ {4}(?! )(?P<names>[^:]+?): (?P<text>.*)$")


@dataclass(frozen=True, slots=True)
class Docstring:
    """A docstring taken apart.

    Args:
        summary: everything before the first section, a paragraph a line, code between fences.
        arguments: by name; ``a, b: text`` stands for both.
        sections: the text of the other sections by title.
    """

    summary: str
    arguments: dict[str, str] = field(default_factory=dict)
    sections: dict[str, str] = field(default_factory=dict)


def parse_docstring(owner: object) -> Docstring:
    """A docstring's text, or that of a module, class or function; empty where there is none."""
    text = owner if isinstance(owner, str) else getattr(owner, "__doc__", None)
    blocks: dict[str, list[str]] = {"": []}
    title = ""
    for line in inspect.cleandoc(text or "").split("\n"):
        found = _SECTION.match(line)
        if found:
            title = found[1]
            blocks[title] = []
        else:
            blocks[title].append(line)
    return Docstring(
        _flow(blocks.pop("")),
        dict(_entries(blocks.pop("Args", []))),
        {name: _flow([line.removeprefix("    ") for line in lines]) for name, lines in blocks.items()},
    )


def _entries(lines: list[str]) -> list[tuple[str, str]]:
    entries: list[tuple[list[str], list[str]]] = []
    for line in lines:
        found = _ENTRY.match(line)
        if found:
            entries.append(([name.strip() for name in found["names"].split(",")], [found["text"]]))
        elif line.strip() and entries:
            entries[-1][1].append(line.strip())
    return [(name, _flow(text)) for names, text in entries for name in names]


def _flow(lines: list[str]) -> str:
    """Paragraphs, each on one line; indented ones are code and keep their lines between fences."""
    text = "\n".join(lines).strip("\n")
    return "\n\n".join(_paragraph(p) for p in re.split(r"\n\s*\n", text) if p.strip())


def _paragraph(text: str) -> str:
    if text.startswith("    "):
        return f"```python\n{textwrap.dedent(text)}\n```"
    return " ".join(text.split())
