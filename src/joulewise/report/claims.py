"""The papers' claims in words: what a run says of each, beside what is published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from joulewise.analysis.cells import CellKey
from joulewise.analysis.claims import Claim
from joulewise.analysis.evidence import MODELLED, ClaimVerdict, Evidence, Figure
from joulewise.report.grid import Grid, Row, Shown
from joulewise.report.text import figure, interval, listed, value

TITLE = "The papers' claims, held against this run"

HOW_TO_READ = (
    "A rule is contradicted by one clear exception, and confirmed by clear cases without any; what is said to exist is "
    "confirmed by one clear case. Clear: among all comparisons of a claim chance would give any in about 5 % of runs "
    "(Holm's procedure). Modelled joules decide nothing. The papers' full texts were not at hand: their figures are "
    "from summaries and quotations."
)

MOST = 3
"""So many pieces of evidence are told in words; all are in the JSON."""


@dataclass(frozen=True, slots=True)
class ClaimWords:
    """One claim that a run touches.

    Args:
        statement: what is claimed, with its letter.
        verdict: what the run says.
        run: the run's numbers.
        published: the paper's, with their reliability.
        needs: what would decide it; None where it is decided.
        caveat: why the run's numbers may be wrong; None where nothing says so.
    """

    statement: str
    verdict: ClaimVerdict
    run: str
    published: str
    needs: str | None
    caveat: str | None = None


def claim_words(claims: Sequence[Claim], caveat: str | None = None) -> list[ClaimWords]:
    """The claims that a run touches, each with what stands against trusting the run."""
    return [
        ClaimWords(
            f"({claim.letter}) {claim.published.statement}",
            claim.verdict,
            _run(claim),
            f"{claim.published.paper}: {claim.published.figures} ({claim.published.reliability}).",
            _needs(claim) if claim.verdict == "cannot tell" else None,
            caveat,
        )
        for claim in claims
        if claim.verdict is not None
    ]


def lines(words: ClaimWords) -> list[str]:
    """What stands under a claim's statement and verdict, line by line."""
    needs = [f"To decide it: {words.needs}"] if words.needs else []
    caveat = [f"Caveat: {words.caveat}"] if words.caveat else []
    return [f"This run: {words.run}", *caveat, f"Published, {words.published}", *needs]


def not_touched(claims: Sequence[Claim]) -> str | None:
    """The claims that a run says nothing of, in one line, with what they need; None where it touches all."""
    others = [claim for claim in claims if claim.verdict is None]
    if not others:
        return None
    told = (f"({claim.letter}) {claim.published.title} needs {claim.published.needs}" for claim in others)
    return f"Not touched by this run: {'; '.join(told)}."


def claim_grid(claims: Sequence[Claim]) -> Grid:
    """Verdicts and counts, claim by claim."""
    rows = []
    for claim in claims:
        if claim.verdict is not None:
            counts = (len(claim.evidence), *(_count(claim, side) for side in ("for", "against")))
            figures = (Shown(claim.verdict), *(Shown(f"{count:,}") for count in counts))
            key = CellKey(claim.run, "", "", "", claim.published.paper, claim.letter)
            rows.append(Row(key, None, figures, (claim.published.paper, f"({claim.letter}) {claim.published.title}")))
    columns = ("verdict", "comparisons", "for it", "against it")
    return Grid(TITLE, columns, tuple(rows), (HOW_TO_READ,), of="claim")


def _needs(claim: Claim) -> str:
    if any(one.side is None and one.why is None for one in claim.evidence):
        return "more questions or repeats, so that the intervals narrow."
    if {one.why for one in claim.evidence} == {MODELLED}:
        return "the same where a card or a counter measures the joules."
    return f"{claim.published.needs}."


def _run(claim: Claim) -> str:
    found = claim.evidence
    decided = [one for one in found if one.side is not None]
    whys = {one.why for one in found if one.side is None}
    counts = [f"{_count(claim, side):,} {side} it" for side in ("for", "against") if _count(claim, side)]
    if len(decided) < len(found):
        why = f" ({next(iter(whys))})" if len(whys) == 1 and None not in whys else ""
        counts.append(f"{len(found) - len(decided):,} cannot be told{why}")
    head = f"{len(found):,} comparison{'s' * (len(found) > 1)}, {listed(counts)}"
    if not decided and len(whys) == 1 and None not in whys:
        return f"{head}."
    # What decides stands first: a rule that has an exception is told by that.
    wanted = {"contradicted": "against", "confirmed": "for"}.get(claim.verdict or "")
    shown = sorted(found, key=lambda one: one.side != wanted)[:MOST]
    beside = [f"{figure(rho)} with {name}" for name, rho, _ in claim.goes_with]
    ranks = (
        f" From task to task, over {claim.goes_with[0][2]:,} cells, the factor's rank correlation is {listed(beside)}."
        if beside
        else ""
    )
    return f"{head}. {'; '.join(_told(one) for one in shown)}.{ranks}"


def _count(claim: Claim, side: str) -> int:
    return sum(one.side == side for one in claim.evidence)


def _told(one: Evidence) -> str:
    return f"{one.where}: {', '.join(_figure(f) for f in one.figures)}"


def _figure(shown: Figure) -> str:
    quantity = shown.quantity
    if quantity.value is None:
        return shown.words.replace("{}", f"unknown ({quantity.reason})" if quantity.reason else "unknown")
    factor, unit = (1.0, "") if shown.unit == "plain" else (100.0, " %")
    sign = "+" if shown.unit == "change" and quantity.value > 0.0 else ""
    ends = interval(quantity, factor)
    told = shown.words.replace("{}", f"{sign}{value(quantity, factor)}{unit}")
    return f"{told} ({ends})" if ends else told
