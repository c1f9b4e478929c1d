"""``benchmarks/servers.py``: each part in its smallest form on llama.cpp's server, vLLM's command lines as strings."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="the extra endpoint is not installed")

from joulewise.energy.meter import Meter
from joulewise.engines.servers.process import free_port
from joulewise.engines.servers.server import Launch
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
        ("endpoint", "fp8"),
    ]
    asked = [after(lines_of(plan, engine=place), "--quantization") for place in (-2, -1)]
    assert asked == ["bitsandbytes", "fp8"]
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
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "w5"}], tokenize=False)
    assert chat == "w5 "
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
def test_the_default_model_on_llamacpp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("xllamacpp", reason="the extra llamacpp is not installed")
    work, file = tmp_path / "work", tmp_path / "figures.json"
    arguments = ["--kind", "llamacpp", "--tiny", "--work", str(work), "--json", str(file)]
    assert servers.main([*arguments, "--part", "default,platforms"]) == 0
    told = json.loads(file.read_text())
    for name in ("default-load", "default-alone"):
        found = told["default"][name]["cells"]
        assert {row["decoding"] for row in found} == {"vanilla", "prompt-lookup-4"}
        # On a busy machine so short a stretch may not be steady; then it says so.
        assert all(row["trials"] or "steady" in row["first_error"] for row in found)
        assert all(row["tokens_per_s"] > 0 for row in found if row["trials"])
    assert sum(row["trials"] for row in told["default"]["default-alone"]["cells"]) == 2
    (two_way,) = told["platforms"]["platforms"]["two_way"]
    assert [effect["name"] for effect in two_way["platforms"]] == ["transformers", "native", "llama.cpp"]
    assert "seen before" not in capsys.readouterr().out


STAND_IN = """
import json, sys, threading
from fake_server import DONE, FakeServer, Pause, Reply, finish, piece, usage

arguments = sys.argv[1:]
drafts = "--speculative-config" in arguments
assert arguments[0] == "serve", arguments
json.loads(open(arguments[1] + "/config.json").read())

def script(asked):
    prompt, output = asked.json["prompt"], asked.json["max_tokens"]
    count = len(prompt.split() if isinstance(prompt, str) else prompt)
    server.count(count, output)
    for name, more in {"drafts": 3, "draft_tokens": 6, "accepted_tokens": 4}.items() if drafts else ():
        server.counters[f"vllm:spec_decode_num_{name}_total"] += more
    steps = [Pause(1e-4 * count), *[piece("x"), Pause(0.002)] * output]
    return Reply([*steps, finish("length"), usage(count, output), DONE])

after = lambda flag: arguments[arguments.index(flag) + 1]
server = FakeServer(script, models=(after("--served-model-name"),), port=int(after("--port")))
for name in ("drafts", "draft_tokens", "accepted_tokens") if drafts else ():
    server.counters[f"vllm:spec_decode_num_{name}_total"] = 0.0
with server:
    threading.Event().wait()
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: Path) -> list[str]:
    """Something called vLLM that lies in a folder on PYTHONPATH, and how it is asked for."""
    package = tmp_path / "site" / "vllm" / "entrypoints" / "cli"
    package.mkdir(parents=True)
    (package / "main.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{repository / 'tests'}")
    shape, free = plans.write_shape, str(free_port())
    monkeypatch.setattr(plans, "write_shape", lambda _, folder: shape("tiny", folder))
    work, file = str(tmp_path / "work"), str(tmp_path / "figures.json")
    return ["--tiny", "--program", sys.executable, "--port", free, "--work", work, "--json", file, "--part"]


def test_the_parts_with_made_up_models(stand_in: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert servers.main([*stand_in, "curve,sweep"]) == 0
    told = json.loads((tmp_path / "figures.json").read_text())
    rows = [*told["curve"]["curve"]["cells"], *told["sweep"]["sweep"]["cells"]]
    assert [(row["decoding"], row["task"]) for row in rows] == [
        ("vanilla", "words/c1"),
        ("vanilla", "words/c2"),
        ("vanilla", "words/c2"),
        ("coga-2-synthetic-0.8", "words/c2"),
    ]
    # On a busy machine so short a stretch may not be steady; then it says so.
    assert all(row["trials"] or "steady" in row["first_error"] for row in rows)
    for row in (row for row in rows if row["trials"]):
        assert row["energy_per_token_j"] == pytest.approx(row["power_w"] / row["tokens_per_s"])
        assert row["accepted"] == (None if row["decoding"] == "vanilla" else pytest.approx(4 / 6))
    assert rows[0].get("published", {}) == {"tokens_per_s": 198.0, "energy_per_token_j": 2.45}
    assert str(tmp_path / "work") not in (tmp_path / "figures.json").read_text()
    assert "curve: 2 of 2 Trials" in capsys.readouterr().out
    ledger = (tmp_path / "work" / "curve" / "ledger.jsonl").read_bytes()
    assert servers.main([*stand_in, "curve"]) == 0  # nothing is left to do
    assert (tmp_path / "work" / "curve" / "ledger.jsonl").read_bytes() == ledger
    assert json.loads((tmp_path / "figures.json").read_text())["sweep"] == told["sweep"]


def test_attribution_on_a_server_of_its_own(
    stand_in: list[str], tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attribution, "discover", lambda: meter)
    monkeypatch.setattr(attribution.Server, "at_rest", lambda *_: attribution.PowerAtRest(0.0, 0.0))
    assert servers.main([*stand_in, "attribution"]) == 0
    told = json.loads((tmp_path / "figures.json").read_text())["attribution"]
    assert set(told["kinds"]) == {"long output", "long prompt"}
    assert told["settings"]["concurrency"] == 3
    assert servers.main([*stand_in, "attribution"]) == 0  # the same address: windows are not measured again


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
