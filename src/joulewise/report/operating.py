"""The operating curves of a report in sentences and tables; ``docs/curves.md`` says what stands behind them."""

from __future__ import annotations

from collections.abc import Sequence

from joulewise.analysis.cells import CellKey
from joulewise.analysis.curves import TERMS
from joulewise.analysis.operating import Margins, NoCurve, OperatingCurve
from joulewise.counted import counted
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
    out, (first, last), (one, crowded) = found.curve.held_out, found.ends, found.middle
    error = f"Held-out error (each {out.by} predicted from the others): {errors(out.inside)}."
    if out.outside.points:
        error += f" Beyond the others' ranges: {errors(out.outside)}."
    successive = (
        f"Successive output tokens: behind {counted(first.prompt_tokens, 'prompt token')} number "
        f"{first.output_tokens:,.0f} "
        f"costs {figure(first.last_output_token_j)} J and number {last.output_tokens:,.0f} "
        f"{figure(last.last_output_token_j)} J, {value(found.rise, 100.0)} % more ({interval(found.rise, 100.0)})."
    )
    margin = (
        f"Average and margin: {_tokens(one)} cost {figure(one.energy_j)} J, so {figure(one.per_output_token_j)} J per "
        f"output token; the last of them adds {figure(one.last_output_token_j)} J, and one more prompt token "
        f"{figure(one.next_prompt_token_j)} J."
    )
    load = "The load did not vary, so what it shares is not known: the curve holds for this load alone."
    if one.running < crowded.running:
        load = (
            f"Load: such a request costs {figure(one.energy_j)} J "
            f"{'alone' if one.running == 1 else f'with {one.running:,.0f} at a time'} and {figure(crowded.energy_j)} J "
            f"with {crowded.running:,.0f} at a time."
        )
    return [error, successive, margin, load]


def _tokens(of: Margins) -> str:
    return f"{of.prompt_tokens:,.0f} prompt and {counted(of.output_tokens, 'output token')}"


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
    loads = any(at.another_request_j is not None for found in several for _, at in found.typical)
    rows = []
    for found in several:
        for size, (seen, at) in zip(SIZES, found.typical, strict=False):
            beyond = "" if seen.inside else ", beyond their ranges"
            margins = [at.per_output_token_j, at.last_output_token_j, at.next_prompt_token_j]
            figures = [
                Shown(figure(seen.energy_j), f"{figure(seen.told_j)} predicted from the others{beyond}"),
                *(Shown(figure(joules)) for joules in margins),
            ]
            if loads:
                figures.append(Shown("–" if at.another_request_j is None else figure(at.another_request_j)))
            at_once = f", {at.running:,.0f} at a time" if loads else ""
            rows.append(Row(_key(found), None, tuple(figures), (name(found), f"{size}: {_tokens(at)}{at_once}")))
    columns = ["J measured", "J per output token, on average", "J of the last output token"]
    columns += ["J of one more prompt token", *(["J of one more such request"] if loads else [])]
    told = [
        "Small, middling and large: the measured requests that 10, 50 and 90 % of them do not exceed in joules.",
        *(["One more such request: what it adds to the joules of all that run."] if loads else []),
    ]
    title = "Average and marginal joules of measured requests"
    return Grid(title, tuple(columns), tuple(rows), (" ".join(told),), True, "request")
