"""Does kill -9 lose at most the Trial in flight?

    python benchmarks/crash.py [--engine transformers] [--kills 50] [--seed 0] [--json FILE]

A run of a small random model through the real engine is killed at random moments and resumed, until it has been killed
`--kills` times; then it is finished. A witness outside the run folder (a pipe to this process) tells which Trials were
begun and which were reported as done. After every kill the ledger must hold every Trial that was reported, and at most
one that was begun may be missing; in the end every Trial of the plan must be there exactly once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Kill:
    """What one kill did."""

    begun: int
    reported: int
    in_ledger: int
    lost_reported: int
    lost_begun: int
    torn_bytes: int


def make_model(folder: Path) -> None:
    """A random Llama of two small layers with a tokenizer of bytes, as a model folder."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<eos>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=2048,
        eos_token_id=0,
        bos_token_id=0,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>").save_pretrained(folder)


def child(plan: Path, out: Path, limit: int) -> None:
    """Run or resume, telling on standard output when a Trial begins and when it was reported."""
    from joulewise import runner
    from joulewise.energy import discover
    from joulewise.plan import load_plan
    from joulewise.run_result import Progress
    from joulewise.schedule import Job

    measure = runner._Session._measure

    def telling(self: runner._Session, engine: object, job: Job, attempt: int) -> object:
        os.write(1, f"begin {job.trial_id}\n".encode())
        return measure(self, engine, job, attempt)  # type: ignore[arg-type]

    runner._Session._measure = telling  # type: ignore[assignment, method-assign]

    def on_progress(progress: Progress) -> None:
        if progress.trial is not None:
            os.write(1, f"done {progress.trial.trial_id}\n".encode())

    with discover() as meter:
        resume = (out / "plan.yaml").exists()
        runner.run(load_plan(plan), out, meter=meter, resume=resume, limit=limit, on_progress=on_progress)


def kill_once(command: list[str], ledger: Path, delay_s: float) -> Kill:
    """Start the child, let it work for `delay_s` after its first Trial, kill it, and count."""
    before = trial_ids(ledger)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    told = b""
    deadline_s: float | None = None
    while deadline_s is None or time.monotonic() < deadline_s:
        wait_s = 60.0 if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        if select.select([process.stdout], [], [], wait_s)[0]:
            part = os.read(process.stdout.fileno(), 65536)
            if not part:
                raise SystemExit(f"the run ended by itself:\n{process.communicate()[1].decode()[-3000:]}")
            told += part
            deadline_s = deadline_s or time.monotonic() + delay_s
    process.send_signal(signal.SIGKILL)
    told += process.communicate()[0]
    lines = [line.split(" ", 1) for line in told.decode().split("\n")[:-1]]
    begun = {trial for word, trial in lines if word == "begin"}
    reported = {trial for word, trial in lines if word == "done"}
    raw = ledger.read_bytes() if ledger.exists() else b""
    torn = len(raw) - (raw.rfind(b"\n") + 1)
    there = trial_ids(ledger)
    return Kill(len(begun), len(reported), len(there - before), len(reported - there), len(begun - there), torn)


def trial_ids(ledger: Path) -> set[str]:
    """Trials on whole lines of the ledger."""
    raw = ledger.read_bytes() if ledger.exists() else b""
    records = [json.loads(line) for line in raw[: raw.rfind(b"\n") + 1].splitlines()]
    return {r["trial_id"] for r in records if r["kind"] == "trial"}


def main() -> int:
    """Kill, resume, finish, count; exit with 1 if anything was lost that should not be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engine", choices=("transformers", "native"), default="transformers")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        plan, out, limit = arguments.child
        child(Path(plan), Path(out), int(limit))
        return 0
    chance = random.Random(arguments.seed)
    kills: list[Kill] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model")
        questions = [{"id": f"q{i}", "text": f"Question {i}: what comes next?", "answer": "x"} for i in range(2000)]
        (folder / "questions.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions))
        (folder / "task.yaml").write_text(
            "name: letters\nquestions: questions.jsonl\nid: id\nprompt: '{text}'\nreference: answer\nscorer: exact\n"
            "max_new_tokens: 8\n"
        )
        plan = folder / "plan.yaml"
        engine = f"{{kind: {arguments.engine}, model: {folder / 'model'}, name: tiny, device: cpu}}"
        plan.write_text(
            f"name: crash\nengines: [{engine}]\n"
            "decodings: [vanilla, {kind: prompt_lookup, tokens: 3}]\ntasks: [task.yaml]\nidle_baseline_s: 0\n"
        )
        out, ledger = folder / "run", folder / "run" / "ledger.jsonl"
        command = [sys.executable, __file__, "--child", str(plan), str(out)]
        for number in range(arguments.kills):
            kills.append(kill_once([*command, "2000"], ledger, chance.uniform(0.0, 3.0)))
            print(f"kill {number + 1:>3}: {kills[-1]}", flush=True)
        done = len(trial_ids(ledger))
        finish = subprocess.run([*command, str(done // 2 + 5)], capture_output=True, text=True, check=False)
        lines = [json.loads(line) for line in ledger.read_text().splitlines()]
        all_ids = [r["trial_id"] for r in lines if r["kind"] == "trial"]
        twice = len(all_ids) - len(set(all_ids))
    result = {
        "kills": len(kills),
        "trials": len(all_ids),
        "most_begun_and_lost": max(k.lost_begun for k in kills),
        "reported_and_lost": sum(k.lost_reported for k in kills),
        "torn_lines": sum(1 for k in kills if k.torn_bytes),
        "written_twice": twice,
        "finished": finish.returncode == 0,
    }
    for key, value in result.items():
        print(f"{key.replace('_', ' '):<24}{value!s:>8}")
    if arguments.json:
        arguments.json.write_text(json.dumps({**result, "each": [asdict(k) for k in kills]}, indent=2) + "\n")
    good = (
        finish.returncode == 0 and not twice and not result["reported_and_lost"] and result["most_begun_and_lost"] <= 1
    )
    print("at most the Trial in flight was lost" if good else f"FAILED\n{finish.stderr[-2000:]}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
