"""The file of a curve: small JSON, checked as it is read (docs/curve.schema.json)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from joulewise.analysis.curve_points import Origin
from joulewise.analysis.curves import TERMS, Coefficient, Correction, Curve, HeldOut, Region, Residual, Spread
from joulewise.energy.reading import ComponentName
from joulewise.errors import EnvironmentFault, UserError
from joulewise.yaml_file import in_words

_Finite = Annotated[float, Field(allow_inf_nan=False)]
_AtLeast0 = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
_Range = tuple[_AtLeast0, _AtLeast0]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CoefficientEntry(_Part):
    """A coefficient, in joules, with its 95 % interval."""

    value: _AtLeast0
    lower: _AtLeast0
    upper: _AtLeast0


class CorrectionEntry(_Part):
    """The factor over the load B: exp(sum of weight x k(ln B - ln load)), k the Matern 3/2 covariance of a length."""

    reach: Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
    loads: tuple[Annotated[float, Field(ge=1.0, allow_inf_nan=False)], ...]
    weights: tuple[_Finite, ...]

    @model_validator(mode="after")
    def _alike(self) -> Self:
        if len(self.loads) != len(self.weights):
            raise ValueError("as many weights as loads are needed")
        return self


class SpreadEntry(_Part):
    """Relative errors without sign."""

    points: Annotated[int, Field(ge=0)]
    median: _AtLeast0 | None
    p90: _AtLeast0 | None


class HeldOutEntry(_Part):
    """Errors at points that had no part in the fit: within the ranges of the others, and beyond them."""

    by: str
    inside: SpreadEntry
    outside: SpreadEntry


class ResidualEntry(_Part):
    """The median error with its sign over a third of what was measured; above 0 where the curve tells too much."""

    of: Literal["prompt_tokens", "output_tokens", "running"]
    low: _AtLeast0
    high: _AtLeast0
    points: Annotated[int, Field(ge=1)]
    median: _Finite


class RegionEntry(_Part):
    """The least and the most that was measured."""

    prompt_tokens: _Range
    output_tokens: _Range
    running: _Range


class CurveFile(_Part):
    """A curve of one model, decoding and engine on one device.

    Args:
        kind: what the file is.
        schema_version: of this format.
        joulewise: the version that fitted the curve.
        model: the model's name in the plan.
        engine: the engine's label.
        versions: of the engine's packages.
        dtype: of the weights; null where not known.
        device: whose joules, by name; null where not known.
        component: which joules: gpu, cpu, dram or total.
        decoding: its label.
        measured_at: when the run began; null where not known.
        coefficients: by term; terms that are absent were not fitted.
        correction: the factor over the load.
        held_out: the error to expect.
        fitted: the error at the points of the fit.
        residuals: the same with its sign, by length and load.
        region: where it was measured.
    """

    kind: Literal["joulewise-curve"] = "joulewise-curve"
    schema_version: Literal[1] = 1
    joulewise: str
    model: str
    engine: str
    versions: dict[str, str]
    dtype: str | None
    device: str | None
    component: ComponentName
    decoding: str
    measured_at: AwareDatetime | None
    coefficients: Annotated[dict[str, CoefficientEntry], Field(min_length=1)]
    correction: CorrectionEntry
    held_out: HeldOutEntry
    fitted: SpreadEntry
    residuals: tuple[ResidualEntry, ...]
    region: RegionEntry

    @model_validator(mode="after")
    def _known_terms(self) -> Self:
        if unknown := sorted(set(self.coefficients) - set(TERMS)):
            raise ValueError(f"no such term: {', '.join(unknown)} (there are {', '.join(TERMS)})")
        return self


def curve_json(curve: Curve, origin: Origin) -> str:
    """A curve and what it is of, as the text of its file."""
    from joulewise import __version__

    whole: dict[str, Any] = {"joulewise": __version__, **asdict(origin), **asdict(curve)}
    return CurveFile.model_validate(whole).model_dump_json(indent=1) + "\n"


def read_curve(path: Path) -> tuple[Curve, Origin]:
    """Read a curve file.

    Raises:
        UserError: no such file, or not a curve's; with the field.
        EnvironmentFault: it cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; name one that `joulewise curve RUN --json FILE` wrote") from None
    except OSError as error:
        raise EnvironmentFault(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
    try:
        found = CurveFile.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UserError(
            f"{path}: {place + ': ' if place else ''}{in_words(first)}; name a file that "
            "`joulewise curve RUN --json FILE` wrote, or write it again"
        ) from error
    return curve_of(found), origin_of(found)


def origin_of(found: CurveFile) -> Origin:
    """What the curve of a file is of."""
    at = None if found.measured_at is None else found.measured_at.isoformat()
    return Origin(
        found.model, found.engine, found.versions, found.dtype, found.device, found.component, found.decoding, at
    )


def curve_of(found: CurveFile) -> Curve:
    """The curve that a file holds."""
    inside, outside = (Spread(s.points, s.median, s.p90) for s in (found.held_out.inside, found.held_out.outside))
    return Curve(
        {name: Coefficient(c.value, c.lower, c.upper) for name, c in found.coefficients.items()},
        Correction(found.correction.reach, found.correction.loads, found.correction.weights),
        HeldOut(found.held_out.by, inside, outside),
        Spread(found.fitted.points, found.fitted.median, found.fitted.p90),
        tuple(Residual(r.of, r.low, r.high, r.points, r.median) for r in found.residuals),
        Region(found.region.prompt_tokens, found.region.output_tokens, found.region.running),
    )
