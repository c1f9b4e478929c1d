"""Medusa's trees: the published ones, and the check of a given one.

The published trees are facts of the repository FasterDecoding/Medusa (``medusa_choices.py``, Apache-2.0). In all of
them the children of a node are its first so many ranks, so each is written as the number of children of its inner
nodes: ``10 0:10 1:7`` gives the root ten children, the first of these ten more, the second seven.
"""

from __future__ import annotations

from collections.abc import Sequence

from joulewise.decoding.spec import MOST_NODES
from joulewise.errors import UserError

Path = tuple[int, ...]

DEFAULT_TREE = "mc_sim_7b_63"

_CHILDREN = {
    "mc_sim_7b_63": (
        "10 0:10 1:7 2:3 3:2 4:1 5:1 6:1 7:1 8:1 9:1 00:10 01:3 02:2 03:1 04:1 05:1 06:1 07:1 10:2 20:1 000:2"
    ),
    "vicuna_7b_stage1": "10 0:10 1:7 2:4 3:3 4:2 5:2 6:1 7:1 8:1 9:1 00:9 01:3 02:2 03:1 04:1 05:1 10:2 20:1 000:1",
    "vicuna_7b_stage2": (
        "10 0:10 1:5 2:2 3:2 4:1 5:1 6:1 7:1 00:9 01:4 02:2 03:1 04:1 05:1 10:3 11:1 20:1 000:4 001:1 002:1 010:1"
    ),
    "vicuna_13b_stage1": "10 0:10 1:7 2:4 3:2 4:2 5:1 6:1 7:1 8:1 00:10 01:4 02:2 03:1 04:1 05:1 10:2 11:1 20:1 000:1",
    "vicuna_13b_stage2": (
        "10 0:10 1:4 2:2 3:1 4:1 5:1 00:10 01:4 02:2 03:1 04:1 05:1 10:3 11:1 20:1 30:1 000:4 001:2 002:1 010:1 100:1"
    ),
    "vicuna_33b_stage1": "10 0:10 1:8 2:5 3:3 4:2 5:2 6:1 7:1 8:1 9:1 00:9 01:3 02:2 03:1 04:1 10:2 20:1",
    "vicuna_33b_stage2": (
        "10 0:10 1:5 2:3 3:2 4:1 5:1 6:1 7:1 00:10 01:4 02:2 03:1 04:1 05:1 10:3 11:1 20:1 000:3 001:1 010:1"
    ),
    "zephyr_stage2": "10 0:10 1:6 2:4 3:2 4:2 5:1 6:1 7:1 00:10 01:4 02:2 03:1 04:1 05:1 10:2 11:1 20:1 000:2 001:1",
}

TREES = tuple(_CHILDREN)
"""The names of the published trees. Each has 63 nodes, and the root."""


def paths_of(tree: str | Sequence[Sequence[int]]) -> tuple[Path, ...]:
    """A tree's paths in order of length and rank, so that parents come before children.

    Args:
        tree: a published tree's name, or paths.

    Raises:
        UserError: no such tree, an empty one, one over the limit, an empty path, a rank below 0, a path twice, or one
            whose beginning is missing.
    """
    if not isinstance(tree, str):
        return _checked(tree)
    if tree not in _CHILDREN:
        raise UserError(f"There is no Medusa tree {tree!r}: choose one of {', '.join(TREES)}, or give its paths.")
    paths: list[Path] = []
    for entry in _CHILDREN[tree].split():
        parent, _, children = entry.rpartition(":")
        paths += [(*map(int, parent), rank) for rank in range(int(children))]
    return _checked(paths)


def _checked(paths: Sequence[Sequence[int]]) -> tuple[Path, ...]:
    ordered = sorted((tuple(path) for path in paths), key=lambda path: (len(path), path))
    if not 1 <= len(ordered) < MOST_NODES:
        raise UserError(f"A Medusa tree may have 1 to {MOST_NODES - 1} paths, and this one has {len(ordered)}.")
    known: set[Path] = {()}
    for path in ordered:
        if not path:
            fault = "is empty"
        elif path in known:
            fault = "stands there twice"
        elif path[:-1] not in known:
            fault = "goes on from a path that is not there"
        elif path[-1] < 0:
            fault = "has a rank below 0"
        else:
            known.add(path)
            continue
        raise UserError(
            f"The path {list(path)} of the Medusa tree {fault}: each path is a list of ranks from 0 on, and every "
            "beginning of a path must be a path too."
        )
    return tuple(ordered)
