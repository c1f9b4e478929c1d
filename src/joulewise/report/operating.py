"""The operating curves of a report in sentences and tables; ``docs/curves.md`` says what stands behind them."""

from __future__ import annotations

from collections.abc import Sequence

from joulewise.analysis.cells import CellKey
from joulewise.analysis.curves import TERMS
from joulewise.analysis.operating import NoCurve, OperatingCurve
from joulewise.report.curve import errors, whose
from joulewise.report.grid import Grid, Row, Shown
from joulewise.report.text import figure, interval, short_model, value

TITLE = "Operating curves: joules over tokens and load"

HOW_TO_READ = (
    "A curve tells the joules of a request from its prompt tokens, its output tokens and the requests that run at the "
    "same time. Held out: each point is predicted from the others, so the error is that of a new request, the meter's "
    "own error included. Beyond what was measured the curve is a guess."
)

SIZES = ("small", "middling", "large")


def name(found: OperatingCurve) -> str:
    """Whose curve it is: model, engine, decoding, device and joules."""
    origin = found.origin
    device = f" on {origin.device}" if origin.device else ""
    return f"{short_model(origin.model)} ({origin.engine}, {origin.decoding}){device}: {whose(origin)}"


def why_none(found: NoCurve) -> str:
    """Why a sweep gave no curve, in a sentence."""
    return f"No operating curve of {found.engine}: {found.why} (options are those of `joulewise curve`)."


def sentences(found: OperatingCurve) -> list[str]:
    """How far to trust a curve and what it says of the next token, prompt and request."""
    curve, (p, o) = found.curve, found.middle
    first, last = curve.region.output_tokens
    least, most = curve.region.running
    out = curve.held_out
    told = [f"Held-out error (each {out.by} predicted from the others): {errors(out.inside)}."]
    if out.outside.points:
        told[0] += f" Beyond the others' ranges: {errors(out.outside)}."
    ends = [figure(curve.output_token_j(p, position, least)) for position in (max(first, 1.0), last)]
    rise = f"{value(found.rise, 100.0)} % more ({interval(found.rise, 100.0)})"
    told.append(
        f"Successive output tokens: behind {p:,.0f} prompt tokens number {max(first, 1.0):,.0f} costs {ends[0]} J and "
        f"number {last:,.0f} {ends[1]} J, {rise}."
    )
    whole, next_prompt_j = curve.energy_j(p, o, least), curve.prompt_token_j(p, o, least)
    told.append(
        f"Average and margin: {p:,.0f} prompt and {o:,.0f} output tokens cost {figure(whole)} J, so "
        f"{figure(whole / o)} J per output token; the last of them adds "
        f"{figure(curve.output_token_j(p, o, least))} J, and one more prompt token {figure(next_prompt_j)} J."
    )
    if least < most:
        crowded = curve.energy_j(p, o, most)
        told.append(
            f"Load: such a request costs {figure(whole)} J {'alone' if least == 1 else f'with {least:,.0f} at a time'} "
            f"and {figure(crowded)} J with {most:,.0f} at a time, {figure(crowded / whole)} of it."
        )
    else:
        told.append("The load did not vary, so what it shares is not known: the curve holds for this load alone.")
    return told


def briefly(found: OperatingCurve | NoCurve) -> list[str]:
    """A curve in two lines for a terminal, and what tells the rest."""
    if isinstance(found, NoCurve):
        return [why_none(found)]
    error, successive, *_ = sentences(found)
    return [f"{name(found)}. {error}", f"{successive} More: `joulewise curve`, and the page."]


def operating_grids(several: Sequence[OperatingCurve]) -> tuple[Grid, ...]:
    """The coefficients, and what requests cost on average and at the margin."""
    if not several:
        return ()
    return _coefficients(several), _requests(several)


def notes(found: OperatingCurve) -> str:
    """Where a curve was measured and what was left out, in one paragraph."""
    region = found.curve.region
    names = ("prompt tokens", "output tokens", "requests at a time")
    ranges = zip((region.prompt_tokens, region.output_tokens, region.running), names, strict=True)
    parts = [f"{low:,.6g}{f' – {high:,.6g}' if low < high else ''} {axis}" for (low, high), axis in ranges]
    return ". ".join([f"Measured: {', '.join(parts)}", *(note[0].upper() + note[1:] for note in found.notes)]) + "."


def _key(found: OperatingCurve) -> CellKey:
    origin = found.origin
    return CellKey(found.run, origin.engine, origin.model, "", "", origin.decoding)


def _coefficients(several: Sequence[OperatingCurve]) -> Grid:
    rows = tuple(
        Row(
            _key(found),
            None,
            (Shown(figure(c.value), f"{figure(c.lower)} – {figure(c.upper)}"),),
            (name(found), TERMS[term].words),
        )
        for found in several
        for term, c in found.curve.coefficients.items()
    )
    return Grid("Coefficients of the curves", ("joules",), rows, absolute=True, of="joules for")


def _requests(several: Sequence[OperatingCurve]) -> Grid:
    loads = any(found.curve.region.running[0] < found.curve.region.running[1] for found in several)
    rows = []
    for found in several:
        for size, seen in zip(SIZES, found.typical, strict=False):
            curve, p, o, b = found.curve, seen.prompt_tokens, seen.output_tokens, seen.running
            beyond = "" if seen.inside else ", beyond their ranges"
            figures = [
                Shown(figure(seen.energy_j), f"{figure(seen.told_j)} predicted from the others{beyond}"),
                Shown(figure(curve.energy_j(p, o, b) / o)),
                Shown(figure(curve.output_token_j(p, o, b))),
                Shown(figure(curve.prompt_token_j(p, o, b))),
            ]
            if loads:
                varies = curve.region.running[0] < curve.region.running[1]
                figures.append(Shown(figure(curve.another_request_j(p, o, b)) if varies else "–"))
            at_once = f", {b:,.0f} at a time" if loads else ""
            label = f"{size}: {p:,.0f} prompt and {o:,.0f} output tokens{at_once}"
            rows.append(Row(_key(found), None, tuple(figures), (name(found), label)))
    columns = ["J measured", "J per output token, on average", "J of the last output token"]
    columns += ["J of one more prompt token", *(["J of one more such request"] if loads else [])]
    told = [
        "Small, middling and large: the measured requests that 10, 50 and 90 % of them do not exceed in joules.",
        *(["One more such request: what it adds to the joules of all that run."] if loads else []),
    ]
    title = "Average and marginal joules of measured requests"
    return Grid(title, tuple(columns), tuple(rows), (" ".join(told),), True, "request")
