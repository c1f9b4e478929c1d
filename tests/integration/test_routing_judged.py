"""``joulewise route evaluate`` and ``route simulate``: how good a router is, on an engine without a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from routing_runs import DIRECT, refused, said

pytest.importorskip("scipy", reason="learning needs the extra routing")


def test_a_router_is_judged_by_answers_that_it_did_not_learn_from(learnt: Path) -> None:
    assert "the router learnt from all of the 15 questions" in refused("route", "evaluate", "router.npz", "--on", "run")
    told = said("route", "evaluate", "router.npz", "--on", "run", "--also-seen", "--json", "figures.json").stdout
    assert "15 questions; the router learnt from 15, so figures flatter it" in told
    assert json.loads(Path("figures.json").read_text())["queries"] == 15
    figures = said("route", "evaluate", "router.npz", "--on", "run", "--also-seen", "--json", "-").stdout
    assert json.loads(figures)["also_seen"]
    assert "--margin 7" in refused("route", "evaluate", "router.npz", "--on", "run", "--margin", "7")
    assert "there is no such router file" in refused("route", "evaluate", "none.npz", "--on", "run")
    told = refused("route", "evaluate", "router.npz", "--on", "run", "--also-seen", "--json", "nowhere/f.json")
    assert "`joulewise route evaluate ROUTER --on DATA --json FILE`" in told


def test_a_router_is_judged_by_floors_and_a_pair(learnt: Path) -> None:
    words = ("route", "evaluate", "router.npz", "--on", "run", "--also-seen")
    small, large = "small@transformers/vanilla/direct", "large@transformers/vanilla/direct"
    told = said(*words, "--accuracy-floor", "5%", "--accuracy-floor", "0.99", "--pair", f"{small},{large}").stdout
    assert f"{small} against {large}" in told or f"{small} and {large}: no gap" in told
    assert "5.0%: cannot prove with" in told or "5.0%: proven" in told
    assert "99.0%" in told
    shorter = said(*words, "--pair", "small*vanilla/direct,large*vanilla/direct").stdout
    assert f"{small} against {large}" in shorter or f"{small} and {large}: no gap" in shorter
    for pair, why in (
        (small, "write WEAK,STRONG"),
        (f"{small},huge", "write WEAK,STRONG, two options by name; there are"),
        (f"{small},large*", "large* is several options"),
        (f"{small},small*prompt*/direct", "both give the same answers"),
    ):
        assert why in refused(*words, "--pair", pair), pair
    for floor in ("80", "-1%", "101%", "often"):
        assert f"--accuracy-floor {floor}" in refused(*words, "--accuracy-floor", floor)
    assert "--margin 0%" in refused(*words, "--margin", "0%")


def test_limits_and_floors_that_traffic_could_not_keep_are_told(learnt: Path) -> None:
    words = ("route", "simulate", "--rate", "5", "--seconds", "4", "--against", "joulewise")
    told = said(*words, "--max-first-token-s", "1e-6", "--accuracy-floor", "99.9%").stdout
    assert "joulewise: no option was expected to keep all limits in 100.0% of its choices" in told
    assert "joulewise: no option was expected to reach the floor in 100.0% of its choices" in told
    easy = said(*words, "--max-first-token-s", "1000").stdout
    assert "no option was expected" not in easy
    found = json.loads(said(*words, "--max-joules", "1e-9", "--json", "-").stdout)
    assert {one["name"]: one["limits_missed"] for one in found["routers"]}["joulewise"] == 1.0


def test_traffic_is_replayed_through_routers(learnt: Path) -> None:
    told = said("route", "simulate", "--rate", "50", "--seconds", "5", "--max-total-s", "20", "--idle-w", "75").stdout
    for words in ("joules saved", "load-blind", "cost-only", DIRECT[0], "Servers at rest", "predictions, not observed"):
        assert words in told
    rows = "".join(f"2024-05-10 00:00:{i:02d}.000000,{20 + i},{5 + i}\n" for i in range(30))
    Path("trace.csv").write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    words = ("route", "simulate", "trace.csv", "--on", "run", "--carbon", "France", "--against", "oracle")
    found = json.loads(said(*words, "--seconds", "20", "--json", "-").stdout)
    assert found["observed"]
    names = {one["name"]: one for one in found["routers"]}
    assert "oracle" in names
    assert {one["requests"] for one in names.values()} == {20}
    assert names["oracle"]["carbon_g"] > 0
    fast = json.loads(said(*words, "--seconds", "20", "--speed", "2", "--json", "-").stdout)
    assert fast["routers"][0]["requests"] == 30


def test_traffic_that_cannot_be_is_told(learnt: Path) -> None:
    Path("empty.csv").write_text("")
    Path("others.csv").write_text("query,x,y\nq,1,0\n")
    Path("names.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    for words, told in (
        ((), "give a trace, or a rate"),
        (("--rate", "0"), "--rate 0"),
        (("--rate", "1", "--speed", "2"), "--speed is of a trace"),
        (("none.csv",), "none.csv"),
        (("empty.csv",), "empty.csv"),
        (("--rate", "1", "--against", "nobody"), "no router or option is named nobody"),
        (("--rate", "1", "--against", "oracle"), "no router or option is named oracle"),
        (("--rate", "1", "--idle-w", "tiny=3"), "--idle-w tiny=3"),
        (("--rate", "1", "--idle-w", "1e300"), "--idle-w 1e300: more than can be"),
        (("--rate", "1", "--seconds", "nan"), "--seconds nan: give a number from 1 to 10,000,000"),
        (("--rate", "1e4", "--seconds", "1e6"), "is 10,000,000,000 requests: more than 10,000,000 are not simulated"),
        (("names.csv",), "names.csv holds no request, only the names of its columns"),
        (("names.csv", "--speed", "nan"), "--speed nan: give a number from 0.001 to 1,000,000"),
        (("--rate", "1", "--state-age-s", "inf"), "--state-age-s inf: give a number from 0 to"),
        (("--rate", "1", "--carbon", "Atlantis"), "Atlantis"),
        (("--rate", "1", "--on", "others.csv"), "--on: no scored answers of large@transformers/prompt-lookup-3/direct"),
        (("--rate", "1", "--on", "others.csv"), "they are of x, y"),
    ):
        assert told in refused("route", "simulate", *words), words
