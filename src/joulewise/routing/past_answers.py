"""Past answers to learn a router from: which option answered which query, how well, with how many tokens and joules.

From run folders, and from files of outcomes (``outcomes.py``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulewise.counted import counted
from joulewise.errors import UserError
from joulewise.routing.answer_joules import GIVEN
from joulewise.routing.joule_sources import JouleSource, joule_source
from joulewise.routing.outcomes import Outcome, gather, read_rows
from joulewise.routing.policy import Option

if TYPE_CHECKING:
    from joulewise.plan import Plan
    from joulewise.routing.outcomes import Outcomes
    from joulewise.schedule import QuestionsByTask

ASKED = "asked"
"""The task of ``joulewise ask``: its questions' file lies in the run folder."""

OUTCOMES = (".csv", ".jsonl")
"""How files of outcomes end."""

DEFAULT_TOKENS = 512
"""An answer's budget where neither a plan nor its task's data tell it."""


@dataclass(frozen=True, slots=True)
class PastAnswer:
    """One answer, or many alike.

    Args:
        option: ``engine/decoding/reasoning``, or what a file calls it.
        server: what its seconds and its joules per token depend on: ``engine/decoding``.
        query: its text; None where it is not a question, or its text is not known.
        score: from 0 (wrong) to 1 (right); None where nobody says.
        domain: its field; None where not known.
        samples: requests that it took.
        prompt_tokens, output_tokens: of one of these, on average; None where not known.
        energy_j: of all of them together; None where not known.
        provenance: of the joules: as in ``energy``, or ``as given`` where a file does not say it.
        source: whose joules; None where not known.
        running: requests that ran at a time.
        first_token_s, total_s: of one request; None where not known.
        probe: the answer that a longer thought would have given: its seconds are not an answer's.
        agreed: whether all votes were the same; None where none were counted.
    """

    option: str
    server: str
    query: str | None = None
    score: float | None = None
    domain: str | None = None
    samples: int = 1
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    energy_j: float | None = None
    provenance: str = "measured"
    running: float = 1.0
    first_token_s: float | None = None
    total_s: float | None = None
    probe: bool = False
    agreed: bool | None = None
    source: JouleSource | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """How an option answers: parts of a plan, as plain data.

    Args:
        option: what a policy must know of it.
        engine, decoding, reasoning: as in a plan.
        sampling: as in a plan.
        max_new_tokens: the largest budget that it was run with.
        side_by_side: its samples run at the same time, in one batch.
        answers_as: options of this name give the same answers, as they differ in a lossless decoding alone.
    """

    option: Option
    engine: Mapping[str, Any]
    decoding: Mapping[str, Any]
    reasoning: Mapping[str, Any]
    sampling: Mapping[str, Any]
    max_new_tokens: int
    side_by_side: bool = False
    answers_as: str = ""


@dataclass(frozen=True, slots=True)
class Past:
    """All that a router can learn from.

    Args:
        answers: in any order.
        ways: how options answer, by name; of files without a plan none.
        notes: what was left out, one sentence each.
        textless: questions whose text is not at hand, by task and id.
    """

    answers: tuple[PastAnswer, ...]
    ways: Mapping[str, Way] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    textless: frozenset[tuple[str, str]] = frozenset()

    def answers_as(self, option: str) -> str:
        """Under which name its outcomes are learnt: one for all options that give the same answers."""
        way = self.ways.get(option)
        return option if way is None else way.answers_as

    def outcomes(self) -> Outcomes:
        """Scored queries, by what options answer as.

        Raises:
            UserError: there are none.
        """
        return gather(
            (a.query, self.answers_as(a.option), a.score, a.domain)
            for a in self.answers
            if a.query is not None and a.score is not None
        )

    @property
    def contradictory(self) -> int:
        """Pairs of query and option that have both right and wrong answers, whatever their domains.

        They are learnt by their mean; where an option was asked by chance more than once that is as it should be, else
        one of its labels is wrong.
        """
        right: dict[tuple[str, str], set[bool]] = {}
        for a in self.answers:
            if a.query is not None and a.score is not None and a.score != 0.5:
                right.setdefault((" ".join(a.query.split()), self.answers_as(a.option)), set()).add(a.score > 0.5)
        return sum(len(both) > 1 for both in right.values())

    def joined(self, other: Past) -> Past:
        """Both together; of an option that both tell how to run, the later way."""
        ways, textless = {**self.ways, **other.ways}, self.textless | other.textless
        return Past(self.answers + other.answers, ways, self.notes + other.notes, textless)


def past_of(sources: Sequence[Path], data_dir: Path | None = None) -> Past:
    """Past answers from run folders and files of outcomes; raises as ``from_runs`` and ``from_file``."""
    past = Past(())
    for source in {source.resolve(): source for source in sources}.values():  # what is named twice counts once
        is_file = source.suffix.lower() in OUTCOMES and not source.is_dir()
        past = past.joined(from_file(source) if is_file else from_runs([source], data_dir))
    return past


def from_file(path: os.PathLike[str] | str) -> Past:
    """Past answers from a CSV or JSON lines file.

    Raises:
        UserError: as ``read_outcomes``; or joules, tokens or seconds that are none.
    """
    return Past(tuple(_of_outcome(row) for row in read_rows(Path(path))))


def _of_outcome(row: Outcome) -> PastAnswer:
    server, figures = row.option.rpartition("/")[0] or row.option, row.figures
    return PastAnswer(
        row.option,
        server,
        row.query,
        row.score,
        row.domain,
        prompt_tokens=figures.get("prompt_tokens"),
        output_tokens=figures.get("output_tokens"),
        energy_j=figures.get("energy_j"),
        provenance=GIVEN,
        first_token_s=figures.get("first_token_s"),
        total_s=figures.get("total_s"),
    )


def from_runs(folders: Sequence[os.PathLike[str] | str], data_dir: Path | None = None) -> Past:
    """Past answers from run folders; their questions are read from the tasks, as ledgers do not hold them.

    Args:
        data_dir: where third-party data sets lie.

    Raises:
        UserError: no run folder, or a run without a Trial.
    """
    past = Past(())
    for folder in {Path(folder).resolve(): Path(folder) for folder in folders}.values():
        past = past.joined(_from_run(folder, data_dir))
    return past


def _from_run(folder: Path, data_dir: Path | None) -> Past:
    from joulewise.analysis.curve_points import component_of
    from joulewise.ledger import load
    from joulewise.plan import Plan

    table = load(folder)
    if not table.arrow.num_rows:
        raise UserError(f"{folder}: the run has no Trial yet; go on with it, or leave it out")
    plan = Plan.model_validate(next(iter(table.plans.values())))
    tasks, faults = _opened(plan, folder, data_dir)
    texts = {(label, q.question_id): q.text for label, (_, asked) in tasks.items() for q in asked}
    budgets = {label: task.max_new_tokens for label, (task, _) in tasks.items()}
    environment = next(iter(table.environments.values()), {})
    ways, sources = plan_ways(plan, budgets, environment), environment.get("sources") or ()
    names = (
        *("engine", "decoding", "reasoning", "task", "question_id", "category", "status", "correct", "score"),
        *("generation_count", "prompt_tokens", "output_tokens", "duration_s", "prefill_s", "running", "probe_of"),
        *("load", "trial_id"),
    )
    component = component_of(table.arrow)
    joules = (f"{component}_energy_j", f"{component}_provenance")
    votes, own = _votes(plan, folder), {spec.label for spec in plan.tasks if spec.name == ASKED}
    answers, notes, unscored = [], [*table.warnings, *faults], 0
    textless: set[tuple[str, str]] = set()
    for trial in table.arrow.select([*names, *joules]).to_pylist():
        if trial["status"] != "ok" or not trial["generation_count"]:
            continue
        answer = _of_trial(trial, *(trial[name] for name in joules))
        if answer.energy_j is not None:
            answer = replace(answer, source=joule_source(sources, component, answer.provenance))
        key = trial["task"], trial["question_id"]
        if trial["load"] is None and trial["running"] is None:
            score = trial["score"] if trial["correct"] is None else float(trial["correct"])
            unscored += score is None
            textless |= set() if key in texts else {key}
            domain = trial["category"] or (None if trial["task"] in own else trial["task"])
            same = votes.get(trial["trial_id"])
            answer = replace(answer, query=texts.get(key), score=score, domain=domain, agreed=same)
        answers.append(answer)
    if unscored:
        have = "has" if unscored == 1 else "have"
        notes.append(
            f"{folder}: {counted(unscored, 'answer')} {have} no score: tokens, joules and seconds are learnt alone"
        )
    return Past(tuple(answers), ways, tuple(notes), frozenset(textless))


def agreed(votes: Sequence[str | None] | None) -> bool:
    """Whether all samples of a vote gave the same answer."""
    return bool(votes) and votes is not None and votes[0] is not None and len(set(votes)) == 1


def _votes(plan: Plan, folder: Path) -> dict[str, bool]:
    """Whether all votes were the same, by Trial; tables do not hold votes."""
    from joulewise.ledger import LEDGER
    from joulewise.ledger_lines import read_ledger

    if not any(reasoning.kind == "vote" for reasoning in plan.reasonings):
        return {}
    return {t.trial_id: agreed(t.votes) for t in read_ledger(folder / LEDGER).trials if t.votes is not None}


def _of_trial(trial: Mapping[str, Any], energy_j: float | None, provenance: str | None) -> PastAnswer:
    server = f"{trial['engine']}/{trial['decoding']}"
    count = trial["generation_count"]
    mean = {name: trial[name] / count for name in ("prompt_tokens", "output_tokens")}
    common: dict[str, Any] = {"option": f"{server}/{trial['reasoning']}", "server": server, **mean}
    known: dict[str, Any] = {"energy_j": energy_j, "provenance": provenance or "unknown"}
    if (load := trial["load"]) is not None:
        # Its answers in flight overlap: what one of them draws is a curve's to tell.
        spreads = {"first_token_s": load["server_to_first"]["mean_s"], "total_s": load["total"]["mean_s"]}
        return PastAnswer(**common, running=max(1.0, load["in_flight"] or 1.0), **spreads)
    running = trial["running"] or 1
    times: dict[str, Any] = {"first_token_s": None if trial["prefill_s"] is None else trial["prefill_s"] / count}
    if trial["running"] is not None:  # a sweep's: batch after batch of equal requests
        return PastAnswer(**common, running=running, total_s=trial["duration_s"] * running / count, **times)
    if trial["probe_of"] is not None:
        return PastAnswer(**common, samples=count, probe=True, **known)
    return PastAnswer(**common, samples=count, total_s=trial["duration_s"] / count, **times, **known)


def plan_ways(plan: Plan, budgets: Mapping[str, int], environment: Mapping[str, Any] | None = None) -> dict[str, Way]:
    """How the options of a plan answer, by name.

    Args:
        budgets: of the tasks, by label, where the plan names none.
        environment: of its run, which tells context lengths and sizes.
    """
    told = {e.get("label"): e for e in (environment or {}).get("engines", ())}
    ways: dict[str, Way] = {}
    for cell in plan.cells():
        about = told.get(cell.engine.label, {})
        probed = [(label, tokens) for label, tokens in zip(cell.reasoning.probed, _probes(cell.reasoning), strict=True)]
        for label, tokens in [(cell.reasoning.label, None), *probed]:
            reasoning = cell.reasoning.model_dump(mode="json")
            if probed:
                reasoning |= {"probes": ()} if tokens is None else {"probes": (), "tokens": tokens}
            name = f"{cell.engine.label}/{cell.decoding.label}/{label}"
            most = plan.stop.tokens or cell.task.max_new_tokens or budgets.get(cell.task.label, DEFAULT_TOKENS)
            before = ways.get(name)
            option = Option(
                name,
                cell.engine.label,
                reasoning=cell.reasoning.kind,
                output_budget=reasoning.get("tokens") if cell.reasoning.kind == "budget" else None,
                decoding=cell.decoding.label,
                context_limit=about.get("context_length"),
                active_parameters=about.get("parameters"),
            )
            ways[name] = Way(
                option,
                cell.engine.model_dump(mode="json"),
                cell.decoding.model_dump(mode="json"),
                reasoning,
                plan.sampling.model_dump(mode="json"),
                max(most, before.max_new_tokens if before else 0),
                bool(cell.reasoning.together),
                f"{cell.engine.label}/{label}" if cell.decoding.lossless else name,
            )
    return ways


def _probes(reasoning: Any) -> Iterable[int]:
    return tuple(reasoning.probes) if reasoning.probed else ()


def _opened(plan: Plan, folder: Path, data_dir: Path | None) -> tuple[QuestionsByTask, list[str]]:
    """All questions of a run's tasks, and why others cannot be had. Those of ``joulewise ask`` lie in its folder."""
    from joulewise.schedule import open_what_can_be
    from joulewise.sweep import TASK

    tasks = []
    for spec in plan.tasks:
        options = dict(spec.options)
        if spec.name == ASKED and (own := folder / Path(str(options.get("file", ""))).name).is_file():
            options["file"] = str(own)
        if spec.name != TASK:
            tasks.append(spec.model_copy(update={"questions": None, "options": options}))
    opened, faults = open_what_can_be(plan.model_copy(update={"tasks": tuple(tasks)}), data_dir, None)
    return opened, [f"{folder}: {why}: without its questions, scores are not learnt from" for why in faults]
