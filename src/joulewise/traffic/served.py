"""What analysis needs of one request of a load. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from joulewise.engines.openai_api.answer import Answer
from joulewise.engines.openai_api.errors import EndpointError
from joulewise.traffic.generator import Outcome


@dataclass(frozen=True, slots=True)
class Served:
    """One request of a load. Times are monotonic seconds.

    Args:
        due_s: when it was to be sent: latencies are counted from here.
        began_s: when it was sent; None where it never was.
        end_s: when its answer was whole, or it was given up.
        first_s, last_s: when its first and its last chunk with output were read; None where none was seen (a server
            that sends all at once).
        first_tokens: tokens in the first chunk; one where the server does not tell.
        output_tokens: of the whole answer; None where they are not known.
        whole: whether the answer is.
    """

    due_s: float
    began_s: float | None
    end_s: float
    first_s: float | None = None
    last_s: float | None = None
    first_tokens: int = 1
    output_tokens: int | None = None
    whole: bool = True

    @property
    def to_first_s(self) -> float | None:
        """Time to first token, from the due time."""
        return None if self.first_s is None else self.first_s - self.due_s

    @property
    def server_to_first_s(self) -> float | None:
        """The same from when it was really sent: what the server alone took."""
        return None if self.first_s is None or self.began_s is None else self.first_s - self.began_s

    @property
    def total_s(self) -> float | None:
        """From the due time to the end of the answer; None where it never came whole."""
        return self.end_s - self.due_s if self.whole else None

    @property
    def per_token_s(self) -> float | None:
        """Mean seconds a token after the first chunk's, over a whole answer; None where its tokens are not known, or
        none came after the first chunk.

        A chunk may hold several tokens (speculation, or a server that gathers), so gaps between chunks are no times per
        token; this is.
        """
        if not self.whole or self.first_s is None or self.last_s is None or self.output_tokens is None:
            return None
        after = self.output_tokens - self.first_tokens
        return (self.last_s - self.first_s) / after if after > 0 and self.last_s > self.first_s else None


def served(outcome: Outcome[Answer], output_tokens: int | None = None) -> Served:
    """What analysis needs of an outcome; of one that failed, what had come by then.

    Args:
        output_tokens: as counted otherwise; None takes the server's usage.
    """
    answer = came(outcome)
    if answer is None:
        return Served(outcome.due_s, outcome.began_s, outcome.end_s, whole=False)
    if output_tokens is None and answer.usage is not None:
        output_tokens = answer.usage.output_tokens
    return Served(
        due_s=outcome.due_s,
        began_s=outcome.began_s,
        end_s=answer.end_s,
        first_s=answer.first_token_s,
        last_s=answer.last_token_s,
        first_tokens=answer.chunks.tokens[0] if answer.chunks.tokens else 1,
        output_tokens=output_tokens,
        whole=outcome.answer is not None,
    )


def came(outcome: Outcome[Answer]) -> Answer | None:
    """The answer, or as much of it as came before an error; None where nothing did."""
    error = outcome.error
    return outcome.answer or (error.partial if isinstance(error, EndpointError) else None)
