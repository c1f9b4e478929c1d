"""Runs llama.cpp's server from the wheel ``xllamacpp`` until it is stopped: ``python xllamacpp_server.py JSON``.

A script of its own, so that the server is a process like any other. Its one argument holds options by the names that
``llama-server`` has for them.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

PLAIN = {
    "port": "port",
    "parallel": "n_parallel",
    "ctx-size": "n_ctx",
    "batch-size": "n_batch",
    "ubatch-size": "n_ubatch",
    "gpu-layers": "n_gpu_layers",
    "metrics": "endpoint_metrics",
    "cache-prompt": "cache_prompt",
    "chat-template": "chat_template",
    "verbosity": "verbosity",
    "threads": "cpuparams.n_threads",
    "threads-batch": "cpuparams_batch.n_threads",
    "model": "model.path",
    "spec-draft-model": "speculative.draft.mparams.path",
    "spec-draft-n-max": "speculative.draft.n_max",
    "spec-draft-n-min": "speculative.draft.n_min",
    "spec-draft-p-min": "speculative.draft.p_min",
    "spec-ngram-simple-size-n": "speculative.ngram_simple.size_n",
    "spec-ngram-simple-size-m": "speculative.ngram_simple.size_m",
    "spec-ngram-simple-min-hits": "speculative.ngram_simple.min_hits",
}
"""The option's name, and that of the wheel's parameter."""


def parameters(module: Any, options: dict[str, Any]) -> Any:
    """The wheel's parameters.

    Raises:
        SystemExit: an option that has no parameter here; with those that have.
    """
    found = module.CommonParams()
    for name, value in options.items():
        if name == "host":
            found.hostnames = [value]
        elif name == "alias":
            found.model_alias = {value}
        elif name == "spec-type":
            kind = f"COMMON_SPECULATIVE_TYPE_{value.upper().replace('-', '_')}"
            found.speculative.types = [getattr(module.common_speculative_type, kind)]
        elif name == "spec-synth-rates":
            found.speculative.synth_rates = [float(rate) for rate in value.split(",")]
        elif name in PLAIN:
            *way, last = PLAIN[name].split(".")
            place = found
            for step in way:
                place = getattr(place, step)
            setattr(place, last, value)
        else:
            known = ", ".join(sorted(PLAIN))
            raise SystemExit(f"the wheel xllamacpp is not told of an option {name!r} here; there are {known}")
    return found


def main() -> None:
    """Serve until SIGTERM."""
    import xllamacpp

    # Held until the end: with it the server stops.
    server = xllamacpp.Server(parameters(xllamacpp, json.loads(sys.argv[1])))
    print(f"listening on {server.listening_address}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
