"""How is it thought out? Specs that turn a question into Requests and Generations into one answer."""

from joulewise.reasoning.best_of import BestOf
from joulewise.reasoning.budget import Budget
from joulewise.reasoning.cot import Cot
from joulewise.reasoning.direct import Direct
from joulewise.reasoning.few_shot import FewShot
from joulewise.reasoning.reasoning import Answer, Ask, Asked, Probe, Probed, Reasoning
from joulewise.reasoning.vote import Vote

REASONINGS: dict[str, type[Reasoning]] = {
    "direct": Direct,
    "few_shot": FewShot,
    "cot": Cot,
    "budget": Budget,
    "vote": Vote,
    "best_of": BestOf,
}
"""The registry: ``kind`` in a plan -> the spec's class. A new reasoning is one file and one line here."""

__all__ = [
    "REASONINGS",
    "Answer",
    "Ask",
    "Asked",
    "BestOf",
    "Budget",
    "Cot",
    "Direct",
    "FewShot",
    "Probe",
    "Probed",
    "Reasoning",
    "Vote",
]
