"""From answers in ledgers to corrections: each against what the router expected of it."""

from __future__ import annotations

from joulewise.counted import counted
from joulewise.errors import UserError
from joulewise.routing.correction import Corrections, Feedback, update
from joulewise.routing.joule_sources import difference
from joulewise.routing.past_answers import Past
from joulewise.routing.policy import Load
from joulewise.routing.router import Router


def learn_from(
    corrections: Corrections, router: Router, past: Past, verdict: float | None = None
) -> tuple[Corrections, str]:
    """Corrections with what answers teach, and what was learnt from, in one sentence.

    Args:
        verdict: what an answer without a score is worth, from 0 to 1; None: its joules alone are learnt from.

    Raises:
        UserError: no answer is of an option that the router knows.
    """
    judged = drawn = 0
    elsewhere: dict[str, int] = {}
    strange: set[str] = set()
    for answer in past.answers:
        if answer.query is None:
            continue
        if answer.option not in router.learnt:
            strange.add(answer.option)
            continue
        known = router.learnt[answer.option]
        query = router.query(answer.query, answer.domain)
        expected = router.estimator(answer.query, answer.domain)(query, known.option, Load())
        observed = verdict if answer.score is None else answer.score
        energy_j = answer.energy_j or None
        if energy_j is not None and answer.source is not None:
            why = difference(known.sources, answer.source)
            if why is not None:
                elsewhere[why] = elsewhere.get(why, 0) + 1
                energy_j = None
        if observed is None and energy_j is None:
            continue
        feedback = Feedback.on(answer.option, expected, observed, energy_j, answer.domain)
        corrections = update(corrections, feedback)
        judged += observed is not None
        drawn += energy_j is not None
    if not judged and not drawn:
        known_options = ", ".join(router.learnt)
        of = (
            f"they are of {', '.join(sorted(strange))}, and the router knows {known_options}"
            if strange
            else "; ".join(elsewhere) or "none at all"
        )
        raise UserError(f"no answer that corrections could learn from: {of}")
    left = f"; {counted(len(strange), 'option')} that the router does not know left out" if strange else ""
    left += "".join(f"; the joules of {counted(n, 'answer')} left out ({why})" for why, n in elsewhere.items())
    return corrections, f"learnt from {counted(judged, 'verdict')} and the joules of {counted(drawn, 'answer')}{left}"
