"""What the raw rows of `benchmarks/card.py` say: no hardware, no clock.

A part's rows are lists by kind; times are monotonic seconds, all else joules and watts.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from meter_accuracy import AIMS, LENGTHS_S
from numpy.typing import NDArray
from recorded_loads import Bracket, brackets, evened

from joulewise.analysis.intervals import student_t
from joulewise.energy.reading import Z95

Rows = dict[str, list[list[Any]]]
Floats = NDArray[np.float64]
FIRST_BURST = 2
"""Of each train of bursts so many are left out, in case that the counter is late."""

GRID = 0.01
SHARES = np.arange(5, 101) * GRID
OFFSETS = np.arange(100) * GRID
CHI2_2 = 5.991
"""95 % quantile of chi-squared with two degrees of freedom: share and place of what is looked at."""

UNDECIDED = 0.5
"""A share of which no more is known than to within this is not known."""

AIM = dict(zip(LENGTHS_S, AIMS["steady"], strict=True))
"""In percent, by length."""

UNSTEADY, MEAN_OF_S = 0.005, 1.0
"""A load is not steady while the card's own mean of so many seconds is off its median by this share."""

UNEVEN = 5.0
"""Phases whose bursts differ by more than this many standard deviations do not differ by chance: the range of 16 means
of two is 2.5 on average."""

NOISE_FLOOR = 0.002
"""Bursts are taken to be equal to so much of their joules at best."""


def share_seen(phases: Sequence[float], values: Sequence[float], burst: float) -> dict[str, float]:
    """Of each period, the share that a sensor looks at, by what it shows of equal bursts at many phases.

    The sensor is taken to look at one stretch of each period and to scale it up to the whole, so that steady power is
    told right. Least squares over its length and place; the interval takes in every length that fits nearly as well.

    Args:
        phases: where in the period the bursts began, 0 to 1; each place at least twice.
        values: what was shown above idle.
        burst: how long a burst is, in periods.

    Returns:
        ``share`` with ``low`` and ``high`` (95 %), ``from`` and ``to`` as phases, ``least_percent`` and
        ``most_percent``: what a burst shows at the phases where it shows least and most, of its mean;
        ``spread_percent``: the difference of the two; and ``noise_percent``: the standard deviation at one phase.
    """
    at, shown = np.array(phases), np.array(values)
    bins: dict[int, list[float]] = defaultdict(list)
    count = max(1, len(at) // 2)
    for phase, value in zip(at, shown, strict=True):
        bins[round(phase * count) % count].append(value)
    within = sum(float(np.sum((np.array(v) - np.mean(v)) ** 2)) for v in bins.values())
    degrees = max(1, sum(len(v) - 1 for v in bins.values()))
    means = [float(np.mean(v)) for v in bins.values()]
    level = float(np.mean(shown))
    if level <= 0.0:
        raise ValueError("nothing is shown of the bursts")
    errors = np.empty((len(SHARES), len(OFFSETS)))
    for i, share in enumerate(SHARES):
        seen = sum(
            np.clip(
                np.minimum(at[:, None] + burst, OFFSETS + share + turn) - np.maximum(at[:, None], OFFSETS + turn),
                0.0,
                None,
            )
            for turn in (-1.0, 0.0, 1.0, 2.0)
        )
        model = np.asarray(seen) / share
        weight = np.sum(model**2, axis=0)
        scale = np.sum(model * shown[:, None], axis=0) / np.where(weight > 0, weight, 1.0)
        errors[i] = np.sum((shown[:, None] - scale * model) ** 2, axis=0)
    best = np.unravel_index(int(np.argmin(errors)), errors.shape)
    least = float(errors[best])
    noise2 = max(within / degrees, least / max(1, len(shown) - 3), (NOISE_FLOOR * level) ** 2)
    fits = SHARES[np.min(errors, axis=1) <= least + CHI2_2 * noise2]
    share, start = float(SHARES[best[0]]), float(OFFSETS[best[1]])
    return {
        "share": share,
        "low": max(0.0, float(fits[0]) - GRID),
        "high": min(1.0, float(fits[-1]) + GRID),
        "from": start,
        "to": (start + share) % 1.0,
        "least_percent": 100 * min(means) / level,
        "most_percent": 100 * max(means) / level,
        "spread_percent": 100 * (max(means) - min(means)) / level,
        "noise_percent": 100 * math.sqrt(within / degrees) / level,
    }


def duty(rows: Rows) -> dict[str, Any]:
    """Does the counter integrate all of the time, and which part of each period do the power readings show?

    Args:
        rows: ``counter`` (time, seconds it took, joules), ``instant`` (time, watts) and ``locked`` (starts and ends of
            bursts).
    """
    found = brackets(rows["counter"])
    if len(found) < 2:
        raise ValueError("the counter was not seen to step")
    steps, off_s = evened(found)
    times, joules = (np.array([s[i] for s in steps]) for i in (0, 1))
    period_s = float(np.min(np.diff(times)))  # on a line: a step that was missed makes a gap of two
    first_s = min(starts[0] for starts, _ in rows["locked"])
    still = [i for i, t in enumerate(times) if times[0] + 1.0 < t < first_s - 0.3]
    idle_w = float((joules[still[-1]] - joules[still[0]]) / (times[still[-1]] - times[still[0]]))
    shown = np.array(rows["instant"], dtype=float).reshape(-1, 2)
    idle_shown_w = _held(shown, float(times[still[0]]), float(times[still[-1]])) if len(shown) else None
    phases, bursts_s, above_j, above_w = [], [], [], []
    for starts, ends in rows["locked"]:
        inside = times[(times > starts[FIRST_BURST]) & (times <= starts[-1])]
        first, last = np.searchsorted(times, (inside[0], inside[-1]))
        count = round((times[last] - times[first]) / period_s)
        after = np.array(starts) - times[np.maximum(0, np.searchsorted(times, starts) - 1)]
        turns = np.exp(2j * np.pi * after / period_s)  # phases go in a circle
        phases.append(float(np.angle(np.mean(turns)) / (2 * np.pi) % 1.0))
        bursts_s.append(float(np.mean(np.array(ends) - np.array(starts))))
        above_j.append(float((joules[last] - joules[first]) / count - idle_w * period_s))
        if idle_shown_w is not None:
            above_w.append(_held(shown, starts[FIRST_BURST], starts[-1]) - idle_shown_w)
    burst_s = float(np.mean(bursts_s))
    counter = share_seen(phases, above_j, burst_s / period_s)
    return {
        "period_s": period_s,
        "steps_off_a_line_s": off_s,
        "idle_w": idle_w,
        "burst_s": burst_s,
        "burst_j": float(np.mean(above_j)),
        "counter": counter,
        "power": share_seen(phases, above_w, burst_s / period_s) if above_w else None,
        "found": said(counter, burst_s),
        "trains": {"phase": phases, "burst_s": bursts_s, "energy_j": above_j, "power_w": above_w},
    }


def said(counter: dict[str, float], burst_s: float) -> str:
    """The finding in words."""
    seen = f"{100 * counter['low']:.0f} to {100 * counter['high']:.0f} %"
    differ = f"the joules of equal bursts differ by {counter['spread_percent']:.1f} % over the phases"
    gaps = f"gaps that repeat faster than a burst ({1e3 * burst_s:.0f} ms) would not show"
    if counter["high"] < 0.99:
        return f"the counter does NOT integrate all of the time, but {seen} of each step: {differ}"
    if counter["low"] < 0.9:
        return f"not decided: the counter integrates {seen} of each step: {differ}"
    if counter["spread_percent"] > UNEVEN * counter["noise_percent"]:
        shows = f"{counter['least_percent']:.0f} to {counter['most_percent']:.0f} % of its mean joules"
        return (
            f"the counter leaves no stretch of a step out, but does NOT weigh all of them alike: an equal burst shows "
            f"{shows} by where in the step it lies (the same place again: within {counter['noise_percent']:.1f} %, "
            f"standard deviation); {gaps}"
        )
    return f"the counter integrates all of the time ({seen} of each step, 95 %): {differ}; {gaps}"


def _held(shown: Floats, start_s: float, end_s: float) -> float:
    """Mean over time of values that are held until the next."""
    inside = shown[(shown[:, 0] > start_s) & (shown[:, 0] < end_s)]
    before = shown[: max(1, int(np.searchsorted(shown[:, 0], start_s)))][-1]
    edges = np.concatenate([[start_s], inside[:, 0], [end_s]])
    values = np.concatenate([[before[1]], inside[:, 1]])
    return float(np.sum(np.diff(edges) * values) / (end_s - start_s))


def added(slots: Sequence[Sequence[Any]], period_s: float) -> dict[str, Any]:
    """What the sampler adds to the power: slots with it against slots without, in pairs.

    Args:
        slots: whether it ran, the brackets at both ends, the sampler's CPU seconds; pairs follow one another.
        period_s: about how long a step of the counter takes.

    Returns:
        Mean difference in watts, its 95 % interval (Student's t over pairs), mean power without, and whether the
        interval leaves 0 out.
    """
    ends = [tuple(b) for slot in slots for b in slot[1:3]]
    steps, _ = evened(sorted(set(ends)), period_s)
    when = dict(zip(sorted(set(ends)), (t for t, _ in steps), strict=True))
    watts = [(s[0], (s[2][2] - s[1][2]) / (when[tuple(s[2])] - when[tuple(s[1])])) for s in slots]
    pairs = [dict(pair) for pair in zip(watts[::2], watts[1::2], strict=True)]
    differences = np.array([p[True] - p[False] for p in pairs])
    mean = float(np.mean(differences))
    half = student_t(0.975, len(pairs) - 1) * float(np.std(differences, ddof=1)) / math.sqrt(len(pairs))
    ran_s = sum(s[2][1] - s[1][1] for s in slots if s[0])
    return {
        "pairs": len(pairs),
        "power_w": float(np.mean([w for ran, w in watts if not ran])),
        "difference_w": mean,
        "interval_w": [mean - half, mean + half],
        "seen": abs(mean) > half,
        "sampler_cpu_percent": 100 * sum(s[3] for s in slots) / ran_s,
    }


def power_course(steps: Sequence[Bracket], unsteady_s: Sequence[float] = ()) -> Any:
    """Joules by time over a long run of steady load, by steps seconds apart; slow drift of the power is in it.

    Args:
        steps: brackets of the steps.
        unsteady_s: moments at which the load was not steady; what lies between the steps around them does not count.
    """
    early, late, joules = np.array(sorted(steps)).T
    moments = (early + late) / 2
    powers, middles = np.diff(joules) / np.diff(moments), (moments[1:] + moments[:-1]) / 2
    unsteady = np.asarray(unsteady_s)
    held = np.array([not np.any((unsteady > a) & (unsteady <= b + MEAN_OF_S)) for a, b in itertools.pairwise(moments)])
    held = held if np.any(held) else np.ones_like(held)
    weights = 1 / np.maximum(late - early, 1e-6)[1:]
    degree = min(2, max(0, int(np.sum(held)) // 3))
    fit = np.polynomial.Polynomial.fit(middles[held], powers[held], degree, domain=moments[[0, -1]], w=weights[held])
    return fit.integ()


def cost(rows: Rows) -> dict[str, Any]:
    """The sampler's share of a core in the quiet, and what each call takes.

    Args:
        rows: ``quiet`` (seconds, CPU seconds of the sampler, of the process) and ``call`` (name, median, 95th
            percentile and CPU seconds; or name and why not).
    """
    ((wall_s, sampler_s, process_s),) = rows["quiet"]
    return {
        "sampler_cpu_percent": 100 * sampler_s / wall_s,
        "process_cpu_percent": 100 * process_s / wall_s,
        "calls_us": {
            name: dict(zip(("median", "p95", "cpu"), (1e6 * s for s in took), strict=True))
            if len(took) == 3
            else {"absent": took[0]}
            for name, *took in rows["call"]
        },
    }


def windows(rows: Rows) -> dict[str, Any]:
    """The live meter's windows over steady load, by length.

    Where the card's own mean of a second says that the load was not steady, whatever the reason, its long-run power is
    no truth, and the windows are left out.

    Args:
        rows: ``window`` (length, start, end, joules, standard uncertainty, bound's ends, counter's difference),
            ``step`` (a bracket, every few seconds), ``usage`` (time, polled watts) and ``busy`` (seconds, the sampler's
            CPU seconds).
    """
    polls = np.array(rows["usage"], dtype=float)
    unsteady_s = polls[np.abs(polls[:, 1] / np.median(polls[:, 1]) - 1) > UNSTEADY, 0]
    course = power_course([(r[0], r[1], r[2]) for r in rows["step"]], unsteady_s)
    by_length: dict[float, list[tuple[float, ...]]] = defaultdict(list)
    left_out = 0
    for length_s, start_s, end_s, energy_j, sigma_j, low_j, high_j, plain_j in rows["window"]:
        if np.any((unsteady_s >= start_s) & (unsteady_s <= end_s + MEAN_OF_S)):
            left_out += 1
            continue
        truth_j = float(course(end_s) - course(start_s))
        inside = polls[(polls[:, 0] >= start_s) & (polls[:, 0] < end_s), 1]
        before = max(0, int(np.searchsorted(polls[:, 0], start_s)) - 1)
        polled_w = float(np.mean(inside)) if len(inside) else float(polls[before, 1])
        told = 100 * (np.array([energy_j, plain_j, polled_w * (end_s - start_s)]) / truth_j - 1)
        half = Z95 * sigma_j
        by_length[length_s].append(
            (*told, 100 * half / truth_j, abs(energy_j - truth_j) <= half, low_j <= truth_j <= high_j)
        )
    found = []
    for length_s, seen in sorted(by_length.items()):
        table = np.array(seen, dtype=float)
        p95 = [float(np.quantile(np.abs(table[:, i]), 0.95, method="higher")) for i in range(3)]
        found.append(
            {
                "length_s": length_s,
                "aim": AIM[length_s],
                "windows": len(table),
                "joulewise_p95": p95[0],
                "joulewise_mean": float(np.mean(table[:, 0])),
                "difference_p95": p95[1],
                "polled_p95": p95[2],
                "half_width_median": float(np.median(table[:, 3])),
                "interval_holds": 100 * float(np.mean(table[:, 4])),
                "bound_holds": 100 * float(np.mean(table[:, 5])),
            }
        )
    start_s, end_s = course.domain
    ((wall_s, sampler_s),) = rows["busy"]
    return {
        "power_w": float((course(end_s) - course(start_s)) / (end_s - start_s)),
        "power_at_ends_w": [float(course.deriv()(t)) for t in (start_s, end_s)],
        "sampler_cpu_percent": 100 * sampler_s / wall_s,
        "unknown": rows.get("unknown", []),
        "left_out_unsteady": left_out,
        "state": rows["state"][0][0] if rows.get("state") else None,
        "lengths": found,
    }


def rivals(rows: Rows) -> list[dict[str, Any]]:
    """Zeus' and CodeCarbon's windows over steady load.

    Args:
        rows: ``window`` (name, length, seconds it lasted, joules), ``absent`` (name, why), ``end`` (bracket at either
            end of the load).
    """
    found: list[dict[str, Any]] = [{"name": name, "absent": why} for name, why in rows.get("absent", [])]
    if rows.get("window"):
        (first, last) = rows["end"]
        power_w = (last[2] - first[2]) / (sum(last[:2]) - sum(first[:2])) * 2
        by_name: dict[tuple[str, float], list[float]] = defaultdict(list)
        for name, length_s, lasted_s, energy_j in rows["window"]:
            by_name[name, length_s].append(100 * (energy_j / (power_w * lasted_s) - 1))
        for (name, length_s), errors in sorted(by_name.items()):
            worst = float(np.quantile(np.abs(errors), 0.95, method="higher"))
            found.append({"name": name, "length_s": length_s, "windows": len(errors), "p95": worst})
    return found


def shown(part: str, found: Any) -> str:
    """A part's figures for people."""
    if "failed" in found:
        return f"{part}: {found['failed']}"
    if part == "cost":
        lines = [f"the sampler takes {found['sampler_cpu_percent']:.2f} % of a core while no window is open"]
        for name, took in found["calls_us"].items():
            lines.append(
                f"  {name:32}{took['absent']}"
                if "absent" in took
                else f"  {name:32}{took['median']:8.1f} us (95 %: {took['p95']:.1f}), CPU {took['cpu']:.1f} us"
            )
        return "\n".join(lines)
    if part.startswith("added"):
        low_w, high_w = found["interval_w"]
        seen = "a difference is seen" if found["seen"] else "no difference is seen"
        return (
            f"at {found['power_w']:.1f} W the sampler adds {found['difference_w']:+.2f} W "
            f"({low_w:+.2f} to {high_w:+.2f}, 95 %, {found['pairs']} pairs): {seen}"
        )
    if part == "duty":
        lines = [found["found"]]
        if (power := found["power"]) and power["high"] - power["low"] > UNDECIDED:
            lines.append("which part of a step the power readings show is not decided: they do not keep to its phase")
        elif power:
            lines.append(
                f"the power readings show {100 * power['share']:.0f} % of each step ({100 * power['low']:.0f} to "
                f"{100 * power['high']:.0f}), from {power['from']:.2f} to {power['to']:.2f} of it"
            )
        return "\n".join(lines)
    if part == "windows":
        lines = [
            f"steady {found['power_w']:.1f} W; errors (95th percentile) and half-widths (median) in percent",
            f"{'s':>6}{'n':>5} | {'Joulewise':>9}{'half-width':>11}{'interval':>9}{'bound':>7} | "
            f"{'difference':>10}{'polled':>8}",
        ]
        for r in found["lengths"]:
            lines.append(
                f"{r['length_s']:6.3f}{r['windows']:5d} | {r['joulewise_p95']:9.2f}{r['half_width_median']:11.2f}"
                f"{r['interval_holds']:9.0f}{r['bound_holds']:7.0f} | {r['difference_p95']:10.1f}{r['polled_p95']:8.1f}"
            )
        if found["left_out_unsteady"]:
            lines.append(f"left out, the load not being steady: {found['left_out_unsteady']} windows")
        lines.append(f"the sampler took {found['sampler_cpu_percent']:.2f} % of a core with all these windows open")
        if found["state"]:
            lines.append(f"at the end: {found['state']}")
        return "\n".join(lines)
    return "\n".join(
        f"{r['name']}: {r['absent']}"
        if "absent" in r
        else f"{r['name']:11}{r['length_s']:6.3f} s{r['windows']:5d} windows, error {r['p95']:.1f} % (95th percentile)"
        for r in found
    )
