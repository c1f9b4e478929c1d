"""The summary: what it holds for odd runs, and that it is plain data."""

import json

import pytest

from joulewise.report.summary import sections, summarise, to_json
from joulewise.report.text import run_lines
from joulewise.table import RunTable
from sample_run import ENVIRONMENT, sample_run
from synthetic_table import part, row, table


def test_the_facts_of_a_run():
    (run,) = summarise(sample_run()).runs
    assert (run.name, run.plan, run.started_at) == ("sample-run", "sample", "2026-11-30T10:00:00+00:00")
    assert (run.trials, run.ok, run.failed, run.polluted) == (300, 299, 1, 12)  # 3 tasks x 4 decodings x 25; question 7
    assert run.errors == (("CUDA out of memory <b>", 1),)
    assert run.questions == {"cnn_dm": 25, "gsm8k": 25, "mmlu": 25}
    assert run.machine == "Some Xeon & Co, 16 cores, 128.0 GB of memory"
    assert run.gpus == ("NVIDIA H200, driver 580.159.04, power limit 700 W, GPU-1234",)
    assert run.commit == "0123456789abcdef (changed)"
    assert run.idle[0].power_w == 120.4
    assert run.software == {"python": "3.12.3", "torch": "2.11.0", "transformers": "5.17.0"}


def test_gpus_that_were_metered_are_listed_and_the_others_counted():
    cards = [{"name": "NVIDIA H200", "uuid": f"GPU-{i}"} for i in range(8)]
    sources = [{"component": "gpu", "source_id": f"nvml:GPU-{i}"} for i in (2, 5)]
    environment = {"machine": {"gpus": cards}, "sources": sources}
    summary = summarise(table([row()], environments={"r": environment}))
    (run,) = summary.runs
    assert (run.gpus, run.other_gpus) == (("NVIDIA H200, GPU-2", "NVIDIA H200, GPU-5"), 6)
    lines = run_lines(run)
    assert [told for name, told in lines if name == "GPU"] == list(run.gpus)
    assert ("Other GPUs", "6 in the machine, not metered") in lines
    relayed = environment | {"sources": [{"component": "gpu", "source_id": "prometheus:a/0"}]}
    (run,) = summarise(table([row()], environments={"r": relayed})).runs
    assert (len(run.gpus), run.other_gpus) == (8, 0), "which of them is not known"


def test_where_joules_come_from():
    (run,) = summarise(sample_run()).runs
    gpu, cpu, dram, total = run.origins
    assert (gpu.provenance, cpu.provenance, dram.provenance, total.provenance) == (
        "measured",
        "modelled",
        None,
        "modelled",
    )
    assert gpu.sources == ("NVIDIA H200: NVML energy counter",)
    assert gpu.gain_unknown
    assert not cpu.gain_unknown  # a model states its own uncertainty
    assert dram.notes == ("No powercap here. Ask the host.",)
    assert run.modelled == ("cpu",)
    assert cpu.trials == {"modelled": 299}


def test_the_component_that_is_shown_first():
    assert [s.component for s in sections(summarise(sample_run()))] == ["gpu"]  # measured, the total is modelled
    assert [s.component for s in sections(summarise(sample_run(gpu=False)))] == ["total"]
    measured = table([row(energy=[part("gpu", 1.0), part("cpu", 1.0)])])
    assert [s.component for s in sections(summarise(measured))] == ["total"]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"machine": None, "engines": None, "sources": None, "git": None, "idle": None, "packages": None},
        {"machine": "x", "engines": [1, {}], "sources": [{}], "absent": [{}], "idle": [{}, 3], "git": {}},
        {"machine": {"gpus": [{}, {"error": "lost"}]}, "engines": [{"devices": "cpu", "parameters": "many"}]},
    ],
)
def test_every_key_of_the_environment_is_optional(environment):
    summary = summarise(table([row()], environments={"r": environment}))
    assert summary.runs[0].trials == 1
    assert summary.runs[0].started_at == "2026-11-30T10:00:00+00:00"  # the first Trial's


def test_without_polluted_leaves_them_out_and_still_counts_them():
    with_all, without = summarise(sample_run()), summarise(sample_run(), without_polluted=True)
    assert without.runs[0].polluted == with_all.runs[0].polluted == 12
    assert {c.accuracy.n_questions for c in with_all.costs} - {0} == {24, 25}
    assert {c.accuracy.n_questions for c in without.costs} - {0} == {23, 24}


def test_several_runs_stand_side_by_side():
    import pyarrow as pa

    one, two = sample_run(6, name="a"), sample_run(6, name="b", seed=1)
    summary = summarise(RunTable(pa.concat_tables([one.arrow, two.arrow])))
    assert [run.name for run in summary.runs] == ["a", "b"]
    alone = summarise(RunTable(one.arrow))
    assert [s for s in summary.savings if s.key.run == "a"] == list(alone.savings)
    assert len(summary.savings) == 2 * len(alone.savings)


def test_a_run_without_trials_is_listed():
    summary = summarise(table([], plans={"empty": {"name": "p"}}, environments={"empty": ENVIRONMENT}))
    assert [run.name for run in summary.runs] == ["empty"]
    assert summary.costs == ()


def test_json_is_plain_and_has_no_infinity():
    hard = [row(question=f"q{i}", energy=[part("gpu", 1.0)], correct=i == 0) for i in range(6)]
    hard += [row("coga-5", f"q{i}", energy=[part("gpu", 1.0)], correct=False) for i in range(6)]
    for data in (hard, []):
        text = json.dumps(to_json(summarise(table(data), price_per_kwh=0.3)), allow_nan=False)
        assert json.loads(text)["format_version"] == 1


def test_runs_keep_the_order_in_which_they_were_given():
    rows = [row(d, run=run) for run in ("a10", "b", "a9") for d in ("vanilla", "coga-5")]
    summary = summarise(table(rows, plans={"b": {}, "a10": {}, "a9": {}}))
    assert [run.name for run in summary.runs] == ["b", "a10", "a9"]
    for found in (summary.costs, summary.savings, sections(summary)):
        assert list(dict.fromkeys(getattr(x, "key", x).run for x in found)) == ["b", "a10", "a9"]
    unnamed = summarise(table(rows))
    assert [run.name for run in unnamed.runs] == ["a9", "a10", "b"]
