"""Carbon: grams of CO2 equivalent, from joules and the intensity of the grid that they came from.

Location-based (GHG Protocol, Scope 2): the mean of the grid where the machine stands, whatever its owner buys. Of the
operation only: nothing for making the hardware, for cooling, or for losses between the wall and the sensors.
"""

from __future__ import annotations

import bisect
import csv
import difflib
import io
import itertools
import json
import os
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from joulewise.errors import EnvironmentFault, UserError
from joulewise.yaml_file import in_words

J_PER_KWH = 3.6e6

SCOPE = (
    "gCO2e are joules times the intensity of the grid where the machine stands (location-based), of operation only: "
    "nothing for making the hardware, for cooling, or for what no sensor here sees. The intensity's own uncertainty is "
    "not known and not in the intervals."
)
"""What a reader of any figure must know."""

ELECTRICITY_MAPS = "electricitymaps:"
"""Before a zone, in the place of a country."""

ELECTRICITY_MAPS_URL = "https://api.electricitymaps.com/v3/carbon-intensity/latest"

TOKEN = "ELECTRICITYMAPS_API_TOKEN"
"""The environment variable that holds the token for Electricity Maps."""

TIMEOUT_S = 10.0

_TABLE_SOURCE = "Our World in Data, as CodeCarbon 3.3.2 ships it"


@dataclass(frozen=True, slots=True)
class Intensity:
    """How much CO2 equivalent a kilowatt-hour of a grid stands for.

    Args:
        g_per_kwh: grams per kilowatt-hour.
        where: the country, the zone or the file.
        source: whose figure it is.
        age: of what time it is, and how far that lies from the time of the joules, in words.
        away_s: seconds between its time and that of the joules; 0 for a year's mean, which has no moment.
    """

    g_per_kwh: float
    where: str
    source: str
    age: str
    away_s: float = 0.0

    @property
    def g_per_j(self) -> float:
        """Grams per joule."""
        return self.g_per_kwh / J_PER_KWH

    def __str__(self) -> str:
        return f"{self.g_per_kwh:.4g} gCO2e/kWh, {self.where}; {self.source}; {self.age}"


Grid: TypeAlias = Callable[[datetime, datetime], Intensity]
"""The intensity between two moments, as mean over the time; both must know their time zone."""


def grid(text: str) -> Grid:
    """The grid that ``--carbon`` names.

    Args:
        text: a country (its name or ISO 3166-1 code), a CSV or JSON file with ``time`` and ``g_per_kwh``, or
            ``electricitymaps:ZONE``.

    Raises:
        UserError: no such country, or a file that does not hold what it should.
        EnvironmentFault: the file cannot be read, or Electricity Maps cannot be asked.
    """
    if text.startswith(ELECTRICITY_MAPS):
        return _electricity_maps(text.removeprefix(ELECTRICITY_MAPS))
    path = Path(text)
    if path.suffix.lower() in (".csv", ".json"):
        return _Series(path.name, _entries(path))
    return _country(text)


def _country(name: str) -> Grid:
    table = files("joulewise.energy") / "data" / "grid_intensity.csv"
    rows = list(csv.DictReader(io.StringIO(table.read_text(encoding="utf-8"))))
    known = {row[column].casefold(): row for row in rows for column in ("country", "alpha_2", "alpha_3")}
    row = known.get(name.casefold())
    if row is None:
        near = difflib.get_close_matches(name.casefold(), known, n=1)
        hint = f" (did you mean {known[near[0]]['country']}?)" if near else ""
        raise UserError(
            f"--carbon {name}: no country of that name or code in the table{hint}; give another, a .csv or .json file "
            f"of the grid's intensity, or {ELECTRICITY_MAPS}ZONE"
        )
    year = int(row["year"])

    def of_year(start: datetime, _end: datetime) -> Intensity:
        away = start.year - year
        age = f"mean of the year {year}"
        if away:
            age += f", {abs(away)} year{'s' * (abs(away) != 1)} {'before' if away > 0 else 'after'} the joules"
        return Intensity(float(row["g_per_kwh"]), row["country"], _TABLE_SOURCE, age)

    return of_year


class _Entry(BaseModel):
    """One line of a file of intensities."""

    time: AwareDatetime
    g_per_kwh: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


def _entries(path: Path) -> list[_Entry]:
    """The file's values in the order of their times."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise EnvironmentFault(f"{path}: cannot be read ({why}); give --carbon another file, or a country") from error
    entries = [_entry(place, row) for place, row in _rows(path, text)]
    if not entries:
        raise UserError(f"{path}: holds no values; it needs lines of time and g_per_kwh")
    entries.sort(key=lambda entry: entry.time)
    for before, after in itertools.pairwise(entries):
        if before.time == after.time:
            raise UserError(f"{path}: two values for {after.time.isoformat()}; keep one of them")
    return entries


def _rows(path: Path, text: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    if path.suffix.lower() == ".json":
        try:
            rows = json.loads(text)
        except ValueError as error:
            raise UserError(f"{path}: not JSON ({error})") from error
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise UserError(f'{path}: needs a list of {{"time": "2026-01-31T13:00:00Z", "g_per_kwh": 56.0}}')
        return [(f"{path}, entry {i}", row) for i, row in enumerate(rows, 1)]
    reader = csv.DictReader(io.StringIO(text))
    for column in _Entry.model_fields:
        if column not in (reader.fieldnames or ()):
            raise UserError(f"{path}:1: no column {column}; the first line must be: time,g_per_kwh")
    return [(f"{path}:{reader.line_num}", row) for row in reader]


def _entry(place: str, row: Mapping[str, Any]) -> _Entry:
    try:
        return _Entry.model_validate({name: row.get(name) for name in _Entry.model_fields})
    except ValidationError as error:
        first = error.errors()[0]
        hint = "write it as 2026-01-31T13:00:00Z, with its zone" if first["loc"] == ("time",) else "grams per kWh"
        raise UserError(f"{place}: {first['loc'][0]}: {in_words(first)}; {hint}") from error


class _Series:
    """A file's values: each holds from its time to the next one's, the last as long as they do as a rule (median)."""

    def __init__(self, name: str, entries: Sequence[_Entry]) -> None:
        self._name = name
        self._times = [entry.time for entry in entries]
        self._values = [entry.g_per_kwh for entry in entries]
        steps_s = [(b - a).total_seconds() for a, b in itertools.pairwise(self._times)]
        self._end = self._times[-1] + timedelta(seconds=statistics.median(steps_s) if steps_s else 3600)

    def __call__(self, start: datetime, end: datetime) -> Intensity:
        first = max(0, bisect.bisect_right(self._times, start) - 1)
        last = max(first, bisect.bisect_left(self._times, end) - 1)
        cuts = [start, *self._times[first + 1 : last + 1], end]
        seconds = [(b - a).total_seconds() for a, b in itertools.pairwise(cuts)]
        values = self._values[first : last + 1]
        whole = sum(seconds)
        mean = sum(v * s for v, s in zip(values, seconds, strict=True)) / whole if whole > 0 else values[0]
        count = last - first + 1
        age = f"value of {_moment(self._times[first])}" if count == 1 else f"mean of {count} values"
        beyond = max(self._times[0] - start, end - self._end, timedelta(0))
        age += f", up to {_span(beyond)} away from the joules" if beyond else ", of the joules' own time"
        return Intensity(mean, self._name, "a file", age, beyond.total_seconds())


class _Latest(BaseModel):
    """What is used of Electricity Maps' answer."""

    zone: str
    carbon_intensity: Annotated[float, Field(alias="carbonIntensity", ge=0.0, allow_inf_nan=False)]
    time: Annotated[AwareDatetime, Field(alias="datetime")]
    estimated: Annotated[bool | None, Field(alias="isEstimated")] = None
    factors: Annotated[str | None, Field(alias="emissionFactorType")] = None


def _electricity_maps(zone: str) -> Grid:
    if not re.fullmatch(r"[A-Za-z0-9-]{1,32}", zone):
        raise UserError(f"--carbon {ELECTRICITY_MAPS}{zone}: not a zone; zones look like DE or US-CAL-CISO")
    latest = _ask(zone)
    kind = ", ".join(filter(None, (latest.factors, "estimated" if latest.estimated else None)))
    source = f"Electricity Maps ({kind})" if kind else "Electricity Maps"

    def at(start: datetime, end: datetime) -> Intensity:
        away = max(start - latest.time, latest.time - end, timedelta(0))
        age = f"value of {_moment(latest.time)}"
        age += f", {_span(away)} {'before' if latest.time < start else 'after'} the joules" if away else ""
        return Intensity(latest.carbon_intensity, f"zone {latest.zone}", source, age, away.total_seconds())

    return at


def _ask(zone: str) -> _Latest:
    """The zone's latest value. The token goes into one header, and into no message."""
    # Here, as they take half of this module's time to import.
    import http.client
    import urllib.error
    import urllib.parse
    import urllib.request

    token = os.environ.get(TOKEN, "").strip()
    if not token:
        raise EnvironmentFault(f"Electricity Maps needs a token: set the environment variable {TOKEN}")
    if not re.fullmatch(r"[!-~]+", token):
        raise EnvironmentFault(f"the token in {TOKEN} holds characters that no token has; set it again")
    request = urllib.request.Request(f"{ELECTRICITY_MAPS_URL}?{urllib.parse.urlencode({'zone': zone})}")
    request.add_unredirected_header("auth-token", token)
    way_out = "give --carbon a country or a file instead"
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return _Latest.model_validate_json(answer.read(1 << 16))
    except urllib.error.HTTPError as error:
        why = {401: f"check {TOKEN}", 403: f"check {TOKEN}, and that it may read this zone", 404: "check the zone"}
        raise EnvironmentFault(
            f"Electricity Maps refused zone {zone} (HTTP {error.code}); {why.get(error.code, 'try again later')}, or "
            f"{way_out}"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise EnvironmentFault(
            f"Electricity Maps cannot be reached ({getattr(error, 'reason', error)}); {way_out}"
        ) from error
    except ValidationError as error:
        raise EnvironmentFault(f"Electricity Maps gave no intensity for zone {zone}; {way_out}") from error


def _moment(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _span(gap: timedelta) -> str:
    """A stretch of time in its largest unit, rounded up."""
    seconds = gap.total_seconds()
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= size or unit == "minute":
            count = -int(-seconds // size)
            break
    return f"{count} {unit}{'s' * (count != 1)}"
