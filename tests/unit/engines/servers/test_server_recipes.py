"""How each server is called for each decoding, what it refuses by its true name, and what it says of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from joulewise.decoding import DECODINGS, CoGA, Decoding, DyGA, Eagle2, Eagle3, Medusa, PromptLookup, Vanilla
from joulewise.engines.endpoint_spec import ServerSpec
from joulewise.engines.servers import SERVERS, llamacpp, open_recipe, server
from joulewise.engines.servers.server import About, Fetch, Launch, flags, gpu_environment, version_of
from joulewise.errors import UserError

STARTED = [kind for kind in SERVERS if kind != "running"]
CHAIN = Medusa(tree=((0,), (0, 0), (0, 0, 0)))


def command(kind: str, decoding: Decoding, speculator: str | None = None, **more: Any) -> list[str]:
    spec = ServerSpec(kind=kind, model="target", **more)  # type: ignore[arg-type]
    return list(open_recipe(kind).command(Launch(spec, decoding, speculator, 8123, "name")).argv)


def option(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def answers(pages: Mapping[str, Any]) -> Fetch:
    def fetch(path: str) -> tuple[int, str]:
        page = pages.get(path)
        return (404, "") if page is None else (200, page if isinstance(page, str) else json.dumps(page))

    return fetch


@pytest.fixture
def llama_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build whose help names the options as they are now."""
    program = tmp_path / "llama-server"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    write_help(
        program,
        "--model --host --port --alias --parallel --metrics --cache-prompt, --no-cache-prompt --spec-type "
        "--spec-draft-model, --model-draft --spec-draft-n-max --spec-draft-p-min --spec-synth-rates "
        "--spec-ngram-simple-size-n --spec-ngram-simple-size-m",
    )
    return program


def write_help(program: Path, options: str) -> None:
    program.write_text(f"#!/bin/sh\necho '{options}'\n")
    program.chmod(0o755)
    llamacpp._help.cache_clear()


@pytest.mark.parametrize("kind", STARTED)
def test_every_decoding_is_done_or_refused_by_every_server(kind: str) -> None:
    recipe = open_recipe(kind)
    assert set(recipe.ways) | set(recipe.lacks) == set(DECODINGS)
    assert not set(recipe.ways) & set(recipe.lacks)


def test_vllm_plain() -> None:
    argv = command("vllm", Vanilla(), program="/opt/vllm", args={"max-model-len": 4096, "enforce-eager": True})
    assert argv[:3] == ["/opt/vllm", "serve", "target"]
    assert "--no-enable-prefix-caching" in argv
    assert option(argv, "--generation-config") == "vllm"
    assert option(argv, "--served-model-name") == "name"
    assert (option(argv, "--host"), option(argv, "--port")) == ("127.0.0.1", "8123")
    assert option(argv, "--max-model-len") == "4096"
    assert "--enforce-eager" in argv
    assert "--speculative-config" not in argv


@pytest.mark.parametrize(
    ("decoding", "config"),
    [
        (
            PromptLookup(tokens=4, max_ngram=3),
            {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1},
        ),
        (CoGA(tokens=5), {"method": "draft_model", "num_speculative_tokens": 5, "model": "d"}),
        (Eagle2(top_k=1, depth=3), {"method": "eagle", "num_speculative_tokens": 4, "model": "d"}),
        (Eagle3(top_k=1, depth=2), {"method": "eagle3", "num_speculative_tokens": 3, "model": "d"}),
        (CHAIN, {"method": "medusa", "num_speculative_tokens": 3, "model": "d"}),
        (
            CoGA(tokens=3, synthetic_acceptance=0.5),
            {
                "method": "draft_model",
                "num_speculative_tokens": 3,
                "model": "d",
                "rejection_sample_method": "synthetic",
                "synthetic_acceptance_rates": [0.5, 0.25, 0.125],
            },
        ),
    ],
)
def test_vllm_s_speculation(decoding: Decoding, config: dict[str, Any]) -> None:
    speculator = None if isinstance(decoding, PromptLookup) else "d"
    argv = command("vllm", decoding, speculator, program="vllm")
    assert json.loads(option(argv, "--speculative-config")) == config


def test_vllm_s_synthetic_rates_are_one_a_token() -> None:
    decoding = CoGA(tokens=4, synthetic_acceptance=(0.9, 0.5))
    argv = command("vllm", decoding, "d", program="vllm")
    assert json.loads(option(argv, "--speculative-config"))["synthetic_acceptance_rates"] == [0.9, 0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("version", "asked", "medusa"),
    [("0.20.2", False, True), ("0.28.1.dev3", False, True), ("0.29.0", True, True), ("0.33.0", True, False)],
)
def test_vllm_by_version(tmp_path: Path, version: str, asked: bool, medusa: bool) -> None:
    (tmp_path / "lib" / "python3.12" / "site-packages" / f"vllm-{version}.dist-info").mkdir(parents=True)
    program = str(tmp_path / "bin" / "vllm")
    assert ("--per-request-spec-decode-metrics" in command("vllm", CoGA(), "d", program=program)) is asked
    assert "--per-request-spec-decode-metrics" not in command("vllm", Vanilla(), program=program)
    refused = open_recipe("vllm").refuses(CHAIN, ServerSpec(kind="vllm", program=program))
    assert (refused is None) is medusa
    assert medusa or "vLLM 0.33.0 has no Medusa" in str(refused)


@pytest.mark.parametrize(
    ("kind", "decoding", "reason"),
    [
        ("vllm", Eagle2(), "the tree that makes it EAGLE-2 does not exist there: ask for `top_k: 1`"),
        ("vllm", Eagle3(), "drafts EAGLE as a chain"),
        ("vllm", Medusa(), "each Medusa head's first guess, a chain, and no tree"),
        ("vllm", Medusa(tree=((0,), (0, 0)), acceptance="typical"), "no typical acceptance"),
        ("llamacpp", Eagle3(), "EAGLE's tree does not exist there: ask for `top_k: 1`"),
        ("llamacpp", DyGA(), "no draft length that adapts .* ask for `rule: confidence`"),
    ],
)
def test_what_does_not_exist_there_is_refused_by_its_true_name(kind: str, decoding: Decoding, reason: str) -> None:
    import re

    assert re.search(reason, open_recipe(kind).refuses(decoding, ServerSpec(kind=kind)) or "")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", STARTED)
def test_what_a_recipe_can_do_it_does_not_refuse(kind: str) -> None:
    fine: list[Decoding] = [
        Vanilla(),
        CoGA(),
        DyGA(rule="confidence"),
        PromptLookup(),
        Eagle2(top_k=1),
        Eagle3(top_k=1),
        CHAIN,
    ]
    recipe = open_recipe(kind)
    spec = ServerSpec(kind=kind, program="/nowhere/bin/x")  # type: ignore[arg-type]
    assert [recipe.refuses(d, spec) for d in fine if d.kind in recipe.ways] == [None] * len(recipe.ways)


def test_sglang_plain() -> None:
    argv = command("sglang", Vanilla(), program="/opt/env/bin/python3.12")
    assert argv[:3] == ["/opt/env/bin/python3.12", "-m", "sglang.launch_server"]
    assert {"--disable-radix-cache", "--enable-metrics"} <= set(argv)
    assert option(argv, "--model-path") == "target"
    assert not any(word.startswith("--speculative") for word in argv)


@pytest.mark.parametrize(
    ("decoding", "told"),
    [
        (CoGA(tokens=3), ("STANDALONE", "3", "1", "4")),
        (Eagle2(top_k=1, depth=2), ("EAGLE", "3", "1", "4")),
        (Eagle2(nodes=8, depth=4, top_k=4), ("EAGLE", "5", "4", "8")),
        (Eagle3(nodes=60, depth=5, top_k=10), ("EAGLE3", "6", "10", "60")),
    ],
)
def test_sglang_counts_the_root(decoding: Decoding, told: tuple[str, ...]) -> None:
    argv = command("sglang", decoding, "d")
    names = ("algorithm", "num-steps", "eagle-topk", "num-draft-tokens")
    assert tuple(option(argv, f"--speculative-{name}") for name in names) == told
    assert option(argv, "--speculative-draft-model-path") == "d"


def test_sglang_accepts_by_lot_through_its_environment() -> None:
    launch = Launch(ServerSpec(kind="sglang"), CoGA(tokens=3, synthetic_acceptance=0.5), "d", 1, "name")
    env = open_recipe("sglang").command(launch).env
    assert env == {"SGLANG_SIMULATE_ACC_LEN": "1.875", "SGLANG_SIMULATE_ACC_METHOD": "match-expected"}


def test_llamacpp_by_the_program_on_the_path(llama_server: Path) -> None:
    argv = command("llamacpp", PromptLookup(tokens=6, max_ngram=3), args={"ctx-size": 2048})
    assert argv[0] == str(llama_server)
    assert {"--no-cache-prompt", "--metrics"} <= set(argv)
    assert option(argv, "--parallel") == "1"
    assert option(argv, "--ctx-size") == "2048"
    assert option(argv, "--spec-type") == "ngram-simple"
    assert option(argv, "--spec-ngram-simple-size-n") == "3"
    assert option(argv, "--spec-ngram-simple-size-m") == "6"


@pytest.mark.parametrize(
    ("decoding", "told"),
    [
        (CoGA(tokens=5), {"type": "draft-simple", "draft-n-max": "5", "draft-p-min": "0.0"}),
        (
            DyGA(tokens=9, rule="confidence", threshold=0.3),
            {"type": "draft-simple", "draft-n-max": "9", "draft-p-min": "0.3"},
        ),
        (Eagle3(top_k=1, depth=3), {"type": "draft-eagle3", "draft-n-max": "4"}),
        (CoGA(tokens=2, synthetic_acceptance=0.5), {"synth-rates": "0.5,0.25"}),
    ],
)
def test_llamacpp_s_speculation(llama_server: Path, decoding: Decoding, told: dict[str, str]) -> None:
    argv = command("llamacpp", decoding, "draft.gguf")
    assert {name: option(argv, f"--spec-{name}") for name in told} == told
    assert option(argv, "--spec-draft-model") == "draft.gguf"


def test_an_older_build_is_called_by_its_own_names(llama_server: Path) -> None:
    write_help(llama_server, "--model --port --model-draft --draft-max --draft-p-min")
    argv = command("llamacpp", CoGA(tokens=5), "draft.gguf")
    assert (option(argv, "--model-draft"), option(argv, "--draft-max"), option(argv, "--draft-p-min")) == (
        "draft.gguf",
        "5",
        "0.0",
    )
    assert not any("spec" in word or "cache-prompt" in word for word in argv)


@pytest.mark.parametrize("decoding", [PromptLookup(), CoGA(synthetic_acceptance=0.5)])
def test_a_build_that_lacks_an_option_is_refused(llama_server: Path, decoding: Decoding) -> None:
    write_help(llama_server, "--model --port --model-draft --draft-max --draft-p-min")
    with pytest.raises(UserError, match=r"has no option --spec-\S+, so this build .* take a newer one"):
        command("llamacpp", decoding, "draft.gguf")


def test_a_build_that_does_not_tell_its_options(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("not a program")
    with pytest.raises(UserError, match="does not tell its options"):
        command("llamacpp", Vanilla(), program=str(program))


def test_llamacpp_by_the_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    argv = command("llamacpp", CoGA(tokens=4), "draft.gguf", args={"threads": 2})
    assert argv[1].endswith("xllamacpp_server.py")
    told = json.loads(argv[2])
    assert (told["model"], told["threads"], told["cache-prompt"]) == ("target", 2, False)
    assert (told["spec-type"], told["spec-draft-n-max"], told["spec-draft-model"]) == ("draft-simple", 4, "draft.gguf")


def test_the_wheel_s_parameters() -> None:
    xllamacpp = pytest.importorskip("xllamacpp")
    from joulewise.engines.servers.xllamacpp_server import PLAIN, parameters

    options: dict[str, Any] = {
        "model": "m.gguf",
        "host": "127.0.0.1",
        "port": 81,
        "alias": "name",
        "threads": 3,
        "cache-prompt": False,
        "spec-type": "draft-simple",
        "spec-draft-model": "d.gguf",
        "spec-draft-p-min": 0.25,
        "spec-synth-rates": "0.5,0.25",
        "spec-ngram-simple-size-n": 3,
    }
    found = parameters(xllamacpp, options)
    assert (found.model.path, found.port, found.hostnames, found.cache_prompt) == ("m.gguf", 81, ["127.0.0.1"], False)
    assert (found.cpuparams.n_threads, found.speculative.draft.p_min) == (3, 0.25)
    assert found.speculative.draft.mparams.path == "d.gguf"
    assert found.speculative.synth_rates == [0.5, 0.25]
    assert found.speculative.ngram_simple.size_n == 3
    assert [kind.name for kind in found.speculative.types] == ["COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE"]
    for way in PLAIN.values():  # each is there: the wheel takes wrong names without a word
        place = found
        for step in way.split("."):
            place = getattr(place, step)
    with pytest.raises(SystemExit, match="not told of an option 'flash-attn' here; there are"):
        parameters(xllamacpp, {"flash-attn": True})


def test_llamacpp_needs_a_file_and_a_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipe = open_recipe("llamacpp")
    assert "serves a GGUF file, and owner/model is none" in str(
        recipe.missing(ServerSpec(kind="llamacpp", model="owner/model"))
    )
    (tmp_path / "m.gguf").write_text("")
    here = ServerSpec(kind="llamacpp", model=str(tmp_path / "m.gguf"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(llamacpp, "find_spec", lambda _: None)
    assert "no llama-server on the PATH and the package xllamacpp is not installed" in str(recipe.missing(here))
    named = here.model_copy(update={"program": "/nowhere/llama-server"})
    assert "no program /nowhere/llama-server" in str(recipe.missing(named))
    monkeypatch.setattr(llamacpp, "find_spec", lambda _: object())
    assert recipe.missing(here) is None


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_server_that_is_not_installed(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    recipe = open_recipe(kind)
    assert "install" in str(recipe.missing(ServerSpec(kind=kind)))  # type: ignore[arg-type]
    assert "no program /nowhere/x" in str(recipe.missing(ServerSpec(kind=kind, program="/nowhere/x")))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "args", "count"),
    [
        ("vllm", {}, 1),
        ("vllm", {"tensor-parallel-size": 2, "pipeline-parallel-size": 2}, 4),
        ("sglang", {"tp": 4}, 4),
        ("sglang", {"tp-size": 2, "dp-size": 2}, 4),
        ("llamacpp", {}, None),
    ],
)
def test_gpus_that_a_server_takes(kind: str, args: dict[str, int], count: int | None) -> None:
    assert open_recipe(kind).gpu_count(ServerSpec(kind=kind, args=args)) == count  # type: ignore[arg-type]


def test_a_server_gets_its_gpus_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert gpu_environment((1, 3), 2, 8) == {"CUDA_VISIBLE_DEVICES": "1,3", **order}
    assert gpu_environment(None, 2, 8) == {"CUDA_VISIBLE_DEVICES": "0,1", **order}
    assert gpu_environment(None, None, 8) == {}
    assert gpu_environment(None, 1, 0) == {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6,7")
    assert gpu_environment(None, 2, 8) == {"CUDA_VISIBLE_DEVICES": "5,6", **order}


def test_flags() -> None:
    args = {"a": 1, "b": True, "c": False, "d": {"x": [1]}, "e": ("p", "q")}
    assert flags(args) == ["--a", "1", "--b", "--no-c", "--d", '{"x": [1]}', "--e", "p", "q"]


def test_versions() -> None:
    assert version_of("0.20.2.dev3+cu130") == (0, 20, 2)
    assert version_of("dev") is None
    assert server.installed_version(ServerSpec(kind="vllm"), "no-such-package") is None
    assert server.installed_version(ServerSpec(kind="vllm"), "pytest") is not None


LLAMA_PROPS = {
    "build_info": "b11549-abc",
    "model_path": "/models/m.gguf",
    "model_ftype": "Q4_1",
    "default_generation_settings": {"n_ctx": 2048},
    "chat_template": "{% if enable_thinking %}",
}
LLAMA_MODELS = {"data": [{"id": "m", "meta": {"n_params": 134515008}}]}


def test_llamacpp_says_what_it_is() -> None:
    about = open_recipe("llamacpp").about(answers({"/props": LLAMA_PROPS, "/v1/models": LLAMA_MODELS}))
    assert about == About("b11549-abc", "m.gguf", None, 134515008, "Q4_1", 2048, False, True, True)


@pytest.mark.parametrize(("label", "cache"), [("True", True), ("False", False)])
def test_vllm_says_what_it_is(label: str, cache: bool) -> None:
    pages = {
        "/version": {"version": "0.20.2"},
        "/metrics": f'vllm:cache_config_info{{enable_prefix_caching="{label}",engine="0"}} 1.0\n',
        "/v1/models": {"data": [{"id": "m", "root": "owner/m", "max_model_len": 4096}]},
    }
    about = open_recipe("vllm").about(answers(pages))
    assert about == About("0.20.2", "owner/m", context_length=4096, prefix_cache=cache)


def test_sglang_says_what_it_is() -> None:
    info = {"version": "0.5.23", "model_path": "owner/m", "context_length": 4096, "disable_radix_cache": True}
    for page in ("/server_info", "/get_server_info"):
        about = open_recipe("sglang").about(answers({page: info}))
        assert about == About("0.5.23", "owner/m", context_length=4096, prefix_cache=False)


def test_each_server_is_told_from_the_others() -> None:
    pages = {
        "llamacpp": {"/props": LLAMA_PROPS, "/metrics": "llamacpp:n_decode_total 1\n"},
        "vllm": {"/version": {"version": "0.33.0"}, "/metrics": "vllm:num_requests_running 0.0\n"},
        "sglang": {"/server_info": {"disable_radix_cache": False}, "/metrics": "sglang:num_running_reqs 0\n"},
        "running": {},
    }
    for kind, told in pages.items():
        takes = [name for name in SERVERS if open_recipe(name).about(answers(told)) is not None]
        assert takes[0] == kind


@pytest.mark.parametrize("page", ["", "[]", "{", '"text"', "[" * 100_000])
def test_garbage_is_of_no_server(page: str) -> None:
    for kind in STARTED:
        fetch = answers(dict.fromkeys(("/props", "/version", "/server_info", "/metrics", "/v1/models"), page))
        assert open_recipe(kind).about(fetch) is None
