"""The windows of ``attribution.py`` on a server that runs, with this machine's meter; each is kept as it ends."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from attribution_windows import PERCENTS, Settings, Taken, same
from pydantic import TypeAdapter
from simulated_server import Lengths

from joulewise.analysis.request_shares import BatchRequest
from joulewise.energy import Energy, Meter
from joulewise.energy.attribution import PowerAtRest
from joulewise.energy.reading import ComponentEnergy
from joulewise.engines.openai_api.answer import Answer
from joulewise.engines.openai_api.client import Endpoint, ask, list_models, open_session
from joulewise.errors import EnvironmentFault, UserError
from joulewise.traffic.arrivals import Arrival, ClosedLoop
from joulewise.traffic.generator import Outcome, drive
from joulewise.traffic.loop import run

FIRST_TOKEN_ID = 300
"""Ids below are control tokens and single bytes in most vocabularies."""


def chosen(energy: Energy) -> ComponentEnergy:
    """The GPUs' joules where they are measured, else all components'."""
    gpu = energy.gpu
    return gpu if gpu is not None and gpu.provenance == "measured" else energy.total


class Server:
    """A server that runs already, and this machine's meter.

    Args:
        vocabulary: prompts are of token ids below it.
    """

    def __init__(self, endpoint: Endpoint, meter: Meter, vocabulary: int) -> None:
        self.endpoint, self.meter = endpoint, meter
        self.ids = range(FIRST_TOKEN_ID, vocabulary)
        self.draw = random.Random(time.time_ns())  # a prompt that an earlier run sent may be cached

    def require_model(self) -> None:
        async def listed() -> dict[str, Any]:
            async with open_session() as session:
                return dict(await list_models(session, self.endpoint))

        if self.endpoint.model not in (there := run(listed())):
            raise UserError(f"no model {self.endpoint.model} at {self.endpoint.url}; it has {', '.join(sorted(there))}")

    def at_rest(self, seconds: float) -> PowerAtRest:
        with self.meter.window() as window:
            time.sleep(seconds)
        energy = chosen(window.energy)
        if energy.energy_j is None:
            raise EnvironmentFault(f"the power at rest is unknown ({energy.note}); see `joulewise doctor`")
        return PowerAtRest(energy.energy_j / window.duration_s, energy.independent_j / window.duration_s)

    def point(self, settings: Settings, what: tuple[int, int, int]) -> Taken:
        """From the first request to the last answer."""
        with self.meter.window() as window:
            requests, _ = self.loaded(same(*what[:2]), what[2], settings.point_s)
        return Taken(("point", *what), window.start_s, window.end_s, chosen(window.energy), requests)

    def mix(self, settings: Settings, percent: int, repeat: int) -> Taken:
        """After the warm-up, while requests come and go."""
        seconds = settings.warm_s + settings.seconds
        requests, start_s = self.loaded(settings.mixed(percent), settings.concurrency, seconds)
        ends = start_s + settings.warm_s, start_s + seconds
        return Taken(("mix", percent, repeat), *ends, chosen(self.meter.between(*ends)), requests)

    def loaded(self, lengths: Lengths, concurrency: int, seconds: float) -> tuple[tuple[BatchRequest, ...], float]:
        """All requests of a closed loop, and when it began."""
        outcomes: list[Outcome[Answer]] = []

        async def load() -> float:
            async with open_session() as session:

                async def send(_: Arrival, number: int) -> Answer:
                    prompt, output = lengths(number)
                    body = {"prompt": self.draw.choices(self.ids, k=prompt), "max_tokens": output}
                    return await ask(session, self.endpoint, body | {"ignore_eos": True, "temperature": 0.0})

                driven = await drive(
                    ClosedLoop(concurrency=concurrency), send, outcomes.append, duration_s=seconds, drain_s=600.0
                )
                return driven.start_s

        start_s = run(load())
        return tuple(answered(o, lengths(o.number)) for o in sorted(outcomes, key=lambda o: o.number)), start_s


def answered(outcome: Outcome[Answer], lengths: tuple[int, int]) -> BatchRequest:
    """A request that went well.

    Raises:
        EnvironmentFault: one that did not, or whose tokens are not what was asked for.
    """
    answer = outcome.answer
    if answer is None:
        raise EnvironmentFault(f"a request failed, so its window tells nothing: {outcome.error or 'it was cut off'}")
    if answer.usage is None:
        raise EnvironmentFault("the server tells no usage, so what a request cost cannot be told by its tokens")
    found = answer.usage.prompt_tokens, answer.usage.output_tokens
    if found[1] != lengths[1] or abs(found[0] - lengths[0]) > 2 or answer.usage.cached_tokens:
        raise EnvironmentFault(
            f"a request of {lengths} prompt and output tokens was answered as one of {found}, "
            f"{answer.usage.cached_tokens or 0} from a cache: switch prompt caching off, and let the server take "
            "ignore_eos and prompts of token ids"
        )
    return BatchRequest(str(outcome.number), answer.sent_s, answer.end_s, *found, answer.first_token_s)


def kept(path: Path, header: dict[str, Any]) -> tuple[list[Taken], PowerAtRest | None]:
    """What a file holds already; a new one gets the header.

    Raises:
        UserError: it is of other settings.
    """
    if not path.exists():
        write(path, header)
    lines = path.read_text(encoding="utf-8").splitlines()
    whole = [json.loads(line) for line in lines if line.endswith("}")]  # a torn last line is measured again
    if not whole or whole[0] != json.loads(json.dumps(header)):
        raise UserError(f"{path} is of other options or another server; name another file, or the same options")
    if len(whole) < len(lines):
        path.write_text("".join(json.dumps(row) + "\n" for row in whole), encoding="utf-8")
    idle = next((PowerAtRest(**row["idle"]) for row in whole if "idle" in row), None)
    return [
        Taken(
            tuple(row["what"]),
            row["start_s"],
            row["end_s"],
            TypeAdapter(ComponentEnergy).validate_python(row["energy"]),
            tuple(BatchRequest(*r) for r in row["requests"]),
        )
        for row in whole
        if "what" in row
    ], idle


def write(path: Path, row: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def as_row(taken: Taken) -> dict[str, Any]:
    requests = [(r.name, r.start_s, r.end_s, r.prompt_tokens, r.output_tokens, r.first_s) for r in taken.requests]
    return {
        "what": taken.what,
        "start_s": taken.start_s,
        "end_s": taken.end_s,
        "energy": asdict(taken.energy),
        "requests": requests,
    }


def measured(
    server: Server, settings: Settings, raw: Path, header: dict[str, Any], with_points: bool
) -> tuple[list[Taken], PowerAtRest]:
    """All windows; those that the raw file has are not measured again."""
    taken, idle = kept(raw, header)
    if idle is None:
        print(f"at rest, {settings.idle_s:g} s", flush=True)
        idle = server.at_rest(settings.idle_s)
        write(raw, {"idle": idle._asdict()})
    wanted: list[tuple[tuple[str | int, ...], Callable[[], Taken]]] = []
    if with_points:
        wanted += [(("point", *p), partial(server.point, settings, p)) for p in settings.points]
    order = random.Random(0)
    for repeat in range(settings.repeats):
        for percent in order.sample(PERCENTS, len(PERCENTS)):
            wanted.append((("mix", percent, repeat), partial(server.mix, settings, percent, repeat)))
    there = {t.what for t in taken}
    for number, (what, take) in enumerate(wanted, 1):
        if what in there:
            continue
        began_s = time.monotonic()
        taken.append(take())
        write(raw, as_row(taken[-1]))
        one, took_s = taken[-1], time.monotonic() - began_s
        print(
            f"{number} of {len(wanted)}: {' '.join(map(str, what))}: {len(one.requests)} requests, "
            f"{one.joules / (one.end_s - one.start_s):.0f} W, {took_s:.0f} s",
            flush=True,
        )
    return taken, idle
