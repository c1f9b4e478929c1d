"""Cells on platforms and in quantisations whose factors are known, for the tests of their two-way table."""

import itertools
import math
import random

from joulewise.analysis.cells import split
from joulewise.analysis.per_token import costs
from joulewise.analysis.platforms import two_way_tables
from joulewise.plan import Plan
from joulewise.table import RunTable
from synthetic_table import part, row, table

PLATFORMS, QUANTISATIONS = ("transformers", "native", "vLLM"), ("bfloat16", "nf4", "gptq, 4 bits")
PLATFORM = {"transformers": 0.0, "native": -0.3, "vLLM": -0.7}
QUANTISATION = {"bfloat16": 0.0, "nf4": 0.5, "gptq, 4 bits": -0.2}


def engine(platform, quantisation):
    plain = quantisation == "bfloat16"
    served = platform == "vLLM"
    return {
        "label": f"{quantisation}@{platform}",
        "engine": "endpoint" if served else platform,
        "model_class": f"{platform}: m" if served else "Llama",
        "model": "m",
        "dtype": "unknown" if served else "bfloat16",
        "quantisation": None if plain and not served else quantisation,
    }


def figure(at, interaction=None):
    return PLATFORM[at[0]] + QUANTISATION[at[1]] + (interaction or {}).get(at, 0.0)


def trials(at, questions=12, interaction=None, noise=0.0, seed=0, gain=0.0, provenance="measured", **other):
    """A cell's Trials: a question's joules are its own, times those of its platform and quantisation."""
    rng = random.Random(f"{seed}{at}")
    found = []
    for q in range(questions):
        own = math.exp(random.Random(f"{seed}/{q}").gauss(0.0, 0.2))
        joules = 100.0 * own * math.exp(figure(at, interaction) + rng.gauss(0.0, noise))
        energy = [part("gpu", joules, provenance, gain)]
        more = {"engine": engine(*at)["label"], "correct": q % 2 == 0, "score": float(q % 2 == 0)} | other
        found.append(row(question=f"q{q}", energy=energy, duration_s=joules / 50.0, **more))
    return found


def run_table(cells, engines=None, plan=None, not_loaded=(), **other) -> RunTable:
    rows = [one for at in cells for one in (trials(at, **other) if isinstance(at, tuple) else at)]
    told = [engine(*at) for at in cells if isinstance(at, tuple)] if engines is None else engines
    environment = {"engines": told, "not_loaded": list(not_loaded)}
    return table(rows, environments={"r": environment}, plans={"r": plan} if plan else {})


def tables(*arguments, **other):
    found = run_table(*arguments, **other)
    found_cells = split(found)
    components = {cell.key.head: "gpu" for cell in found_cells}
    return two_way_tables(found, found_cells, components, costs(found_cells))


ALL = tuple(itertools.product(PLATFORMS, QUANTISATIONS))


def plan(*engines, **other):
    return Plan.model_validate(
        {
            "name": "p",
            "engines": list(engines),
            "decodings": ["vanilla"],
            "tasks": [{"name": "gsm8k", "label": "maths"}],
        }
        | other
    ).model_dump(mode="json")


def spec(kind, level, **other):
    return {"kind": kind, "model": "m", "name": f"{level}@{kind}"} | other
