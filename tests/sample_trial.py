"""One Trial for the tests of what holds and writes Trials."""

from __future__ import annotations

from typing import Any

from joulewise.records import EnergyRecord, GenerationRecord, Trial


def sample_trial(number: int, *energy: EnergyRecord, text: str | None = None, **other: Any) -> Trial:
    """An answered question of the cell ``cell``: two rounds of speculation, four output tokens."""
    generation = GenerationRecord(
        prompt_tokens=3,
        output_tokens=4,
        wasted_tokens=0,
        finish_reason="eos",
        start_s=1.0,
        end_s=2.0,
        first_token_s=None,
        rounds=((5, 2), (5, 0)),
        output_hash="f" * 16,
        text=text,
    )
    fields: dict[str, Any] = {
        "trial_id": f"cell|question-{number}|0",
        "cell_id": "cell",
        "engine": "e",
        "model": "m",
        "decoding": "vanilla",
        "reasoning": "direct",
        "task": "starter-maths",
        "question_id": f"question-{number}",
        "question_hash": "0" * 16,
        "repeat": 0,
        "sequence": number,
        "status": "ok",
        "started_at": "2026-11-30T00:00:00+00:00",
        "start_s": 1.0,
        "end_s": 3.0,
        "energy": energy,
        "generations": (generation,),
    }
    return Trial(**(fields | other))
