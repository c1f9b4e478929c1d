"""A sweep's run of planted coefficients on a made-up card, and what each of its requests would cost without noise."""

from __future__ import annotations

from typing import Any

import numpy as np

from joulewise.analysis.curves import Points
from joulewise.table import RunTable
from planted_curve import grid
from sample_run import ENVIRONMENT
from synthetic_table import part, row, table


def sample_sweep(
    points: Points | None = None, noise: float = 0.0, provenance: str = "measured", names: str = ""
) -> RunTable:
    """Windows of two batches each.

    Args:
        points: what was measured; None takes the whole grid of ``planted_curve``.
        noise: of that grid, relative.
        provenance: of the joules.
        names: stands behind engine and model.
    """
    found = grid(noise=noise) if points is None else points
    rows: list[dict[str, Any]] = []
    at = zip(found.prompt_tokens, found.output_tokens, found.running, found.energy_j, strict=True)
    for i, (p, o, b, joules) in enumerate(at):
        requests = 2 * int(b)
        rows.append(
            row(
                question=f"p{p:g}-o{o:g}-b{b:g}-{i}",
                engine="small" + names,
                model="m" + names,
                task="sweep",
                energy=[part("gpu", requests * float(joules), provenance, gain=0.01)],
                prompt_tokens=requests * int(p),
                output_tokens=requests * int(o),
                generation_count=requests,
                running=int(b),
                duration_s=float(np.sqrt(joules)),
            )
        )
    return table(rows, environments={"r": ENVIRONMENT})
