"""The report in a terminal."""

import io

import pytest

from joulewise.report.summary import summarise
from joulewise.report.terminal import print_brief, print_explanation, print_result, print_summary
from sample_run import sample_run
from sample_tradeoff import sample_tradeoff
from synthetic_table import part, row, table


def printed(run, **options):
    out = io.StringIO()
    print_summary(summarise(run, **options), out)
    return out.getvalue()


@pytest.fixture(scope="module")
def sample():
    return printed(sample_run(), price_per_kwh=0.3, currency="EUR")


def test_it_fits_80_columns_and_has_no_control_codes(sample):
    assert max(len(line) for line in sample.splitlines()) <= 80
    assert "\x1b" not in sample


def test_it_says_what_a_reader_needs(sample):
    flat = " ".join(sample.split())
    for words in (
        "NVIDIA H200",
        "modelled, not measured",
        "cannot show the paradox",
        "a correctness fixture, not a fair draft",
        "1 of 300 Trials failed",
        "12 of 299 Trials (4.01 %) are polluted",
        "Savings against vanilla",
        "Same output as vanilla?",
        "not lossless",
        "Acceptance length",
        "a line was torn",
    ):
        assert words in flat
    assert "EUR" in flat


def test_names_are_never_cut(sample):
    for name in ("prompt-lookup-10", "dyga-20", "coga-5", "cnn_dm"):
        assert name in sample
    assert "…" not in sample


def test_a_machine_without_a_gpu_says_unknown_once():
    flat = " ".join(printed(sample_run(6, gpu=False)).split())
    assert "GPU energy γ_GPU: unknown (no GPU was metered here)." in flat
    assert "Modelled energy can prove neither a saving nor a cost." in flat
    assert "saves energy" not in flat
    assert "costs energy" not in flat


def test_without_polluted_is_said():
    assert "left out of all figures" in " ".join(printed(sample_run(), without_polluted=True).split())


def test_markup_in_names_is_text():
    out = printed(table([row(question="q", task="[red]x[/red]", model="[b]m[/b]", energy=[part("gpu", 1.0)])]))
    assert "[red]x[/red]" in out
    assert "[b]m[/b]" in out


def test_few_questions_have_values_and_a_reason_for_no_interval():
    rows = [row(d, q, energy=[part("gpu", 1.0)]) for d in ("vanilla", "coga-5") for q in ("q1", "q2")]
    out = printed(table(rows))
    assert "1.00 – 1.00" not in out
    assert out.count("fewer than 5 questions") == 4  # under savings, joules, answers and drafts, once each
    assert "cannot tell whether it is faster or slower" in " ".join(out.split())


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([row("coga-5", "q1")], "no vanilla Trial to compare with"),
        ([row("vanilla", "q1", status="failed", error="boom", output_tokens=0)], "1 x boom"),
        (
            [row("vanilla", "q1", status="failed", error=None), row("coga-5", "q1", energy=[part("gpu", None)])],
            "no vanilla Trial succeeded",
        ),
        (
            [row("vanilla", "q1", energy=[part("gpu", 0.0)]), row("coga-5", "q1", energy=[part("gpu", 0.0)])],
            "the meter read 0 J",
        ),
    ],
)
def test_what_is_unknown_says_why(rows, words):
    assert words in " ".join(printed(table(rows)).split())


@pytest.mark.parametrize(("polluted", "told"), [(6, True), (4, False)])
def test_the_result_says_that_most_of_it_was_disturbed(polluted: int, told: bool):
    rows = [row(d, f"q{i}", polluted=2 * i < polluted) for i in range(4) for d in ("vanilla", "coga-5")]
    out = io.StringIO()
    print_result(summarise(table(rows)), out)
    assert (f"used the CPU during {polluted} of 8 Trials" in " ".join(out.getvalue().split())) == told


@pytest.mark.parametrize(
    ("polluted", "unknown", "without", "words"),
    [
        (2, 4, False, "used the CPU during 2 of 8 Trials (and for 4 more that is not known)"),
        (0, 6, False, "not known for 6 of 8 Trials"),
        (4, 4, True, "not known for 4 of 4 Trials"),
        (1, 3, False, None),
        (5, 1, True, None),
    ],
)
def test_what_is_not_known_to_be_quiet_counts_as_doubt(polluted: int, unknown: int, without: bool, words: str | None):
    kinds = [{"polluted": True}] * polluted + [{"other_cpu_cores": None}] * unknown + [{}] * (8 - polluted - unknown)
    names = [(d, f"q{i}") for i in range(4) for d in ("vanilla", "coga-5")]
    rows = [row(d, q, energy=[part("gpu", 1.0)], **kind) for (d, q), kind in zip(names, kinds, strict=True)]
    out = io.StringIO()
    print_result(summarise(table(rows), without_polluted=without), out)
    said = " ".join(out.getvalue().split())
    assert (words in said) if words else ("CPU" not in said)


def test_an_explanation_says_what_was_disturbed():
    rows = [row(d, f"q{i}", polluted=i == 0) for i in range(4) for d in ("vanilla", "coga-5")]
    rows[-1]["other_cpu_cores"] = None
    out = io.StringIO()
    print_explanation(summarise(table(rows), without_polluted=True), out)
    said = " ".join(out.getvalue().split())
    assert "2 of 8 Trials (25 %) are polluted by other processes' CPU use: left out of all figures." in said
    assert "For 1 of 8 Trials other processes' CPU use is not known: in the figures all the same." in said


def test_in_brief_it_is_a_page_or_two_with_the_verdicts_and_without_the_rest():
    summary = summarise(sample_run())
    out, whole = io.StringIO(), io.StringIO()
    print_brief(summary, out)
    print_summary(summary, whole)
    lines = out.getvalue().splitlines()
    assert len(lines) < 150 < len(whole.getvalue().splitlines())
    assert max(map(len, lines)) <= 80
    flat = " ".join(out.getvalue().split())
    for words in ("Savings against vanilla", "modelled, not measured", "The papers' claims", "confirmed", "Result: "):
        assert words in flat
    for words in ("Software", "Net joules", "Published, arXiv", "Same output as vanilla?"):
        assert words not in flat


def test_in_brief_ways_of_answering_have_a_table_and_a_run_without_vanilla_its_joules():
    out = io.StringIO()
    print_brief(summarise(sample_tradeoff(60)), out)
    assert "Accuracy against joules" in out.getvalue()
    assert "Against direct" not in out.getvalue()
    assert "\nJoules, " not in out.getvalue()
    out = io.StringIO()
    print_brief(summarise(table([row("vanilla", "q1", energy=[part("gpu", 1.0)])])), out)
    assert "\nJoules, " in out.getvalue()


def test_the_result_names_the_engine_where_there_are_several():
    rows = [
        row(d, f"q{i}", engine=e, energy=[part("cpu", 2.0 if d == "vanilla" else 1.0)])
        for e in ("one", "two")
        for d in ("vanilla", "coga-5")
        for i in range(8)
    ]
    out = io.StringIO()
    print_result(summarise(table(rows)), out)
    for engine, line in zip(("one", "two"), out.getvalue().split("Result, ")[1:], strict=True):
        assert " ".join(line.split()).startswith(f"{engine}, direct: coga-5: ")
    out = io.StringIO()
    print_result(summarise(table([row()])), out)
    assert out.getvalue() == ""
