"""The file of a curve: what is written is read again, and what is none is refused with the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from joulewise.analysis.curve_file import CurveFile, curve_json, read_curve
from joulewise.analysis.curve_points import Origin
from joulewise.analysis.curves import fit_curve
from joulewise.errors import UserError
from planted_curve import grid

ORIGIN = Origin(
    "m", "m@native", {"torch": "2.11"}, "bfloat16", "NVIDIA H200", "gpu", "vanilla", "2026-11-30T10:00:00+00:00"
)


@pytest.fixture(scope="module")
def text() -> str:
    return curve_json(fit_curve(grid(noise=0.05), replicates=50), ORIGIN)


def test_there_and_back(text: str, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(text)
    curve, origin = read_curve(tmp_path / "c.json")
    assert origin == ORIGIN
    assert curve_json(curve, origin) == text
    assert curve.energy_j(512, 64, 4) == fit_curve(grid(noise=0.05), replicates=50).energy_j(512, 64, 4)


def test_the_schema_knows_every_field(text: str) -> None:
    assert set(json.loads(text)) == set(CurveFile.model_json_schema()["properties"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "plan"}, "kind"),
        ({"schema_version": 2}, "schema_version"),
        ({"coefficients": {"token": {"value": -1.0, "lower": 0.0, "upper": 1.0}}}, "coefficients.token.value"),
        ({"coefficients": {"magic": {"value": 1.0, "lower": 0.0, "upper": 1.0}}}, "no such term: magic"),
        ({"coefficients": {}}, "coefficients"),
        ({"correction": {"reach": 2.0, "loads": [1.0], "weights": []}}, "as many weights as loads"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_what_is_no_curve_is_refused(text: str, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    (tmp_path / "c.json").write_text(json.dumps(json.loads(text) | change))
    with pytest.raises(UserError, match=said) as refused:
        read_curve(tmp_path / "c.json")
    assert "c.json" in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_what_is_no_json_object_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c.json").write_bytes(content)
    with pytest.raises(UserError, match=r"c\.json.*joulewise curve RUN"):
        read_curve(tmp_path / "c.json")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_curve(tmp_path / "c.json")
