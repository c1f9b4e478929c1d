"""Draft heads: which layers they read, and how they are opened for a target."""

from __future__ import annotations

from joulewise.engines.native.checkpoints import TITLES, Checkpoint, Family, open_checkpoint
from joulewise.engines.native.fit import require_family
from joulewise.engines.native.heads.eagle import Eagle2Head, Eagle3Head
from joulewise.engines.native.heads.medusa import MedusaHead
from joulewise.engines.native.heads.settings import listed, published_taps, taps_in
from joulewise.engines.native.merged import merge_projections
from joulewise.engines.native.model import DecoderModel
from joulewise.errors import UserError

Head = MedusaHead | Eagle2Head | Eagle3Head


def taps_of(name: str, layers: int, revision: str | None = None) -> tuple[int, ...]:
    """Which layers' inputs a head reads of its target. Reads the configuration and the names of the tensors alone.

    The published code taps the inputs of the layers 2, n // 2 and n - 3. A file may name others, in one of two ways:
    the speculators format and vLLM count as we do; SpecForge, SGLang and ModelOpt name, inside ``eagle_config``, the
    layers whose *outputs* are meant, one less.

    Args:
        name: a folder, a file or a name on the hub.
        layers: of the target.
        revision: on the hub.

    Returns:
        Empty for Medusa and EAGLE-1/2, which read the last hidden state.

    Raises:
        UserError: no head that is known, or layers that the target has not.
    """
    return taps_in(open_checkpoint(name, revision), layers)


def open_head(name: str, target: DecoderModel, family: Family | None = None, revision: str | None = None) -> Head:
    """Open a head for a target.

    Args:
        name: a folder, a file of weights with its ``config.json`` beside it, or a name on the hub.
        target: opened with the taps that ``taps_of`` gives, or more of them for further heads.
        family: what it must be; None takes any.
        revision: on the hub; None takes the newest.

    Raises:
        UserError: no head that is known, one of another family, or one that does not fit the target.
    """
    head = build(open_checkpoint(name, revision), target, family)
    merge_projections(head)
    return head


def build(checkpoint: Checkpoint, target: DecoderModel, family: Family | None = None) -> Head:
    """Make the head of an open checkpoint, as it is to be trained. See ``open_head``."""
    if family is not None:
        require_family(checkpoint, family)
    taps = taps_in(checkpoint, target.config.num_hidden_layers)
    if not set(taps) <= set(target.taps):
        raise UserError(
            f"The head {checkpoint.name} reads the inputs of the layers {listed(taps)} of its target, and "
            f"{target.loaded.name} was opened without them (tapped: {listed(target.taps)})."
        )
    head: Head
    if checkpoint.family == "eagle3":
        head = Eagle3Head(checkpoint, target, taps)
    else:
        head = (MedusaHead if checkpoint.family == "medusa" else Eagle2Head)(checkpoint, target)
    lent = () if "lm_head.weight" in checkpoint.stored else ("lm_head.",)  # rows of the target's matrix
    count = sum(part.numel() for name, part in head.named_parameters() if not name.startswith(lent))
    hashed = checkpoint.sha256
    head.note = f"{checkpoint.name}, {TITLES[checkpoint.family]} head, {count:,} parameters"
    head.note += "" if hashed is None else f", sha256 {hashed[:16]}"
    return head


__all__ = ["Eagle2Head", "Eagle3Head", "Head", "MedusaHead", "build", "open_head", "published_taps", "taps_of"]
