"""SGLang, 0.5.23 and its neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from joulewise.decoding import CoGA, Decoding, Eagle2, Eagle3
from joulewise.engines.endpoint_spec import ServerSpec
from joulewise.engines.servers.counters import Counters, Drafted, parse_exposition, total
from joulewise.engines.servers.server import (
    LOCAL,
    About,
    Command,
    Fetch,
    Launch,
    fetched_object,
    flags,
    hub_model,
    launcher,
)


class Sglang:
    """See the module."""

    kind = "sglang"
    name = "SGLang"
    health = "/health"
    ignores_eos = True
    all_tokens: int | None = -1
    continuing: Mapping[str, Any] | None = {"continue_final_message": True}
    counting: Mapping[str, Any] = {"stream_options": {"continuous_usage_stats": True}}
    ways: Mapping[str, str] = {
        "vanilla": "no speculation",
        "coga": "`STANDALONE` with `topk` 1, exactly so many tokens a round",
        "eagle2": "`EAGLE`: a tree of `nodes`, the root counted, or a chain",
        "eagle3": "`EAGLE3`: a tree of `nodes`, the root counted, or a chain",
    }
    lacks: Mapping[str, str] = {
        "dyga": "SGLang's adaptive draft length follows earlier requests, which is no DyGA, and it has no stop by "
        "confidence",
        "prompt_lookup": "SGLang's NGRAM drafts from a store of all earlier requests' texts, which is no prompt "
        "lookup: Trials would not be independent",
        "medusa": "SGLang has no Medusa heads",
    }

    def missing(self, server: ServerSpec) -> str | None:
        """Neither a program nor the package."""
        import shutil

        if server.program is not None:
            return None if shutil.which(server.program) else f"there is no program {server.program}"
        if find_spec("sglang"):
            return None
        return "the package sglang is not installed: install it, or name the Python that has it with `program`"

    def refuses(self, decoding: Decoding, server: ServerSpec | None) -> str | None:
        """Nothing beyond what it lacks altogether."""
        return None

    def command(self, launch: Launch) -> Command:
        """``sglang.launch_server``, without the radix cache, metrics on."""
        server, decoding = launch.server, launch.decoding
        options: dict[str, Any] = {
            "model-path": hub_model(server.model),
            "host": LOCAL,
            "port": launch.port,
            "served-model-name": launch.alias,
            "enable-metrics": True,
            "disable-radix-cache": True,
            "sampling-defaults": "openai",  # a model's own would add, say, a repetition penalty
            **server.args,
        }
        env: dict[str, str] = {}
        shape = _shape(decoding)
        if shape is not None:
            algorithm = {"coga": "STANDALONE", "eagle2": "EAGLE", "eagle3": "EAGLE3"}[decoding.kind]
            steps, topk, nodes = shape
            options |= {
                "speculative-algorithm": algorithm,
                "speculative-draft-model-path": launch.speculator,
                "speculative-num-steps": steps,
                "speculative-eagle-topk": topk,
                "speculative-num-draft-tokens": nodes,
            }
            if decoding.synthetic is not None:
                env = {
                    "SGLANG_SIMULATE_ACC_LEN": f"{1.0 + sum(decoding.synthetic):g}",
                    "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
                }
        return Command((*launcher(server, None, "sglang.launch_server"), *flags(options)), env)

    def packages(self, server: ServerSpec) -> tuple[str, ...]:
        """It tells its version itself."""
        return ()

    def gpu_count(self, server: ServerSpec) -> int | None:
        """Tensor parallel times pipeline times data parallel; 1 where none is asked for."""
        count = 1
        for names in (("tp-size", "tensor-parallel-size", "tp"), ("pp-size", "pp"), ("dp-size", "dp")):
            sizes = [server.args[name] for name in names if name in server.args]
            count *= sizes[0] if sizes and isinstance(sizes[0], int) else 1
        return count

    def about(self, fetch: Fetch) -> About | None:
        """``/server_info``, by its older name where need be."""
        info = fetched_object(fetch, "/server_info") or fetched_object(fetch, "/get_server_info")
        if info is None or "disable_radix_cache" not in info:
            return None
        return About(
            version=info.get("version"),
            model=info.get("model_path"),
            quantisation=info.get("quantization"),
            context_length=info.get("context_length"),
            prefix_cache=not info["disable_radix_cache"],
        )

    def body(self) -> Mapping[str, Any]:
        """Answers tell of their own speculation."""
        return {"return_spec_tokens_details": True}

    def counters(self, fetch: Fetch, decoding: Decoding) -> Counters | None:
        """``/metrics``: verification forwards and tokens; its gauges are of the last batch alone and are left out.

        Every round drafts alike, so what was drafted follows from the rounds; a round puts out one token more than it
        accepts, and an answer's first token comes before its rounds.
        """
        status, text = fetch("/metrics")
        if status != 200:
            return None
        metrics = parse_exposition(text)
        counters = Counters(
            requests=total(metrics, "sglang:num_requests"),
            output_tokens=total(metrics, "sglang:generation_tokens"),
            cached_tokens=total(metrics, "sglang:cached_tokens"),
        )
        rounds, shape = total(metrics, "sglang:spec_verify_calls"), _shape(decoding)
        if rounds is None or shape is None or counters.requests is None or counters.output_tokens is None:
            return counters
        accepted = counters.output_tokens - counters.requests - rounds
        return replace(counters, rounds=rounds, drafts=rounds, drafted=rounds * (shape[2] - 1), accepted=accepted)

    def drafted(self, extra: Mapping[str, Any]) -> Drafted | None:
        """``sglext.spec_tokens_details``, on request."""
        ours = extra.get("sglext")
        told = ours.get("spec_tokens_details") if isinstance(ours, Mapping) else None
        if not isinstance(told, Mapping):
            return None
        names = ("spec_num_proposed_drafts", "spec_num_correct_drafts", "spec_verify_ct")
        if not all(isinstance(told.get(name), int) for name in names):
            return None
        proposed, correct, rounds = (int(told[name]) for name in names)
        return Drafted(proposed, correct, rounds)


def _shape(decoding: Decoding) -> tuple[int, int, int] | None:
    """Steps, branches and nodes (the root counted) of what is drafted; None for nothing."""
    match decoding:
        case CoGA():
            return decoding.tokens, 1, decoding.tokens + 1
        case Eagle2() | Eagle3():
            nodes = decoding.path_tokens + 1 if decoding.top_k == 1 else decoding.nodes
            return decoding.depth + 1, decoding.top_k, nodes
    return None
