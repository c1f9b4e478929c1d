"""Together: what an engine has that runs several Requests side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from joulewise.decoding.spec import Decoding
from joulewise.engines.engine import Engine, Generation, Request
from joulewise.errors import UserError


@runtime_checkable
class Together(Protocol):
    """What an engine may do besides: run several Requests side by side."""

    def refuses_together(self, decoding: Decoding, greedy: bool) -> str | None:
        """Why it cannot do so by ``decoding``, one sentence; None if it can. Loads nothing."""
        ...

    def generate_together(self, requests: Sequence[Request], decoding: Decoding) -> tuple[Generation, ...]:
        """Generate from several requests in one batch; one Generation each, in order.

        All begin and end with the batch: what is measured around the call is theirs together. Each text is what it
        would be alone, as far as forwards of other widths give the same logits.

        Raises:
            UserError: what ``refuses_together`` tells, or requests that end or sample by different rules.
            ContextLengthError: as for ``Engine.generate``.
        """
        ...


def refuses_together(engine: Engine, decoding: Decoding, greedy: bool) -> str | None:
    """Why an engine cannot run several Requests side by side by ``decoding``; None if it can."""
    if not isinstance(engine, Together):
        return "it runs one request at a time"
    return engine.refuses_together(decoding, greedy)


def require_one_rule(requests: Sequence[Request]) -> None:
    """Make sure that requests which run side by side end and sample by the same rules.

    Raises:
        UserError: they do not.
    """
    if len({request.ignore_eos for request in requests}) > 1:
        raise UserError("Several texts at once end by one rule: set the same ignore_eos for all.")
    if len({request.sampling for request in requests}) > 1:
        raise UserError("Several texts at once are sampled by one rule: set the same sampling for all.")
