"""Where do the microseconds of one step go? The kernels of a captured forward, by time, on random weights.

    python benchmarks/profile_step.py --target 8b --widths 1,6     # needs a GPU

The sum of the kernels is less than the step: the rest is gaps between them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from decode import SHAPES, build
from torch.profiler import ProfilerActivity, profile

from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.session import Judging, open_session
from joulewise.engines.native.tree import chain

PROMPT, STEPS = 512, 20


def profiled(target: DecoderModel, width: int) -> dict[str, Any]:
    """Milliseconds of a step over so many tokens, and its kernels: name, how often, microseconds a step."""
    session = open_session(target, PROMPT + 400)
    prompt = torch.randint(1000, (PROMPT,), device=target.device)
    nodes, tree = prompt[:1].repeat(width), chain(width - 1, target.device)

    def steps(count: int) -> None:
        for _ in range(count):
            session.forward(nodes, PROMPT, tree, Judging())

    with torch.inference_mode():
        session.prefill(prompt)
        steps(5)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        steps(STEPS)
        end.record()
        end.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            steps(STEPS)
            torch.cuda.synchronize()
    kernels = [
        {"kernel": event.key, "calls": event.count / STEPS, "us": event.self_device_time_total / STEPS}
        for event in seen.key_averages()
        if event.self_device_time_total > 0
    ]
    kernels.sort(key=lambda kernel: -float(str(kernel["us"])))
    return {"width": width, "step_ms": start.elapsed_time(end) / STEPS, "kernels": kernels}


def main(arguments: list[str]) -> int:
    """Profile, show, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=SHAPES, default="8b")
    parser.add_argument("--widths", default="1,6", help="tokens of a step, separated by commas")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("this needs an NVIDIA GPU: a CPU captures no graphs", file=sys.stderr)
        return 2
    target = DecoderModel(build(options.target, "cuda", 0))
    found = [profiled(target, int(width)) for width in options.widths.split(",")]
    for row in found:
        print(f"\n{options.target} x{row['width']}: {row['step_ms']:.3f} ms a step")
        spent_us, calls = (sum(kernel[name] for kernel in row["kernels"]) for name in ("us", "calls"))
        print(f"kernels {spent_us / 1e3:.3f} ms, {calls:.0f} of them")
        for kernel in row["kernels"][:20]:
            print(f"{kernel['us']:9.1f} us {kernel['calls']:7.1f} {kernel['kernel'][:90]}")
    if options.json:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "target": options.target}
        options.json.write_text(json.dumps(about | {"steps": found}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
