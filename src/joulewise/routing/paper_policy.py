"""The built-in policy ``paper``: what arXiv 2603.20224 advises, as rules on a query's field (from summaries of it).

Humanities and economics: the smallest model, directly. Mathematics, engineering and computer science: the largest
model, directly, not the small one with chain of thought. Where accuracy is critical: chain of thought within a budget.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from joulewise.errors import UserError
from joulewise.routing.policy import Choice, Estimator, Goal, Option, Query, State, cannot_take, choose

SMALL_FIELDS = ("humanit", "econom", "history", "philosoph", "law", "jurisprudence", "religion", "moral", "literature")
LARGE_FIELDS = ("math", "algebra", "statistic", "engineering", "computer", "machine_learning")


def paper_rule(query: Query, options: Sequence[Option], accuracy_critical: bool = False) -> tuple[Option, str]:
    """The option that the paper's rules name, and the rule. Fields are told by words within the query's domain.

    Raises:
        UserError: no option that the rule could name takes the query.
    """
    able = [o for o in options if o.cascade is None and o.active_parameters and cannot_take(o, query) is None]
    domain = re.sub(r"[\s-]+", "_", (query.domain or "").lower())
    if accuracy_critical:
        known = [o for o in able if o.reasoning == "cot" and o.output_budget is not None]
        rule, what, large = "accuracy is critical: chain of thought within a budget", "chain of thought, a budget", True
    else:
        known = [o for o in able if o.reasoning == "direct"]
        what = "reasoning direct"
        large = any(word in domain for word in LARGE_FIELDS) or not _small(domain)
        if not large:
            rule = f"{query.domain}: humanities and economics go to the small model, directly"
        elif any(word in domain for word in LARGE_FIELDS):
            rule = f"{query.domain}: mathematics, engineering and computer science go to the large model, directly"
        else:
            rule = f"{query.domain or 'no field'}: the paper has no rule for it, so the large model, directly"
    if not known:
        raise UserError(
            f"Policy paper: no option takes the query and has {what} and active_parameters; add one, or take another "
            "policy."
        )
    sizes = [o.active_parameters or 0.0 for o in known]
    size = max(sizes) if large else min(sizes)
    return min((o for o in known if o.active_parameters == size), key=lambda o: o.name), rule


def choose_by_paper(
    query: Query, options: Sequence[Option], estimate: Estimator, state: State, accuracy_critical: bool = False
) -> Choice:
    """The same as a choice, with what is expected of every option; raises as ``paper_rule`` and ``choose`` do."""
    option, rule = paper_rule(query, options, accuracy_critical)
    choice = choose(query, options, estimate, state, Goal(pinned=frozenset({option.name})))
    return replace(choice, reasons=(rule, *choice.reasons))


def _small(domain: str) -> bool:
    return any(word in domain for word in SMALL_FIELDS)
