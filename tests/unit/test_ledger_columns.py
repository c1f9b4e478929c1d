"""The quick reader of large ledgers: the same table as the strict one, or none at all."""

import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise import ledger_columns
from joulewise.energy.reading import Energy
from joulewise.engines.engine import PHASES
from joulewise.errors import UserError
from joulewise.ledger import LEDGER, load
from joulewise.ledger_columns import quick_rows
from joulewise.ledger_lines import read_ledger
from joulewise.records import Check, EnergyRecord, GenerationRecord, TallyRecord, Trial
from joulewise.table import SCHEMA, rows_to_arrow

joules = st.floats(0.0, 1e6)
energies = st.lists(
    st.sampled_from(["gpu", "cpu", "dram"]), unique=True, max_size=3
).flatmap(lambda names: st.tuples(*(_energy(name) for name in names)))  # fmt: skip


def _energy(name):
    known = st.builds(
        EnergyRecord,
        component=st.just(name),
        provenance=st.sampled_from(["measured", "modelled"]),
        energy_j=joules,
        start_edge_j=joules,
        end_edge_j=joules,
        sampling_j=joules,
        gain_j=joules,
        offset_j=joules,
    )
    return known | st.just(EnergyRecord(component=name, provenance="unknown", energy_j=None, note="no counter"))


generations = st.builds(
    GenerationRecord,
    prompt_tokens=st.integers(0, 500),
    output_tokens=st.integers(0, 9) | st.integers(0, 500),
    wasted_tokens=st.integers(0, 5),
    finish_reason=st.just("eos"),
    start_s=st.just(0.0),
    end_s=st.just(1.0),
    first_token_s=st.none() | st.floats(0.0, 1.0),
    rounds=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3) | st.integers(0, 20)), max_size=3).map(tuple),
    output_hash=st.sampled_from(["00ff", "ab12"]),
    text=st.none() | st.text(max_size=5),
    phases_s=st.none() | st.dictionaries(st.sampled_from(PHASES), st.floats(0.0, 9.0)),
    prefill_energy=st.none() | energies,
)


counted = st.none() | st.integers(0, 99)
tallies = st.none() | st.builds(
    TallyRecord,
    rounds=counted,
    drafted=counted,
    accepted=counted,
    drafts=counted,
    per_position=st.none() | st.lists(st.integers(0, 9), max_size=3).map(tuple),
)


@st.composite
def trials(draw):
    question = draw(st.sampled_from(["q1", "q2", "q\u2028é", 'q"\\']))
    return Trial(
        trial_id=f"c|{question}|0",
        cell_id="c",
        engine="e",
        model="m",
        decoding="coga-5",
        reasoning="direct",
        task="t",
        question_id=question,
        question_hash="0",
        category=draw(st.none() | st.just("x")),
        repeat=0,
        sequence=draw(st.integers(0, 9)),
        status=draw(st.sampled_from(["ok", "failed"])),
        error=draw(st.none() | st.just("boom")),
        started_at="2026-01-01T00:00:00.000+00:00",
        start_s=1.5,
        end_s=draw(st.floats(2.0, 9.0)),
        generations=draw(st.lists(generations, max_size=2).map(tuple)),
        energy=draw(energies),
        score=draw(st.none() | st.floats(0.0, 1.0)),
        correct=draw(st.none() | st.booleans()),
        metric=draw(st.none() | st.just("unscored")),
        score_note=draw(st.none() | st.just("timed out")),
        other_cpu_cores=draw(st.none() | st.floats(0.0, 9.0)),
        polluted=draw(st.booleans()),
        tally=draw(tallies),
    )


checks = st.builds(
    Check,
    trial_id=st.sampled_from(["c|q1|0", "c|q2|0", "c|q9|0"]),
    reference_trial_id=st.none(),
    status=st.sampled_from(["identical", "tie", "different", "not_checked"]),
    first_difference=st.none() | st.integers(0, 99),
    gap=st.none() | joules,
    note=st.none() | st.just("near"),
)


def strict(path):
    content = read_ledger(path)
    assert content.torn == b""
    lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    models = {"trial": Trial, "check": Check}
    return rows_to_arrow("r", enumerate((models[line["kind"]].model_validate(line) for line in lines), start=1))


def write(path, records):
    path.write_text("".join(r.model_dump_json() + "\n" for r in records), encoding="utf-8")
    return path


@settings(max_examples=60, deadline=None)
@given(st.lists(trials() | checks, min_size=1, max_size=8))
def test_both_readers_make_the_same_table(tmp_path_factory, records):
    path = write(tmp_path_factory.mktemp("l") / LEDGER, records)
    quick = quick_rows("r", path)
    assert quick is not None
    assert quick.equals(strict(path))
    assert quick.schema == SCHEMA


def test_both_readers_make_the_same_table_of_a_recorded_run(repository):
    path = repository / "results" / "h200" / "demo" / LEDGER
    quick = quick_rows("r", path)
    assert quick.equals(strict(path))
    assert quick.num_rows == 64


@settings(max_examples=60, deadline=None)
@given(energies)
def test_joules_are_those_of_the_values(energy):
    trial = Trial.model_validate(BASE | {"energy": energy})
    (row,) = rows_to_arrow("r", [(7, trial)]).to_pylist()
    window = Energy(1.0, tuple(part.value() for part in energy))
    assert row["ledger_line"] == 7
    for name in ("gpu", "cpu", "dram", "total"):
        part = window.component(name) if energy else None
        assert row[f"{name}_provenance"] == (part and part.provenance)
        for figure in ("energy_j", "lower_j", "upper_j", "independent_j", "gain_j", "offset_j"):
            expected, found = part and getattr(part, figure), row[f"{name}_{figure}"]
            assert (found is None) == (expected is None)
            assert expected is None or math.isclose(found, expected, rel_tol=1e-12, abs_tol=1e-9)


BASE = {
    "kind": "trial",
    "schema_version": 2,
    "trial_id": "c|q1|0",
    "cell_id": "c",
    "engine": "e",
    "model": "m",
    "decoding": "vanilla",
    "reasoning": "direct",
    "task": "t",
    "question_id": "q1",
    "question_hash": "0",
    "repeat": 0,
    "sequence": 0,
    "status": "ok",
    "started_at": "2026-01-01T00:00:00.000+00:00",
    "start_s": 1.0,
    "end_s": 2.0,
    "generations": [],
    "energy": [{"component": "gpu", "provenance": "measured", "energy_j": 1.0}],
    "polluted": False,
}
WHOLE = json.loads(Trial.model_validate(BASE).model_dump_json())
ENERGY = WHOLE["energy"][0]
CHECK = json.loads(Check(trial_id="c|q1|0", reference_trial_id=None, status="tie").model_dump_json())
ODD = [
    *({k: v for k, v in WHOLE.items() if k != name} for name in ("status", "polluted", "energy", "end_s")),
    *(WHOLE | change for change in (
        {"schema_version": 99},
        {"kind": "other"},
        {"status": "lost"},
        {"start_s": "1.0s"},
        {"task": None},
        {"sequence": 1.5},
        {"energy": [ENERGY | {"component": "total"}]},
        {"energy": [ENERGY | {"provenance": "guessed"}]},
        {"energy": [ENERGY | {"gain_j": None}]},
        {"generations": [None]},
        {"generations": [{"prompt_tokens": 1}]},
    )),
    CHECK | {"status": "perhaps"},
    CHECK | {"trial_id": None},
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: json.dumps(odd)[-40:])
def test_what_is_odd_is_left_to_the_strict_reader(odd, tmp_path):
    path = tmp_path / LEDGER
    path.write_text(json.dumps(WHOLE) + "\n" + json.dumps(CHECK) + "\n" + json.dumps(odd) + "\n")
    assert quick_rows("r", path) is None


GENERATION = json.loads(
    GenerationRecord(
        prompt_tokens=1,
        output_tokens=2,
        wasted_tokens=0,
        finish_reason="eos",
        start_s=1.0,
        end_s=2.0,
        first_token_s=1.5,
        rounds=((2, 1),),
        output_hash="00ff",
        text=None,
    ).model_dump_json()
)
BELOW_NOTHING = {
    **{
        f"energy.0.{name}": {"energy": [ENERGY | {name: -1e-3}]}
        for name in ("energy_j", "start_edge_j", "end_edge_j", "sampling_j", "gain_j", "offset_j")
    },
    **{
        f"generations.0.{name}": {"generations": [GENERATION | {name: -1}]}
        for name in ("prompt_tokens", "output_tokens", "wasted_tokens")
    },
    "generations.0.rounds.0.0": {"generations": [GENERATION | {"rounds": [[-2, 1]]}]},
    "generations.0.rounds.0.1": {"generations": [GENERATION | {"rounds": [[2, -1]]}]},
    "generations.0.end_s": {"generations": [GENERATION | {"end_s": 0.5}]},
    "generations.0.phases_s.draft": {"generations": [GENERATION | {"phases_s": {"draft": -1.0}}]},
    "generations.0.prefill_energy.0.energy_j": {
        "generations": [GENERATION | {"prefill_energy": [ENERGY | {"energy_j": -1.0}]}]
    },
    "end_s": {"end_s": 0.5},
}


def test_a_whole_generation_is_read_alike(tmp_path):
    path = tmp_path / LEDGER
    path.write_text(json.dumps(WHOLE | {"generations": [GENERATION]}) + "\n")
    assert quick_rows("r", path).equals(strict(path))


@pytest.mark.parametrize(("field", "change"), BELOW_NOTHING.items(), ids=list(BELOW_NOTHING))
def test_less_than_nothing_is_a_broken_line_to_both_readers(field, change, tmp_path):
    path = tmp_path / LEDGER
    path.write_text(json.dumps(WHOLE) + "\n" + json.dumps(WHOLE | change) + "\n")
    assert quick_rows("r", path) is None
    with pytest.raises(UserError, match=rf"{LEDGER}:2: {re.escape(field)}: .*; restore the file from a copy"):
        read_ledger(path)


def test_nothing_is_not_less_than_nothing(tmp_path):
    path = tmp_path / LEDGER
    path.write_text(json.dumps(WHOLE | {"energy": [ENERGY | {"energy_j": 0.0}], "end_s": 1.0}) + "\n")
    assert quick_rows("r", path).equals(strict(path))


@pytest.mark.parametrize("end", ['{"kind":"tri', "\n\n", "no json\n", "[1]\n", json.dumps(WHOLE)])
def test_a_torn_blank_or_broken_line_is_left_to_the_strict_reader(end, tmp_path):
    path = tmp_path / LEDGER
    path.write_text(json.dumps(WHOLE) + "\n" + end)
    assert quick_rows("r", path) is None


def test_load_falls_back_and_names_the_line(repository, tmp_path, monkeypatch):
    demo = repository / "results" / "h200" / "demo"
    for name in ("plan.yaml", "environment.json", LEDGER):
        (tmp_path / name).write_bytes((demo / name).read_bytes())
    monkeypatch.setattr(ledger_columns, "LARGE_BYTES", 0)
    assert load(tmp_path).arrow.num_rows == 64
    with (tmp_path / LEDGER).open("a") as file:
        file.write(json.dumps(WHOLE | {"status": "lost"}) + "\n")
    with pytest.raises(UserError, match=rf"{LEDGER}:113: status"):
        load(tmp_path)


@pytest.mark.parametrize("large_bytes", [0, 1 << 40], ids=["quick", "strict"])
def test_a_line_that_stands_twice_is_told(large_bytes, repository, tmp_path, monkeypatch):
    demo = repository / "results" / "h200" / "demo"
    for name in ("plan.yaml", "environment.json"):
        (tmp_path / name).write_bytes((demo / name).read_bytes())
    monkeypatch.setattr(ledger_columns, "LARGE_BYTES", large_bytes)
    attempts = (WHOLE, WHOLE | {"attempt": 1}, WHOLE | {"trial_id": "c|q2|0"})
    path = tmp_path / LEDGER
    path.write_text("".join(json.dumps(line) + "\n" for line in attempts))
    assert not load(tmp_path).warnings
    with path.open("a") as file:
        for end_s in (3.0, 4.0):
            file.write(json.dumps(WHOLE | {"attempt": 1, "end_s": end_s}) + "\n")
    table = load(tmp_path)
    assert sorted(table.arrow["duration_s"].to_pylist()) == [1.0, 3.0]
    (warning,) = table.warnings
    assert "2 lines of the ledger repeat a Trial and attempt that an earlier line has" in warning
