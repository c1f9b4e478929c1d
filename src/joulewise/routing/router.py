"""A router: what was learnt of every option, ready to estimate and to choose."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from joulewise.analysis.curve_points import Origin
from joulewise.errors import UserError
from joulewise.routing.answer_joules import AnswerJoules
from joulewise.routing.energy import EnergyEstimate, OptionEnergy, expected_energy
from joulewise.routing.joule_sources import JouleSource
from joulewise.routing.latency import Latency, Seconds, expected_seconds
from joulewise.routing.past_answers import Way
from joulewise.routing.performance import Performance, Prediction
from joulewise.routing.policy import (
    Choice,
    Conversation,
    Estimate,
    Estimator,
    Goal,
    Load,
    Option,
    Query,
    State,
    choose,
    load_of,
)


@dataclass(frozen=True, slots=True)
class PromptLength:
    """Prompt tokens of an option for a query of so many bytes of UTF-8: ``base + per_byte x bytes``.

    An estimate: no tokenizer is loaded to route.
    """

    base: float = 0.0
    per_byte: float = 0.25

    def tokens(self, size: int) -> float:
        """At least 1."""
        return max(1.0, self.base + self.per_byte * size)


Correct = Callable[[str, str | None, Estimate], Estimate]
"""What was learnt since: of an option, for a domain."""


@dataclass(frozen=True, slots=True)
class Cached:
    """A conversation before this query: who has so many tokens of it in its prefix cache."""

    model: str
    tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Learnt:
    """What was learnt of one option.

    Args:
        option: what the policy knows of it.
        energy: None where its joules are not known.
        latency: None where its seconds are not known.
        prompt: its prompts' lengths.
        way: how it answers; None where only its outcomes are known.
        answers_as: its name in the performance estimator.
        provenance: of its joules.
        origin: of its operating curve, where it has a measured one.
    """

    option: Option
    energy: OptionEnergy | None
    latency: Latency | None
    prompt: PromptLength
    way: Way | None
    answers_as: str
    provenance: str = "unknown"
    origin: Origin | None = None

    @property
    def sources(self) -> tuple[JouleSource, ...]:
        """Whose joules were learnt; of several, they were learnt together. Empty where that is not known."""
        if self.origin is not None:
            device = self.origin.device
            return () if device is None else (JouleSource(device, self.origin.component, self.provenance),)
        curve = None if self.energy is None else self.energy.curve
        return curve.sources if isinstance(curve, AnswerJoules) else ()


@dataclass(frozen=True, slots=True, eq=False)
class Router:
    """All that is learnt.

    Args:
        performance: how likely each option is right.
        learnt: by option, cascades apart.
        seen: hashes of the queries that were learnt from, ascending.
        routing_j: joules of one decision, as measured when it was fitted; 0 where not known.
    """

    performance: Performance
    learnt: Mapping[str, Learnt]
    seen: npt.NDArray[np.uint64]
    routing_j: float = 0.0
    cascades: tuple[Option, ...] = field(default=())

    @property
    def options(self) -> tuple[Option, ...]:
        """All options."""
        return (*(known.option for known in self.learnt.values()), *self.cascades)

    def query(self, text: str, domain: str | None = None, cached: Cached | None = None) -> Query:
        """A query as the policy takes it; its prompt is the longest that an option makes of it."""
        size = size_of(text)
        longest = round(max(known.prompt.tokens(size) for known in self.learnt.values()))
        if cached is None:
            return Query(longest, domain)
        return Query(longest + cached.tokens, domain, conversation=Conversation(cached.model))

    def estimator(
        self,
        text: str,
        domain: str | None = None,
        prediction: Prediction | None = None,
        correct: Correct | None = None,
        cached: Cached | None = None,
    ) -> Estimator:
        """What is expected of each option for a query.

        Args:
            prediction: of the accuracies, where it is known already.
            correct: what was learnt since.
            cached: of the conversation before.

        Raises:
            UserError: once asked for an option whose joules are not known.
        """
        found = self.performance.predict(text, domain) if prediction is None else prediction
        place = {name: i for i, name in enumerate(self.performance.options)}
        size = size_of(text)

        def estimate(_: Query, option: Option, load: Load) -> Estimate:
            known = self.learnt[option.name]
            prompt = known.prompt.tokens(size)
            if cached is not None and cached.model != option.model:
                prompt += cached.tokens  # read again
            energy = known_energy(known)
            joules = expected_energy(energy, prompt, max(1.0, load.running), domain, self.routing_j)
            seconds = seconds_of(known, prompt, load, domain)
            expected = Estimate(
                min(1.0, max(0.0, float(found.accuracy[place[known.answers_as]]))),
                joules.energy_j,
                None if seconds is None else seconds.first_token_s,
                None if seconds is None else seconds.total_s,
            )
            return expected if correct is None else correct(option.name, domain, expected)

        return estimate

    def choose(
        self,
        text: str,
        goal: Goal,
        state: State = State(),  # noqa: B008 - frozen
        domain: str | None = None,
        correct: Correct | None = None,
        cached: Cached | None = None,
        without: Collection[str] = (),
    ) -> Choice:
        """The option for a query.

        Args:
            correct: what was learnt since.
            cached: of the conversation before.
            without: options that cannot be had.

        Raises:
            UserError: as ``policy.choose``.
        """
        left = [o for o in self.options if o.name not in without]
        estimate = self.estimator(text, domain, None, correct, cached)
        return choose(self.query(text, domain, cached), left, estimate, state, goal)

    def notes(self, text: str, option: str, state: State, domain: str | None = None) -> tuple[str, ...]:
        """Why what is expected of an option is a guess, one sentence each; of a cascade, of its first option."""
        cascade = next((c.cascade for c in self.cascades if c.name == option), None)
        known = self.learnt[option if cascade is None else cascade.first]
        load = load_of(known.option.model, state)
        prompt = known.prompt.tokens(size_of(text))
        told: list[str] = []
        if known.energy is not None:
            told += self.expected(known.option.name, prompt, load, domain).warnings
        if (seconds := seconds_of(known, prompt, load, domain)) is not None:
            told += seconds.warnings
        return tuple(dict.fromkeys(told))

    def expected(self, option: str, prompt_tokens: float, load: Load, domain: str | None = None) -> EnergyEstimate:
        """The joules of an option, in full."""
        energy = known_energy(self.learnt[option])
        return expected_energy(energy, prompt_tokens, max(1.0, load.running), domain, self.routing_j)

    def saw(self, text: str) -> bool:
        """Whether a query was learnt from."""
        number = query_hash(text)
        at = int(np.searchsorted(self.seen, np.uint64(number)))
        return at < len(self.seen) and int(self.seen[at]) == number


def known_energy(known: Learnt) -> OptionEnergy:
    """An option's joules.

    Raises:
        UserError: they are not known.
    """
    if known.energy is None:
        raise UserError(
            f"the joules of {known.option.name} are not known: fit the router with run folders of it, with a curve "
            "(--curve FILE), or with a file of outcomes that has energy_j, prompt_tokens and output_tokens"
        )
    return known.energy


def seconds_of(known: Learnt, prompt_tokens: float, load: Load, domain: str | None) -> Seconds | None:
    """An option's seconds; None where they, or its answers' lengths, are not known."""
    if known.latency is None or known.energy is None:
        return None
    energy = known.energy
    return expected_seconds(
        known.latency,
        energy.lengths,
        prompt_tokens,
        load,
        votes=energy.votes,
        most_output_tokens=energy.most_output_tokens,
        domain=domain,
        sequential_votes=not energy.at_once,
    )


def size_of(text: str) -> int:
    """Bytes of UTF-8."""
    return len(text.encode("utf-8", "surrogatepass"))


def query_hash(text: str) -> int:
    """64 bits of a query's SHA-256, white space aside."""
    return int.from_bytes(hashlib.sha256(" ".join(text.split()).encode("utf-8", "surrogatepass")).digest()[:8], "big")
