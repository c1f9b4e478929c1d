"""Trials of decodings whose every cost is planted, for the tests of the break-even."""

from __future__ import annotations

from typing import Any

from synthetic_table import part, row


def answers(
    decoding: str, seconds: float, joules: float, tau: float = 1.0, size: int = 5, **other: Any
) -> list[dict[str, Any]]:
    """Six answers of about 101 tokens; ``seconds`` and ``joules`` a token, and a prefill of 0.1 s and 60 J."""
    rows = []
    for i in range(6):
        tokens = 100 + 10 * i
        count = round(tokens / tau) if tau > 1.0 else 0
        rows.append(
            row(
                decoding,
                f"q{i}",
                energy=[part("gpu", 60.0 + joules * tokens, other.get("provenance", "measured"))],
                duration_s=0.1 + seconds * tokens,
                output_tokens=tokens + 1,
                generation_count=1,
                prefill_s=0.1,
                gpu_prefill_j=60.0,
                total_prefill_j=60.0,
                gpu_prefill_edges_j=0.0,
                rounds=count,
                drafted_tokens=size * count,
                accepted_tokens=tokens - count if count else 0,
                drafted_per_round=[size] * count,
                **{name: value for name, value in other.items() if name != "provenance"},
            )
        )
    return rows
