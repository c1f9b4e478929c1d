"""Runs before servers that are already there, and that do what they should not. No model: scripted servers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

pytest.importorskip("aiohttp", reason="the extra endpoint is not installed")

from endpoint_runs import Server, plan, trials
from fake_server import (
    DONE,
    MODEL,
    Asked,
    Drop,
    Reply,
    chunk,
    fails,
    finish,
    piece,
    role,
    usage,
    whole,
)
from fake_source import SteadySource
from joulewise.cli.main import app
from joulewise.decoding import Vanilla
from joulewise.energy.meter import Meter
from joulewise.engines.endpoint import EndpointEngine
from joulewise.engines.endpoint_spec import EndpointSpec
from joulewise.engines.servers import served
from joulewise.engines.servers.process import free_port
from joulewise.engines.servers.served import listener
from joulewise.errors import UserError
from joulewise.ledger import load
from joulewise.plan import Plan
from joulewise.records import TallyRecord
from joulewise.runner import run


def test_a_server_that_runs_is_asked_and_measured(tmp_path: Path, meter: Meter) -> None:
    with Server() as server:
        found = trials(tmp_path, plan(tmp_path, server.url), meter)
    assert [t.status for t in found] == ["ok", "ok"]
    for trial in found:
        (one,) = trial.generations
        assert (one.prompt_tokens, one.output_tokens, one.finish_reason) == (7, 5, "eos")
        assert one.output_hash.startswith("text:")
        assert one.text == "1 2 3 "
        assert one.first_token_s is not None
        assert one.start_s < one.first_token_s <= one.end_s
        assert trial.tally is None
        assert trial.note is None
        assert {e.component: e.provenance for e in trial.energy} == dict.fromkeys(("gpu", "cpu", "dram"), "measured")
    body = server.asked[0].json
    assert (body["temperature"], body["max_tokens"], body["stream"]) == (0.0, 8, True)
    told = json.loads((tmp_path / "run" / "environment.json").read_text())["engines"][0]
    assert told["versions"] == {"vLLM": "0.20.2"}
    assert "prefix caching: not told by the server" in told["notes"]


def test_a_server_that_runs_here_is_no_other_program(tmp_path: Path) -> None:
    """Its process is the one that listens on its port; one on another host has none here."""
    with Server() as server:
        engine = EndpointEngine(EndpointSpec(url=server.url, model=MODEL))
        engine.load([Vanilla()])
        found = engine.processes()
        assert found is not None
        assert os.getpid() in [process.pid for process in found]  # the scripted server is a thread of ours
        engine.close()
    assert listener(free_port()) is None
    assert EndpointEngine(EndpointSpec(url="http://elsewhere:1/v1", model=MODEL)).processes() == []


def test_where_its_process_is_not_known_pollution_is_not(
    tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "listener", lambda _: None)
    with Server() as server:
        found = trials(tmp_path, plan(tmp_path, server.url), meter)
    assert [(t.other_cpu_cores, t.polluted) for t in found] == [(None, False)] * 2


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (Reply([role(), piece("1"), Drop()]), "broke off"),
        (fails(500, "CUDA error"), "HTTP 500"),
        (fails(503, "busy"), "turns the request away"),
        (fails(400, "temperature must be"), "HTTP 400"),
        (Reply([b"<html>"]), "not as a completion does"),
        (Reply([role(), finish("stop"), DONE]), "sent no usage"),
        (Reply([role(), piece("1"), finish("stop"), usage(7, 99), DONE]), "produced 99 tokens, and 8 were allowed"),
        (Reply([role(), piece("1"), finish("content_filter"), usage(7, 1), DONE]), "'content_filter'"),
        (fails(400, "maximum context length is 4 tokens"), "do not fit the model"),
    ],
)
def test_a_request_that_fails_fails_its_trial_and_the_run_goes_on(
    tmp_path: Path, meter: Meter, broken: Reply, error: str
) -> None:
    def script(asked: Asked) -> Reply:
        return broken if len(server.asked) == 2 else server.answer(asked)

    with Server(script) as server:
        found = trials(tmp_path, plan(tmp_path, server.url, questions=3), meter)
    assert [t.status for t in found] == ["ok", "failed", "ok"]
    assert error in str(found[1].error)


def test_a_server_that_does_not_stream_tells_no_first_token(tmp_path: Path, meter: Meter) -> None:
    with Server(lambda _: whole("1", 7, 2)) as server:
        found = trials(tmp_path, plan(tmp_path, server.url), meter)
    assert [(t.status, t.generations[0].first_token_s) for t in found] == [("ok", None)] * 2


def test_thoughts_that_come_apart_are_put_back(tmp_path: Path, meter: Meter) -> None:
    steps = [role(), chunk({"reasoning_content": "hm"}), piece("1"), finish("stop"), usage(7, 3), DONE]
    with Server(lambda _: Reply(steps)) as server:
        found = trials(tmp_path, plan(tmp_path, server.url), meter)
    assert found[0].generations[0].text == "<think>\nhm\n</think>\n\n1"


@pytest.mark.parametrize("reply", [fails(404, "Not Found"), fails(400, "the model has no chat template")])
def test_a_server_without_a_chat_is_asked_for_plain_completions(tmp_path: Path, meter: Meter, reply: Reply) -> None:
    def script(asked: Asked) -> Reply:
        return reply if asked.path.endswith("chat/completions") else server.answer(asked)

    with Server(script) as server:
        found = trials(tmp_path, plan(tmp_path, server.url), meter)
    assert [t.status for t in found] == ["ok", "ok"]
    assert [asked.path.rsplit("/", 2)[1] for asked in server.asked] == ["chat", "v1", "v1"]
    assert {asked.json["prompt"] for asked in server.asked[1:]} == {"q0", "q1"}


def test_the_stop_rule_fixed(tmp_path: Path, meter: Meter) -> None:
    stop = {"rule": "fixed", "tokens": 5}
    with Server(lambda asked: server.answer(asked, reason="length")) as server:
        found = trials(tmp_path, plan(tmp_path, server.url, stop=stop), meter)
        assert server.asked[0].json["ignore_eos"] is True
    assert [t.status for t in found] == ["ok", "ok"]


def test_a_server_that_ends_too_early_for_it_fails_the_trial(tmp_path: Path, meter: Meter) -> None:
    with Server() as server:
        found = trials(tmp_path, plan(tmp_path, server.url, stop={"rule": "fixed", "tokens": 6}), meter)
    assert "stopped after 5 of 6 tokens, although it was to go on" in str(found[0].error)


def test_it_is_refused_where_nobody_knows_that_the_server_can(tmp_path: Path, meter: Meter) -> None:
    class Plain(Server):
        def reply(self, asked: Asked) -> Reply:
            return fails(404) if asked.path in ("/metrics", "/version") else super().reply(asked)

    with Plain() as server:
        with pytest.raises(UserError, match="stop rule `fixed` needs a server that can go on"):
            run(plan(tmp_path, server.url, stop={"rule": "fixed", "tokens": 5}), tmp_path / "run", meter=meter)
        assert server.asked == []


def two(folder: Path, plain: Server, speculating: Server, **more: Any) -> Plan:
    urls = {"vanilla": plain.url, "coga-4": speculating.url}
    return plan(folder, urls, decodings=["vanilla", {"kind": "coga", "tokens": 4}], **more)


def speculates(asked: Asked, server: Server, text: str = "1 2 3") -> Reply:
    server.drafted(2, 8, 2)
    return server.answer(asked, text=text)


def test_speculation_by_the_counters_before_and_after(tmp_path: Path, meter: Meter) -> None:
    """5 tokens: the first, and 2 rounds that accepted 2 of 8."""
    with Server() as plain, Server(lambda asked: speculates(asked, fast)) as fast:
        found = trials(tmp_path, two(tmp_path, plain, fast), meter)
    rows = load(tmp_path / "run").arrow.to_pylist()
    assert [t.status for t in found] == ["ok"] * 4
    for trial, row in zip(found, rows, strict=True):
        drafts = trial.decoding == "coga-4"
        assert trial.tally == (TallyRecord(rounds=2, drafted=8, accepted=2, drafts=2) if drafts else None)
        assert (row["rounds"], row["drafted_tokens"], row["accepted_tokens"]) == ((2, 8, 2) if drafts else (0, 0, 0))
        assert row["check_status"] == ("identical" if drafts else None)


def test_another_text_than_vanilla_s_is_told_and_not_judged(tmp_path: Path, meter: Meter) -> None:
    with Server() as plain, Server(lambda asked: speculates(asked, fast, "1 2 4")) as fast:
        trials(tmp_path, two(tmp_path, plain, fast), meter)
        asked = len(plain.asked) + len(fast.asked)
    rows = [row for row in load(tmp_path / "run").arrow.to_pylist() if row["decoding"] == "coga-4"]
    assert [row["check_status"] for row in rows] == ["not_checked"] * 2
    assert all("differs from vanilla's, and a server does not tell" in row["check_note"] for row in rows)
    assert asked == 4  # nothing was asked again


def test_others_at_the_same_server_are_noticed(tmp_path: Path, meter: Meter) -> None:
    def script(asked: Asked) -> Reply:
        if len(fast.asked) == 2:
            fast.count(100, 200)
        return speculates(asked, fast)

    with Server() as plain, Server(script) as fast:
        found = [t for t in trials(tmp_path, two(tmp_path, plain, fast), meter) if t.decoding == "coga-4"]
    assert [t.polluted for t in found] == [False, True]
    assert "others used the server" in str(found[1].note)
    assert found[1].tally == TallyRecord()
    row = next(r for r in load(tmp_path / "run").arrow.to_pylist() if r["trial_id"] == found[1].trial_id)
    assert (row["rounds"], row["drafted_tokens"], row["accepted_tokens"]) == (None, None, None)


def test_counters_that_were_reset_are_noticed(tmp_path: Path, meter: Meter) -> None:
    def script(asked: Asked) -> Reply:
        if len(fast.asked) == 2:
            fast.counters = dict.fromkeys(fast.counters, 0.0)
        return speculates(asked, fast)

    with Server() as plain, Server(script) as fast:
        fast.count(50, 50)
        found = [t for t in trials(tmp_path, two(tmp_path, plain, fast), meter) if t.decoding == "coga-4"]
    assert found[0].tally is not None
    assert found[0].tally.accepted == 2
    assert (found[1].status, found[1].tally) == ("ok", TallyRecord())
    assert "counters were reset" in str(found[1].note)


def test_a_server_that_speculates_is_no_vanilla(tmp_path: Path, meter: Meter) -> None:
    with Server(lambda asked: speculates(asked, server)) as server:
        found = trials(tmp_path, plan(tmp_path, server.url), meter)
    assert [t.status for t in found] == ["failed", "failed"]
    assert "the plan calls it vanilla" in str(found[0].error)


def test_tokens_are_counted_here_where_the_server_does_not(
    tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    from joulewise.engines import token_counting

    def count(name: str, _: Any, text: str, finish_reason: str | None) -> tuple[int, int]:
        return len(name), len(text) + (finish_reason == "stop")

    monkeypatch.setattr(token_counting, "count_tokens", count)
    with Server(lambda _: Reply([role(), piece("abc"), finish("stop"), DONE])) as server:
        found = trials(tmp_path, plan(tmp_path, server.url, engine={"tokenizer": "tok"}), meter)
    assert [(t.generations[0].prompt_tokens, t.generations[0].output_tokens) for t in found] == [(3, 4)] * 2
    assert "counted here, by a tokenizer" in str(found[0].note)


@pytest.mark.parametrize(
    ("url", "settings", "meter_key", "known"),
    [
        ("http://gpu-node:8000/v1", {}, "auto", set()),
        ("http://localhost:8000/v1", {}, "auto", {"gpu", "cpu", "dram"}),
        ("http://localhost:8000/v1", {}, "none", set()),
        ("http://gpu-node:8000/v1", {"JOULEWISE_PROMETHEUS": "http://gpu-node:9400/metrics"}, "auto", {"gpu"}),
        ("http://gpu-node:8000/v1", {}, "here", {"gpu", "cpu", "dram"}),
    ],
)
def test_where_the_meter_is(
    monkeypatch: pytest.MonkeyPatch, url: str, settings: dict[str, str], meter_key: str, known: set[str]
) -> None:
    monkeypatch.delenv("JOULEWISE_PROMETHEUS", raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    sources = [SteadySource("gpu", 100.0), SteadySource("cpu", 30.0), SteadySource("dram", 5.0)]
    if settings:
        sources[0] = SteadySource("gpu", 100.0, source_id="prometheus:GPU-1")
    engine = EndpointEngine(EndpointSpec.model_validate({"url": url, "model": "m", "meter": meter_key}))
    with Meter(sources, sample_period_s=None) as meter:
        part = engine.part(meter.specs)
        with meter.window(part) as window:
            pass
        found = {c.component: c.energy_j is not None for c in window.energy.components}
    assert found == {component: component in known for component in ("gpu", "cpu", "dram")}


def test_gpus_of_another_host_are_left_out_here() -> None:
    sources = [SteadySource("gpu", 1.0, source_id="prometheus:GPU-1"), SteadySource("cpu", 1.0)]
    engine = EndpointEngine(EndpointSpec(url="http://localhost:1/v1", model="m"))
    part = engine.part([source.spec for source in sources])
    assert not part.has("prometheus:GPU-1")
    assert part.has(sources[1].spec.source_id)


def test_only_the_server_s_gpus_count(monkeypatch: pytest.MonkeyPatch) -> None:
    from joulewise.energy.sources import nvml

    monkeypatch.setattr(nvml, "local_uuids", lambda: ["GPU-a", "GPU-b", "GPU-c"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    sources = [SteadySource("gpu", 100.0, source_id=f"nvml:GPU-{x}") for x in "abc"] + [SteadySource("cpu", 1.0)]
    specs = [source.spec for source in sources]

    def chosen(**told: Any) -> set[str]:
        part = EndpointEngine(EndpointSpec.model_validate(told)).part(specs)
        return {s.source_id[-1] for s in specs if s.component == "gpu" and part.has(s.source_id)}

    local = {"url": "http://localhost:1/v1", "model": "m"}
    assert chosen(**local) == {"a", "b", "c"}
    assert chosen(**local, gpus=[1]) == {"b"}
    assert chosen(**local, gpus=["GPU-c", "gpu-a"]) == {"a", "c"}
    two_gpus = {"kind": "vllm", "args": {"tensor-parallel-size": 2}}
    assert chosen(server=two_gpus) == {"a", "b"}
    assert chosen(server={"kind": "vllm"}) == {"a"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    assert chosen(server={"kind": "vllm"}) == {"c"}
    with pytest.raises(UserError, match="there is no GPU 7 here; there are 3"):
        chosen(**local, gpus=[7])
    specs = specs[1:]
    with pytest.raises(UserError, match="nvml:GPU-a of its GPUs cannot be read here"):
        chosen(**local, gpus=[0])


def test_a_remote_meter_that_is_not_there() -> None:
    engine = EndpointEngine(EndpointSpec(url="http://gpu-node:1/v1", model="m", meter="remote"))
    with pytest.raises(UserError, match="`meter: remote` needs GPUs that JOULEWISE_PROMETHEUS tells of"):
        engine.part([SteadySource("cpu", 1.0).spec])


def test_a_dry_run_asks_nobody(tmp_path: Path) -> None:
    with Server() as server:
        planned = plan(tmp_path, server.url)
        (tmp_path / "plan.yaml").write_text(yaml.safe_dump(planned.model_dump(mode="json")))
        url = server.url
        done = CliRunner().invoke(app, ["run", str(tmp_path / "plan.yaml"), "--dry-run"])
    assert done.exit_code == 0, done.output
    assert f"the server at {url} was not asked: the run will" in " ".join(done.output.split())
    assert "1 cell, 2 generations, unknown time" in done.output
    assert server.asked == []


def test_a_dry_run_tells_of_a_server_that_is_not_installed(tmp_path: Path) -> None:
    engine = {"url": None, "server": {"kind": "vllm", "program": "/nowhere/vllm", "model": str(tmp_path)}}
    planned = plan(tmp_path, "", engine=engine)
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(planned.model_dump(mode="json")))
    done = CliRunner().invoke(app, ["run", str(tmp_path / "plan.yaml"), "--dry-run"])
    assert isinstance(done.exception, UserError)
    assert "there is no program /nowhere/vllm" in str(done.exception)
    assert not (tmp_path / "run").exists()


def test_a_quantisation_that_the_server_does_not_tell_is_taken_from_the_plan_and_marked() -> None:
    with Server() as server:
        for given in (None, "fp8"):
            engine = EndpointEngine(EndpointSpec(url=server.url, model=MODEL, quantisation=given))
            try:
                info = engine.load([Vanilla()])
            finally:
                engine.close()
            assert info.quantisation == given
            marked = [note for note in info.notes if "as the plan gives it, not told by the server" in note]
            assert marked == ([f"quantisation: {given} as the plan gives it, not told by the server"] if given else [])
