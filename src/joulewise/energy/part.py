"""Part: whose joules a window is asked for, where not every source of the meter counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from joulewise.energy.reading import ComponentName


@dataclass(frozen=True, slots=True)
class Part:
    """Some of a meter's sources.

    Args:
        sources: their ids; None: all of them.
        unknown: by component, why its joules are not known although something draws them.
    """

    sources: frozenset[str] | None = None
    unknown: Mapping[ComponentName, str] = field(default_factory=dict)

    def has(self, source_id: str) -> bool:
        """Whether a source counts."""
        return self.sources is None or source_id in self.sources


WHOLE = Part()
