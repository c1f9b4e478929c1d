"""Whose joules a router learnt, and whether those that are drawn here can be held against them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from joulewise.analysis.intervals import joint_provenance
from joulewise.energy.reading import ComponentName

if TYPE_CHECKING:
    from joulewise.energy.source import SourceSpec


@dataclass(frozen=True, slots=True, order=True)
class JouleSource:
    """Whose joules, and how they came about.

    Args:
        device: names of the devices that were read.
        component: which of a machine's joules.
        provenance: as in ``energy``.
    """

    device: str
    component: ComponentName
    provenance: str

    def __str__(self) -> str:
        what = {"gpu": "GPU", "cpu": "CPU", "dram": "memory"}.get(self.component, "all components")
        return f"{self.device} ({what}, {self.provenance})"


def joule_source(
    sources: Iterable[Mapping[str, Any]], component: ComponentName, provenance: str | None = None
) -> JouleSource | None:
    """Whose joules the sources of an environment tell; None where they name no device.

    Args:
        sources: as ``SourceSpec``, in plain data.
        component: which joules.
        provenance: of the joules; None: as the sources' own.
    """
    mine = [s for s in sources if component in ("total", s.get("component"))]
    names = [str(s["device"]) for s in mine if s.get("device")]
    if not names:
        return None
    devices = [name if names.count(name) == 1 else f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    return JouleSource(", ".join(devices), component, provenance or joint_provenance(s.get("provenance") for s in mine))


def source_here(specs: Sequence[SourceSpec], component: ComponentName = "total") -> JouleSource | None:
    """Whose joules a meter of these sources tells: the component's, else those of all that there is."""
    plain = [asdict(spec) for spec in specs]
    return joule_source(plain, component) or joule_source(plain, "total")


def difference(learnt: Sequence[JouleSource], here: JouleSource | None) -> str | None:
    """Why joules that are drawn here cannot be held against those that were learnt; None where they can, or where it
    is not known whose were learnt.
    """
    if not learnt or tuple(learnt) == (here,):
        return None
    return (
        f"joules learnt on {'; '.join(map(str, learnt))}; here: {'unknown' if here is None else here}; not comparable"
    )


def differences(learnt: Iterable[Sequence[JouleSource]], specs: Sequence[SourceSpec]) -> list[str]:
    """The same of all options of a router, each sentence once."""
    told = (difference(one, source_here(specs, one[0].component)) for one in learnt if one)
    return list(dict.fromkeys(words for words in told if words is not None))
