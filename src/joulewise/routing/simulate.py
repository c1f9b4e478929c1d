"""What a router would do with traffic: a trace replayed through it and a simulated fleet (``simulated_fleet.py``).

Several routers take the same arrivals with the same luck: which question comes, how long an option's answer to it is,
how far its seconds are off. So differences between them are theirs, and not chance's.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from joulewise.analysis.intervals import wilson
from joulewise.errors import UserError
from joulewise.routing.energy import expected_energy
from joulewise.routing.latency import Latency
from joulewise.routing.outcomes import Outcomes
from joulewise.routing.performance import Prediction
from joulewise.routing.policy import Choice, Estimate, Goal, Load, Option, Query, Reading, State, choose, load_of
from joulewise.routing.router import Learnt, Router, known_energy, seconds_of, size_of
from joulewise.routing.simulated import Simulated, Simulation, compared, late, spread
from joulewise.routing.simulated_fleet import Carbon, Job, Luck, Server, job_of
from joulewise.traffic.arrivals import Arrival

Floats = npt.NDArray[np.float64]

SLOTS = 32
"""Requests that a server runs at a time, where nobody says."""
JOULEWISE, BLIND, COST_ONLY, ORACLE = "joulewise", "load-blind", "cost-only", "oracle"
_NEVER_S = 1e300
"""Later than any end; servers at rest end at infinity."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The servers, one for each model.

    Args:
        slots: requests that each runs at a time.
        idle_w: by model, watts at rest; drawn while nothing runs, as an operating curve has them while something does.
        carbon: of the grid over the time; None where not known.
        state_age_s: how old the loads are that a router sees.
    """

    slots: int = SLOTS
    idle_w: Mapping[str, float] | None = None
    carbon: Carbon | None = None
    state_age_s: float = 0.0

    def __post_init__(self) -> None:
        """Raises UserError: slots below 1, or watts or an age below 0."""
        if self.slots < 1 or not 0 <= self.state_age_s < math.inf:
            raise UserError(f"slots {self.slots}, age {self.state_age_s:g} s: at least 1 slot, and 0 s.")
        if strange := [w for w in (self.idle_w or {}).values() if not 0 <= w < math.inf]:
            raise UserError(f"{strange[0]:g} W at rest: give a power of at least 0.")


def simulate(
    router: Router,
    arrivals: Sequence[Arrival],
    goal: Goal,
    fleet: Fleet = Fleet(),
    questions: Outcomes | Sequence[str] = ("",),
    routers: Sequence[str] | None = None,
    baseline: str | None = None,
    seed: int = 0,
) -> Simulation:
    """Replay arrivals through routers, each with a fleet of its own.

    Routers are ``joulewise`` (the goal, with the loads it sees), ``load-blind`` (the same without loads), ``cost-only``
    (fewest expected output tokens times active parameters, or fewest expected joules of a request alone where
    parameters are not known; accuracy does not count), ``oracle`` (the cheapest option that is right; needs outcomes)
    and the name of any option, which then answers everything. Cascades are left out.

    Args:
        arrivals: in the order of time; a prompt whose length is not told has that of its question's text.
        questions: of which each arrival asks one, drawn evenly: with outcomes (those that every option has), or texts.
        routers: None for all of them.
        baseline: None for the option that is expected to be right most often.
        seed: of all that is drawn.

    Raises:
        UserError: nothing arrives, there is nothing to ask, a router or option that is not there, an option without
            known joules or seconds, or an option's outcomes that are missing; or as ``policy.choose``.
    """
    if not arrivals:
        raise UserError("No request arrives: give a trace, or a rate and seconds, that hold at least one.")
    names = sorted(router.learnt)
    latencies = {name: _latency(router.learnt[name]) for name in names}
    asked = _asked(router, names, questions)
    observed = asked.correct is not None
    draws = np.random.default_rng(seed).random((len(arrivals), 5))
    rows = (draws[:, 0] * len(asked.texts)).astype(int).tolist()
    luck = [Luck(*row) for row in draws[:, 1:].tolist()]
    chances = {row: asked.predictions(row) for row in sorted(set(rows))}
    best = max(names, key=lambda n: (float(np.mean([chances[r][n] for r in rows])), n))
    baseline = best if baseline is None else baseline
    known = [JOULEWISE, BLIND, COST_ONLY, *([ORACLE] if observed else []), *names]
    wanted = list(dict.fromkeys([*(known if routers is None else routers), baseline]))
    if strange := [name for name in wanted if name not in known]:
        raise UserError(f"no router or option is named {strange[0]}; there are {', '.join(known)}.")
    run = _Run(router, names, latencies, arrivals, goal, fleet, asked, rows, luck, chances)
    done = {name: run.through(name) for name in wanted}
    end = max(past.end_s for past in done.values())
    base = done[baseline]
    found = tuple(run.told(name, past, end, None if name == baseline else base) for name, past in done.items())
    notes = [] if observed else ["accuracies are by the router's own predictions, not observed"]
    if router.cascades:
        notes.append("cascades are left out")
    if asked.texts == ("",):
        notes.append("no questions are given: all are alike to the router, but for their lengths")
    if resting := [m for m in run.models if m not in (fleet.idle_w or {})]:
        notes.append(f"power at rest of {', '.join(resting)} is not known: joules of idle servers are left out")
    sources = {router.learnt[name].provenance for name in names}
    notes.append(f"joules are simulated; those that the router learnt from are {' and '.join(sorted(sources))}")
    return Simulation(found, baseline, end, observed, tuple(notes))


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    router: Router
    names: list[str]
    texts: tuple[str, ...]
    domains: tuple[str | None, ...]
    correct: Mapping[str, Floats] | None

    def predictions(self, row: int) -> Mapping[str, float]:
        found: Prediction = self.router.performance.predict(self.texts[row], self.domains[row])
        by_name = dict(zip(self.router.performance.options, found.accuracy.tolist(), strict=True))
        return {n: min(1.0, max(0.0, by_name[self.router.learnt[n].answers_as])) for n in self.names}


def _asked(router: Router, names: list[str], questions: Outcomes | Sequence[str]) -> _Asked:
    if not isinstance(questions, Outcomes):
        if not questions:
            raise UserError("There are no questions to ask: give at least one, or leave them out.")
        return _Asked(router, names, tuple(questions), (None,) * len(questions), None)
    columns = {name: router.learnt[name].answers_as for name in names}
    if missing := sorted(set(columns.values()) - set(questions.options)):
        raise UserError(f"the outcomes say nothing of {missing[0]}: give some of every option, or texts alone.")
    at = [questions.options.index(columns[name]) for name in names]
    full = np.flatnonzero(np.isfinite(questions.correct[:, at]).all(axis=1))
    if not len(full):
        raise UserError("No question has an outcome of every option: give some, or texts alone.")
    kept = questions.take(full)
    return _Asked(
        router, names, kept.queries, kept.domains, {n: kept.correct[:, i] for n, i in zip(names, at, strict=True)}
    )


def _latency(known: Learnt) -> Latency:
    known_energy(known)
    if known.latency is None:
        raise UserError(f"the seconds of {known.option.name} are not known: fit the router with timed answers of it.")
    return known.latency


@dataclass(slots=True)
class _Done:
    jobs: list[Job]
    choices: list[Choice]
    servers: Mapping[str, Server]
    routing_j: float

    @property
    def end_s(self) -> float:
        return max(job.ended_s for job in self.jobs)


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    router: Router
    names: list[str]
    latencies: Mapping[str, Latency]
    arrivals: Sequence[Arrival]
    goal: Goal
    fleet: Fleet
    asked: _Asked
    rows: list[int]
    luck: list[Luck]
    chances: Mapping[int, Mapping[str, float]]

    @property
    def models(self) -> list[str]:
        return sorted({self.router.learnt[name].option.model for name in self.names})

    def through(self, name: str) -> _Done:
        """All arrivals, through one router."""
        servers = {model: Server(self.fleet.slots, self.fleet.carbon) for model in self.models}
        routed = name in (JOULEWISE, BLIND)
        done = _Done([], [], servers, self.router.routing_j if routed else 0.0)
        history = _History(servers)
        ends: list[tuple[float, str]] = []

        def run_until(time_s: float) -> None:
            while ends and ends[0][0] <= time_s:
                end_s, model = heapq.heappop(ends)
                server = servers[model]
                if end_s != server.ends_s:
                    continue  # the load changed since
                server.advance(end_s)
                server.end_one()
                heapq.heappush(ends, (server.ends_s, model))
                history.note(model, end_s)

        for number, arrival in enumerate(self.arrivals):
            now_s = arrival.due_s
            run_until(now_s)
            option = self._taken(name, number, history, done.choices)
            model = self.router.learnt[option].option.model
            job = job_of(
                number,
                option,
                now_s,
                self._prompt(option, number),
                self.asked.domains[self.rows[number]],
                known_energy(self.router.learnt[option]),
                self.latencies[option],
                self.luck[number],
            )
            done.jobs.append(job)
            servers[model].advance(now_s)
            servers[model].take(job)
            heapq.heappush(ends, (servers[model].ends_s, model))
            history.note(model, now_s)
        run_until(_NEVER_S)
        return done

    def _prompt(self, option: str, number: int) -> float:
        told = self.arrivals[number].prompt_tokens
        if told is not None:
            return max(1.0, float(told))
        return self.router.learnt[option].prompt.tokens(size_of(self.asked.texts[self.rows[number]]))

    def _taken(self, name: str, number: int, history: _History, choices: list[Choice]) -> str:
        if name in self.router.learnt:
            return name
        now_s = self.arrivals[number].due_s
        state = history.state(now_s, self.fleet)
        if name == COST_ONLY:
            return min(self.names, key=lambda n: (self._tokens_cost(n, number), n))
        if name == ORACLE:
            right = {n: scores[self.rows[number]] for n, scores in (self.asked.correct or {}).items()}
            most = max(right.values())
            able = [n for n in right if right[n] == most]
            return min(able, key=lambda n: (self._joules(n, number, load_of(self._model(n), state).running), n))
        if name == BLIND:
            state = State(carbon_g_per_kwh=state.carbon_g_per_kwh)
        domain = self.asked.domains[self.rows[number]]
        longest = round(max(self._prompt(n, number) for n in self.names))
        options = [self.router.learnt[n].option for n in self.names]

        def estimate(query: Query, option: Option, load: Load) -> Estimate:
            return self._estimate(option.name, number, load, query.domain)

        choice = choose(Query(longest, domain), options, estimate, state, self.goal)
        choices.append(replace(choice, verdicts=()))  # a long trace's would fill the memory
        return choice.option

    def _model(self, name: str) -> str:
        return self.router.learnt[name].option.model

    def _estimate(self, name: str, number: int, load: Load, domain: str | None) -> Estimate:
        known, prompt = self.router.learnt[name], self._prompt(name, number)
        joules = expected_energy(known_energy(known), prompt, load.running, domain, self.router.routing_j).energy_j
        chance = self.chances[self.rows[number]][name]
        goal = self.goal
        if goal.most_first_token_s is None and goal.most_total_s is None and not goal.second_price:
            return Estimate(chance, joules)
        seconds = seconds_of(known, prompt, load, domain)
        assert seconds is not None, "options without known seconds were refused"
        return Estimate(chance, joules, seconds.first_token_s, seconds.total_s)

    def _joules(self, name: str, number: int, running: float) -> float:
        energy, domain = known_energy(self.router.learnt[name]), self.asked.domains[self.rows[number]]
        return expected_energy(energy, self._prompt(name, number), running, domain).energy_j.mean

    def _tokens_cost(self, name: str, number: int) -> float:
        if any(self.router.learnt[n].option.active_parameters is None for n in self.names):
            return self._joules(name, number, 1.0)
        energy, prompt = known_energy(self.router.learnt[name]), self._prompt(name, number)
        tokens = energy.lengths.tokens(prompt, self.asked.domains[self.rows[number]])
        mean = float(np.minimum(tokens, energy.most_output_tokens or math.inf).mean())
        return energy.votes * mean * (self.router.learnt[name].option.active_parameters or 0.0)

    def _right(self, job: Job) -> float:
        row = self.rows[job.number]
        if self.asked.correct is not None:
            return float(self.asked.correct[job.option][row])
        return float(self.luck[job.number].right < self.chances[row][job.option])

    def told(self, name: str, done: _Done, end_s: float, base: _Done | None) -> Simulated:
        """What a router's jobs come to."""
        n = len(done.jobs)
        joules, right = _joules_of(done), np.array([self._right(job) for job in done.jobs])
        total = np.array([job.ended_s - job.arrived_s for job in done.jobs])
        first = np.array([job.first_token_s - job.arrived_s for job in done.jobs])
        idle: float | None = None
        if all(model in (self.fleet.idle_w or {}) for model in self.models):
            watts = self.fleet.idle_w or {}
            idle = math.fsum(watts[model] * (end_s - server.busy_s) for model, server in done.servers.items())
        taken = [job.option for job in done.jobs]
        timed, goal = bool(np.isfinite(first).all()), self.goal
        against = None
        if base is not None:
            others = np.array([self._right(job) for job in base.jobs])
            against = compared(_joules_of(base), joules, others, right, [a.due_s for a in self.arrivals])
        return Simulated(
            name,
            n,
            float(right.mean()),
            wilson(float(right.sum()), n),
            float(joules.mean()),
            float(joules.sum()),
            idle,
            spread(first) if timed else None,
            spread(total),
            float(np.mean([job.began_s - job.arrived_s for job in done.jobs])),
            late(first, goal.most_first_token_s) if timed else None,
            late(total, goal.most_total_s),
            None if self.fleet.carbon is None else math.fsum(job.carbon_g for job in done.jobs),
            {option: taken.count(option) / n for option in self.names},
            _share(choice.best_effort for choice in done.choices),
            _share(choice.limits_missed for choice in done.choices),
            _share(choice.below_floor for choice in done.choices),
            against,
            joules,
            right,
            total,
        )


class _History:
    """Loads of servers over the time, to be seen as they were."""

    def __init__(self, servers: Mapping[str, Server]) -> None:
        self.servers = servers
        self.times: dict[str, list[float]] = {model: [] for model in servers}
        self.loads: dict[str, list[tuple[float, int]]] = {model: [] for model in servers}

    def note(self, model: str, time_s: float) -> None:
        self.times[model].append(time_s)
        self.loads[model].append((self.servers[model].load, len(self.servers[model].waiting)))

    def state(self, now_s: float, fleet: Fleet) -> State:
        running, queued, age = {}, {}, fleet.state_age_s
        for model, times in self.times.items():
            at = bisect_right(times, now_s - age) - 1
            load, waiting = self.loads[model][at] if at >= 0 else (0.0, 0)
            running[model], queued[model] = Reading(load, age), Reading(waiting, age)
        grid = None if fleet.carbon is None else Reading(fleet.carbon(now_s))
        return State(running, queued, grid)


def _joules_of(done: _Done) -> Floats:
    return np.array([job.energy_j for job in done.jobs]) + done.routing_j


def _share(answers: Iterable[bool]) -> float | None:
    """How many are so; None of none."""
    found = list(answers)
    return sum(found) / len(found) if found else None
