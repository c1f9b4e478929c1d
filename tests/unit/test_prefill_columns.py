"""What the table tells of a Trial up to its first tokens, and of its phases."""

from __future__ import annotations

from typing import Any

from joulewise.engines.engine import PHASES
from joulewise.records import EnergyRecord, GenerationRecord, Trial
from joulewise.table import rows_to_arrow


def generation(**changes: Any) -> GenerationRecord:
    values: dict[str, Any] = {
        "prompt_tokens": 5,
        "output_tokens": 8,
        "wasted_tokens": 0,
        "finish_reason": "length",
        "start_s": 1.0,
        "end_s": 3.0,
        "first_token_s": 1.5,
        "rounds": (),
        "output_hash": "00ff",
        "text": None,
    }
    return GenerationRecord.model_validate(values | changes)


def row(*generations: GenerationRecord, components: tuple[str, ...] = ("gpu", "cpu")) -> dict[str, Any]:
    trial = Trial.model_validate(
        {
            **dict.fromkeys(("cell_id", "engine", "model", "decoding", "reasoning", "task"), "x"),
            "trial_id": "x|q|0",
            "question_id": "q",
            "question_hash": "0",
            "repeat": 0,
            "sequence": 0,
            "status": "ok",
            "started_at": "2026-11-30T10:00:00Z",
            "start_s": 1.0,
            "end_s": 4.0,
            "generations": generations,
            "energy": energy(dict.fromkeys(components, 100.0)),
        }
    )
    (found,) = rows_to_arrow("r", [(1, trial)]).to_pylist()
    return dict(found)


def energy(joules: dict[str, float | None]) -> tuple[EnergyRecord, ...]:
    return tuple(
        EnergyRecord.model_validate(
            {"component": name, "provenance": "unknown" if known is None else "measured", "energy_j": known}
        )
        for name, known in joules.items()
    )


def test_prefills_add_up_over_generations() -> None:
    parts = energy({"gpu": 3.0, "cpu": 1.0})
    found = row(generation(prefill_energy=parts), generation(prefill_energy=parts, first_token_s=1.25))
    assert (found["prefill_s"], found["gpu_prefill_j"], found["total_prefill_j"]) == (0.75, 6.0, 8.0)
    assert found["generation_count"] == 2
    assert found["dram_prefill_j"] is None
    assert (found["gpu_prefill_edges_j"], found["dram_prefill_edges_j"]) == (0.0, None)
    rough = tuple(e.model_copy(update={"start_edge_j": 3.0, "end_edge_j": 4.0}) for e in parts)
    assert row(generation(prefill_energy=rough), generation(prefill_energy=rough))["gpu_prefill_edges_j"] == 10.0


def test_what_one_generation_does_not_tell_is_not_known() -> None:
    parts = energy({"gpu": 3.0, "cpu": None})
    found = row(generation(prefill_energy=parts), generation(prefill_energy=parts, first_token_s=None))
    assert (found["prefill_s"], found["gpu_prefill_j"]) == (None, 6.0)
    assert (found["cpu_prefill_j"], found["total_prefill_j"], found["cpu_prefill_edges_j"]) == (None, None, None)
    assert row(generation(prefill_energy=parts), generation())["gpu_prefill_j"] is None
    assert row()["prefill_s"] is None


def test_a_component_that_is_not_there_is_not_missing_from_the_total() -> None:
    found = row(generation(prefill_energy=energy({"gpu": 3.0})), components=("gpu",))
    assert found["total_prefill_j"] == 3.0
    assert row(generation(prefill_energy=energy({"gpu": 3.0})))["total_prefill_j"] is None
    assert row(generation(), components=())["total_prefill_j"] is None


def test_phases_add_up_and_one_without_any_is_not_known() -> None:
    found = row(generation(phases_s={"draft": 0.5, "verify": 1.5}), generation(phases_s={"verify": 2.0}))
    told = {phase: found[f"phase_{phase}_s"] for phase in PHASES}
    assert told == dict.fromkeys(PHASES, 0.0) | {"draft": 0.5, "verify": 3.5}
    unknown = row(generation(phases_s={"verify": 2.0}), generation())
    assert {unknown[f"phase_{phase}_s"] for phase in PHASES} == {None}
