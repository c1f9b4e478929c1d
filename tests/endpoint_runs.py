"""Runs before a scripted server that is already there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fake_server import DONE, MODEL, Asked, FakeServer, Reply, Step, finish, piece, role, usage
from joulewise.energy.meter import Meter
from joulewise.ledger_lines import read_ledger
from joulewise.plan import Plan
from joulewise.records import Trial
from joulewise.runner import run
from scripted_runs import questions_task


class Server(FakeServer):
    """Answers with numbers, and counts as vLLM does; ``pages`` are further paths by what they give."""

    def __init__(self, script: Callable[[Asked], Reply] | None = None, **more: Any) -> None:
        self.pages: dict[str, Mapping[str, Any]] = more.pop("pages", {"/version": {"version": "0.20.2"}})
        self.prompts = 0
        super().__init__(script or (lambda asked: self.answer(asked)), **more)

    def reply(self, asked: Asked) -> Reply:
        if asked.path in self.pages:
            return Reply([json.dumps(self.pages[asked.path]).encode()], headers={"Content-Type": "application/json"})
        return super().reply(asked)

    def answer(self, asked: Asked, *, text: str = "1 2 3", output: int = 5, reason: str = "stop") -> Reply:
        self.count(7, output)
        steps: list[Step] = [
            role(),
            *(piece(f"{word} ") for word in text.split()),
            finish(reason),
            usage(7, output),
            DONE,
        ]
        return Reply(steps)

    def drafted(self, drafts: int, drafted: int, accepted: int) -> None:
        """What one request's speculation adds to the counters."""
        for name, value in (("drafts", drafts), ("draft_tokens", drafted), ("accepted_tokens", accepted)):
            key = f"vllm:spec_decode_num_{name}_total"
            self.counters[key] = self.counters.get(key, 0.0) + value


def plan(folder: Path, url: str | dict[str, str], *, questions: int = 2, engine: Any = None, **more: Any) -> Plan:
    spec = {"kind": "endpoint", "url": url, "model": MODEL, "name": "served", "meter": "here", **(engine or {})}
    told = {
        "name": "test",
        "engines": [spec],
        "decodings": ["vanilla"],
        "tasks": [questions_task(folder, [f"q{i}" for i in range(questions)])],
        "idle_baseline_s": 0,
        "warm_up": 0,
        **more,
    }
    return Plan.model_validate(told)


def trials(folder: Path, planned: Plan, meter: Meter) -> list[Trial]:
    return list(read_ledger(run(planned, folder / "run", meter=meter).folder / "ledger.jsonl").trials)
