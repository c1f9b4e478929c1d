"""Whether a head fits a decoding, as far as names and shapes of its tensors tell. Light: loads no torch."""

from __future__ import annotations

from joulewise.decoding import Eagle2, Eagle3, Medusa
from joulewise.decoding.medusa_trees import Path, paths_of
from joulewise.engines.native.checkpoints import TITLES, Checkpoint, Family
from joulewise.errors import UserError


def require_fit(checkpoint: Checkpoint, decoding: Medusa | Eagle2 | Eagle3) -> None:
    """Refuse a head of another family, or one that is too small for a decoding's tree.

    Raises:
        UserError: which it is.
    """
    require_family(checkpoint, decoding.kind)
    shapes = {name: stored.shape for name, stored in checkpoint.stored.items()}
    if isinstance(decoding, Medusa):
        heads = checkpoint.weights.count(r"heads\.(\d+)\.blocks\.")
        rows = shapes.get("heads.0.output.weight")
        require_heads(checkpoint.name, paths_of(decoding.tree), heads, rows[0] if rows else None)
    elif decoding.kind == "eagle3" and (rows := shapes.get("d2t") or shapes.get("lm_head.weight")):
        require_rows(checkpoint.name, decoding.top_k, rows[0])


def require_family(checkpoint: Checkpoint, family: Family) -> None:
    """Refuse a head of another family.

    Raises:
        UserError: naming both.
    """
    if family != checkpoint.family:
        raise UserError(
            f"{checkpoint.name} holds a head of the family {TITLES[checkpoint.family]}, not {TITLES[family]}: choose "
            "the decoding that it was made for, or another head."
        )


def require_heads(name: str, paths: tuple[Path, ...], heads: int, rows: int | None) -> None:
    """Refuse a Medusa tree that is deeper than there are heads, or ranks more tokens than they can propose.

    Args:
        name: of the heads.
        paths: of the tree, the deepest last.
        heads: how many there are.
        rows: how many tokens each can propose; None where that is not known yet.

    Raises:
        UserError: which it is.
    """
    deepest = len(paths[-1])
    if deepest > heads:
        raise UserError(
            f"A Medusa tree {deepest} deep needs as many heads, and {name} has {heads}: choose a flatter tree."
        )
    if rows is not None and max(max(path) for path in paths) >= rows:
        raise UserError(f"A rank of the Medusa tree is over the {rows} tokens that {name} can propose.")


def require_rows(name: str, top_k: int, rows: int) -> None:
    """Refuse an EAGLE tree that is wider than the vocabulary of its head.

    Raises:
        UserError: it is.
    """
    if top_k > rows:
        raise UserError(f"top_k {top_k} is more than the {rows} tokens that the head {name} can propose.")


def no_model(name: str, family: Family) -> UserError:
    """The error for a head that stands in a draft model's place."""
    return UserError(
        f"The draft {name} is no model: it holds a head of the family {TITLES[family]}. Name it under `heads` of the "
        f"engine `native` or as `head` of the decoding, with kind: {family}."
    )
