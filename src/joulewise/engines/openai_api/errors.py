"""What can go wrong between a request and its answer; every message is one sentence for people, and no key is in it."""

from __future__ import annotations

from joulewise.engines.openai_api.answer import Answer, Retry
from joulewise.errors import ContextLengthError, EnvironmentFault, JoulewiseError, UserError


class EndpointError(JoulewiseError):
    """One request failed; the next may not.

    Args:
        message: what is wrong, where, and a way out.
        partial: what had come by then; None where nothing had.
        retries: the tries that were turned away before, in order.
    """

    def __init__(self, message: str, partial: Answer | None = None, retries: tuple[Retry, ...] = ()) -> None:
        super().__init__(message)
        self.partial = partial
        self.retries = retries


class Unreachable(EndpointError):
    """No connection: refused, no such host, no route, or none in time."""


class TlsFault(EndpointError, EnvironmentFault):
    """The server's certificate is not trusted, or it speaks no TLS."""


class KeyRefused(EndpointError, UserError):
    """401 or 403."""


class ModelMissing(EndpointError, UserError):
    """The server does not have the model."""


class WrongAddress(EndpointError, UserError):
    """A server is there, but not such an API at this address."""


class TooLongForModel(EndpointError, ContextLengthError):
    """Prompt and output do not fit the model's context."""


class Refused(EndpointError):
    """The server will not do this request (another 4xx)."""


class Overloaded(EndpointError):
    """429 or 503, after as many tries as were allowed."""


class ServerFault(EndpointError):
    """Another 5xx, or an error that the server reports within the stream."""


class Stalled(EndpointError):
    """Nothing came for too long."""


class BrokenStream(EndpointError):
    """The stream ended before the answer did."""


class NotAnAnswer(EndpointError):
    """What came is no stream of completions."""
