"""A run that looks like a real one: three tasks, four decodings, a measured GPU, a modelled host. All made up."""

from __future__ import annotations

import numpy as np

from joulewise.table import RunTable
from synthetic_table import part, row, table

TASKS = {"gsm8k": 1.0, "cnn_dm": 0.6, "mmlu": 0.85}
"""How well drafts fare on a task."""

DECODINGS = {"vanilla": (1.0, 1.0), "coga-5": (1.5, 1.25), "dyga-20": (1.35, 1.05), "prompt-lookup-10": (1.15, 1.05)}
"""Speed and GPU-energy saving on the best task."""

PLAN = {"name": "sample", "description": "Speculation on a small model <made up>", "repeats": 1}

ENVIRONMENT = {
    "started_at": "2026-11-30T10:00:00+00:00",
    "python": "3.12.3",
    "packages": {"torch": "2.11.0", "transformers": "5.17.0"},
    "git": {"commit": "0123456789abcdef", "changed": True},
    "machine": {
        "cpu": "Some Xeon & Co",
        "cores": 16,
        "memory_gb": 128.0,
        "gpus": [{"name": "NVIDIA H200", "uuid": "GPU-1234", "driver": "580.159.04", "power_limit_w": 700.0}],
    },
    "sources": [
        {
            "component": "gpu",
            "device": "NVIDIA H200",
            "method": "NVML energy counter",
            "provenance": "measured",
            "gain": None,
        },
        {
            "component": "cpu",
            "device": "Some Xeon & Co",
            "method": "utilisation x TDP",
            "provenance": "modelled",
            "gain": 0.3,
        },
    ],
    "absent": [
        {"name": "rapl", "component": "dram", "present": True, "reason": "No powercap here", "remedy": "Ask the host"}
    ],
    "engines": [
        {
            "label": "small",
            "model": "SmolLM2-135M-Instruct",
            "model_class": "LlamaForCausalLM",
            "parameters": 134515008,
            "dtype": "bfloat16",
            "devices": ["cuda:0"],
            "drafts": {"coga-5": "the target's own first 26 layers: a correctness fixture, not a fair draft"},
            "notes": ["weights dequantised from Q4_1"],
        }
    ],
    "idle": [{"engine": "small", "component": "gpu", "power_w": 120.4, "provenance": "measured"}],
}


def sample_run(questions: int = 25, *, gpu: bool = True, name: str = "sample-run", seed: int = 0) -> RunTable:
    """A RunTable; without ``gpu`` only the modelled CPU is there."""
    rng = np.random.default_rng(seed)
    rows = []
    for task, skill in TASKS.items():
        tokens = np.ceil(60 * rng.lognormal(0.0, 0.6, questions)).astype(int)
        for decoding, (speed, saving) in DECODINGS.items():
            for i in range(questions):
                rows.append(_row(rng, name, task, skill, decoding, speed, saving, i, int(tokens[i]), gpu))
    environment = ENVIRONMENT if gpu else {**ENVIRONMENT, "sources": ENVIRONMENT["sources"][1:], "absent": []}
    return table(rows, plans={name: PLAN}, environments={name: environment}, warnings=("a line was torn",))


def _row(rng, name, task, skill, decoding, speed, saving, i, tokens, gpu):
    vanilla = decoding == "vanilla"
    noise = rng.lognormal(0.0, 0.02 if vanilla else 0.12)
    seconds = 0.02 * tokens / (1.0 if vanilla else speed * skill * noise) + 0.02
    joules = 2.6 * tokens / (1.0 if vanilla else saving * skill * noise) + 4.0 + rng.uniform(-8, 8)
    rounds = [] if vanilla else [int(a) for a in rng.binomial(5, min(1.0, 0.7 * skill), max(1, tokens // 4))]
    energy = [part("cpu", 45.0 * seconds, "modelled", gain=0.3)]
    if gpu:
        energy.append(part("gpu", joules, offset_j=0.5 * seconds))
    status = "failed" if (decoding, i, task) == ("dyga-20", 3, "gsm8k") else "ok"
    scored = {"score": 0.2 + 0.01 * i, "metric": "rouge_l"} if task == "cnn_dm" else {
        "score": float(i % 4 == 0), "correct": i % 4 == 0, "metric": "exact_match",
    }  # fmt: skip
    return row(
        decoding,
        f"{task}-{i}",
        energy=energy if status == "ok" else (),
        duration_s=seconds,
        output_tokens=tokens if status == "ok" else 0,
        generation_count=1,
        prefill_s=0.02,
        gpu_prefill_j=4.0 if gpu else None,
        gpu_prefill_edges_j=0.1 if gpu else None,
        cpu_prefill_j=45.0 * 0.02,
        cpu_prefill_edges_j=0.0,
        run=name,
        engine="small",
        model="SmolLM2-135M-Instruct",
        task=task,
        status=status,
        error=None if status == "ok" else "CUDA out of memory <b>",
        rounds=len(rounds),
        accepted_per_round=rounds,
        drafted_per_round=[5] * len(rounds),
        accepted_tokens=sum(rounds),
        drafted_tokens=5 * len(rounds),
        wasted_tokens=0 if vanilla else i % 3,
        other_cpu_cores=0.3 if i == 7 else 0.01,
        polluted=i == 7,
        check_status=None if vanilla else "tie" if i == 5 else "different" if (i, task) == (9, "mmlu") else "identical",
        check_note="first difference at a near-tie" if i == 5 else None,
        **scored,
    )
