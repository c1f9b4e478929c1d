"""What feedback teaches of an option beyond what was fitted: a bounded correction of its accuracy and its joules.

Residuals (observed less predicted accuracy; logarithm of observed over expected joules) are taken as an option's own
offset plus one of its domain, both normal around 0 (Bayesian linear regression; Thompson's draws in the place of the
means: Agrawal and Goyal 2013, arXiv 1209.3352). A CUSUM of likelihood ratios (Page 1954) watches for changes. All is
frozen and pure; without ``Corrections`` nothing is corrected.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from joulewise.errors import EnvironmentFault, UserError
from joulewise.routing.energy import Quantiles
from joulewise.routing.policy import Estimate, Estimator, Load, Option, Query
from joulewise.whole_file import whole_file

VERSION = 1
MOST_BYTES = 20_000_000

LEARN_FIRST = 100
"""So many feedbacks of an option are learnt from before changes are watched for."""
CHANGE = 0.2
"""The change of accuracy that is watched for."""
ALARM = math.log(20_000)
"""Of the log of the likelihood ratio: where nothing changes, at most 5 % alarms within 1,000 feedbacks (a test)."""
_DOUBT = 0.7
"""What was learnt before may be off by so many standard deviations without an alarm."""
_LEAST_VARIANCE = 0.1
"""Predictions near 0 and 1 are not trusted to be as certain as they say."""

LEAST_TRUST = 0.01

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Prior:
    """Standard deviations before any feedback: of an option's offset, of a domain's on top, and of one residual."""

    level: float
    domain: float
    noise: float


OF_ACCURACY = Prior(0.05, 0.07, 0.45)
OF_JOULES = Prior(0.4, 0.3, 0.6)
OF_CHANGE = Prior(0.1, 0.1, 0.45)
"""Wider: what a change is measured from is to be what was, and not what was thought likely."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """What residuals tell of an option; the order that they came in does not matter.

    Args:
        prior: before any.
        sums: by domain (None where not known): the weight of its residuals, and their weighted sum.
        level: mean and variance of the option's own offset, given these.
    """

    prior: Prior
    sums: Mapping[str | None, tuple[float, float]] = field(default_factory=lambda: MappingProxyType({}))
    level: tuple[float, float] = field(init=False)

    def __post_init__(self) -> None:
        """Each domain's mean residual is a reading of the level, blurred by the domain's own offset and the noise."""
        own, noise = self.prior.domain**2, self.prior.noise**2
        precision, total = self.prior.level**-2, 0.0
        for domain, (weight, residuals) in self.sums.items():
            reads = 1.0 / ((own if domain is not None else 0.0) + noise / weight)
            precision += reads
            total += reads * residuals / weight
        object.__setattr__(self, "level", (total / precision, 1.0 / precision))

    def told(self, domain: str | None, weight: float, residual: float) -> Offsets:
        """With one residual more."""
        before, residuals = self.sums.get(domain, (0.0, 0.0))
        return Offsets(self.prior, {**self.sums, domain: (before + weight, residuals + weight * residual)})

    def at(self, domain: str | None) -> tuple[float, float]:
        """Mean and variance of the whole offset in a domain; None for one that is not known."""
        mean, variance = self.level
        if domain is None:
            return mean, variance
        own = self.prior.domain**2
        weight, residuals = self.sums.get(domain, (0.0, 0.0))
        if not weight:
            return mean, variance + own
        kept = own / (own + self.prior.noise**2 / weight)
        return mean + kept * (residuals / weight - mean), (1.0 - kept) ** 2 * variance + own * (1.0 - kept)


@dataclass(frozen=True, slots=True)
class Run:
    """What speaks for a change since a moment.

    Args:
        log_ratio: of the likelihoods, above 0.
        since: feedbacks of the option before it.
        surplus: observed less expected accuracy since, summed.
        offsets: what was learnt until then: a change that is learnt meanwhile still is one.
    """

    log_ratio: float
    since: int
    surplus: float
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class Alarm:
    """A change of accuracy by ``change`` on average from feedback ``since`` on, noticed at feedback ``at``."""

    since: int
    at: int
    change: float


@dataclass(frozen=True, slots=True)
class Record:
    """What feedback taught of one option.

    Args:
        accuracy, joules: offsets of accuracies, and of the logarithm of joules.
        judged: feedbacks with a verdict.
        worse, better: what speaks for a change, if anything does.
        alarm: the first change that was noticed.
    """

    accuracy: Offsets = Offsets(OF_ACCURACY)
    joules: Offsets = Offsets(OF_JOULES)
    judged: int = 0
    worse: Run | None = None
    better: Run | None = None
    alarm: Alarm | None = None


_NOTHING = Record()


@dataclass(frozen=True, slots=True)
class Corrections:
    """What was learnt, by option, and how far it may go.

    Args:
        options: by name.
        most_accuracy: the largest correction of an accuracy, either way.
        most_factor: the largest factor on joules, either way.
    """

    options: Mapping[str, Record] = field(default_factory=lambda: MappingProxyType({}))
    most_accuracy: float = 0.2
    most_factor: float = 2.0

    def __post_init__(self) -> None:
        """Raises UserError: bounds that are none."""
        if not (0 <= self.most_accuracy <= 1 and 1 <= self.most_factor < math.inf):
            raise UserError(
                f"most_accuracy {self.most_accuracy}, most_factor {self.most_factor}: the first is from 0 to 1, the "
                "second at least 1."
            )


@dataclass(frozen=True, slots=True)
class Feedback:
    """What became of an answer. What was predicted is the estimators' own figure, without a correction.

    Args:
        option: that answered.
        predicted, observed: accuracy from 0 to 1: a verdict or a thumb (0 or 1), or a verifier's score; or both None.
        expected_j, energy_j: joules, the former the estimate's median; or both None.
        domain: as the router names it.
        trust: what the observed accuracy is worth over a checked verdict, from ``LEAST_TRUST`` to 1.
    """

    option: str
    predicted: float | None = None
    observed: float | None = None
    expected_j: float | None = None
    energy_j: float | None = None
    domain: str | None = None
    trust: float = 1.0

    def __post_init__(self) -> None:
        """Raises UserError: half of a pair, nothing at all, or a number that cannot be."""
        judged, drawn = (self.predicted, self.observed), (self.expected_j, self.energy_j)
        for names, pair in (("predicted and observed", judged), ("expected_j and energy_j", drawn)):
            if (pair[0] is None) != (pair[1] is None):
                raise UserError(f"Feedback on {self.option}: {names} belong together; give both or none.")
        if judged[0] is None and drawn[0] is None:
            raise UserError(f"Feedback on {self.option} tells nothing: give an observed accuracy, or joules.")
        if not all(0 <= part <= 1 for part in judged if part is not None) or not LEAST_TRUST <= self.trust <= 1:
            raise UserError(
                f"Feedback on {self.option}: predicted {self.predicted}, observed {self.observed}, trust {self.trust}: "
                f"accuracies are from 0 to 1, trust is from {LEAST_TRUST} to 1."
            )
        if not all(0 < part < math.inf for part in drawn if part is not None):
            raise UserError(f"Feedback on {self.option}: {self.expected_j} J, {self.energy_j} J: joules are above 0.")

    @classmethod
    def on(
        cls,
        option: str,
        estimate: Estimate,
        observed: float | None = None,
        energy_j: float | None = None,
        domain: str | None = None,
        trust: float = 1.0,
    ) -> Feedback:
        """Feedback on an answer of which this was expected, without a correction."""
        predicted = None if observed is None else estimate.accuracy
        expected_j = None if energy_j is None else estimate.energy_j.p50
        return cls(option, predicted, observed, expected_j, energy_j, domain, trust)


def update(corrections: Corrections, feedback: Feedback) -> Corrections:
    """With what one feedback teaches."""
    record = corrections.options.get(feedback.option, _NOTHING)
    if feedback.predicted is not None and feedback.observed is not None:
        record = _judged(record, feedback, feedback.predicted, feedback.observed)
    if feedback.expected_j is not None and feedback.energy_j is not None:
        # One answer that stalls must not count for many: nothing beyond the square of the bound.
        far = 2.0 * math.log(corrections.most_factor)
        residual = min(far, max(-far, math.log(feedback.energy_j) - math.log(feedback.expected_j)))
        record = replace(record, joules=record.joules.told(feedback.domain, 1.0, residual))
    return replace(corrections, options={**corrections.options, feedback.option: record})


def corrected(
    corrections: Corrections, option: str, domain: str | None, estimate: Estimate, seed: int | None = None
) -> Estimate:
    """An estimate with what feedback taught; the same one where that is nothing.

    Args:
        seed: draws from what is thought possible instead of taking the mean, so that options of which little is known
            are tried now and then (Thompson sampling). To explore, give each query another one.
    """
    record = corrections.options.get(option, _NOTHING)
    most, most_log = corrections.most_accuracy, math.log(corrections.most_factor)
    shift = min(most, max(-most, _offset(record.accuracy, domain, seed, option, "accuracy")))
    log_factor = min(most_log, max(-most_log, _offset(record.joules, domain, seed, option, "joules")))
    if not shift and not log_factor:
        return estimate
    joules, factor = estimate.energy_j, math.exp(log_factor)
    return replace(
        estimate,
        accuracy=min(1.0, max(0.0, estimate.accuracy + shift)),
        energy_j=Quantiles(joules.mean * factor, joules.p50 * factor, joules.p95 * factor),
    )


def corrected_estimator(corrections: Corrections, estimate: Estimator, seed: int | None = None) -> Estimator:
    """An estimator for ``policy.choose`` whose estimates are corrected."""

    def told(query: Query, option: Option, load: Load) -> Estimate:
        return corrected(corrections, option.name, query.domain, estimate(query, option, load), seed)

    return told


def reset(corrections: Corrections, option: str | None = None) -> Corrections:
    """Without what was learnt of an option; None for all.

    Raises:
        UserError: nothing was learnt of that option.
    """
    if option is None:
        return replace(corrections, options={})
    if option not in corrections.options:
        there = ", ".join(sorted(corrections.options)) or "none at all"
        raise UserError(f"There are no corrections of {option}; there are of {there}.")
    return replace(corrections, options={name: r for name, r in corrections.options.items() if name != option})


def drift(corrections: Corrections) -> list[str]:
    """Options that answer otherwise than they did when their corrections were learnt, one sentence each."""
    return [
        f"{name}: right {abs(alarm.change) * 100:.0f} points {'less' if alarm.change < 0 else 'more'} often from "
        f"feedback {alarm.since + 1} on than before (noticed at {alarm.at}; where nothing changes, at most 5 % of "
        "options give such an alarm within 1,000): see what has changed, fit the router anew, and reset its corrections"
        for name, record in sorted(corrections.options.items())
        if (alarm := record.alarm) is not None
    ]


def _offset(offsets: Offsets, domain: str | None, seed: int | None, option: str, what: str) -> float:
    mean, variance = offsets.at(domain)
    if seed is None:
        return mean
    # A hash is a tenth of the time of a generator, and the same whatever the order of the options.
    digest = hashlib.blake2b(f"{seed}\0{what}\0{option}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    chance = (int.from_bytes(digest, "big") + 0.5) / 2.0**64
    return mean + math.sqrt(variance) * _NORMAL.inv_cdf(min(chance, 1.0 - 2.0**-53))


def _judged(record: Record, feedback: Feedback, predicted: float, observed: float) -> Record:
    judged = record.judged + 1
    worse, better, alarm = record.worse, record.better, record.alarm
    if record.judged >= LEARN_FIRST:
        worse = _run(worse, -1, record, feedback, predicted, observed)
        better = _run(better, 1, record, feedback, predicted, observed)
        for run in (worse, better):
            if alarm is None and run is not None and run.log_ratio >= ALARM:
                alarm = Alarm(run.since, judged, run.surplus / (judged - run.since))
    accuracy = record.accuracy.told(feedback.domain, feedback.trust, observed - predicted)
    return replace(record, accuracy=accuracy, judged=judged, worse=worse, better=better, alarm=alarm)


def _run(
    run: Run | None, sign: Literal[-1, 1], record: Record, feedback: Feedback, predicted: float, observed: float
) -> Run | None:
    """One step of the CUSUM, a bet that the accuracy is off by ``CHANGE`` to one side.

    The ratio is linear in what is observed, so it is 1 on average if nothing changes, of scores as of verdicts.
    """
    if run is None:
        run = Run(0.0, record.judged, 0.0, replace(record.accuracy, prior=OF_CHANGE))
    mean, variance = run.offsets.at(feedback.domain)
    expected = min(0.99, max(0.01, predicted + mean + sign * _DOUBT * math.sqrt(variance)))
    room = expected if sign > 0 else 1.0 - expected
    bet = min(CHANGE / max(expected * (1.0 - expected), _LEAST_VARIANCE), 0.9 / room)
    log_ratio = run.log_ratio + math.log1p(feedback.trust * bet * sign * (observed - expected))
    surplus = run.surplus + observed - min(1.0, max(0.0, predicted + mean))
    return Run(log_ratio, run.since, surplus, run.offsets) if log_ratio > 0 else None


_Finite = Field(allow_inf_nan=False)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Sum(_Model):
    domain: str | None
    weight: float = Field(ge=LEAST_TRUST, allow_inf_nan=False)
    residuals: float = _Finite


class _Run(_Model):
    log_ratio: float = Field(gt=0, allow_inf_nan=False)
    since: int = Field(ge=0)
    surplus: float = _Finite
    offsets: list[_Sum]


class _Alarm(_Model):
    since: int = Field(ge=0)
    at: int = Field(ge=1)
    change: float = _Finite


class _Record(_Model):
    accuracy: list[_Sum]
    joules: list[_Sum]
    judged: int = Field(ge=0)
    worse: _Run | None
    better: _Run | None
    alarm: _Alarm | None


class _File(_Model):
    schema_name: Literal["joulewise-corrections"]
    version: int
    most_accuracy: float = Field(ge=0, le=1)
    most_factor: float = Field(ge=1, allow_inf_nan=False)
    options: dict[str, _Record]


class _Version(BaseModel):
    schema_name: Literal["joulewise-corrections"]
    version: int


def save_corrections(corrections: Corrections, path: os.PathLike[str] | str) -> None:
    """Write a file of corrections; a file of that name is replaced only by a whole one.

    Raises:
        EnvironmentFault: it cannot be written.
    """
    path = Path(path)

    def run(found: Run | None) -> _Run | None:
        if found is None:
            return None
        return _Run(log_ratio=found.log_ratio, since=found.since, surplus=found.surplus, offsets=_sums(found.offsets))

    options = {
        name: _Record(
            accuracy=_sums(record.accuracy),
            joules=_sums(record.joules),
            judged=record.judged,
            worse=run(record.worse),
            better=run(record.better),
            alarm=None if (a := record.alarm) is None else _Alarm(since=a.since, at=a.at, change=a.change),
        )
        for name, record in corrections.options.items()
    }
    file = _File(
        schema_name="joulewise-corrections",
        version=VERSION,
        most_accuracy=corrections.most_accuracy,
        most_factor=corrections.most_factor,
        options=options,
    )
    try:
        with whole_file(path) as part:
            part.write_text(file.model_dump_json(indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(f"{path} cannot be written ({error.strerror or error}); name another file.") from error


def load_corrections(path: os.PathLike[str] | str) -> Corrections:
    """Read a file of corrections.

    Raises:
        UserError: it is absent, truncated, damaged, no such file, or of another version.
    """
    path = Path(path)
    again = "remove it to begin anew; what was learnt is lost then"
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UserError(f"{path} is larger than {MOST_BYTES} bytes and no file of corrections.")
        text = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error
    try:
        version = _Version.model_validate_json(text).version
        if version != VERSION:
            raise UserError(f"{path} holds corrections of version {version}, and this reads {VERSION}: {again}.")
        file = _File.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UserError(
            f"{path} is truncated, damaged or no file of corrections ({place + ': ' if place else ''}"
            f"{first['msg']}): {again}."
        ) from error

    def run(found: _Run | None) -> Run | None:
        if found is None:
            return None
        return Run(found.log_ratio, found.since, found.surplus, _offsets(OF_CHANGE, found.offsets))

    options = {
        name: Record(
            _offsets(OF_ACCURACY, found.accuracy),
            _offsets(OF_JOULES, found.joules),
            found.judged,
            run(found.worse),
            run(found.better),
            None if (a := found.alarm) is None else Alarm(a.since, a.at, a.change),
        )
        for name, found in file.options.items()
    }
    return Corrections(options, file.most_accuracy, file.most_factor)


def _sums(offsets: Offsets) -> list[_Sum]:
    return [_Sum(domain=domain, weight=w, residuals=r) for domain, (w, r) in offsets.sums.items()]


def _offsets(prior: Prior, sums: list[_Sum]) -> Offsets:
    return Offsets(prior, {one.domain: (one.weight, one.residuals) for one in sums})
