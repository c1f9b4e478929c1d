"""Verdicts: is the output of a lossless decoding vanilla's? As far as the records tell, and by asking the engine."""

from __future__ import annotations

from dataclasses import replace

from joulewise.decoding import Vanilla
from joulewise.engines.engine import OF_TEXT, Engine, LosslessCheck
from joulewise.plan import Plan, matches
from joulewise.reasoning import Answer
from joulewise.records import Trial
from joulewise.schedule import Job

TEXT_DIFFERS = "the text differs from vanilla's, and a server does not tell whether at a near-tie"
NO_VANILLA = LosslessCheck("not_checked", note="no vanilla in the grid to compare with")


def reference_of(plan: Plan, job: Job) -> Job | None:
    """The vanilla job that a job's output is compared with; None if the grid has none."""
    for decoding in plan.decodings:  # not every cell of the plan: this is asked once a Trial
        cell = replace(job.cell, decoding=decoding)
        if isinstance(decoding, Vanilla) and not any(matches(e, cell) for e in plan.exclude):
            return replace(job, cell=cell)
    return None


def told_by_records(job: Job, greedy: bool, vanilla: Trial, ours: Trial) -> LosslessCheck | None:
    """The verdict as far as two Trials tell it; None where the outputs themselves must be looked at."""
    if not job.cell.decoding.lossless:
        return LosslessCheck("not_checked", note="a lossy decoding")
    if not greedy:
        return LosslessCheck("not_checked", note="sampled output")
    if vanilla.status != "ok":
        return LosslessCheck("not_checked", note="vanilla failed on this question")
    if [g.output_hash for g in vanilla.generations] == [g.output_hash for g in ours.generations]:
        return LosslessCheck("identical")
    if any(g.output_hash.startswith(OF_TEXT) for g in (*vanilla.generations, *ours.generations)):
        return LosslessCheck("not_checked", note=TEXT_DIFFERS)
    return None


def told_by_engine(engine: Engine, job: Job, vanilla: Answer, ours: Answer) -> LosslessCheck:
    """The verdict on the first request whose outputs differ; later requests may build on it."""
    triples = zip(vanilla.requests, vanilla.generations, ours.generations, strict=False)
    for request, theirs, mine in triples:
        if theirs.token_ids != mine.token_ids:
            return engine.check_lossless(request, job.cell.decoding, theirs.token_ids, mine.token_ids)
    return LosslessCheck("not_checked", note="the output could not be made again as it was")
