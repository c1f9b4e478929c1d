"""``benchmarks/servers.py``: each part in its smallest form on llama.cpp's server, vLLM's command lines as strings."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="the extra endpoint is not installed")

from fake_server import DONE, MODEL, Asked, FakeServer, Pause, Reply, finish, piece, usage
from joulewise.decoding import Vanilla
from joulewise.energy.meter import Meter
from joulewise.engines.servers.server import About, Launch
from joulewise.engines.servers.vllm import Vllm
from joulewise.plan import Plan
from joulewise.schedule import check_supported
from load_benchmark import load_benchmark

for _name in ("simulated_server", "attribution_windows", "attribution_server"):
    load_benchmark(_name)
attribution = load_benchmark("attribution")
plans = load_benchmark("servers_plans")
servers = load_benchmark("servers")


def lines_of(plan: Plan, *, decoding: int = 0, engine: int = -1) -> list[str]:
    """What starts a plan's server."""
    spec = plan.engines[engine]
    assert spec.kind == "endpoint"
    assert spec.server is not None
    chosen = plan.decodings[decoding]
    command = Vllm().command(Launch(spec.server, chosen, spec.draft, 8000, spec.model))
    assert command.env == {"VLLM_NO_USAGE_STATS": "1"}
    return list(command.argv)


def setup(work: Path, **more: Any) -> Any:
    return plans.Setup(kind="vllm", model="/models/smol", work=work, **more)


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_vllm_is_called_by_a_python_that_is_named(tmp_path: Path) -> None:
    plan = plans.default_plans(setup(tmp_path, program="python3"), plans.Sizes())["default-load"]
    words = lines_of(plan, decoding=1)
    assert words[:6] == ["python3", "-m", "vllm.entrypoints.cli.main", "serve", "/models/smol", "--host"]
    assert "--no-enable-prefix-caching" in words
    assert after(words, "--gpu-memory-utilization") == "0.3"
    assert after(words, "--dtype") == "bfloat16"
    config = json.loads(after(words, "--speculative-config"))
    assert config["method"] == "ngram"
    assert config["num_speculative_tokens"] == 4
    assert "--speculative-config" not in lines_of(plan)
    assert not plan.engines[0].one_at_a_time  # two on one card, so that they take turns


def test_vllm_is_found_on_pythonpath(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    plan = plans.default_plans(setup(tmp_path), plans.Sizes())["default-load"]
    assert plan.engines[0].server is not None
    assert Vllm().missing(plan.engines[0].server) is not None
    monkeypatch.syspath_prepend(tmp_path)
    assert Vllm().missing(plan.engines[0].server) is None
    assert lines_of(plan)[:4] == [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"]


def test_vllm_makes_the_weights_of_a_shape_up(tmp_path: Path) -> None:
    words = lines_of(plans.curve_plans(setup(tmp_path), plans.Sizes())["curve"])
    assert str(tmp_path / "8b") in words
    assert after(words, "--load-format") == "dummy"
    assert after(words, "--max-model-len") == "704"
    sweep = plans.sweep_plans(setup(tmp_path), plans.Sizes())["sweep"]
    config = json.loads(after(lines_of(sweep, decoding=1), "--speculative-config"))
    assert config == {
        "method": "draft_model",
        "num_speculative_tokens": 4,
        "model": str(tmp_path / "1b"),
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": pytest.approx([0.8, 0.64, 0.512, 0.4096]),
    }
    assert sweep.engines[0].one_at_a_time
    assert [d.label for d in sweep.decodings][:3] == ["vanilla", "coga-4-synthetic-0.8", "coga-4-synthetic-0.6"]


def test_platforms_name_what_cannot_be_loaded(tmp_path: Path) -> None:
    plan = plans.platform_plans(setup(tmp_path), plans.Sizes())["platforms"]
    assert [(e.kind, e.quantisation) for e in plan.engines if e.kind == "endpoint"] == [
        ("endpoint", "bfloat16"),
        ("endpoint", "nf4"),
    ]
    assert after(lines_of(plan), "--quantization") == "bitsandbytes"
    assert {e.base_model for e in plan.engines} == {"/models/smol"}
    _, absent = check_supported(plan)
    assert {label for label in absent if "gptq" in label} <= {e.label for e in plan.engines}
    with_gptq = plans.platform_plans(setup(tmp_path, gptq="/models/gptq"), plans.Sizes())["platforms"]
    assert "/models/gptq" in lines_of(with_gptq)


def test_a_shape_is_a_folder_whose_every_token_is_text(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    assert plans.write_shape("tiny", tmp_path / "tiny") == 512
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tiny")
    assert AutoConfig.from_pretrained(tmp_path / "tiny").architectures == ["LlamaForCausalLM"]
    assert len(tokenizer) == 512
    assert tokenizer.encode("w5 w511 w0") == [5, 511, 0]
    assert tokenizer.decode([0, 2, 511], skip_special_tokens=True) == "w0 w2 w511"
    written = (tmp_path / "tiny" / "tokenizer.json").stat().st_mtime_ns
    assert plans.write_shape("tiny", tmp_path / "tiny") == 512
    assert (tmp_path / "tiny" / "tokenizer.json").stat().st_mtime_ns == written


def test_each_part_says_how_long_it_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert servers.main(["--estimate", "--work", str(tmp_path / "work")]) == 0
    told = capsys.readouterr().out
    assert [part for part in plans.PARTS if f"{part}: about " in told] == list(plans.PARTS)
    assert not (tmp_path / "work").exists()
    longer = plans.curve_plans(setup(tmp_path), plans.Sizes(curve_s=60.0))["curve"]
    assert plans.estimate_s(longer) > plans.estimate_s(plans.curve_plans(setup(tmp_path), plans.Sizes())["curve"])


def test_a_part_that_is_not_there() -> None:
    with pytest.raises(SystemExit):
        servers.parsed(["--part", "curve,other"])


@pytest.mark.model
def test_the_parts_on_llamacpp_and_going_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("xllamacpp", reason="the extra llamacpp is not installed")
    work, file = tmp_path / "work", tmp_path / "figures.json"
    arguments = ["--kind", "llamacpp", "--tiny", "--work", str(work), "--json", str(file)]
    assert servers.main([*arguments, "--part", "default,curve,sweep,platforms"]) == 0
    told = json.loads(file.read_text())
    for name, count in {"default-load": 2, "default-alone": 2}.items():
        found = told["default"][name]["cells"]
        assert len(found) == count
        assert {row["decoding"] for row in found} == {"vanilla", "prompt-lookup-4"}
    rows = [*told["curve"]["curve"]["cells"], *told["sweep"]["sweep"]["cells"]]
    assert [(row["decoding"], row["task"]) for row in rows] == [
        ("vanilla", "words/c1"),
        ("vanilla", "words/c2"),
        ("vanilla", "words/c2"),
        ("coga-2-synthetic-0.8", "words/c2"),
    ]
    # On a busy machine so short a stretch may not be steady; then it says so.
    every = [*told["default"]["default-load"]["cells"], *rows]
    assert all(row["trials"] or "steady" in row["first_error"] for row in every)
    assert any(row["trials"] for row in every)
    for row in (row for row in rows if row["trials"]):
        assert row["tokens_per_s"] > 0
        assert row["energy_per_token_j"] == pytest.approx(row["power_w"] / row["tokens_per_s"])
        assert (row["tokens_per_step"] or 1) > 1 or row["decoding"] == "vanilla"
    (two_way,) = told["platforms"]["platforms"]["two_way"]
    assert [effect["name"] for effect in two_way["platforms"]] == ["transformers", "native", "llama.cpp"]
    assert str(work) not in file.read_text()
    printed = capsys.readouterr().out
    assert "curve: " in printed
    assert "seen before" not in printed
    ledger = (work / "curve" / "ledger.jsonl").read_bytes()
    assert servers.main([*arguments, "--part", "curve"]) == 0
    assert (work / "curve" / "ledger.jsonl").read_bytes() == ledger
    assert json.loads(file.read_text())["sweep"] == told["sweep"]


def script(asked: Asked) -> Reply:
    """As many tokens as asked for; a prompt takes 0.1 ms a token, and an output token 2 ms."""
    prompt, output = len(asked.json["prompt"]), asked.json["max_tokens"]
    steps = [Pause(1e-4 * prompt), *[piece("x"), Pause(0.002)] * output]
    return Reply([*steps, finish("length"), usage(prompt, output), DONE])


def test_attribution_on_a_server_of_its_own(tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = []

    class Stands:
        about = About(version="0")

        def __init__(self, base: str) -> None:
            self.base, self.stopped = base, False

        def stop(self) -> None:
            self.stopped = True

    with FakeServer(script) as fake:
        served = Stands(fake.url)

        def start(_recipe: Any, launch: Launch, *_: Any) -> Stands:
            launches.append(launch)
            return served

        monkeypatch.setattr(servers, "start", start)
        monkeypatch.setattr(servers, "ALIAS", MODEL)
        monkeypatch.setattr(attribution, "discover", lambda: meter)
        monkeypatch.setattr(attribution.Server, "at_rest", lambda *_: attribution.PowerAtRest(0.0, 0.0))
        monkeypatch.setattr(plans, "write_shape", lambda *_: 1000)
        file = tmp_path / "figures.json"
        options = ["--tiny", "--part", "attribution", "--work", str(tmp_path / "work"), "--json", str(file)]
        assert servers.main(options) == 0
    assert served.stopped
    (launch,) = launches
    assert (launch.port, launch.decoding) == (8765, Vanilla())
    assert launch.server.args["load-format"] == "dummy"
    assert launch.server.args["max-model-len"] == 4096
    assert set(json.loads(file.read_text())["attribution"]["kinds"]) == {"long output", "long prompt"}


def test_what_is_cut_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def interrupted(_: Any) -> Any:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(servers, "shape_served", interrupted)
    monkeypatch.setattr(servers, "write_models", lambda *_: None)
    file = tmp_path / "figures.json"
    options = ["--part", "attribution,curve", "--work", str(tmp_path / "work"), "--json", str(file), "--minutes", "5"]
    assert servers.main(options) == 0
    assert "cut; the same command goes on from here" in capsys.readouterr().out
    assert json.loads(file.read_text())["kind"] == "vllm"
