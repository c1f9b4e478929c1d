"""The table of single Trials: which are shown, and what their ledger lines say."""

import json
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.ledger import load
from joulewise.report.summary import cells_of, summarise
from joulewise.report.trials import _share, trial_blocks
from sample_run import sample_run
from synthetic_table import part, row, table


def blocks_of(run, **options):
    cells = cells_of(run)
    return trial_blocks(cells, summarise(run, cells=cells), run.folders, **options)


def test_every_row_is_what_the_table_has():
    run = sample_run(6)
    found = blocks_of(run)
    assert [(b.key.task, b.key.decoding) for b in found][:2] == [("cnn_dm", "vanilla"), ("cnn_dm", "coga-5")]
    by_id = {(r["task"], r["decoding"], r["question_id"]): r for r in run.arrow.to_pylist()}
    shown = [(block, trial) for block in found for trial in block.rows]
    assert len(shown) == len(by_id) == 72
    for block, trial in shown:
        values = by_id[block.key.task, block.key.decoding, trial.question]
        assert block.component == "gpu"
        assert trial.energy_j == values["gpu_energy_j"]
        assert (trial.duration_s, trial.output_tokens) == (values["duration_s"], values["output_tokens"])
        assert (trial.score, trial.correct, trial.verdict) == (
            values["score"],
            values["correct"],
            values["check_status"],
        )
        assert trial.accepted == (values["accepted_tokens"] if values["rounds"] else None)
        assert trial.ledger is None  # it was read from none


def test_ledger_lines_are_those_of_the_file(repository):
    folder = repository / "results" / "h200" / "demo"
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    for block in blocks_of(load(folder)):
        for trial in block.rows:
            record = lines[trial.line - 1]
            assert (record["kind"], record["question_id"], record["sequence"]) == (
                "trial",
                trial.question,
                trial.sequence,
            )
            assert [r.start_j for r in trial.ledger.readings] == [r["energy_j"] for r in record["readings_start"]]
            assert [r.end_j for r in trial.ledger.readings] == [r["energy_j"] for r in record["readings_end"]]
            if trial.check_line is not None:
                check = lines[trial.check_line - 1]
                assert (check["kind"], check["trial_id"], check["status"]) == (
                    "check",
                    record["trial_id"],
                    trial.verdict,
                )


def test_the_command_of_a_cell_prints_its_lines(repository):
    folder = repository / "results" / "h200" / "demo"
    for block in blocks_of(load(folder)):
        done = subprocess.run(shlex.split(block.command), cwd=folder, capture_output=True, text=True, check=True)
        numbers = {int(line.partition(":")[0]) for line in done.stdout.splitlines()}
        assert numbers == {trial.line for trial in block.rows}


def test_where_there_are_more_than_fit_the_remarkable_ones_come_first_and_every_cell_has_a_share():
    rows = [
        row(d, f"q{i}", energy=[part("gpu", 1.0)], polluted=i == 17, check_status="tie" if i == 15 else "identical")
        for d in ("vanilla", "coga-5")
        for i in range(20)
    ]
    rows.append(row("coga-5", "q20", status="failed", error="boom"))
    vanilla, coga = blocks_of(table(rows), most=8)
    assert (vanilla.total, coga.total) == (20, 21)
    assert [trial.question for trial in coga.rows] == ["q15", "q17", "q20", "q0"]
    assert coga.rows[2].note == "boom"
    assert [trial.question for trial in vanilla.rows] == ["q15", "q17", "q0", "q1"]


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 120))
def test_shares_fill_the_page_and_no_more(sizes, most):
    share = _share(sizes, most)
    shown = sum(min(size, share) for size in sizes)
    assert shown <= most
    assert shown == sum(sizes) or sum(min(size, share + 1) for size in sizes) > most


@pytest.mark.parametrize(
    ("polluted", "cores", "told"), [(None, 0.0, False), (False, 0.0, False), (True, 1.0, True), (False, None, None)]
)
def test_a_trial_of_unknown_pollution_is_called_neither_polluted_nor_clean(polluted, cores, told):
    (block,) = blocks_of(table([row(polluted=polluted, other_cpu_cores=cores, energy=[part("gpu", 1.0)])]))
    assert block.rows[0].polluted is told
