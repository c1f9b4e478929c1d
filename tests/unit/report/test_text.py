"""Figures in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.analysis.intervals import Quantity, unknown_quantity
from joulewise.report.summary import sections, summarise
from joulewise.report.text import common_reason, figure, headlines, interval, run_lines, trial_notes, value
from synthetic_table import part, row, table


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0.0, "0"),
        (1.0, "1.00"),
        (1.2345, "1.23"),
        (0.9996, "1.00"),
        (9.996, "10.0"),
        (99.96, "100"),
        (0.012345, "0.0123"),
        (123456.0, "123,000"),
        (-1.5, "-1.50"),
        (1.5e-7, "1.50e-07"),
        (2.5e10, "2.50e+10"),
    ],
)
def test_three_significant_digits(number, shown):
    assert figure(number) == shown


@given(st.floats(1e-12, 1e12))
def test_what_is_shown_is_the_number(number):
    assert float(figure(number).replace(",", "")) == pytest.approx(number, rel=0.005)


def quantity(value, lower, upper, unbounded=False):
    return Quantity(value, lower, upper, 10, 10, "measured", unbounded=unbounded)


def test_values_and_intervals():
    assert value(quantity(1.5, 1.0, 2.0)) == "1.50"
    assert interval(quantity(1.5, 1.0, 2.0)) == "1.00 – 2.00"
    assert interval(quantity(0.015, 0.01, 0.02), 100) == "1.00 – 2.00"
    assert value(quantity(None, 130.0, None, True)) == "≥ 130"
    assert interval(quantity(None, 130.0, None, True)) is None
    assert interval(quantity(200.0, 130.0, None, True)) == "130 or more"
    assert value(quantity(None, None, None, True)) == "unbounded"
    assert value(unknown_quantity("why")) == "unknown"
    assert interval(unknown_quantity("why")) is None


def test_a_column_of_unknowns_with_one_reason_has_that_reason():
    assert common_reason([unknown_quantity("a"), unknown_quantity("a")]) == "a"
    assert common_reason([unknown_quantity("a"), unknown_quantity("b")]) is None
    assert common_reason([unknown_quantity("a"), quantity(1.0, 1.0, 1.0)]) is None
    assert common_reason([quantity(None, 1.0, None, True)]) is None
    assert common_reason([]) is None


def lines_of(environment):
    (run,) = summarise(table([row()], environments={"r": environment})).runs
    return run_lines(run)


def test_what_is_not_known_of_an_engine_is_left_out():
    served = {"label": "s", "model": "m", "model_class": "llama.cpp: m.gguf", "parameters": 135_000_000}
    known = {"dtype": "bfloat16", "devices": ["gpu 0"]}
    unknown = {"dtype": "unknown", "devices": ["this machine"]}
    told = [dict(lines_of({"engines": [served | facts]}))["Engine"] for facts in (known, unknown)]
    assert told == [
        "s: m, llama.cpp: m.gguf, 135 million parameters, bfloat16, gpu 0",
        "s: m, llama.cpp: m.gguf, 135 million parameters, this machine",
    ]
    software = dict(lines_of({"engines": [served | {"versions": {"vLLM": "unknown", "torch": "2"}}]}))["Software"]
    assert software == "torch 2"


def idle(*baselines):
    keys = ("engine", "component", "power_w", "provenance")
    lines = lines_of({"idle": [dict(zip(keys, baseline, strict=True)) for baseline in baselines]})
    at = [name for name, _ in lines].index("Idle power")
    return [words for i, (name, words) in enumerate(lines) if i == at or (i > at and not name)]


def test_idle_power_that_differs_names_its_engines_and_what_is_alike_stands_once():
    cpu = [(engine, "cpu", watts, "modelled") for engine, watts in (("a@x", 16.11), ("b@x", 16.13))]
    assert idle(("a@x", "gpu", 119.0, "measured"), ("b@x", "gpu", 121.0, "measured"), *cpu) == [
        "GPU 119 W with a@x, 121 W with b@x",
        "CPU 16.1 W (modelled)",
    ]
    assert idle(("a@x", "gpu", 119.1, "measured"), ("b@x", "gpu", 119.2, "measured"), *cpu) == [
        "GPU 119 W, CPU 16.1 W (modelled)"
    ]


def test_baselines_of_a_resumed_run_are_one_range():
    assert idle(("a@x", "gpu", 130.0, "measured"), ("a@x", "gpu", 127.0, "measured")) == ["GPU 127 to 130 W"]
    assert idle(("a@x", "gpu", 127.1, "measured"), ("a@x", "gpu", 127.2, "measured")) == ["GPU 127 W"]


def test_versions_that_only_engines_tell_are_shown_once():
    engines = [
        {"label": "a", "versions": {"torch": "2.11.0+cu130", "bitsandbytes": "0.50.2", "server": "b1"}},
        {"label": "b", "versions": {"bitsandbytes": "0.50.2", "server": "b2"}},
    ]
    lines = dict(lines_of({"python": "3.12.3", "packages": {"torch": "2.11.0"}, "engines": engines}))
    assert lines["Software"] == "python 3.12.3, torch 2.11.0, bitsandbytes 0.50.2, server b1 and b2"


def test_a_note_that_holds_for_two_components_stands_once():
    sources = [{"component": c, "provenance": "modelled", "note": "No counters."} for c in ("cpu", "dram")]
    assert [words for _, words in lines_of({"sources": sources})].count("No counters.") == 1


def test_a_headline_puts_speed_and_energy_side_by_side():
    def questions(task, seconds, joules):
        return [
            row(d, f"q{i}", task=task, duration_s=s, energy=[part("gpu", j)])
            for d, s, j in (("vanilla", 2.0, 100.0), ("coga-5", seconds, joules))
            for i in range(6)
        ]

    summary = summarise(table([*questions("a", 1.0, 50.0), *questions("b", 1.0, 200.0), *questions("c", 1.0, 50.0)]))
    told = headlines(sections(summary)[0], summary.runs[0])
    assert told == [
        "coga-5: faster (factor 2.00) and saves energy (factor 2.00) on a and c; faster (factor 2.00) and costs energy "
        "(factor 0.500) on b.",
        "Faster, and yet costing energy: coga-5 on b.",
    ]


def test_a_run_that_is_not_finished_says_so():
    rows = [row("vanilla", f"q{i}") for i in range(5)]
    told = {}
    for planned in (None, 5, 8):
        environment = {} if planned is None else {"planned_trials": planned}
        summary = summarise(table(rows, plans={"r": {"name": "r"}}, environments={"r": environment}))
        run = next(r for r in summary.runs if r.trials)
        told[planned] = [n for n in trial_notes(run, summary) if "not finished" in n], dict(run_lines(run))["Trials"]
    assert told[None][0] == told[5][0] == []
    assert told[8] == (
        ["The run is not finished: 5 of 8 planned Trials are there."],
        "5 of 8 planned: 5 ok, 0 failed, 0 polluted",
    )


SOURCES = {"sources": [{"component": "gpu", "device": "NVIDIA H200", "method": "NVML energy counter"}]}


@pytest.mark.parametrize(
    ("rows", "phrase"),
    [
        ([], "no Trial yet"),
        ([row(status="failed", error="boom")], "no Trial succeeded"),
        ([row()], "in no Trial"),
    ],
)
def test_a_source_without_a_trial_is_not_called_missing(rows, phrase):
    summary = summarise(table(rows, plans={"r": {}}, environments={"r": SOURCES}))
    told = dict(run_lines(summary.runs[0]))
    assert told["GPU joules"] == f"{phrase} (NVIDIA H200: NVML energy counter)"
    assert ("CPU joules" in told) == (phrase == "in no Trial")


def test_what_a_plan_leaves_out_is_told_with_its_reason():
    exclude = [
        {"engine": "t5", "decoding": "eagle*", "reasoning": "*", "task": "*", "reason": "no head is published"},
        {"engine": "*", "decoding": "*", "reasoning": "vote-3", "task": "mt_bench", "reason": None},
    ]
    summary = summarise(table([row(energy=[part("gpu", 1.0)])], plans={"r": {"name": "p", "exclude": exclude}}))
    lines = run_lines(summary.runs[0])
    assert [line for line in lines if line[0] == "Left out"] == [("Left out", "t5, eagle* (no head is published)")]
    assert lines[lines.index(("Left out", "t5, eagle* (no head is published)")) + 1] == ("", "vote-3, mt_bench")
    assert "Left out" not in dict(run_lines(summarise(table([row()], plans={"r": {"name": "p"}})).runs[0]))


def test_a_section_names_the_drafts_of_its_own_decodings_alone():
    rows = [
        row(d, f"q{i}", reasoning=r)
        for d, r in (("vanilla", "direct"), ("coga-5", "direct"), ("vanilla", "cot"))
        for i in range(5)
    ]
    engine = {"label": rows[0]["engine"], "drafts": {"coga-5": "a draft of 2 layers"}}
    summary = summarise(table(rows, environments={"r": {"engines": [engine]}}))
    told = {s.reasoning: " ".join(headlines(s, summary.runs[0])) for s in sections(summary)}
    assert "coga-5 drafts with a draft of 2 layers." in told["direct"]
    assert "draft" not in told["cot"]
