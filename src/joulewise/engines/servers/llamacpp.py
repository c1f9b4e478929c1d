"""llama.cpp: a ``llama-server`` on the PATH, or the server inside the wheel ``xllamacpp``."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from joulewise.decoding import CoGA, Decoding, DyGA, Eagle3, PromptLookup
from joulewise.engines.default_model import default_gguf
from joulewise.engines.endpoint_spec import ServerSpec
from joulewise.engines.servers import xllamacpp_server
from joulewise.engines.servers.counters import Counters, Drafted, parse_exposition, spec_decode, total
from joulewise.engines.servers.server import LOCAL, About, Command, Fetch, Launch, fetched_object, flags
from joulewise.errors import UserError

PROGRAM = "llama-server"
WHEEL = "xllamacpp"
INSTALL = "put llama.cpp's llama-server on the PATH, or pip install 'joulewise[llamacpp]'"

_OLD = {
    "--spec-draft-model": "--model-draft",
    "--spec-draft-n-max": "--draft-max",
    "--spec-draft-p-min": "--draft-p-min",
}
"""Names of builds of before the options were renamed; what such a build has no name for, it cannot do."""


class LlamaCpp:
    """See the module."""

    kind = "llamacpp"
    name = "llama.cpp"
    health = "/health"
    ignores_eos = True
    all_tokens: int | None = 0
    continuing: Mapping[str, Any] | None = {}
    counting: Mapping[str, Any] = {"timings_per_token": True}
    ways: Mapping[str, str] = {
        "vanilla": "no speculation",
        "coga": "`draft-simple`, exactly so many tokens a round (`p-min` 0)",
        "dyga": "rule `confidence`: `draft-simple` with `p-min`; the token below the threshold is no part of the draft",
        "prompt_lookup": "`ngram-simple`: n-grams of exactly `max_ngram` tokens, shorter ones are not looked for",
        "eagle3": "`draft-eagle3`, a chain (`top_k: 1`)",
    }
    lacks: Mapping[str, str] = {
        "medusa": "llama.cpp has no Medusa heads",
        "eagle2": "llama.cpp drafts with EAGLE-3 heads only, not with those of EAGLE-1 and EAGLE-2",
    }

    def missing(self, server: ServerSpec) -> str | None:
        """No such file as it serves, or neither program nor wheel."""
        if server.model != "default" and not (server.model.endswith(".gguf") and Path(server.model).is_file()):
            return f"llama.cpp serves a GGUF file, and {server.model} is none that is here: name one as `model`"
        if server.program is not None:
            return None if shutil.which(server.program) else f"there is no program {server.program}: {INSTALL}"
        if shutil.which(PROGRAM) or find_spec(WHEEL):
            return None
        return f"there is no {PROGRAM} on the PATH and the package {WHEEL} is not installed: {INSTALL}"

    def refuses(self, decoding: Decoding, server: ServerSpec | None) -> str | None:
        """Trees, and rules that it has not."""
        if isinstance(decoding, DyGA) and decoding.rule == "heuristic":
            return "llama.cpp has no draft length that adapts to what was accepted: ask for `rule: confidence`"
        if isinstance(decoding, Eagle3) and decoding.top_k > 1:
            return "llama.cpp drafts a chain, and EAGLE's tree does not exist there: ask for `top_k: 1`"
        return None

    def command(self, launch: Launch) -> Command:
        """One request at a time, no prompt kept, metrics on; the wheel takes the same options by a small runner."""
        server = launch.server
        program = server.program or shutil.which(PROGRAM)
        options: dict[str, Any] = {
            "model": default_gguf() if server.model == "default" else server.model,
            "host": LOCAL,
            "port": launch.port,
            "alias": launch.alias,
            "parallel": 1,
            "metrics": True,
            "cache-prompt": False,
        }
        speculation = self._speculation(launch)
        if program is None:
            told = json.dumps({**options, **server.args, **speculation})
            return Command((sys.executable, xllamacpp_server.__file__, told))
        known = _help(program)
        if "--cache-prompt" not in known:
            options.pop("cache-prompt")  # each request says so, too
        for option in speculation:
            if f"--{option}" not in known and _OLD.get(f"--{option}", "-") not in known:
                if option == "spec-type" and launch.decoding.needs_draft:
                    continue  # of builds with one kind of draft, the model's name is enough
                raise UserError(
                    f"{program} has no option --{option}, so this build of llama.cpp cannot do "
                    f"{launch.decoding.label}: take a newer one"
                )
        renamed = {
            option if f"--{option}" in known else _OLD[f"--{option}"].lstrip("-"): value
            for option, value in speculation.items()
            if f"--{option}" in known or _OLD.get(f"--{option}", "-") in known
        }
        return Command((program, *flags({**options, **server.args, **renamed})))

    def _speculation(self, launch: Launch) -> dict[str, Any]:
        decoding = launch.decoding
        found: dict[str, Any] = {}
        match decoding:
            case CoGA():
                found = {"spec-type": "draft-simple", "spec-draft-n-max": decoding.tokens, "spec-draft-p-min": 0.0}
            case DyGA():
                found = {
                    "spec-type": "draft-simple",
                    "spec-draft-n-max": decoding.tokens,
                    "spec-draft-p-min": decoding.threshold,
                }
            case Eagle3():
                found = {"spec-type": "draft-eagle3", "spec-draft-n-max": decoding.path_tokens, "spec-draft-p-min": 0.0}
            case PromptLookup():
                return {
                    "spec-type": "ngram-simple",
                    "spec-ngram-simple-size-n": decoding.max_ngram,
                    "spec-ngram-simple-size-m": decoding.tokens,
                }
            case _:
                return {}
        found["spec-draft-model"] = launch.speculator
        if decoding.synthetic is not None:
            found["spec-synth-rates"] = ",".join(f"{rate:g}" for rate in decoding.synthetic)
        return found

    def packages(self, server: ServerSpec) -> tuple[str, ...]:
        """The wheel, where it serves."""
        return () if server.program or shutil.which(PROGRAM) else (WHEEL,)

    def gpu_count(self, server: ServerSpec) -> int | None:
        """Layers are split over all that are visible."""
        return None

    def about(self, fetch: Fetch) -> About | None:
        """``/props`` and the list of models."""
        props = fetched_object(fetch, "/props")
        if props is None or "build_info" not in props:
            return None
        listed = (fetched_object(fetch, "/v1/models") or {}).get("data") or [{}]
        meta = listed[0].get("meta") or {}
        context = (props.get("default_generation_settings") or {}).get("n_ctx")
        template = props.get("chat_template")
        return About(
            version=str(props["build_info"]),
            model=Path(str(props.get("model_path", ""))).name or None,
            parameters=meta.get("n_params"),
            quantisation=props.get("model_ftype") or meta.get("ftype"),
            context_length=context,
            prefix_cache=False,  # each request refuses it
            chat=bool(template) if template is not None else None,
            thinking_switch="enable_thinking" in str(template),
        )

    def body(self) -> Mapping[str, Any]:
        """No prompt is answered from an earlier one's prefill, and sampling has no rules of its own."""
        return {"cache_prompt": False, "min_p": 0.0}

    def counters(self, fetch: Fetch, decoding: Decoding) -> Counters | None:
        """``/metrics``, with ``--metrics``; the speculative ones came late (of older builds the answers tell)."""
        status, text = fetch("/metrics")
        if status != 200:
            return None
        metrics = parse_exposition(text)
        return Counters(
            output_tokens=total(metrics, "llamacpp:tokens_predicted"),
            cached_tokens=total(metrics, "llamacpp:prompt_tokens_cached"),
            **spec_decode(metrics, "llamacpp"),
        )

    def drafted(self, extra: Mapping[str, Any]) -> Drafted | None:
        """``timings``; it leaves the counts out where nothing was drafted."""
        timings = extra.get("timings")
        if not isinstance(timings, Mapping):
            return None
        return Drafted(int(timings.get("draft_n", 0)), int(timings.get("draft_n_accepted", 0)))


@cache
def _help(program: str) -> frozenset[str]:
    """The options that a build knows.

    Raises:
        UserError: it does not tell.
    """
    try:
        done = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{program} --help does not tell its options ({error}): name another `program`") from error
    words = done.stdout.replace(",", " ").replace("[", " ").split()
    return frozenset(word for word in words if word.startswith("--"))
