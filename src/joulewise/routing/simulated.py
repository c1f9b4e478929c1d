"""What a simulation tells: of each router, and of two on the same arrivals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

BLOCKS, REPLICATES = 40, 1000
"""The bootstrap draws stretches of the trace: neighbouring requests depend on each other through the load."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of seconds."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Against:
    """A router against the baseline, in paired requests; 95 % intervals from a bootstrap over stretches of time.

    Args:
        saved, saved_interval: share of the baseline's joules of requests that is saved.
        lost, lost_interval: accuracy that is lost, as a difference of shares.
    """

    saved: float
    saved_interval: tuple[float, float]
    lost: float
    lost_interval: tuple[float, float]


@dataclass(frozen=True, slots=True, eq=False)
class Simulated:
    """What one router did.

    Args:
        requests: all that arrived; each was answered.
        accuracy, accuracy_interval: with Wilson's 95 % interval.
        request_j: of requests, on average, routing included.
        energy_j: of all requests.
        idle_j: of servers while nothing ran; None where a server's power at rest is not known.
        first_token_s: None where an option that was taken has no timed first tokens.
        waited_s: before it began, on average.
        first_token_missed, total_missed: share later than the goal's limits; None without such a limit.
        carbon_g: of the requests' joules; None where the grid is not known.
        shares: by option.
        best_effort: share of choices that reach less than the goal asks for; None where no policy chose.
        limits_missed: share of choices of which no option was expected to keep all limits; None where no policy chose.
        below_floor: share of choices of which no option (of those that miss the fewest limits) was expected to reach
            the floor; None where no policy chose.
        against: the baseline; None for the baseline itself.
        energy_by_request_j, right_by_request, total_by_request_s: in the order of arrival.
    """

    name: str
    requests: int
    accuracy: float
    accuracy_interval: tuple[float, float]
    request_j: float
    energy_j: float
    idle_j: float | None
    first_token_s: Spread | None
    total_s: Spread
    waited_s: float
    first_token_missed: float | None
    total_missed: float | None
    carbon_g: float | None
    shares: Mapping[str, float]
    best_effort: float | None
    limits_missed: float | None
    below_floor: float | None
    against: Against | None
    energy_by_request_j: Floats
    right_by_request: Floats
    total_by_request_s: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """All routers on the same traffic.

    Args:
        baseline: the router that the others are held against.
        duration_s: from the start to the last answer of the slowest router; servers rest until then.
        observed: accuracies are looked up in outcomes; else they are drawn from the router's own predictions.
        notes: what is not as it would be in truth, one sentence each.
    """

    routers: tuple[Simulated, ...]
    baseline: str
    duration_s: float
    observed: bool
    notes: tuple[str, ...]


def spread(seconds: Floats) -> Spread:
    """Percentiles of seconds."""
    return Spread(*(float(value) for value in np.percentile(seconds, (50, 95, 99))))


def late(seconds: Floats, most: float | None) -> float | None:
    """The share that is later than a limit; None without one."""
    return None if most is None else float((seconds > most).mean())


def compared(base_j: Floats, joules: Floats, base_right: Floats, right: Floats, due: Sequence[float]) -> Against:
    """A router's requests against the baseline's, in the order of arrival.

    Args:
        base_j, joules, base_right, right: by request, the baseline's and the router's.
        due: seconds of the arrivals.
    """
    times = np.array(due)
    span = max(float(times[-1] - times[0]), 1e-9)
    blocks = np.minimum(((times - times[0]) / span * BLOCKS).astype(int), BLOCKS - 1)
    columns = (base_j, joules, base_right - right, np.ones(len(joules)))
    sums = np.stack([np.bincount(blocks, column, BLOCKS) for column in columns])
    sums = sums[:, sums[3] > 0]
    drawn = np.random.default_rng(0).integers(0, sums.shape[1], (REPLICATES, sums.shape[1]))
    of_draws = sums[:, drawn].sum(axis=2)

    def saved(part: Floats) -> Floats:
        return np.asarray(1.0 - part[1] / np.maximum(part[0], 1e-300))

    def interval(values: Floats) -> tuple[float, float]:
        low, high = np.percentile(values, (2.5, 97.5))
        return float(low), float(high)

    whole = sums.sum(axis=1)
    lost = float(whole[2] / whole[3])
    return Against(float(saved(whole)), interval(saved(of_draws)), lost, interval(of_draws[2] / of_draws[3]))
