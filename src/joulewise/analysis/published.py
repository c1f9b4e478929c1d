"""What the two papers claim, the figures that are known of them, and how far these can be trusted.

Neither paper's full text was at hand: all figures are from summaries, quotations and digests of them. *Well attested*:
checked against the paper's text. *From summaries*: machine-made summaries or digests. *Weak*: one such source that
contradicts itself or others.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from joulewise.analysis.evidence import Sort

SPECULATION = "arXiv 2602.09113"
ENERGY_PER_TOKEN = "arXiv 2603.20224"

VOTES_GAIN, VOTES_ENERGY = 1.19, (1.72, 2.77)
"""Votes against one direct answer: the most accuracy, and joules, as ratios."""

STEPS_GAIN, STEPS_ENERGY = 3.81, (120.0, 150.0)
"""Chain of thought against a direct answer, likewise."""

LARGER_GAIN, LARGER_ENERGY = (1.47, 4.50), (1.35, 1.65)
"""The larger model's direct answers against the smaller one's."""

LARGER = (4.0, 16.0)
"""By how many times the larger model's parameters may outnumber the smaller one's to be held against 8B and 1B."""

RATIO = 1.5
"""Two pairs of target and draft are told apart from so many times the size ratio on."""


@dataclass(frozen=True, slots=True)
class Published:
    """One claim as it is published.

    Args:
        paper: where.
        title: in two or three words.
        statement: what is claimed, tested as it stands here.
        figures: what is published.
        reliability: how far that can be trusted.
        needs: what a run must have to decide it.
        sort: a rule, or something that exists.
    """

    paper: str
    title: str
    statement: str
    figures: str
    reliability: str
    needs: str
    sort: Sort = "rule"


CLAIMS = MappingProxyType(
    {
        "a": Published(
            SPECULATION,
            "faster, yet costlier",
            "A decoding can be faster and yet draw more energy",
            "Vicuna-13B with CoGA and DyGA: faster, yet more energy; EAGLE-3 on Llama-3.1-8B and GSM8K: 2.62 times as "
            "fast, for 1.58 times less GPU energy; of one block on CNN-DM 0.68 and 0.78",
            "the EAGLE-3 rows are well attested, the rest is from summaries",
            "vanilla and a decoding that is faster, with measured joules",
            "existence",
        ),
        "b": Published(
            SPECULATION,
            "target against draft size",
            "The larger the target beside its draft, the more energy is saved",
            "a larger gap goes with larger gains; good pairs: 13B + 68M, 70B + 1B; yet the worst factor, 0.63, is "
            "70B + 1B's on CNN-DM",
            "from summaries; the counterexample is weak",
            f"one decoding with a draft model on two targets, one at least {RATIO:g} times as large beside its draft",
        ),
        "c": Published(
            SPECULATION,
            "heads against draft models",
            "EAGLE-2 and EAGLE-3 save more energy than drafts of constant or dynamic length (CoGA, DyGA)",
            "EAGLE-2 and EAGLE-3: factors of 1.34 to 2.51; CoGA and DyGA: 0.77 to 2.0 (Vicuna-13B on GSM8K: CoGA-20 "
            "1.10, DyGA-20 1.06)",
            "the order is from summaries; the ranges are weak, as EAGLE-3 has a well attested factor of 0.77",
            "vanilla, EAGLE-2 or EAGLE-3, and CoGA or DyGA on one target",
        ),
        "d": Published(
            SPECULATION,
            "code, maths, summaries",
            "The task decides: code saves the most energy, then maths, then summaries",
            "EAGLE-3 on Llama-3.1-8B, GPU energy: HumanEval 1.74, GSM8K 1.58, CNN-DM 1.31; of another block "
            "1.34, 1.26, 0.78",
            "well attested",
            "one decoding on two kinds of tasks out of code, maths and summaries",
        ),
        "e": Published(
            SPECULATION,
            "platform or quantisation",
            "Quantisation changes the energy more than the platform does",
            "Hugging Face with NF4 was faster and drew less than vLLM with GPTQ, which is put down to the quantisation",
            "from a summary, without any number",
            "one model on two platforms and in two quantisations, in at least three of the four cells",
        ),
        "f": Published(
            SPECULATION,
            "overhead",
            "Verification, memory transfers and control flow take 6 to 10 % of the time",
            "6 to 10 % of the time; how it was measured is not known, and no share of energy is given",
            "from a summary",
            "a decoding that speculates, on an engine that tells phases",
        ),
        "g": Published(
            ENERGY_PER_TOKEN,
            "votes",
            "Votes add at most 19 % accuracy, for 72 to 177 % more energy",
            "Llama 1B: accuracy +0 to +19 %, energy +72 to +177 %; how many votes is not known",
            "from summaries, one with its range garbled",
            "votes beside direct answers, with measured joules",
        ),
        "h": Published(
            ENERGY_PER_TOKEN,
            "chain of thought",
            "Chain of thought adds up to 281 % accuracy, for 120 to 150 times the energy",
            "Llama 1B: accuracy up to +281 % (in maths), energy 120 to 150 times",
            "from agreeing summaries",
            "chain of thought beside direct answers, with measured joules",
        ),
        "i": Published(
            ENERGY_PER_TOKEN,
            "a larger model at once",
            "A model of 8 times the size, answering at once, adds 47 to 350 % accuracy for 35 to 65 % more energy",
            "Llama 8B against 1B, both direct: accuracy +47 to +350 %, energy +35 to +65 %",
            "from agreeing summaries; the accuracy from one",
            f"direct answers of two models on one engine, one {LARGER[0]:g} to {LARGER[1]:g} times as large, measured",
        ),
        "j": Published(
            ENERGY_PER_TOKEN,
            "utilisation",
            "Utilisation is no proxy for efficiency: a higher one can go with more joules per token",
            "low GPU utilisation can go with high J per token; no number is known",
            "from a summary",
            "two cells of an engine on a card that tells its utilisation, both with Trials long enough to see it",
            "existence",
        ),
        "k": Published(
            ENERGY_PER_TOKEN,
            "successive tokens",
            "Successive output tokens cost more and more: energy is not linear in the output's length",
            "non-linear, put down to attention and sequential decoding; no number is known",
            "from a summary",
            "vanilla answers of many lengths with measured joules, best of all a sweep",
        ),
    }
)
"""By letter."""
