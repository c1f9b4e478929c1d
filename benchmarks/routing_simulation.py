"""What would routing save on real traffic? The Azure conversation trace, replayed through simulated servers.

Measured: joules and seconds of the strong option (an 8B model on one H200, 1 to 8 requests at a time). Published: which
questions each option answers right (RouteLLM's MMLU results of Mixtral 8x7B and GPT-4; the router learns from one half,
the other half is asked). Assumed: that an 8B model and a 1.2B model stand for these two, that the smaller one takes
joules and seconds by its parameters, and that both
answer as long as the trace's first requests. Power at rest is not known, and left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from routing import routellm

from joulewise.analysis.curves import Curve
from joulewise.ledger import load
from joulewise.routing.energy import OptionEnergy
from joulewise.routing.evaluate import draw_by_hash
from joulewise.routing.fitting import measured_curves
from joulewise.routing.latency import Latency, Timing, fit_latency
from joulewise.routing.lengths import fit_lengths
from joulewise.routing.outcomes import Outcomes
from joulewise.routing.performance import fit
from joulewise.routing.policy import Goal, Option
from joulewise.routing.router import Learnt, PromptLength, Router, query_hash
from joulewise.routing.simulate import BLIND, COST_ONLY, JOULEWISE, ORACLE, Fleet, simulate
from joulewise.routing.simulated import Simulated
from joulewise.traffic.arrivals import Replay

SWEEP = Path(__file__).parent.parent / "results" / "h200" / "sweep_8b"
WEAK, STRONG = "weak", "strong"
PARAMETERS = {WEAK: 1.24e9, STRONG: 8.03e9}
SLOTS = 8
"""As many as were measured at a time."""
MOST_PROMPT, MOST_OUTPUT = 7168, 1024
"""The measured region; longer requests of the trace are cut to it."""
LEARNT_ARRIVALS = 2000
"""Output lengths are learnt from the trace's first requests."""
SPEEDS = (0.25, 0.5, 1.0)
GOAL = Goal(within=0.02, most_first_token_s=2.0, most_total_s=20.0)
TRACE = Path("azure_trace") / "AzureLLMInferenceTrace_conv.csv"


def measured_latency() -> Latency:
    """Seconds of the 8B model, from the Trials of its sweep."""
    timings = []
    for trial in load(SWEEP).arrow.to_pylist():
        if trial["decoding"] == "vanilla":
            n, running = trial["generation_count"], trial["running"] or 1
            prompt, output, first_s = (trial[name] / n for name in ("prompt_tokens", "output_tokens", "prefill_s"))
            timings.append(Timing(prompt, output, running, first_s, trial["duration_s"] / n * running))
    return fit_latency(timings)


def smaller(curve: Curve, latency: Latency, share: float) -> tuple[Curve, Latency]:
    """Joules and seconds of a model of that share of the parameters, if they go by these alone."""
    coefficients = {
        name: replace(c, value=share * c.value, lower=share * c.lower, upper=share * c.upper)
        for name, c in curve.coefficients.items()
    }
    a, b, c = latency.start
    d, e, f = latency.token
    return replace(curve, coefficients=coefficients), replace(
        latency, start=(share * a, share * b, share * c), token=(share * d, share * e, share * f)
    )


def made(data: Path) -> tuple[Router, Outcomes]:
    """A router, and questions that it did not learn from."""
    outcomes = routellm(data, "mmlu")
    outcomes = replace(outcomes, options=(WEAK, STRONG))
    learn, ask = draw_by_hash(outcomes.queries, len(outcomes.queries) // 2, 0)
    (found,), _ = measured_curves([SWEEP])
    strong = found.curve, measured_latency()
    parts = {STRONG: strong, WEAK: smaller(*strong, PARAMETERS[WEAK] / PARAMETERS[STRONG])}
    replayed = Replay(trace=data / TRACE, most_prompt_tokens=MOST_PROMPT, most_output_tokens=MOST_OUTPUT)
    past = list(itertools.islice(replayed.arrivals(1e9), LEARNT_ARRIVALS))
    lengths = fit_lengths([a.prompt_tokens or 0 for a in past], [a.output_tokens or 0 for a in past])
    learnt = {
        name: Learnt(
            Option(name, name, active_parameters=PARAMETERS[name]),
            OptionEnergy(lengths, curve),
            latency,
            PromptLength(),
            None,
            name,
            "measured" if name == STRONG else "assumed",
        )
        for name, (curve, latency) in parts.items()
    }
    taught = outcomes.take(learn)
    seen = np.array(sorted({query_hash(q) for q in taught.queries}), dtype=np.uint64)
    return Router(fit(taught), learnt, seen), outcomes.take(ask)


def figures(one: Simulated) -> dict[str, Any]:
    """A router's figures, without those of each request."""
    return {
        "name": one.name, "requests": one.requests, "accuracy": one.accuracy,
        "accuracy_interval": one.accuracy_interval, "request_j": one.request_j, "energy_j": one.energy_j,
        "first_token_s": one.first_token_s and asdict(one.first_token_s), "total_s": asdict(one.total_s),
        "waited_s": one.waited_s, "first_token_missed": one.first_token_missed, "total_missed": one.total_missed,
        "shares": dict(one.shares), "best_effort": one.best_effort, "against": one.against and asdict(one.against),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with routellm, azure_trace")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    router, questions = made(args.data)
    found: dict[str, Any] = {
        "goal": {"within": GOAL.within, "first_token_s": GOAL.most_first_token_s, "total_s": GOAL.most_total_s},
        "slots": SLOTS, "questions": len(questions.queries), "loads": [],
    }  # fmt: skip
    for speed in SPEEDS:
        replayed = Replay(
            trace=args.data / TRACE, speed=speed, most_prompt_tokens=MOST_PROMPT, most_output_tokens=MOST_OUTPUT
        )
        arrivals = list(replayed.arrivals(1e9))[LEARNT_ARRIVALS:]
        start = time.perf_counter()
        got = simulate(
            router, arrivals, GOAL, Fleet(SLOTS), questions, [STRONG, WEAK, JOULEWISE, BLIND, COST_ONLY, ORACLE], STRONG
        )
        span = arrivals[-1].due_s - arrivals[0].due_s
        rows = [figures(one) for one in got.routers]
        taken = time.perf_counter() - start
        found["loads"].append({"speed": speed, "rate": len(arrivals) / span, "routers": rows, "seconds": taken})
        print(json.dumps(found["loads"][-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
