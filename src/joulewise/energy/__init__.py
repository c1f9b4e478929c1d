"""What did it draw? Sources, a meter, and windows of joules with their uncertainty."""

from joulewise.energy.api import measure
from joulewise.energy.meter import Mark, Meter, Window, discover
from joulewise.energy.reading import ComponentEnergy, ComponentName, Energy, Provenance, Reading
from joulewise.energy.source import Absent, Discovery, Source, SourceSpec
from joulewise.energy.sources import SOURCES
from joulewise.energy.track import TimelineRow

__all__ = [
    "SOURCES",
    "Absent",
    "ComponentEnergy",
    "ComponentName",
    "Discovery",
    "Energy",
    "Mark",
    "Meter",
    "Provenance",
    "Reading",
    "Source",
    "SourceSpec",
    "TimelineRow",
    "Window",
    "discover",
    "measure",
]
