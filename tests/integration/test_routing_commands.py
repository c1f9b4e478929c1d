"""``joulewise fit``, ``route`` and ``ask``: from a ledger to an answer, on an engine without a model."""

from __future__ import annotations

import itertools
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import scripted_engine
from joulewise.analysis.curve_file import curve_json
from joulewise.analysis.curve_points import Origin
from joulewise.analysis.curves import fit_curve
from joulewise.cli.main import app
from joulewise.energy.meter import Meter
from joulewise.engines import ENGINES
from joulewise.ledger import load
from joulewise.routing.router_file import load_router, save
from planted_curve import grid
from routing_runs import DIRECT, PLAN, refused, said, steady

pytest.importorskip("scipy", reason="learning needs the extra routing")


def test_from_a_ledger_to_an_answer_and_back(learnt: Path) -> None:
    told = said("fit", "run", "-o", "router.npz").output
    assert "6 options, 15 queries learnt from" in told
    router = load_router("router.npz")
    assert set(DIRECT) <= set(router.learnt)
    # A lossless decoding gives the same answers, so there are two reasonings of two engines to learn.
    assert len(router.performance.options) == 4
    told = said("route", "What is 12 times 7?", "--explain").output
    assert "taken" in told
    assert all(name in told for name in DIRECT)
    choice = json.loads(said("route", "What is 12 times 7?", "--json").output)
    assert choice["option"] in router.learnt
    assert choice["expected"]["energy_j"]["mean"] > 0
    done = said("ask", "What is 12 times 7?", "--reference", "84", "-o", "asked", "--json")
    answered = json.loads(done.stdout)
    assert answered["option"] == json.loads(said("route", "What is 12 times 7?", "--json").output)["option"]
    assert answered["answer"].startswith("Answer: ")
    assert answered["energy_j"] > 0
    assert answered["correct"] is False
    table = load("asked").arrow.to_pylist()
    assert [(row["task"], row["correct"]) for row in table] == [("asked-1", False)]
    assert "6 options, 16 queries learnt from" in said("fit", "run", "asked", "-o", "again.json").output
    assert load_router("again.json").saw("What is 12 times 7?")
    assert said("route", "What is 12 times 7?", "--router", "again.json").output


def test_a_moved_folder_of_asked_questions_is_learnt_from(learnt: Path) -> None:
    said("ask", "What is 2 plus 2?", "--reference", "4", "-o", "asked")
    Path("asked").rename("elsewhere")
    assert "16 queries" in said("fit", "run", "elsewhere", "-o", "again.npz").output


def test_the_same_sources_give_the_same_router(learnt: Path) -> None:
    for name in ("a.npz", "b.npz"):
        said("fit", "run", "-o", name)
    assert Path("a.npz").read_bytes() == Path("b.npz").read_bytes()


def test_a_batch_goes_to_the_options_of_each_question(learnt: Path) -> None:
    rows = [
        {"query": "What is 3 plus 4?", "reference": "7", "id": "sum", "domain": "arithmetic"},
        {"query": "Name a colour."},
        {"query": "Which?\nA. one\nB. two\nC. three\nD. four", "reference": "D"},
    ]
    Path("batch.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = said("ask", "--batch", "batch.jsonl", "-o", "asked", "--json", "--pin", "small*")
    answered = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["id"] for one in answered] == ["sum", "line-2", "line-3"]
    assert [one["correct"] for one in answered][1] is None
    assert all(one["option"].startswith("small@") for one in answered)
    assert len(load("asked").arrow) == 3
    assert "1 answer has no score" in said("fit", "run", "asked", "-o", "again.npz").output


def test_a_batch_from_standard_input(learnt: Path) -> None:
    lines = json.dumps({"query": "Name a colour.\u2028Or two.", "id": "a"}, ensure_ascii=False) + '\n{"query": "Hi"}\n'
    done = said("ask", "--batch", "-", "-o", "asked", "--json", input="\ufeff" + lines)
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["a", "line-2"]
    done = CliRunner().invoke(app, ["ask", "--batch", "-", "-o", "other"], input='{"query": "Hi"}\n{')
    assert "standard input:2: not JSON" in str(done.exception)
    done = CliRunner().invoke(app, ["ask", "--batch", "-", "-o", "other"], input=b"\xff\xfe")
    assert "standard input cannot be read as UTF-8" in str(done.exception)
    assert not Path("other").exists()


def test_an_answer_that_its_token_budget_cut_off_is_told(learnt: Path) -> None:
    pin = ("--pin", "large@*vanilla/direct")
    whole = said("ask", "Name a colour.", *pin, "-o", "whole")
    assert "cut off" not in whole.stdout
    cut = said("ask", "Name a colour.", *pin, "--max-tokens", "2", "-o", "cut").stdout
    assert "its answer was cut off after 2 tokens, its token budget (--max-tokens N gives another)" in cut
    votes = ("ask", "How many?", "--answer", "number", "--max-tokens", "2")
    voted = json.loads(said(*votes, "--pin", "small*vote-3", "--json", "-o", "voted").stdout)
    assert [(one["cut"], one["samples"], one["tokens"]) for one in voted["cut_off"]] == [(2, 2, 2)]


def test_what_a_cascades_token_budget_cut_off_is_told_of_both_its_options(
    learnt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vote, then = "small@transformers/vanilla/vote-3", "large@transformers/vanilla/direct"
    said("fit", "run", "--cascade", f"{vote}>{then}", "-o", "router.npz")
    monkeypatch.setattr("joulewise.routing.asking.agreed", lambda _: False)
    told = said("ask", "How many?", "--reference", "7", "--pin", "*>*", "--max-tokens", "2", "-o", "cut").stdout
    assert f"{vote}: 2 of its 2 samples were cut off after 2 tokens" in told  # two that agree are enough
    assert f"{then}: its answer was cut off after 2 tokens" in told


def test_what_changes_nothing_is_told(learnt: Path) -> None:
    useless = "--carbon-g-per-kwh changes nothing: carbon counts by its price, --price-per-kg-co2"
    assert useless in said("route", "How many?", "--carbon-g-per-kwh", "300").stdout
    assert useless in said("ask", "How many?", "--carbon-g-per-kwh", "300", "-o", "asked").stderr
    both = said("route", "How many?", "--carbon-g-per-kwh", "300", "--carbon", "France").stdout
    assert "--carbon-g-per-kwh and --carbon changes nothing" in both or "--carbon change" in both
    assert "the policy paper takes no notice" in said("route", "q", "--carbon", "France", "--policy", "paper").stdout
    prices = ("--price-per-kwh", "0.3", "--price-per-kg-co2", "0.1")
    assert "changes nothing" not in said("route", "q", "--carbon-g-per-kwh", "300", *prices).stdout
    told = said("route", "simulate", "--rate", "5", "--seconds", "2", *prices, "--against", "joulewise").stdout
    assert "--price-per-kg-co2 changes nothing: name the grid with --carbon" in told


def test_tables_fit_the_terminal(learnt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    commands = (
        ("fit", "run", "--cascade", "small@transformers/vanilla/vote-3>large@transformers/vanilla/direct"),
        ("route", "What is 12 times 7?", "--explain", "--load", "3"),
        ("ask", "What is 12 times 7?", "--accuracy-floor", "99.9%", "--max-tokens", "2", "-o", "asked"),
        ("route", "evaluate", "router.npz", "--on", "run", "--also-seen", "--accuracy-floor", "10%"),
        ("route", "simulate", "--rate", "20", "--seconds", "3", "--max-first-token-s", "1e-6", "--idle-w", "5"),
    )
    for words in commands:
        assert max(map(len, said(*words).stdout.splitlines())) <= 80, words


def test_votes_are_not_taken_where_no_two_answers_are_alike(learnt: Path) -> None:
    choice = json.loads(said("ask", "Name a colour.", "--json", "-o", "asked").stdout)["choice"]
    assert not any("vote" in one["option"] for one in choice["options"])
    assert "none of the pinned options" in refused("ask", "Name a colour.", "--pin", "*vote*")
    assert "/vote-3" in said("ask", "How many?", "--answer", "number", "--pin", "*vote*", "-o", "voted").output


def test_what_stands_differently_is_chosen_differently(learnt: Path) -> None:

    def choice(*words: str) -> dict[str, object]:
        return dict(json.loads(said("route", "What is 12 times 7?", "--json", *words).output))

    assert choice("--pin", "large@*vanilla/direct")["option"] == "large@transformers/vanilla/direct"
    assert not str(choice("--forbid", "small*")["option"]).startswith("small")
    assert choice("--accuracy-floor", "99.9%")["best_effort"]
    assert choice("--max-joules", "1e-9")["best_effort"]
    assert choice("--policy", "paper", "--domain", "mathematics")["option"]
    loaded = choice("--load", "large@transformers=3", "--pin", "large@*vanilla/direct")
    assert any("3 running" in str(note) or "4 running" in str(note) for note in loaded["notes"])  # type: ignore[attr-defined]
    late = choice("--latency-ms", "5000", "--pin", "large@*vanilla/direct")
    assert late["expected"]["first_token_s"]["mean"] == pytest.approx(5.0, rel=0.01)  # type: ignore[index]


def test_a_question_from_standard_input(learnt: Path) -> None:
    assert (
        said("route", "-", "--json", input="What is 12 times 7?\n").output
        == said("route", "What is 12 times 7?\n", "--json").output
    )


@pytest.mark.parametrize("text", ["你好，世界" * 50, "🤷🏽‍♀️", "\x00\x07", "ﷺ" * 300])
def test_strange_questions_are_routed(learnt: Path, text: str) -> None:
    assert json.loads(said("route", "-", "--json", input=text).output)["option"]


@pytest.mark.parametrize("text", ["x" * 1_000_000, "word " * 200_000])
def test_a_question_of_a_megabyte_fits_no_context(learnt: Path, text: str) -> None:
    done = CliRunner().invoke(app, ["route", "-"], input=text)
    assert "do not fit the context of 512" in str(done.exception)


def test_options_of_outcomes_answer_by_a_plan(learnt: Path) -> None:
    lines = ["query,option,correct,energy_j,prompt_tokens,output_tokens,total_s"]
    for i in range(30):
        lines += [f"What is {i} plus {i}?,{DIRECT[1]},{i % 2},5,20,{5 + i % 3},0.5"]
        lines += [f"What is {i} plus {i}?,{DIRECT[3]},{int(i % 3 == 0)},1,20,{5 + i % 3},0.2"]
    Path("outcomes.csv").write_text("\n".join(lines) + "\n")
    said("fit", "outcomes.csv", "-o", "bare.npz")
    assert said("route", "What is 5 plus 6?", "--router", "bare.npz").output
    assert "does not know how its options answer" in refused("ask", "What is 5 plus 6?", "--router", "bare.npz")
    said("fit", "outcomes.csv", "--plan", "plan.yaml", "-o", "router.npz")
    assert said("ask", "What is 5 plus 6?", "--reference", "11", "-o", "asked").output
    Path("plan.yaml").write_text(PLAN.replace("model: large", "model: huge"))
    assert "no cell for the option large@transformers" in refused("fit", "outcomes.csv", "--plan", "plan.yaml")


def test_outcomes_without_joules_route_nothing(learnt: Path) -> None:
    Path("outcomes.csv").write_text("query,a,b\n" + "".join(f"q{i},{i % 2},1\n" for i in range(30)))
    told = said("fit", "outcomes.csv", "-o", "bare.npz").output
    assert "unknown" in told
    assert "the joules of a are not known" in refused("route", "q?", "--router", "bare.npz")


def test_mistakes_are_told_with_a_way_out(learnt: Path) -> None:
    Path("router.npz").rename("other.npz")
    assert "no router file is named" in refused("route", "q?")
    Path("other.npz").rename("router.npz")
    assert "no such" in refused("fit", "nowhere") or "not a run folder" in refused("fit", "nowhere")
    assert "ends in .npz or .json" in refused("fit", "run", "-o", "router.pickle")
    for words, told in (
        (("route", " "), "the question is empty"),
        (("route", "q", "--accuracy-floor", "80"), "--accuracy-floor 80"),
        (("route", "q", "--accuracy-floor", "80%", "--within", "2%"), "two floors"),
        (("route", "q", "--max-joules", "-1"), "--max-joules -1"),
        (("route", "q", "--pin", "huge*"), "--pin huge*: no option is called so"),
        (("route", "q", "--pin", "small*", "--forbid", "small*"), "--forbid forbids all that --pin pins"),
        (("route", "q", "--policy", "paper", "--max-joules", "1"), "--policy paper has rules of its own"),
        (("route", "q", "--policy", "paper", "--forbid", "small*"), "--policy paper has rules of its own"),
        (("route", "\udcff q"), "not UTF-8 text"),
        (("route", "q", "--price-per-second", "1"), "give --price-per-kwh too"),
        (("route", "q", "--load", "tiny=3"), "no option is of a model tiny"),
        (("route", "q", "--load", "many"), "8, or ENGINE=8"),
        (("route", "q", "--load", "1e300"), "--load 1e300: more than can be"),
        (("route", "q", "--latency-ms", "1e300"), "--latency-ms 1e300: more than can be"),
        (("route", "q", "--carbon-g-per-kwh", "1e300"), "--carbon-g-per-kwh 1e300: more than can be"),
        (("route", "q", "--max-joules", "1e300"), "--max-joules 1e+300: give a number from 1e-12 to 1e+12"),
        (("route", "q", "--price-per-kwh", "1e-300"), "--price-per-kwh 1e-300: give a number from"),
        (("route", "q", "--last-model", "small@transformers"), "go together"),
        (("route", "q", "--accuracy-critical"), "goes with --policy paper"),
        (("route", "q", "--router", "plan.yaml"), "no router file"),
        (("route", "q", "--router", "none.npz"), "none.npz: there is no such router file; `joulewise fit RUN"),
        (("route", "q", "--router", "run"), "run is a folder, and no router file: `joulewise fit RUN"),
        (("route", "evaluate", "none.npz", "--on", "run"), "`joulewise fit RUN -o router.npz` makes one"),
        (
            ("route", "evaluate", "router.npz", "--on", "run", "--also-seen", "--pair", "*e@*vote-3,large@*vote-3"),
            "the same option twice (large@transformers/vanilla/vote-3)",
        ),
        (
            ("route", "evaluate", "router.npz", "--on", "run", "--also-seen", "--pair", "*direct,*direct"),
            "the same option twice",
        ),
        (("ask",), "give a question, or a file"),
        (("ask", "q", "--batch", "-"), "with --batch FILE, not both"),
        (("ask", "--batch", "none.jsonl"), "none.jsonl cannot be read"),
        (("ask", "q", "--reference", "x", "--answer", "letter"), "--reference x: it is not one of the letters"),
        (("ask", "q", "-o", "run"), "run holds something already"),
    ):
        assert told in refused(*words), words
    for line, told in (
        ("{", "batch.jsonl:1: not JSON"),
        ("[]", "batch.jsonl:1: no text under 'query'"),
        ('{"query": ""}', "no text under 'query'"),
        ('{"query": "a", "id": 1}\n{"query": "b", "id": 1}', "batch.jsonl:2: a second question with the id '1'"),
        ("", "it holds no question"),
        ('{"query": "a", "refrence": "b"}', "the field 'refrence' is not known; did you mean 'reference'?"),
    ):
        Path("batch.jsonl").write_text(line)
        assert told in refused("ask", "--batch", "batch.jsonl")


def test_an_empty_variable_names_no_router(learnt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOULEWISE_ROUTER", "")
    assert "@transformers" in said("route", "How many?").output
    monkeypatch.setenv("JOULEWISE_ROUTER", "none.npz")
    assert "none.npz: there is no such router file" in refused("route", "How many?")


def test_joules_of_another_device_are_not_held_against_those_here(
    learnt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin = ("--pin", "large@*vanilla/direct")
    assert "not comparable" not in said("route", "Name a colour.").output
    said("ask", "Name a colour.", *pin, "-o", "same")
    told = said("route", "learn", "same", "--verdict", "right", "--corrections", "same.json").output
    assert "the joules of 1 answer" in told
    assert "left out" not in told

    def elsewhere() -> Meter:
        meter = steady()
        for source in meter.sources:
            source.spec = replace(source.spec, device="another device", provenance="modelled")  # type: ignore[misc]
        return meter

    monkeypatch.setattr("joulewise.energy.discover", elsewhere)
    why = (
        "joules learnt on 2 x a made-up device (all components, measured); here: 2 x another device (all components, "
        "modelled); not comparable"
    )
    assert f"Note: {why}" in said("route", "Name a colour.").output
    assert why in json.loads(said("route", "Name a colour.", "--json").output)["notes"]
    done = said("ask", "Name a colour.", *pin, "-o", "other")
    assert f"Note: {why}" in done.stderr
    assert f"drawn against expected says nothing here: {why}" in " ".join(done.stdout.split())
    told = said("route", "learn", "other", "--verdict", "right", "--corrections", "other.json").output
    assert f"learnt from 1 verdict and the joules of 0 answers; the joules of 1 answer left out ({why})" in told
    assert f"no answer that corrections could learn from: {why}" in refused("route", "learn", "other")
    said("ask", "What is 2 plus 2?", *pin, "--reference", "4", "-o", "mixed")
    told = " ".join(said("fit", "run", "mixed", "-o", "mixed.npz").output.split())
    assert "are learnt together and are not comparable: fit a router of each" in told
    assert len(load_router("mixed.npz").learnt["large@transformers/vanilla/direct"].sources) == 2


def test_corrections_that_cannot_be_written_are_not_told_to_be_learnt(learnt: Path) -> None:
    said("ask", "Name a colour.", "-o", "asked")
    done = CliRunner().invoke(app, ["route", "learn", "asked", "--verdict", "right", "--corrections", "no/c.json"])
    assert "no/c.json" in str(done.exception)
    assert "learnt from" not in done.output


def test_questions_whose_texts_are_not_at_hand_are_counted(learnt: Path) -> None:
    said("ask", "What is 2 plus 2?", "--reference", "4", "-o", "asked")
    for file in Path("asked").glob("asked-*.jsonl"):
        file.unlink()
    told = " ".join(said("fit", "run", "asked", "-o", "again.npz").output.split())
    assert "6 options, 15 of 16 queries learnt from (the texts of the others are not at hand)" in told


def test_a_question_that_fails_ends_with_2_and_is_told(learnt: Path) -> None:
    done = said("ask", "OVERLONG", "-o", "asked", code=2)
    assert "do not fit the context" in done.stderr
    Path("batch.jsonl").write_text('{"query": "OVERLONG"}\n{"query": "Name a colour."}\n')
    done = said("ask", "--batch", "batch.jsonl", "-o", "asked2", code=1)
    assert "line-1 failed on" in done.stderr


def test_what_is_learnt_since_corrects_and_is_forgotten(learnt: Path) -> None:
    pin = ("--pin", "large@*vanilla/direct")

    def accuracy(*words: str) -> float:
        return float(json.loads(said("route", "Name a colour.", "--json", *pin, *words).output)["expected"]["accuracy"])

    before = accuracy()
    for i in range(3):
        said("ask", "Name a colour.", *pin, "-o", f"asked{i}")
    told = said("route", "learn", "asked0", "asked1", "asked2", "--verdict", "right").output
    assert "learnt from 3 verdicts and the joules of 3 answers" in told
    assert accuracy() == before
    after = accuracy("--corrections", "corrections.json")
    assert before < after <= before + 0.2
    drawn = {accuracy("--corrections", "corrections.json", "--explore", str(seed)) for seed in range(5)}
    assert len(drawn) > 1
    said("route", "learn", "asked0", "--verdict", "0%", "--corrections", "corrections.json")
    assert accuracy("--corrections", "corrections.json") < after
    said("route", "learn", "--reset", "all")
    assert accuracy("--corrections", "corrections.json") == before
    assert "give a run to learn from" in refused("route", "learn")
    assert "there are of none at all" in refused("route", "learn", "--reset", "large")
    assert "--verdict 7" in refused("route", "learn", "asked0", "--verdict", "7")
    assert "--explore draws" in refused("route", "q", "--explore", "1")
    assert "router.npz" in refused("route", "q", "--corrections", "router.npz")


def test_a_cascade_asks_again_where_votes_differ(learnt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vote, then = "small@transformers/vanilla/vote-3", "large@transformers/vanilla/direct"
    told = said("fit", "run", "--cascade", f"{vote}>{then}", "-o", "router.npz").output
    assert f"{vote} > {then}: keeps" in told
    pinned = ("How many?", "--reference", "7", "--pin", "*>*", "--json")
    agreed = json.loads(said("ask", *pinned, "-o", "agreed").stdout)  # the engine says the same three times
    assert agreed["option"] == f"{vote} > {then}"
    assert not Path("agreed-then").exists()
    monkeypatch.setattr("joulewise.routing.asking.agreed", lambda _: False)
    differed = json.loads(said("ask", *pinned, "-o", "differed").stdout)
    assert [row["reasoning"] for row in load("differed-then").arrow.to_pylist()] == ["direct"]
    drawn = [row["total_energy_j"] for name in ("differed", "differed-then") for row in load(name).arrow.to_pylist()]
    assert differed["energy_j"] == pytest.approx(sum(drawn))
    text = json.loads(said("ask", "Name a colour.", "--json", "-o", "text").stdout)
    assert ">" not in text["option"]
    assert "no scored votes" in refused("fit", "run", "--cascade", f"{then}>{vote}")
    assert "no option is called so" in refused("fit", "run", "--cascade", "tiny>huge")
    assert "write FIRST>THEN" in refused("fit", "run", "--cascade", "tiny")


def test_a_run_that_cannot_begin_leaves_no_folder(learnt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "transformers", "nowhere:Nothing")
    with pytest.raises(ModuleNotFoundError):
        said("ask", "How many?", "-o", "asked")
    monkeypatch.setitem(ENGINES, "transformers", "scripted_engine:ScriptedEngine")
    monkeypatch.setattr("scripted_engine.ScriptedEngine.refuses", lambda *_: "it is tired")
    assert "it is tired" in refused("ask", "How many?", "-o", "refused")
    assert not Path("refused").exists()


def test_a_place_that_cannot_be_written_is_told(learnt: Path) -> None:
    assert "cannot be written" in refused("fit", "run", "-o", "/proc/router.npz")
    assert "cannot be written" in refused("fit", "run", "-o", "nowhere/router.json")
    assert "cannot be written" in refused("ask", "How many?", "-o", "/proc/asked")
    assert "cannot be written" in refused("route", "learn", "run", "--corrections", "/proc/corrections.json")


def test_labels_that_contradict_each_other_are_told(learnt: Path) -> None:
    lines = [f"q{i},a,{i % 2},5,20,5" for i in range(30)]
    Path("outcomes.csv").write_text(
        "query,option,correct,energy_j,prompt_tokens,output_tokens\n" + "\n".join([*lines, "q1,a,0,5,20,5"]) + "\n"
    )
    told = said("fit", "outcomes.csv", "-o", "bare.npz").stdout
    assert "1 pair of question and option with both right and wrong answers: the mean counts" in told
    Path("outcomes.csv").write_text(Path("outcomes.csv").read_text().replace("q3,a,1,5,", "q3,a,1,1e308,"))
    assert "outcomes.csv, line 5, field energy_j: 1e+308 is no figure" in refused("fit", "outcomes.csv")


def test_why_there_is_nothing_to_learn_is_told(learnt: Path) -> None:
    (Path("run") / "plan.yaml").write_text((Path("run") / "plan.yaml").read_text().replace("starter-maths", "gsm8k"))
    ledger = Path("run") / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace("starter-maths", "gsm8k"))
    Path("data").mkdir()
    told = refused("fit", "run", "--data", "data")
    assert "nothing to learn from in run" in told
    assert "gsm8k_test.jsonl" in told


def test_a_stop_keeps_what_is_answered_and_says_how_to_go_on(learnt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("batch.jsonl").write_text("".join(f'{{"query": "Name colour {i}."}}\n' for i in range(6)))
    generate, count = scripted_engine.ScriptedEngine.generate, itertools.count()

    def stopping(*arguments: object) -> object:
        if next(count) == 3:  # the warm-up is the first
            os.kill(os.getpid(), signal.SIGINT)
        return generate(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(scripted_engine.ScriptedEngine, "generate", stopping)
    done = said("ask", "--batch", "batch.jsonl", "-o", "asked", "--json", "--pin", "large*vanilla/direct", code=130)
    assert 0 < len(done.stdout.splitlines()) < 6
    assert "The rest: joulewise run asked/plan.yaml --out asked --resume" in done.stderr
    assert "was not run" not in done.output
    again = refused("ask", "--batch", "batch.jsonl", "-o", "asked")
    assert "if it was stopped, `joulewise run asked/plan.yaml --out asked --resume` does the rest" in again
    assert "--resume" not in refused("ask", "--batch", "batch.jsonl", "-o", "run")
    said("run", "asked/plan.yaml", "--out", "asked", "--resume")
    assert len(load("asked").arrow) == 6
    assert "15 queries" in said("fit", "run", "asked", "-o", "again.npz").output  # colours have no score


def test_what_is_named_twice_counts_once(learnt: Path) -> None:
    assert "in the place of" not in said("fit", "run", "-o", "once.npz").stderr
    assert "once.npz (in the place of an earlier one)" in said("fit", "run", "-o", "once.npz").stderr
    said("fit", "run", "./run", "-o", "twice.npz")
    assert Path("once.npz").read_bytes() == Path("twice.npz").read_bytes()


def test_corrections_of_another_router_are_refused(learnt: Path) -> None:
    said("ask", "Name a colour.", "-o", "asked")
    said("route", "learn", "asked", "--verdict", "right")
    assert "asked-1" not in Path("corrections.json").read_text()  # a run's own label is no domain
    Path("outcomes.csv").write_text(
        "query,option,correct,energy_j,prompt_tokens,output_tokens\n"
        + "".join(f"q{i},other,{i % 2},1,5,5\n" for i in range(30))
    )
    said("fit", "outcomes.csv", "-o", "other.npz")
    assert "none of which the router has" in refused(
        "route", "q", "--router", "other.npz", "--corrections", "corrections.json"
    )


def test_a_router_whose_options_were_changed_is_told(learnt: Path) -> None:
    router = load_router("router.npz")
    changed = {
        name: replace(known, way=replace(known.way, engine={**known.way.engine, "model": "other"}))
        for name, known in router.learnt.items()
        if known.way is not None
    }
    save(replace(router, learnt=changed), "changed.npz")
    assert "cannot be run" in refused("ask", "Name a colour.", "--router", "changed.npz", "-o", "asked")
    assert not Path("asked").exists()


def test_an_option_that_thinks_for_itself_is_told_of(learnt: Path) -> None:
    plan = PLAN.replace("[direct, {kind: vote, samples: 3}]", "[direct, {kind: cot, max_new_tokens: 8}]")
    Path("plan.yaml").write_text(plan.replace("reasoning: vote*", "reasoning: cot*"))
    said("run", "plan.yaml", "--out", "thought")
    said("fit", "thought", "-o", "thought.npz")
    done = said("ask", "hi", "--router", "thought.npz", "--pin", "small*cot*", "--max-tokens", "3", "-o", "asked")
    assert "--max-tokens does not cut small@transformers/vanilla/cot-8" in done.stderr


TABLE = """\
model_id,gpu_model,num_gpus,task,avg_batch_size,energy_per_token_joules,avg_output_len
m,gpu,1,chat,1,2.0,20
"""


def test_published_joules_that_a_measured_curve_goes_before_are_told(learnt: Path) -> None:
    rows = "".join(f"q{i},m/vanilla/{way},{i % 2},5,20,{5 + i % 3}\n" for i in range(30) for way in ("direct", "cot"))
    Path("outcomes.csv").write_text(f"query,option,correct,energy_j,prompt_tokens,output_tokens\n{rows}")
    Path("table.csv").write_text(TABLE)
    words = ("fit", "outcomes.csv", "-o", "bare.npz", "--published", "m/vanilla=table.csv,m,gpu")
    used = said(*words).stdout
    assert "published (gpu)" in used
    assert "changes nothing" not in used
    origin = Origin("m", "m", {}, None, None, "gpu", "vanilla", None)
    Path("m.curve.json").write_text(curve_json(fit_curve(grid(), replicates=20), origin))
    told = said(*words, "--curve", "m.curve.json").stdout
    assert "--published m/vanilla changes nothing: measured curves go before it" in told
    Path("table.csv").write_text(TABLE.replace("2.0", "1e300"))
    assert "table.csv: energy_per_token_joules 1e+300 cannot be" in refused(*words)
