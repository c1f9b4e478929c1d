"""Plain autoregressive decoding: the baseline of every saving."""

from __future__ import annotations

from typing import Literal

from joulewise.decoding.spec import Decoding


class Vanilla(Decoding):
    """One target forward a token."""

    kind: Literal["vanilla"] = "vanilla"
    draft: None = None
