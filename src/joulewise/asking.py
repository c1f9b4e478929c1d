"""Asking: what a reasoning asks, by a cell's engine and decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from joulewise.decoding import Decoding
from joulewise.engines.engine import ComparingEngine, Engine, Generation, Message, Request, Sampling
from joulewise.engines.serving import Serving
from joulewise.engines.together import Together
from joulewise.errors import ServerError

_WARM_UP = Request((Message("user", "Count from one to twenty in words."),), max_new_tokens=16)


@dataclass(frozen=True, slots=True)
class CellAsk:
    """An ``Ask`` of one cell and question. What the engine cannot do was refused before.

    Args:
        engine: loaded.
        decoding: the cell's.
        continuations: the answers that are compared, where none is generated.
    """

    engine: Engine
    decoding: Decoding
    continuations: tuple[str, ...] = ()

    def __call__(self, request: Request) -> Generation:
        """One Request."""
        if self.continuations and isinstance(self.engine, ComparingEngine):
            return self.engine.compare(request, self.continuations)
        return self.engine.generate(request, self.decoding)

    def together(self, requests: Sequence[Request]) -> tuple[Generation, ...]:
        """Several Requests side by side; what their beginning took is told of the first, not counted for each."""
        assert isinstance(self.engine, Together)
        first, *others = self.engine.generate_together(requests, self.decoding)
        return (first, *(replace(other, first_token_s=None) for other in others))

    def ready(self, times: int) -> str | None:
        """Make the engine ready for a Trial, with its server warmed up so often where it has just come up.

        Returns:
            Why it is not ready; None if it is.
        """
        if not isinstance(self.engine, Serving):
            return None
        try:
            if self.engine.prepare(self.decoding):
                for _ in range(times):
                    self.warm_up()
                self.engine.prepare(self.decoding)
        except ServerError as error:
            return str(error)
        return None

    def warm_up(self, together: int = 0) -> None:
        """Run once, outside of any window; side by side as many as will be, for engines that make ready for that."""
        if together:
            self.together([replace(_WARM_UP, sampling=Sampling(1.0))] * together)
        else:
            self(_WARM_UP)
