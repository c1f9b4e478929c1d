"""One command's worth of learning: past answers, and curves where there are some, to a router."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from joulewise.analysis.curve_points import Origin
from joulewise.analysis.curves import Curve
from joulewise.analysis.least_squares import non_negative
from joulewise.errors import UserError
from joulewise.routing.answer_joules import GIVEN, AnswerJoules, fit_answer_joules
from joulewise.routing.energy import OptionEnergy, PublishedCurve
from joulewise.routing.latency import Latency, Timing, fit_latency
from joulewise.routing.lengths import fit_lengths
from joulewise.routing.past_answers import Past, PastAnswer
from joulewise.routing.performance import fit
from joulewise.routing.policy import Cascade, Option
from joulewise.routing.router import Learnt, PromptLength, Router, query_hash, size_of

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """An operating curve and what it is of."""

    curve: Curve
    origin: Origin

    @property
    def server(self) -> str:
        """``engine/decoding``, by label."""
        return f"{self.origin.engine}/{self.origin.decoding}"


def fit_router(
    past: Past,
    curves: Sequence[MeasuredCurve] = (),
    published: Mapping[str, PublishedCurve] | None = None,
    cascades: Sequence[tuple[str, str]] = (),
    seed: int = 0,
) -> Router:
    """Learn a router. The same past, curves and seed give the same router.

    Joules of an option come from a curve of its engine and decoding, else from published ones, else from its past
    answers; output lengths and seconds from its past answers.

    Args:
        curves: of servers, by their labels.
        published: by option or server.
        cascades: pairs of options: a vote, whose answer is kept where all samples agree, and who is asked else.

    Raises:
        UserError: there is no scored query, a curve of what no option runs on, or a cascade without votes.
        EnvironmentFault: scipy (extra ``routing``) is not installed.
    """
    by_server = {c.server: c for c in curves}
    outcomes = past.outcomes()
    servers = {a.option: a.server for a in past.answers}
    if strange := sorted(set(by_server) - set(servers.values())):
        raise UserError(
            f"the curve of {strange[0]} is of no option: there are {', '.join(sorted(set(servers.values())))}"
        )
    if strange := sorted(set(published or {}) - set(servers) - set(servers.values())):
        raise UserError(f"published joules of {strange[0]}: no option or server is called so")
    performance = fit(outcomes, seed)
    of_option = _grouped(past.answers, lambda a: a.option)
    of_server = _grouped(past.answers, lambda a: a.server)
    timings = {server: _timings(past, answers) for server, answers in of_server.items()}
    learnt: dict[str, Learnt] = {}
    for name in sorted(servers):
        if past.answers_as(name) not in performance.options:
            continue  # a sweep's, or never scored
        mine = [a for a in of_option[name] if a.query is not None]
        way = past.ways.get(name)
        side_by_side = way is not None and way.side_by_side
        # What a sample draws depends on its server alone, but where samples share a batch.
        others = mine if side_by_side else [a for a in of_server[servers[name]] if not _is_batched(past, a)]
        curve: Curve | PublishedCurve | AnswerJoules | None = None
        provenance, origin = "unknown", None
        if (measured := by_server.get(servers[name])) is not None:
            curve, provenance, origin = measured.curve, "measured", measured.origin
        elif (told := (published or {}).get(name) or (published or {}).get(servers[name])) is not None:
            curve, provenance = told, "published"
        elif (found := _answer_joules(others)) is not None:
            curve, provenance = found, found.provenance
        learnt[name] = Learnt(
            Option(name, servers[name]) if way is None else way.option,
            _energy(mine, curve, side_by_side, None if way is None else way.option.output_budget),
            timings[servers[name]],
            _prompt_length(mine),
            way,
            past.answers_as(name),
            provenance,
            origin,
        )
    seen = np.array(sorted({query_hash(q) for q in outcomes.queries}), dtype=np.uint64)
    made = tuple(_cascade(first, then, learnt, of_option) for first, then in cascades)
    return Router(performance, learnt, seen, cascades=made)


def measured_curves(folders: Iterable[os.PathLike[str] | str]) -> tuple[list[MeasuredCurve], list[str]]:
    """Curves of the engines and decodings of runs whose points carry one; and why others do not.

    Of two runs of the same, the one with more points counts.
    """
    from joulewise.analysis.curve_points import run_points
    from joulewise.analysis.curves import fit_curve
    from joulewise.ledger import load

    found: dict[str, MeasuredCurve] = {}
    faults: dict[str, list[str]] = {}
    for folder in map(Path, folders):
        table = load(folder)
        pairs = sorted({(r["engine"], r["decoding"]) for r in table.arrow.select(["engine", "decoding"]).to_pylist()})
        for engine, decoding in pairs:
            try:
                points = run_points(table, engine=engine, decoding=decoding)
                one = MeasuredCurve(fit_curve(points.points, by=points.by), points.origin)
            except UserError as error:
                modelled = "its joules are modelled, and a curve would only give that model back"
                why = modelled if "modelled" in str(error) else str(error)
                faults.setdefault(why, []).append(f"{engine}/{decoding}")
                continue
            before = found.get(one.server)
            if before is None or one.curve.fitted.points > before.curve.fitted.points:
                found[one.server] = one
    return list(found.values()), [
        f"no operating curve of {', '.join(dict.fromkeys(servers))}: {why}. Joules come from past answers"
        for why, servers in faults.items()
    ]


def _grouped(answers: Iterable[PastAnswer], key: Callable[[PastAnswer], Key]) -> dict[Key, list[PastAnswer]]:
    groups: dict[Key, list[PastAnswer]] = {}
    for answer in answers:
        groups.setdefault(key(answer), []).append(answer)
    return groups


def _is_batched(past: Past, answer: PastAnswer) -> bool:
    way = past.ways.get(answer.option)
    return way is not None and way.side_by_side


def _answer_joules(answers: Sequence[PastAnswer]) -> AnswerJoules | None:
    known = [
        a
        for a in answers
        if a.energy_j and a.running == 1 and a.prompt_tokens is not None and a.output_tokens is not None
    ]
    if not known:
        return None
    found = {a.provenance for a in known}
    provenance = "modelled" if found - {"measured", GIVEN} else GIVEN if GIVEN in found else "measured"
    rows = np.array([[a.prompt_tokens, a.output_tokens, (a.energy_j or 0.0) / a.samples] for a in known])
    sources = {a.source for a in known}
    whose = () if None in sources else tuple(sorted(s for s in sources if s is not None))
    return replace(fit_answer_joules(rows[:, 0], rows[:, 1], rows[:, 2], provenance), sources=whose)


def _energy(
    answers: Sequence[PastAnswer],
    curve: Curve | PublishedCurve | AnswerJoules | None,
    side_by_side: bool,
    budget: int | None,
) -> OptionEnergy | None:
    known = [a for a in answers if a.prompt_tokens is not None and a.output_tokens is not None]
    if curve is None or not known:
        return None
    lengths = fit_lengths(
        [a.prompt_tokens or 0.0 for a in known], [a.output_tokens or 0.0 for a in known], [a.domain for a in known]
    )
    votes = sum(a.samples for a in known) / len(known)
    return OptionEnergy(lengths, curve, max(1.0, votes), at_once=side_by_side, prompt_read_once=side_by_side)


def _timings(past: Past, answers: Sequence[PastAnswer]) -> Latency | None:
    timings = []
    for a in answers:
        if not a.total_s or a.probe or a.prompt_tokens is None or not a.output_tokens:
            continue
        at_once = a.samples if _is_batched(past, a) else 1
        timings.append(
            Timing(a.prompt_tokens, a.output_tokens, a.running * at_once, a.first_token_s, a.total_s * at_once)
        )
    return fit_latency(timings) if timings else None


def _cascade(first: str, then: str, learnt: Mapping[str, Learnt], answers: Mapping[str, list[PastAnswer]]) -> Option:
    """How often votes agree, where their answer is right and where it is wrong; each as if seen once more and not."""
    for name in (first, then):
        if name not in learnt:
            raise UserError(f"a cascade of {name}: no option is called so; there are {', '.join(learnt)}")
    kept: dict[bool, list[bool]] = {True: [], False: []}
    for answer in answers[first]:
        if answer.agreed is not None and answer.score is not None:
            kept[answer.score > 0.5].append(answer.agreed)
    if not any(kept.values()):
        raise UserError(
            f"a cascade of {first}: it has no scored votes that could agree or not; take a vote as its first option"
        )
    keeps = {right: (sum(seen) + 1) / (len(seen) + 2) for right, seen in kept.items()}
    cascade = Cascade(first, then, keeps_right=keeps[True], keeps_wrong=keeps[False])
    return replace(learnt[first].option, name=f"{first} > {then}", cascade=cascade)


def _prompt_length(answers: Sequence[PastAnswer]) -> PromptLength:
    """Least squares, both coefficients at least 0."""
    known = [
        (size_of(a.query), a.prompt_tokens) for a in answers if a.query is not None and a.prompt_tokens is not None
    ]
    if not known:
        return PromptLength()
    x, y = np.array(known, dtype=np.float64).T
    columns = np.stack([np.ones(len(x)), x], axis=1)
    base, per_byte = map(float, non_negative((columns.T @ columns)[None], (columns.T @ y)[None])[0])
    return PromptLength(base, per_byte) if math.isfinite(base + per_byte) else PromptLength()
