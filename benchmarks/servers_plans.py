"""What ``servers.py`` measures: plans, sizes, and a model's shape as a folder. Nothing is started here."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulewise.engines.default_model import default_gguf
from joulewise.plan import Plan

PARTS = ("default", "curve", "sweep", "platforms", "attribution")

OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
"""Of vLLM's environment on a machine without network."""

ALIAS = "served"


@dataclass(frozen=True)
class Setup:
    """What is served, and by what.

    Args:
        kind: ``vllm``, or ``llamacpp`` for trying all of this on a CPU: it then serves the default model everywhere.
        model: the default model: ``default``, or a folder that holds it.
        work: the folder of run folders, logs and made-up models.
        data: whether gsm8k and cnn_dm are there; else the starter tasks are asked.
        program: that runs the server, such as ``python3``; None for what is found.
        gptq: a folder with the default model in GPTQ; None for none.
        port: of the server of ``attribution``, whose windows belong to one address.
        args: further arguments of every server.
    """

    kind: str
    model: str
    work: Path
    data: bool = False
    program: str | None = None
    gptq: str | None = None
    port: int = 8765
    args: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Sizes:
    """How much is measured; the defaults are for an H200.

    Args:
        maths, summaries: questions of the two tasks; with 0 a task is left out.
        budget: tokens of an answer at most.
        levels, stretch_s, repeats: of ``default`` under load: requests at once, seconds of each load, how often.
        prompt, output: tokens of a request of the 8B shape.
        curve_levels, curve_s: of the curve; each load has so many seconds at least, and ``answers`` answers.
        answers: of each request in flight.
        drafts: draft tokens and acceptance of each token given the one before it: of ``sweep``, by worth.
        sweep_levels, sweep_s: likewise of ``sweep``.
        fixed: tokens of every answer of ``platforms``.
        idle_s: at rest, before and after.
        mixes: of ``attribution``: options of its ``Settings``.
    """

    maths: int = 20
    summaries: int = 10
    budget: int = 256
    levels: tuple[int, ...] = (1, 20)
    stretch_s: float = 8.0
    repeats: int = 3
    prompt: int = 512
    output: int = 128
    curve_levels: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    curve_s: float = 10.0
    answers: int = 10
    drafts: tuple[tuple[int, float], ...] = ((4, 0.8), (4, 0.6), (2, 0.8), (8, 0.8), (2, 0.6), (8, 0.6), (4, 0.4))
    sweep_levels: tuple[int, ...] = (1, 8, 32, 128)
    sweep_s: float = 8.0
    fixed: int = 128
    idle_s: float = 3.0
    mixes: tuple[tuple[str, Any], ...] = (("repeats", 3), ("seconds", 15.0), ("warm_s", 4.0), ("point_s", 3.0))


TINY = Sizes(
    maths=1, summaries=0, budget=8, levels=(2,), stretch_s=1.5, repeats=1, prompt=8, output=8, curve_levels=(1, 2),
    curve_s=1.5, answers=2, drafts=((2, 0.8),), sweep_levels=(2,), sweep_s=1.5, fixed=4, idle_s=0.0,
    mixes=(
        ("long_prompt", (200, 2)), ("long_output", (20, 9)), ("concurrency", 3), ("repeats", 1), ("seconds", 0.2),
        ("warm_s", 0.05), ("point_s", 0.05), ("idle_s", 0.05),
    ),
)  # fmt: skip
"""For trying it on a CPU; its figures mean nothing."""


def step_s(level: int) -> float:
    """About how long vLLM takes for a token of the 8B shape with so many requests at once, their prefills included."""
    return 0.005 + 0.00008 * level


def server(setup: Setup, model: str, **args: Any) -> dict[str, Any]:
    """A plan's ``server``: vLLM with these arguments, or llama.cpp with its own."""
    if setup.kind == "llamacpp":
        small = {"threads": 1, "ctx-size": 2048, "parallel": 2}
        return {"kind": "llamacpp", "model": "default", "args": small | dict(setup.args)}
    named = {} if setup.program is None else {"program": setup.program}
    all_args = {"dtype": "bfloat16", **args, **dict(setup.args)}
    return {"kind": "vllm", "model": model, "args": all_args, "env": OFFLINE, **named}


def tasks(setup: Setup, sizes: Sizes) -> list[dict[str, Any]]:
    """What the default model is asked."""
    names = ("gsm8k", "cnn_dm") if setup.data else ("starter-maths", "starter-summarisation")
    return [
        {"name": name, "questions": count, "max_new_tokens": sizes.budget}
        for name, count in zip(names, (sizes.maths, sizes.summaries), strict=True)
        if count
    ]


def default_plans(setup: Setup, sizes: Sizes) -> dict[str, Plan]:
    """Vanilla and n-grams, side by side on one card, so that they take turns: under load, and one after the other."""
    served = server(setup, setup.model, **{"max-model-len": 4096, "gpu-memory-utilization": 0.3})
    common = {
        "engines": [{"kind": "endpoint", "name": setup.kind, "server": served | {"side_by_side": True}}],
        "decodings": ["vanilla", {"kind": "prompt_lookup", "tokens": 4}],
        "tasks": tasks(setup, sizes),
        "idle_baseline_s": sizes.idle_s,
    }
    loads = [{"kind": "closed", "concurrency": list(sizes.levels), "duration_s": sizes.stretch_s}]
    return {
        "default-load": plan("default-load", common | {"loads": loads, "repeats": sizes.repeats}),
        "default-alone": plan("default-alone", common),
    }


def curve_plans(setup: Setup, sizes: Sizes) -> dict[str, Plan]:
    """The 8B shape, plainly, by requests at once."""
    return {"curve": shape_plan(setup, sizes, "curve", ["vanilla"], sizes.curve_levels, sizes.curve_s)}


def sweep_plans(setup: Setup, sizes: Sizes) -> dict[str, Plan]:
    """The 8B shape, drafts of the 1B shape accepted by lot: vanilla, then by worth, so that a cut loses the least."""
    drafts = [{"kind": "coga", "tokens": k, "synthetic_acceptance": rate} for k, rate in sizes.drafts]
    return {"sweep": shape_plan(setup, sizes, "sweep", ["vanilla", *drafts], sizes.sweep_levels, sizes.sweep_s)}


def shape_plan(
    setup: Setup, sizes: Sizes, name: str, decodings: list[Any], levels: tuple[int, ...], least_s: float
) -> Plan:
    """A plan on the 8B shape."""
    served = shape_server(setup, sizes.prompt + sizes.output + 64)
    loads = [
        {"kind": "closed", "concurrency": n, "duration_s": max(least_s, sizes.answers * sizes.output * step_s(n))}
        for n in levels
    ]
    draft = default_gguf() if setup.kind == "llamacpp" else str(setup.work / "1b")
    engine = {"kind": "endpoint", "name": f"8b-{setup.kind}", "server": served, "api": "completions", "draft": draft}
    return plan(
        name,
        {
            "engines": [engine],
            "decodings": decodings,
            "tasks": [{"name": str(setup.work / "words.yaml"), "label": "words"}],
            "loads": loads,
            "stop": {"rule": "fixed", "tokens": sizes.output},
            "order": "sequential",
            "idle_baseline_s": sizes.idle_s,
        },
    )


def shape_server(setup: Setup, longest: int) -> dict[str, Any]:
    """The 8B shape with made-up weights."""
    args = {"load-format": "dummy", "max-model-len": longest, "max-num-seqs": 256, "gpu-memory-utilization": 0.9}
    return server(setup, str(setup.work / "8b"), **args)


def platform_plans(setup: Setup, sizes: Sizes) -> dict[str, Plan]:
    """Transformers, native and the server, each in bf16, NF4 and GPTQ, vLLM in FP8 too; llama.cpp as it is."""
    engines: list[dict[str, Any]] = []
    quantised: list[dict[str, Any]] = [{}, {"quantisation": "nf4"}]
    # Without such a checkpoint the cell is left out with its reason.
    gptq = {"quantisation": "gptq", "model": setup.gptq or setup.model}
    if setup.kind == "vllm":
        quantised.append(gptq)
    for kind in ("transformers", "native"):
        engines += [{"kind": kind, "model": setup.model, "base_model": setup.model} | more for more in quantised]
    if setup.kind == "llamacpp":
        served = server(setup, setup.model)
        engines = [e for e in engines if not e.get("quantisation")]
        engines.append({"kind": "endpoint", "name": "llamacpp", "base_model": setup.model, "server": served})
    else:
        in_them = [("bfloat16", setup.model, {}), ("nf4", setup.model, {"quantization": "bitsandbytes"})]
        in_them.append(("fp8", setup.model, {"quantization": "fp8"}))  # the server alone has it
        in_them += [("gptq, 4 bits", setup.gptq, {})] if setup.gptq else []
        for quantisation, model, args in in_them:
            served = server(setup, model, **{"max-model-len": 4096, "gpu-memory-utilization": 0.3}, **args)
            name = f"{quantisation.partition(',')[0]}@vllm"
            told = {"quantisation": quantisation, "base_model": setup.model, "server": served}
            engines.append({"kind": "endpoint", "name": name, **told})
    asked = [{k: v for k, v in task.items() if k != "max_new_tokens"} for task in tasks(setup, sizes)]
    stop = {"rule": "fixed", "tokens": sizes.fixed}
    common = {"decodings": ["vanilla"], "tasks": asked, "stop": stop, "idle_baseline_s": sizes.idle_s}
    return {"platforms": plan("platforms", {"engines": engines, **common})}


PLANS = {"default": default_plans, "curve": curve_plans, "sweep": sweep_plans, "platforms": platform_plans}
"""By part; ``attribution`` has no plan."""


def plan(name: str, data: dict[str, Any]) -> Plan:
    """A plan of a benchmark."""
    return Plan.model_validate({"name": name, **data})


def estimate_s(one: Plan, start_s: float = 60.0) -> float:
    """About how long a plan takes on an H200.

    Args:
        start_s: of a server.
    """
    engines = [e for e in one.engines if not (e.quantisation == "gptq" and e.model == e.base_model)]  # not loaded
    labels = {engine.label for engine in engines}
    cells = [cell for cell in one.cells() if cell.engine.label in labels]
    starts = [len(one.decodings) * start_s if engine.kind == "endpoint" else 25.0 for engine in engines]
    seconds = sum(starts) + 2 * one.idle_baseline_s * len(engines)
    if one.loads:
        return seconds + sum(c.load.duration_s + 3.0 for c in cells if c.load is not None) * one.repeats
    token_s = {"transformers": 0.02, "native": 0.004, "endpoint": 0.003}
    tokens = one.stop.tokens or 150
    return seconds + sum((c.task.questions or 20) * (token_s[c.engine.kind] * tokens + 0.1) for c in cells)


def write_models(setup: Setup, sizes: Sizes, seed: int = 1) -> None:
    """What the parts with a made-up model need: the shapes' folders, and prompts of exactly so many of their tokens."""
    words = 1000
    if setup.kind == "vllm":
        for shape in ("8b", "1b"):
            words = write_shape(shape, setup.work / shape)
    draw = random.Random(seed)
    rows = [
        {"id": f"p{i}", "text": " ".join(f"w{draw.randrange(words)}" for _ in range(sizes.prompt)), "answer": "-"}
        for i in range(64)
    ]
    (setup.work / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (setup.work / "words.yaml").write_text(
        "name: words\nquestions: words.jsonl\nid: id\nprompt: '{text}'\nreference: answer\nscorer: exact\n"
        f"max_new_tokens: {sizes.output}\n",
        encoding="utf-8",
    )


def write_shape(shape: str, folder: Path) -> int:
    """A folder with a shape's configuration and a tokenizer: a word for each token, and no special ones, so that each
    token that comes is text, whatever weights are made up.

    Returns:
        The number of tokens.
    """
    written = folder / "tokenizer_config.json"
    if not written.exists():
        from decode import shape_config  # loads torch, which takes its time on a cold disk
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel
        from tokenizers.pre_tokenizers import WhitespaceSplit
        from transformers import PreTrainedTokenizerFast

        folder.mkdir(parents=True, exist_ok=True)
        config = shape_config(shape)
        config.architectures, config.dtype = ["LlamaForCausalLM"], "bfloat16"
        config.save_pretrained(folder)
        tokenizer = Tokenizer(WordLevel({f"w{i}": i for i in range(config.vocab_size)}, unk_token="w0"))
        tokenizer.pre_tokenizer = WhitespaceSplit()
        words = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
        words.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"  # servers try one
        words.save_pretrained(folder)
    count: int = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    return count
