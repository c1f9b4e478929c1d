"""A judge's grades as the scores of a run's table."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import pyarrow as pa

from joulewise.counted import counted
from joulewise.judge.record import Judgement, latest


def rated(table: pa.Table, judgements: Sequence[Judgement]) -> tuple[pa.Table, list[str]]:
    """The table with a tenth of the mean grade over a Trial's turns as its score, and what a reader must know.

    A Trial with an unjudged turn keeps no score. Of several judges the one that was asked last counts.

    Args:
        table: one run's rows.
        judgements: of this run, in the order written.
    """
    single = [j for j in judgements if j.against is None]
    found: dict[tuple[str, str], dict[int, Judgement]] = defaultdict(dict)
    for judgement in latest(single).values():
        found[judgement.trial_id, judgement.answer_hash][judgement.turn] = judgement
    if not found:
        return table, []
    scores, metrics = table["score"].to_pylist(), table["metric"].to_pylist()
    wanted = ("trial_id", "output_hash", "generation_count")
    rows = zip(*(table[name].to_pylist() for name in wanted), strict=True)
    unjudged: Counter[str] = Counter()
    for i, (trial_id, answer_hash, turns) in enumerate(rows):
        if metrics[i] != "unscored":
            continue
        metrics[i] = f"rating by {single[-1].judge}"
        judged = found.get((trial_id, answer_hash or ""), {})
        ratings = [j.rating for j in judged.values() if j.rating is not None]
        if turns and len(ratings) == turns:
            scores[i] = sum(ratings) / len(ratings) / 10.0
        else:
            reasons = [j.reason for j in judged.values() if j.reason]
            unjudged[reasons[0] if reasons else "not asked so far"] += 1
    told = []
    if unjudged:
        why = "; ".join(f"{count:,} x {reason}" for reason, count in unjudged.most_common(3))
        told.append(
            f"unjudged and without a score: {counted(unjudged.total(), 'answer')} ({why}); `joulewise judge` goes on"
        )
    if others := sorted({f"{j.judge} ({j.prompts})" for j in single if j.by != single[-1].by}):
        told.append(f"scores are by {single[-1].judge} ({single[-1].prompts}), asked last, not by {', '.join(others)}")
    columns = {"score": pa.array(scores, pa.float64()), "metric": pa.array(metrics, pa.string())}
    for name, column in columns.items():
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), column)
    return table, told
