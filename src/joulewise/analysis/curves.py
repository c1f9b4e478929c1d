"""Joules as a function of prompt tokens p, output tokens o and running requests B, for one model on one device.

    J(p, o, B) = [r + q/B + o (a + b/B + c/sqrt(B)) + d p + e p^2 + f o (p + o/2)] x s(B)

A decode step reads the weights and draws idle power once for all B requests that run, so b is shared over the load; c
is what is shared in part (experts, small kernels, a card that fills up). So is q, where prompts are read together.
Prefill (d, e) and attention over the context (f: the i-th output token looks at p + i tokens) are each request's own.
No coefficient is below 0. s(B) is a smooth correction near 1, fitted to what the terms leave over from load to load;
docs/curves.md judges it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from joulewise.analysis.intervals import Floats, percentile_interval
from joulewise.analysis.least_squares import non_negative
from joulewise.energy.reading import Z95
from joulewise.errors import UserError

Integers = npt.NDArray[np.int64]

REPLICATES = 1000
MOST_FOLDS = 100
"""Up to so many units are held out one at a time, more of them in so many parts."""

LEAST_UNITS = 5
_SPARE_POINTS = 2
_LEAST_VALUES, _LEAST_SPAN = 3, 1.5
_HUBER = 1.5
_LEAST_SCALE = 0.01
"""Relative; what lies within 1.5 % of the fit is never an outlier, however well the other points fit."""

_ROUNDS = 8
_LEAST_TOLD = 0.1
_AT_ONCE = 2_000_000
"""Weights (problems x points) that are held in memory at a time."""


@dataclass(frozen=True, slots=True)
class Term:
    """One column of the fit.

    Args:
        name: of its coefficient.
        unit: of its coefficient.
        words: what it stands for.
        column: of p, o and B, each of shape ``(points,)``.
    """

    name: str
    unit: str
    words: str
    column: Callable[[Floats, Floats, Floats], Floats] = field(repr=False)


REQUEST = Term("request", "J", "each request", lambda p, o, b: np.ones_like(p))
REQUEST_SHARED = Term("request_shared", "J", "each request, shared over B", lambda p, o, b: 1 / b)
TOKEN = Term("token", "J", "each output token", lambda p, o, b: o)
SHARED = Term("token_shared", "J", "each output token, shared over B", lambda p, o, b: o / b)
ROOT = Term("token_root_shared", "J", "each output token, shared over sqrt(B)", lambda p, o, b: o / np.sqrt(b))
PROMPT = Term("prompt_token", "J", "each prompt token", lambda p, o, b: p)
SQUARE = Term("prompt_token_squared", "J", "each prompt token, squared", lambda p, o, b: p * p)
ATTENTION = Term("attention", "J", "each output token, by token of context", lambda p, o, b: o * (p + o / 2))
TERMS: Mapping[str, Term] = MappingProxyType(
    {term.name: term for term in (REQUEST, REQUEST_SHARED, TOKEN, SHARED, ROOT, PROMPT, SQUARE, ATTENTION)}
)


@dataclass(frozen=True, slots=True)
class Form:
    """Which terms are fitted, and how free the correction over the load is.

    Args:
        terms: the columns.
        reach: how far a load tells of another, in ln B: the correction's covariance is Matern 3/2 with this length.
        freedom: the correction's standard deviation, as a multiple of a point's noise; 0 for no correction.
    """

    terms: tuple[Term, ...]
    reach: float = 2.0
    freedom: float = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """What was measured.

    Args:
        prompt_tokens, output_tokens: of one request, shape ``(points,)``.
        running: requests that ran at the same time, itself included, at least 1.
        energy_j: of one request, above 0.
        unit: which points are held out, and drawn by the bootstrap, together: the same number for one question.
        common: the meter's common standard uncertainty, relative: it is the same in all points.
    """

    prompt_tokens: Floats
    output_tokens: Floats
    running: Floats
    energy_j: Floats
    unit: Integers
    common: float = 0.0

    def __len__(self) -> int:
        return len(self.energy_j)


@dataclass(frozen=True, slots=True)
class Coefficient:
    """One coefficient, at least 0, with its 95 % interval."""

    value: float
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Correction:
    """``s(B) = exp(sum_i weight_i k(ln B - ln load_i))`` with ``k`` the Matern 3/2 covariance of a length.

    Args:
        reach: the length, in ln B.
        loads: the loads that were measured.
        weights: one for each.
    """

    reach: float
    loads: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()

    def __call__(self, running: Floats) -> Floats:
        """The factor at each load."""
        near = _matern(np.log(running)[..., None] - np.log(np.array(self.loads)), self.reach)
        return np.asarray(np.exp(near @ np.array(self.weights)), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Spread:
    """Relative errors without their sign: how many, the median and the 90th percentile (None of none)."""

    points: int
    median: float | None
    p90: float | None


@dataclass(frozen=True, slots=True)
class HeldOut:
    """How far predictions are off for points that had no part in the fit.

    Args:
        by: what was left out at a time.
        inside: points within the ranges of p, o and B of those that were fitted.
        outside: the others: the curve continued beyond them.
    """

    by: str
    inside: Spread
    outside: Spread


@dataclass(frozen=True, slots=True)
class Residual:
    """Which way the curve errs over a third of what was measured.

    Args:
        of: ``prompt_tokens``, ``output_tokens`` or ``running``.
        low, high: the least and the most of it in this third.
        points: how many.
        median: of the relative errors with their sign: above 0 where the curve tells too much.
    """

    of: str
    low: float
    high: float
    points: int
    median: float


@dataclass(frozen=True, slots=True)
class Region:
    """The least and the most of what was measured."""

    prompt_tokens: tuple[float, float]
    output_tokens: tuple[float, float]
    running: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """Joules of a request as a function of its tokens and of the load.

    Args:
        coefficients: by the name of their term in ``TERMS``.
        correction: the factor over the load.
        held_out: the error to expect.
        fitted: the error at the points of the fit, less than what is to be expected.
        residuals: the same with its sign, over short, middling and long prompts, outputs and loads.
        region: where it was measured.
    """

    coefficients: Mapping[str, Coefficient]
    correction: Correction
    held_out: HeldOut
    fitted: Spread
    residuals: tuple[Residual, ...]
    region: Region

    def energy_j(self, prompt_tokens: float, output_tokens: float, running: float = 1.0) -> float:
        """Joules of one request."""
        at = [np.array([float(value)]) for value in (prompt_tokens, output_tokens, running)]
        total = sum(c.value * TERMS[name].column(*at) for name, c in self.coefficients.items())
        return float((total * self.correction(at[2]))[0])

    def output_token_j(self, prompt_tokens: float, position: float, running: float = 1.0) -> float:
        """What the output token at a position (1 for the first) adds: later ones cost more, as their context is longer.

        Prefill and what each request costs are in none of them.
        """
        before = self.energy_j(prompt_tokens, position - 1, running)
        return self.energy_j(prompt_tokens, position, running) - before

    def prompt_token_j(self, prompt_tokens: float, output_tokens: float, running: float = 1.0) -> float:
        """What one more prompt token adds."""
        before = self.energy_j(prompt_tokens, output_tokens, running)
        return self.energy_j(prompt_tokens + 1, output_tokens, running) - before

    def another_request_j(self, prompt_tokens: float, output_tokens: float, running: float) -> float:
        """What one more request like those that run adds to the joules of all: (B + 1) J(B + 1) - B J(B)."""
        more = self.energy_j(prompt_tokens, output_tokens, running + 1)
        return (running + 1) * more - running * self.energy_j(prompt_tokens, output_tokens, running)

    def warnings(self, prompt_tokens: float, output_tokens: float, running: float = 1.0) -> list[str]:
        """What of a request lies outside of what was measured, one sentence each."""
        region = self.region
        asked = (
            ("prompt tokens", prompt_tokens, region.prompt_tokens),
            ("output tokens", output_tokens, region.output_tokens),
            ("running requests", running, region.running),
        )
        return [
            f"{value:,.6g} {name}: outside of what was measured ({_range(known)}), so the figure is a guess"
            for name, value, known in asked
            if not known[0] <= value <= known[1]
        ]


def _range(known: tuple[float, float]) -> str:
    low, high = (f"{value:,.6g}" for value in known)
    return f"{low} alone" if low == high else f"{low} to {high}"


def form_for(points: Points) -> Form:
    """The terms that points can tell apart.

    Raises:
        UserError: prompts or outputs do not vary enough, or too few points; with what to add.
    """
    for name, values in (("prompt", points.prompt_tokens), ("output", points.output_tokens)):
        found = np.unique(values)
        if len(found) < _LEAST_VALUES or found[-1] < _LEAST_SPAN * found[0]:
            what = f"{len(found)} length{'s' * (len(found) > 1)}, {_range((found[0], found[-1]))} tokens"
            way = (
                "prompts of other lengths" if name == "prompt" else "outputs of other lengths (another max_new_tokens)"
            )
            raise UserError(
                f"{name}s do not vary enough for a curve ({what}): add {way}, at least {_LEAST_VALUES} lengths of "
                f"which the longest is {_LEAST_SPAN:g} times the shortest or more"
            )
    loads = len(np.unique(points.running))
    shares = ((TOKEN,), (REQUEST_SHARED, TOKEN, SHARED), (REQUEST_SHARED, TOKEN, SHARED, ROOT))[min(loads, 3) - 1]
    return Form((REQUEST, *shares, PROMPT, SQUARE, ATTENTION), freedom=4.0 if loads >= 3 else 0.0)


def fit_curve(points: Points, form: Form | None = None, *, by: str = "question", replicates: int = REPLICATES) -> Curve:
    """Fit a curve: robust least squares on relative errors, with coefficients of at least 0.

    Intervals: the expanded percentile interval of the bootstrap over units, with the meter's common uncertainty added
    in full.

    Args:
        points: what was measured.
        form: the terms; None takes those that the points can tell apart.
        by: what a unit is, in words.
        replicates: bootstrap samples.

    Raises:
        UserError: too few points, or points that do not vary; with what to add.
    """
    _require_some(points)
    form = form or form_for(points)
    _require_enough(points, form, by)
    relative = _relative(points, form)
    whole = np.ones((1, len(points)))
    found = _solve(relative, whole)
    correction = _correct(points, form, relative, found[0], whole[0])
    fitted = relative @ found[0] * correction(points.running) - 1.0
    _, codes = np.unique(points.unit, return_inverse=True)
    drawn = _bootstrap(relative, codes, replicates)
    stretch = float(np.exp(Z95 * points.common))
    coefficients = {}
    for i, term in enumerate(form.terms):
        low, high = percentile_interval(drawn[:, i], int(codes.max()) + 1)
        value = float(found[0, i])
        coefficients[term.name] = Coefficient(value, min(low, value) / stretch, max(high, value) * stretch)
    region = Region(*(_ends(v) for v in (points.prompt_tokens, points.output_tokens, points.running)))
    left = residuals(points, fitted)
    return Curve(coefficients, correction, held_out(points, form, by=by), spread(np.abs(fitted)), left, region)


def unsure(points: Points, at: tuple[Floats, Floats, Floats], replicates: int = 100) -> Floats:
    """How far predictions scatter over bootstrap samples of the units: relative standard deviations.

    Args:
        points: what was measured.
        at: p, o and B of what is predicted, each of shape ``(n,)``.
        replicates: bootstrap samples.

    Raises:
        UserError: points that cannot carry a curve.
    """
    _require_some(points)
    form = form_for(points)
    _, codes = np.unique(points.unit, return_inverse=True)
    drawn = _bootstrap(_relative(points, form), codes, replicates)
    told = drawn @ np.stack([term.column(*at) for term in form.terms])
    return np.asarray(told.std(axis=0) / np.maximum(told.mean(axis=0), 1e-300), dtype=np.float64)


def held_out(points: Points, form: Form, *, by: str = "question") -> HeldOut:
    """The errors of predictions of each unit from the others."""
    errors, inside = held_out_errors(points, form)
    return HeldOut(by, spread(np.abs(errors[inside])), spread(np.abs(errors[~inside])))


def held_out_errors(points: Points, form: Form) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Relative errors of predictions of each unit from the others, and whether these enclose the point."""
    _, codes = np.unique(points.unit, return_inverse=True)
    folds = codes % MOST_FOLDS
    kept = (folds != np.unique(folds)[:, None]).astype(np.float64)
    relative = _relative(points, form)
    found = _solve(relative, kept)
    errors, inside = np.empty(len(points)), np.empty(len(points), dtype=bool)
    for fold, x in enumerate(found):
        out, rest = kept[fold] == 0.0, kept[fold] > 0.0
        correction = _correct(points, form, relative, x, kept[fold])
        errors[out] = relative[out] @ x * correction(points.running[out]) - 1.0
        within = [
            (values[out] >= values[rest].min()) & (values[out] <= values[rest].max())
            for values in (points.prompt_tokens, points.output_tokens, points.running)
        ]
        inside[out] = np.logical_and.reduce(within)
    return errors, inside


def residuals(points: Points, errors: Floats) -> tuple[Residual, ...]:
    """Signed errors over thirds of the different values of p, o and B; of what does not vary, none."""
    found = []
    for name in ("prompt_tokens", "output_tokens", "running"):
        values: Floats = getattr(points, name)
        different = np.unique(values)
        if len(different) > 1:
            for third in np.array_split(different, min(3, len(different))):
                low, high = _ends(third)
                mine = errors[(values >= low) & (values <= high)]
                found.append(Residual(name, low, high, len(mine), float(np.median(mine))))
    return tuple(found)


def spread(errors: Floats) -> Spread:
    """Median and 90th percentile of errors without sign."""
    if not len(errors):
        return Spread(0, None, None)
    return Spread(len(errors), float(np.median(errors)), float(np.quantile(errors, 0.9)))


def _require_some(points: Points) -> None:
    if not len(points):
        raise UserError("there is nothing to fit a curve to: add measured requests")


def _require_enough(points: Points, form: Form, by: str) -> None:
    different = len(np.unique(np.column_stack([points.prompt_tokens, points.output_tokens, points.running]), axis=0))
    least = len(form.terms) + _SPARE_POINTS
    if different < least:
        raise UserError(
            f"{different} different point{'s' * (different > 1)} (prompt tokens, output tokens, load) cannot carry a "
            f"curve of {len(form.terms)} terms and its held-out error: measure at least {least}"
        )
    units = len(np.unique(points.unit))
    if units < LEAST_UNITS:
        raise UserError(f"{units} {by}{'s' * (units > 1)} give no held-out error: measure at least {LEAST_UNITS}")


def _relative(points: Points, form: Form) -> Floats:
    """The columns over the measured joules, shape ``(points, terms)``: a perfect fit makes each row's sum 1."""
    at = (points.prompt_tokens, points.output_tokens, points.running)
    return np.stack([term.column(*at) for term in form.terms], axis=1) / points.energy_j[:, None]


def _solve(relative: Floats, weights: Floats) -> Floats:
    """Huber's fit of each problem by iterated weights, its scale from the median error.

    Errors are relative to the measured joules in the first round and to the fitted ones then: the former alone would
    rather tell too little than too much, the more so the noisier the points.

    Args:
        relative: shape ``(points, terms)``.
        weights: shape ``(problems, points)``; 0 for what a problem does not see.

    Returns:
        Coefficients, shape ``(problems, terms)``.
    """
    k = relative.shape[1]
    products = (relative[:, :, None] * relative[:, None, :]).reshape(len(relative), k * k)
    middle = (np.count_nonzero(weights, axis=1) // 2)[:, None]
    now = weights
    for last in [False] * (_ROUNDS - 1) + [True]:
        found = non_negative((now @ products).reshape(-1, k, k), now @ relative)
        if not last:
            told = np.maximum(found @ relative.T, _LEAST_TOLD)
            off = np.abs(1.0 / told - 1.0)
            seen = np.sort(np.where(weights > 0.0, off, np.inf), axis=1)
            scale = np.maximum(1.4826 * np.take_along_axis(seen, middle, axis=1), _LEAST_SCALE)
            now = weights * np.minimum(1.0, _HUBER * scale / np.maximum(off, 1e-12)) / told**2
    return found


def _bootstrap(relative: Floats, codes: npt.NDArray[np.intp], replicates: int) -> Floats:
    """Coefficients over bootstrap samples of the units, shape ``(replicates, terms)``."""
    rng = np.random.default_rng(0)
    units = int(codes.max()) + 1
    height = max(1, _AT_ONCE // len(codes))
    blocks = []
    for start in range(0, replicates, height):
        drawn = rng.multinomial(units, np.full(units, 1.0 / units), min(height, replicates - start))
        blocks.append(_solve(relative, drawn.astype(np.float64)[:, codes]))
    return np.concatenate(blocks)


def _matern(distance: Floats, reach: float) -> Floats:
    scaled = np.sqrt(3.0) * np.abs(distance) / reach
    return np.asarray((1.0 + scaled) * np.exp(-scaled), dtype=np.float64)


def _correct(points: Points, form: Form, relative: Floats, found: Floats, weights: Floats) -> Correction:
    """The correction that the points with a weight ask for: Gaussian-process regression of ln(measured / terms)."""
    if not form.freedom:
        return Correction(form.reach)
    seen = weights > 0.0
    left = -np.log(relative[seen] @ found)
    loads, codes = np.unique(points.running[seen], return_inverse=True)
    count = np.bincount(codes)
    mean = np.bincount(codes, weights=left) / count
    x = np.log(loads)
    covariance = _matern(x[:, None] - x, form.reach) + np.diag(1.0 / (form.freedom**2 * count))
    return Correction(form.reach, tuple(loads.tolist()), tuple(np.linalg.solve(covariance, mean).tolist()))


def _ends(values: Floats) -> tuple[float, float]:
    return float(np.min(values)), float(np.max(values))
