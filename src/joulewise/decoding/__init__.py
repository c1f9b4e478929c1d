"""How are tokens produced? Specs and their registry; how an engine does one lives with the engine."""

from joulewise.decoding.coga import CoGA
from joulewise.decoding.dyga import DyGA
from joulewise.decoding.eagle import Eagle2, Eagle3
from joulewise.decoding.medusa import Medusa
from joulewise.decoding.prompt_lookup import PromptLookup
from joulewise.decoding.spec import Decoding
from joulewise.decoding.vanilla import Vanilla

DECODINGS: dict[str, type[Decoding]] = {
    "vanilla": Vanilla,
    "coga": CoGA,
    "dyga": DyGA,
    "prompt_lookup": PromptLookup,
    "medusa": Medusa,
    "eagle2": Eagle2,
    "eagle3": Eagle3,
}
"""The registry: ``kind`` in a plan -> the spec's class. A new decoding is one file and one line here."""

__all__ = ["DECODINGS", "CoGA", "Decoding", "DyGA", "Eagle2", "Eagle3", "Medusa", "PromptLookup", "Vanilla"]
