"""How fast and how costly is one token, by loop and strategy, on shapes with random weights?

    python benchmarks/decode.py [--target 8b] [--draft 1b] [--prompt 512] [--output 384] [--repeats 5] [--json FILE]
                                [--only WAY,...] [--acceptance 0.7] [--batch 1] [--device cuda]

Text is meaningless (random weights, acceptance by lot); time and energy are real. Every way generates the same number
of tokens after the same prompt, in random order, ``--repeats`` times. Apart from that, steps are timed alone, many in a
row: what a verification and a draft step cost predicts a round, and the share of a round that is neither is what the
loop adds. Intervals are Student's over the repeats, at 95 %. Where vLLM is installed it runs beside, in processes of
its own, on the same shapes, in the same order. The file is written after every repeat: a run that is cut keeps what it
has.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import joulewise
from joulewise.analysis.student import quantile
from joulewise.decoding import CoGA, Eagle3, Medusa, Vanilla
from joulewise.decoding.spec import Decoding
from joulewise.energy import Meter, discover
from joulewise.engines.engine import Sampling
from joulewise.engines.native.accept import Chooser, Lot, match
from joulewise.engines.native.drafters import CHAINS, Parts, make_drafter, runs_ahead
from joulewise.engines.native.heads import published_taps
from joulewise.engines.native.heads.synthetic import random_eagle3, random_medusa
from joulewise.engines.native.loop import decode
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.session import open_session
from joulewise.engines.native.together import decode_together
from joulewise.engines.native.tree import chain
from joulewise.engines.transformers.loading import make_neutral
from joulewise.environment import machine

SHAPES: dict[str, dict[str, Any]] = {
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "tie_word_embeddings": True,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 6,
        "num_attention_heads": 16,
        "vocab_size": 512,
    },
}
"""Llama-3.1-8B, Llama-3.2-1B, and one that a test can afford."""

LLAMA3 = {"num_key_value_heads": 8, "vocab_size": 128_256, "max_position_embeddings": 8192, "rope_theta": 500_000.0}

STEP_WIDTHS = (1, 2, 6, 16, 32, 64)
STEPS_S = 1.0
"""Each step is repeated for so long."""


@dataclass
class Runs:
    """What one way took, run by run.

    Args:
        seconds, joules: of the whole generation; joules are None where nothing is measured.
        first_s: seconds to the first token; empty where it is not seen.
        tokens: output tokens of a run, of all texts.
        texts: at once.
        rounds: rounds of speculation of a run, until the last text is done.
        phases_s: seconds by phase, summed over the runs.
    """

    tokens: int
    texts: int = 1
    rounds: int = 0
    seconds: list[float] = field(default_factory=list)
    joules: list[float | None] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    phases_s: dict[str, float] = field(default_factory=dict)


def shape_config(shape: str) -> LlamaConfig:
    """The configuration of a shape."""
    return LlamaConfig(**(LLAMA3 | {"tie_word_embeddings": False} | SHAPES[shape]))


def build(shape: str, device: str, seed: int) -> Any:
    """A random Llama of a shape, in bfloat16 on a GPU and float32 on a CPU."""
    config = shape_config(shape)
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    torch.manual_seed(seed)
    torch.set_default_dtype(dtype)
    with torch.device(device):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, unk_token="a")))
    return make_neutral(shape, model.eval(), words)


class NotBesideError(Exception):
    """A process that was to generate beside does not."""


START_S, ANSWER_S = 150.0, 60.0
"""How long a process beside may take to start, and to answer."""


class Beside:
    """A process of its own that generates when told to: `benchmarks/vllm_worker.py`.

    Args:
        command: that starts it. It answers with a line when it is ready, and after each generation.
    """

    def __init__(self, command: list[str]) -> None:
        pipe = subprocess.PIPE
        # A session of its own, so that what it starts ends with it.
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
        self._ready = False

    def _answer(self, within_s: float = ANSWER_S) -> dict[str, Any]:
        assert self._process.stdout is not None
        there, _, _ = select.select([self._process.stdout], [], [], within_s)
        line = self._process.stdout.readline() if there else ""
        if not line:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0 if there else 0.0)
            ended = self._process.poll()
            self.kill()
            how = f"did not answer within {within_s:g} s" if ended is None else f"ended with code {ended}"
            raise NotBesideError(f"{' '.join(self._process.args)} {how}")  # type: ignore[arg-type]
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        """End it and what it has started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __call__(self) -> tuple[int, float | None, dict[str, float]]:
        """Generate once; rounds, first token and phases are not seen.

        Raises:
            NotBesideError: it ends, or does not answer.
        """
        assert self._process.stdin is not None
        if not self._ready:
            self._answer(START_S)
            self._ready = True
        print("go", file=self._process.stdin, flush=True)
        self._answer()
        return 0, None, {}

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ANSWER_S)
        self.kill()


class Bench:
    """The models, and every way to generate with them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        device = options.device
        target = build(options.target, device, 0)
        # Transformers' loop has the model as it is: the native engine changes its own for good.
        self.plain = build(options.target, device, 0).model
        layers = target.model.config.num_hidden_layers
        self.target = DecoderModel(target, published_taps(layers))
        self.draft = DecoderModel(build(options.draft, device, 1))
        rows = target.model.config.vocab_size
        self.heads = {
            "eagle3": random_eagle3(self.target, min(32_000, rows)),
            "medusa": random_medusa(self.target),
        }
        self.prompt = torch.randint(rows, (options.prompt,), device=self.target.device)
        self.prompts = [self.prompt, *(torch.randint_like(self.prompt, rows) for _ in range(options.batch - 1))]
        rate = options.acceptance
        self.ways: dict[str, Callable[[], tuple[int, float | None, dict[str, float]]]] = {
            "generate": lambda: self.generate(),
            "generate-static": lambda: self.generate(cache_implementation="static"),
            "vanilla": lambda: self.native(Vanilla()),
            "coga-5": lambda: self.native(CoGA(tokens=5, synthetic_acceptance=rate)),
            "eagle3-60x5x10": lambda: self.native(Eagle3(depth=5, synthetic_acceptance=rate)),
            "eagle3-chain-5": lambda: self.native(Eagle3(depth=4, top_k=1, synthetic_acceptance=rate)),
            "medusa": lambda: self.native(Medusa(synthetic_acceptance=rate)),
        }
        self.drafted = {"vllm-vanilla": 0, "vllm-coga-5": 5}
        self.beside: dict[str, Beside] = {}
        for name in self.drafted:
            self.ways[name] = lambda name=name: self.beside[name]()  # type: ignore[misc]

    def generate(self, **how: Any) -> tuple[int, float | None, dict[str, float]]:
        """Transformers' own loop; rounds, first token and phases are not seen."""
        model, count = self.plain, self.options.output
        with torch.inference_mode():
            ids = torch.stack(self.prompts)
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                pad_token_id=0,
                **how,
            )
        return 0, None, {}

    def start(self, name: str) -> None:
        """Start vLLM for a way, in a process of its own, and do not wait for it."""
        told = self.options
        worker = [sys.executable, str(Path(__file__).parent / "vllm_worker.py"), "--tokens", str(self.drafted[name])]
        for option in ("target", "draft", "acceptance", "prompt", "output", "batch"):
            worker += [f"--{option}", str(getattr(told, option))]
        self.beside[name] = Beside(worker)

    def native(self, decoding: Decoding) -> tuple[int, float | None, dict[str, float]]:
        """The native loop."""
        device = self.target.device
        chooser = Chooser.of(Sampling(), 0, device)
        rule = match if decoding.synthetic is None else Lot(decoding.synthetic, 0, device)
        with torch.inference_mode():
            parts = Parts(self.target, self.draft, self.heads.get(decoding.kind), chooser, ())
            start_s = time.monotonic()
            if self.options.batch > 1 or runs_ahead(decoding, parts):
                chains, limits = CHAINS[type(decoding)](decoding, parts), [self.options.output] * len(self.prompts)
                lot = rule if isinstance(rule, Lot) else None
                texts = decode_together(self.target, chains, self.prompts, limits, (), lot)
                rounds = max(len(text.rounds) for text in texts)
                return rounds, texts[0].first_token_s - start_s, texts[0].phases_s
            drafter = make_drafter(decoding, parts)
            made = decode(self.target, drafter, self.prompt, self.options.output, (), rule, chooser)
        assert len(made.tokens) == self.options.output
        return len(made.rounds), made.first_token_s - start_s, made.phases_s

    def steps(self) -> Iterator[tuple[str, str, int, Callable[[], None]]]:
        """Single forwards to be timed alone: name, model, width, and what runs one."""
        length = self.options.prompt + self.options.output // 2
        for name, model in (("target", self.target), ("draft", self.draft)):
            session = open_session(model, self.options.prompt + self.options.output + 64)
            with torch.inference_mode():
                session.prefill(self.prompt)
            for width in STEP_WIDTHS:
                nodes = self.prompt[:1].repeat(width)
                tree = chain(width - 1, model.device)
                yield f"{name} x{width}", name, width, lambda s=session, n=nodes, t=tree: s.forward(n, length, t)  # type: ignore[misc]


def synchronise() -> None:
    """Wait for the device."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def gpu_joules(window: Any) -> float | None:
    """The measured joules of the GPU; None where there is none."""
    part = window.energy.gpu
    return None if part is None or part.provenance != "measured" else part.energy_j


def measure_ways(bench: Bench, meter: Meter, names: list[str], say: Callable[[str], None]) -> Iterator[dict[str, Runs]]:
    """Every way so many times, in random order; what there is after each time."""
    options = bench.options
    order = random.Random(0)
    runs = {name: Runs(options.output * options.batch, options.batch) for name in names}
    for name in list(names):
        if name not in names:
            continue
        try:
            bench.ways[name]()  # captures and compiles
        except NotBesideError as error:
            # What does not start once does not start again with other options.
            for other in [n for n in names[names.index(name) :] if n == name or n in bench.drafted]:
                say(f"left out: {other}: {error}")
                if other in bench.beside:
                    bench.beside.pop(other).kill()
                names.remove(other)
                del runs[other]
            continue
        say(f"warmed up: {name}")
    for repeat in range(options.repeats):
        for name in order.sample(names, len(names)):
            synchronise()
            with meter.window() as window:
                rounds, first_s, phases_s = bench.ways[name]()
                synchronise()
            found = runs[name]
            found.rounds = rounds
            found.seconds.append(window.duration_s)
            found.joules.append(gpu_joules(window))
            if first_s is not None:
                found.first_s.append(first_s)
            for phase, seconds in phases_s.items():
                found.phases_s[phase] = found.phases_s.get(phase, 0.0) + seconds
        say(f"repeat {repeat + 1} of {options.repeats}")
        yield runs


def measure_steps(bench: Bench, meter: Meter) -> list[dict[str, Any]]:
    """Seconds and joules of single forwards, each repeated for a while."""
    rows = []
    for name, model, width, step in bench.steps():
        with torch.inference_mode():
            for _ in range(3):
                step()
            synchronise()
            count, end_s = 0, time.monotonic() + STEPS_S
            with meter.window() as window:
                while count == 0 or time.monotonic() < end_s:
                    for _ in range(8):
                        step()
                    synchronise()  # or the queue would be far ahead of the clock
                    count += 8
        joules = gpu_joules(window)
        rows.append(
            {
                "step": name,
                "model": model,
                "width": width,
                "step_s": window.duration_s / count,
                "step_j": None if joules is None else joules / count,
            }
        )
    return rows


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half-width of the 95 % interval; infinite for one value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.inf
    return mean, quantile(0.025, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def summary(runs: Runs) -> dict[str, Any]:
    """Per output token: milliseconds after the first, joules of all."""
    decode_s = [s - f for s, f in zip(runs.seconds, runs.first_s, strict=False)] if runs.first_s else None
    per_token = [s / runs.tokens for s in runs.seconds]
    joules = [j / runs.tokens for j in runs.joules if j is not None]
    phases = sum(runs.phases_s.values())
    rounds = {phase: s for phase, s in runs.phases_s.items() if phase not in ("prefill", "draft_prefill")}
    return {
        "token_s": interval(per_token),
        "decode_token_s": None if decode_s is None else interval([s / (runs.tokens - runs.texts) for s in decode_s]),
        "token_j": interval(joules) if joules else None,
        "acceptance_length": (runs.tokens / runs.texts - 1) / runs.rounds if runs.rounds else None,
        "phases_share": {name: s / phases for name, s in runs.phases_s.items()} if phases else None,
        "round_overhead_share": (
            1 - (rounds.get("draft", 0.0) + rounds.get("verify", 0.0)) / sum(rounds.values()) if phases else None
        ),
    }


def predicted_share(bench: Bench, found: dict[str, Any], steps: list[dict[str, Any]]) -> float | None:
    """CoGA-5's speed as a share of what its steps, timed alone, predict; None if one of them was not timed."""
    step_s = {row["step"]: float(row["step_s"]) for row in steps}
    if bench.options.batch > 1 or found.get("decode_token_s") is None or not {"target x6", "draft x1"} <= step_s.keys():
        return None
    round_s = step_s["target x6"] + 5 * step_s["draft x1"]
    return round_s / float(found["acceptance_length"]) / float(found["decode_token_s"][0])


def show(options: argparse.Namespace, results: dict[str, Any]) -> None:
    """The tables."""

    def pair(value: tuple[float, float] | None, scale: float) -> str:
        return "-" if value is None else f"{value[0] * scale:8.3f} ± {value[1] * scale:.3f}"

    size = f"{options.prompt} in, {options.output} out, batch {options.batch}"
    print(f"\n{options.target} shape (draft {options.draft}), {size}")
    print(f"{'way':18} {'ms/token, all':>20} {'ms/token, decode':>20} {'J/token, all':>20} {'tau':>6} {'overhead':>9}")
    for name, row in results["ways"].items():
        tau = "-" if row["acceptance_length"] is None else f"{row['acceptance_length']:.2f}"
        over = "-" if row["round_overhead_share"] is None else f"{row['round_overhead_share']:.1%}"
        print(
            f"{name:18} {pair(row['token_s'], 1e3):>20} {pair(row['decode_token_s'], 1e3):>20} "
            f"{pair(row['token_j'], 1.0):>20} {tau:>6} {over:>9}"
        )
    print(f"\n{'step':12} {'ms':>10} {'J':>10} {'W':>7}")
    for row in results["steps"]:
        joules, watts = "-", "-"
        if row["step_j"] is not None:
            joules, watts = f"{row['step_j']:.4f}", f"{row['step_j'] / row['step_s']:.0f}"
        print(f"{row['step']:12} {row['step_s'] * 1e3:10.3f} {joules:>10} {watts:>7}")
    if (share := results["coga_5_of_predicted"]) is not None:
        print(f"\ncoga-5 runs at {share:.1%} of the speed that its steps, timed alone, predict (aim: 97 %)")


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=SHAPES, default="8b")
    parser.add_argument("--draft", choices=SHAPES, default="1b")
    parser.add_argument("--prompt", type=int, default=512, help="tokens")
    parser.add_argument("--output", type=int, default=384, help="tokens, at least 2")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--acceptance", type=float, default=0.7, help="of a drafted token, given the one before it")
    parser.add_argument("--batch", type=int, default=1, help="texts at once; more than 1: vanilla and chains alone")
    parser.add_argument("--only", default="", help="ways to run, separated by commas; all if left out")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Measure, show, write."""
    options = parse(arguments)
    bench = Bench(options)
    without = set() if find_spec("vllm") else {name for name in bench.ways if name.startswith("vllm")}
    if asked := without.intersection(options.only.split(",")):
        print(f"{', '.join(sorted(asked))}: vLLM is not installed here; leave it out of --only", file=sys.stderr)
        return 2
    if options.device == "cpu":
        without.add("generate-static")  # Transformers would compile for minutes
    if options.batch > 1:
        without |= {name for name in bench.ways if name.startswith(("eagle", "medusa"))}
    names = [name for name in options.only.split(",") if name] or [name for name in bench.ways if name not in without]
    if trees := without.intersection(names):
        print(f"{', '.join(sorted(trees))}: not for --batch {options.batch}", file=sys.stderr)
        return 2
    if unknown := set(names) - bench.ways.keys():
        print(f"no way is called {', '.join(sorted(unknown))}: there are {', '.join(bench.ways)}", file=sys.stderr)
        return 2
    # Those that run beside take a minute and more to start, and must be there before anything is timed.
    for name in names:
        if name in bench.drafted:
            bench.start(name)
    results: dict[str, Any] = {
        "options": {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()},
        "machine": machine(),
        "versions": {
            "joulewise": joulewise.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
    with discover() as meter:
        say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
        for repeat, runs in enumerate(measure_ways(bench, meter, names, say)):
            if repeat == 0:
                results["steps"] = measure_steps(bench, meter)
            ways = {name: summary(found) for name, found in runs.items()}
            share = predicted_share(bench, ways.get("coga-5", {}), results["steps"])
            results |= {"ways": ways, "coga_5_of_predicted": share}
            results["runs"] = {name: asdict(found) for name, found in runs.items()}
            if options.json:
                options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        for worker in bench.beside.values():
            worker.close()
    show(options, results)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
