"""A curve in words and figures, for a terminal or a pipe."""

from __future__ import annotations

from collections.abc import Iterable

from joulewise.analysis.curve_points import Origin
from joulewise.analysis.curves import TERMS, Curve, Spread
from joulewise.counted import counted
from joulewise.report.text import COMPONENT_NAMES, figure


def describe(curve: Curve, origin: Origin, notes: Iterable[str] = ()) -> str:
    """Coefficients, held-out error, residuals and region.

    Args:
        curve: what was fitted.
        origin: what it is of.
        notes: what else to say, one sentence each.
    """
    device = origin.device or "unknown device"
    lines = [f"{origin.model} ({origin.engine}, {origin.decoding}) on {device}: {whose(origin)}", ""]
    rows = [("joules for", "value", "95 % interval")]
    rows += [
        (TERMS[name].words, figure(c.value), f"{figure(c.lower)} – {figure(c.upper)}")
        for name, c in curve.coefficients.items()
    ]
    wide = [max(len(row[i]) for row in rows) for i in range(3)]
    lines += [f"  {a:<{wide[0]}}  {b:>{wide[1]}}  {c:>{wide[2]}}" for a, b, c in rows]
    out = curve.held_out
    region = curve.region
    axes = {"prompt_tokens": "prompt tokens", "output_tokens": "output tokens", "running": "requests at a time"}
    signed: dict[str, list[str]] = {}
    for one in curve.residuals:
        signed.setdefault(axes[one.of], []).append(f"{one.median:+.1%} at {_range(one.low, one.high)}")
    ranges = [
        f"{_range(*ends)} {name.replace('requests', 'request').replace('tokens', 'token') if ends[1] == 1 else name}"
        for name, ends in zip(axes.values(), (region.prompt_tokens, region.output_tokens, region.running), strict=True)
    ]
    lines += [
        "",
        f"Held-out error (each {out.by} predicted from the others): {errors(out.inside)}",
        f"  beyond the others' ranges: {errors(out.outside)}",
        f"Error at the fitted points: {errors(curve.fitted)}",
        *(f"  with its sign, by {name}: {', '.join(thirds)}" for name, thirds in signed.items()),
        f"Measured: {', '.join(ranges)}",
    ]
    if region.running[0] == region.running[1]:
        lines.append("The load did not vary, so what it shares is not known: the curve holds for this load alone.")
    return "\n".join([*lines, *(f"Note: {note}" for note in notes)]) + "\n"


def predict(curve: Curve, prompt_tokens: float, output_tokens: float, running: float) -> str:
    """A request's joules, on average and at the margin, and how far to trust them."""
    asked = (prompt_tokens, output_tokens, running)
    energy_j = curve.energy_j(*asked)
    per_output, per_token = energy_j / output_tokens, energy_j / (prompt_tokens + output_tokens)
    positions = sorted({1.0, max(1.0, round(output_tokens / 2)), output_tokens})
    successive = ", ".join(
        f"{figure(curve.output_token_j(prompt_tokens, i, running))} (number {i:,.0f})" for i in positions
    )
    warnings = curve.warnings(*asked)
    lines = [
        f"{counted(prompt_tokens, 'prompt token')}, {counted(output_tokens, 'output token')}, {running:,.6g} running: "
        f"{figure(energy_j)} J ({'no error is known here' if warnings else 'error ' + errors(curve.held_out.inside)})",
        f"  on average: {figure(per_output)} J per output token, {figure(per_token)} J per token",
        f"  successive output tokens, J: {successive}",
        f"  one more prompt token: {figure(curve.prompt_token_j(*asked))} J",
    ]
    if curve.region.running[0] < curve.region.running[1]:
        lines.append(f"  one more such request at a time: {figure(curve.another_request_j(*asked))} J in all")
    return "\n".join([*lines, *(f"  Warning: {warning}" for warning in warnings)]) + "\n"


def _range(low: float, high: float) -> str:
    return f"{low:,.6g} – {high:,.6g}" if low < high else f"{low:,.6g}"


def whose(origin: Origin) -> str:
    """Which joules a curve is of, in words."""
    return f"{COMPONENT_NAMES[origin.component]} energy" if origin.component != "total" else "energy of all components"


def errors(spread: Spread) -> str:
    """A median and a 90th percentile in words."""
    if spread.median is None or spread.p90 is None:
        return "no such point"
    return f"median {spread.median:.1%}, 90th percentile {spread.p90:.1%} ({counted(spread.points, 'point')})"
