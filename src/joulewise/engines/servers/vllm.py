"""vLLM, 0.20.2 and newer."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from joulewise.decoding import CoGA, Decoding, Eagle2, Eagle3, Medusa, PromptLookup
from joulewise.decoding.medusa_trees import paths_of
from joulewise.engines.endpoint_spec import ServerSpec
from joulewise.engines.servers.counters import Counters, Drafted, parse_exposition, spec_decode, total
from joulewise.engines.servers.server import (
    LOCAL,
    About,
    Command,
    Fetch,
    Launch,
    fetched_object,
    flags,
    hub_model,
    installed_version,
    launcher,
)

PER_REQUEST = (0, 29)
"""Since then answers tell of their own speculation (``--per-request-spec-decode-metrics``)."""
WITHOUT_MEDUSA = (0, 33)
"""By then Medusa was gone; 0.20.2 has it. When in between it went was not looked up: vLLM then says so itself."""

_TREE = (
    "vLLM drafts EAGLE as a chain; the tree that makes it EAGLE-2 does not exist there: ask for `top_k: 1`, which is "
    "labelled a chain"
)


class Vllm:
    """See the module."""

    kind = "vllm"
    name = "vLLM"
    health = "/health"
    ignores_eos = True
    all_tokens: int | None = -1
    continuing: Mapping[str, Any] | None = {"add_generation_prompt": False, "continue_final_message": True}
    counting: Mapping[str, Any] = {"stream_options": {"continuous_usage_stats": True}}
    ways: Mapping[str, str] = {
        "vanilla": "no speculation",
        "coga": "`draft_model`, exactly so many tokens a round",
        "prompt_lookup": "`ngram`: the longest match of 1 to `max_ngram` tokens, of several the earliest",
        "eagle2": "`eagle`, a chain (`top_k: 1`)",
        "eagle3": "`eagle3`, a chain (`top_k: 1`)",
        "medusa": "`medusa`, a chain of each head's first guess; not in 0.33",
    }
    lacks: Mapping[str, str] = {
        "dyga": "vLLM's draft models always draft as many tokens as they are told: there is no stop by confidence, and "
        "no length that adapts",
    }

    def missing(self, server: ServerSpec) -> str | None:
        """Neither the program nor the package."""
        import shutil

        program = server.program or "vllm"
        if shutil.which(program) or (server.program is None and find_spec("vllm")):
            return None
        return f"there is no program {program}: install vLLM, or name where it is with `program`"

    def refuses(self, decoding: Decoding, server: ServerSpec | None) -> str | None:
        """Trees, lossy rules, and heads that the installed version has not."""
        if isinstance(decoding, Eagle2 | Eagle3) and decoding.top_k > 1:
            return _TREE
        if not isinstance(decoding, Medusa):
            return None
        if _is_tree(decoding):
            return "vLLM takes each Medusa head's first guess, a chain, and no tree: give `tree: [[0], [0, 0], ...]`"
        if decoding.acceptance != "match":
            return "vLLM has no typical acceptance: ask for `acceptance: match`"
        version = installed_version(server, "vllm") if server is not None else None
        if version is not None and version >= WITHOUT_MEDUSA:
            return f"vLLM {'.'.join(map(str, version))} has no Medusa heads any more (0.20.2 has)"
        return None

    def command(self, launch: Launch) -> Command:
        """``vllm serve``, without prefix caching, and without telling its makers of it."""
        server = launch.server
        call = launcher(server, "vllm", "vllm.entrypoints.cli.main", "serve")
        options: dict[str, Any] = {
            "host": LOCAL,
            "port": launch.port,
            "served-model-name": launch.alias,
            "enable-prefix-caching": False,
            "generation-config": "vllm",  # a model's own would add, say, a repetition penalty
            **server.args,
        }
        config = self._speculation(launch)
        if config:
            options["speculative-config"] = config
            version = installed_version(server, "vllm")
            if version is not None and version >= PER_REQUEST:
                options.setdefault("per-request-spec-decode-metrics", "summary")
        return Command((*call, hub_model(server.model), *flags(options)), {"VLLM_NO_USAGE_STATS": "1"})

    def _speculation(self, launch: Launch) -> dict[str, Any]:
        decoding = launch.decoding
        config: dict[str, Any]
        match decoding:
            case PromptLookup():
                return {
                    "method": "ngram",
                    "num_speculative_tokens": decoding.tokens,
                    "prompt_lookup_max": decoding.max_ngram,
                    "prompt_lookup_min": 1,
                }
            case CoGA():
                config = {"method": "draft_model", "num_speculative_tokens": decoding.tokens}
            case Eagle2() | Eagle3() | Medusa():
                method = {"eagle2": "eagle"}.get(decoding.kind, decoding.kind)
                config = {"method": method, "num_speculative_tokens": decoding.path_tokens}
            case _:
                return {}
        config["model"] = launch.speculator
        if decoding.synthetic is not None:
            # One rate a drafted token, or vLLM refuses.
            missing = decoding.path_tokens - len(decoding.synthetic)
            config["rejection_sample_method"] = "synthetic"
            config["synthetic_acceptance_rates"] = [*decoding.synthetic, *[0.0] * missing]
        return config

    def packages(self, server: ServerSpec) -> tuple[str, ...]:
        """It tells its version itself."""
        return ()

    def gpu_count(self, server: ServerSpec) -> int | None:
        """Tensor parallel times pipeline times data parallel; 1 where none is asked for."""
        count = 1
        for name in ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"):
            size = server.args.get(name, 1)
            count *= size if isinstance(size, int) else 1
        return count

    def about(self, fetch: Fetch) -> About | None:
        """``/version`` and the list of models; whether prefixes are kept is in a metric's labels."""
        version = (fetched_object(fetch, "/version") or {}).get("version")
        metrics = parse_exposition(fetch("/metrics")[1])
        if not any(name.startswith("vllm:") for name in metrics):
            return None
        listed = (fetched_object(fetch, "/v1/models") or {}).get("data") or [{}]
        cached = [labels.get("enable_prefix_caching") for labels, _ in metrics.get("vllm:cache_config_info", ())]
        return About(
            version=version,
            model=listed[0].get("root"),
            context_length=listed[0].get("max_model_len"),
            prefix_cache=cached[0] == "True" if cached and cached[0] else None,
        )

    def body(self) -> Mapping[str, Any]:
        """Nothing beside the API's own."""
        return {}

    def counters(self, fetch: Fetch, decoding: Decoding) -> Counters | None:
        """``/metrics``; the speculative ones are there only with a speculative config."""
        status, text = fetch("/metrics")
        if status != 200:
            return None
        metrics = parse_exposition(text)
        return Counters(
            requests=total(metrics, "vllm:request_success"),
            output_tokens=total(metrics, "vllm:generation_tokens"),
            cached_tokens=total(metrics, "vllm:prefix_cache_hits"),
            **spec_decode(metrics, "vllm"),
        )

    def drafted(self, extra: Mapping[str, Any]) -> Drafted | None:
        """``metrics.speculative_decoding``, where it is switched on; its steps are those with a draft."""
        metrics = extra.get("metrics")
        told = metrics.get("speculative_decoding") if isinstance(metrics, Mapping) else None
        if not isinstance(told, Mapping) or not {"num_draft_tokens", "num_accepted_draft_tokens"} <= told.keys():
            return None
        return Drafted(int(told["num_draft_tokens"]), int(told["num_accepted_draft_tokens"]))


def _is_tree(decoding: Medusa) -> bool:
    return any(path != (0,) * len(path) for path in paths_of(decoding.tree))
