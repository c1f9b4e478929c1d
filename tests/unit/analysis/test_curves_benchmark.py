"""``benchmarks/curves.py`` on a made-up table, and its claim on the real one."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from joulewise.analysis.curves import Form
from joulewise.errors import UserError
from load_benchmark import load_benchmark

curves = load_benchmark("curves")

COLUMNS = (*curves.CURVE, *curves.SIZES, "max_num_seqs", "energy_per_token_joules")


def write(folder: Path, noise: float = 0.0, columns: tuple[str, ...] = COLUMNS) -> None:
    """Six models, each with 7 loads, that cost (1 + 10/B) J per billion parameters."""
    rng = np.random.default_rng(0)
    with (folder / curves.FILE).open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        for i, size in enumerate((1, 3, 8, 14, 32, 70)):
            for load in (8, 16, 32, 64, 128, 256, 512):
                energy = size * (1 + 10 / load) * rng.lognormal(0.0, noise)
                row = dict.fromkeys(COLUMNS, "1")
                row |= {"task": "chat", "model_id": f"maker{i % 2}/m{size}", "gpu_model": ("H100", "B200")[i % 2]}
                row |= {"weight_precision": "fp8", "max_num_seqs": str(load), "energy_per_token_joules": str(energy)}
                writer.writerow(row | dict.fromkeys(curves.SIZES, str(size)))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "CORRECTIONS", ((2.0, 0.0), (2.0, 4.0)))
    monkeypatch.setattr(curves, "SPLITS", 3)


@pytest.mark.usefixtures("few")
def test_a_made_up_table_is_told_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    monkeypatch.setattr(sys, "argv", ["curves.py", "--data", str(tmp_path), "--json", str(tmp_path / "out" / "r.json")])
    assert curves.main() == 0
    assert "met" in capsys.readouterr().out
    got = json.loads((tmp_path / "out" / "r.json").read_text())
    assert (got["rows"], got["curves"]) == (42, 6)
    assert got["shipped"]["interior"]["points"] == 30
    assert got["shipped"]["interior"]["p90"] < 1e-3
    assert got["across_models"]["model"]["median"] < 0.05
    assert got["across_models"]["model"]["groups"] == 6


@pytest.mark.usefixtures("few")
def test_noise_misses_the_aim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, noise=0.3)
    monkeypatch.setattr(sys, "argv", ["curves.py", "--data", str(tmp_path)])
    assert curves.main() == 1


def test_what_is_not_the_table_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no such file"):
        curves.read(tmp_path)
    write(tmp_path, columns=COLUMNS[1:])
    with pytest.raises(UserError, match="no column task"):
        curves.read(tmp_path)
    write(tmp_path)
    text = (tmp_path / curves.FILE).read_text().replace(",512,", ",nan,", 1)
    (tmp_path / curves.FILE).write_text(text)
    with pytest.raises(UserError, match=r"csv:8: max_num_seqs: 'nan'"):
        curves.read(tmp_path)
    monkeypatch.setattr(sys, "argv", ["curves.py", "--data", str(tmp_path)])
    assert curves.main() == 2


def test_the_shipped_form_meets_the_aim_on_what_others_measured(shared_data: Path, repository: Path) -> None:
    if not (shared_data / "ml-energy" / curves.FILE).exists():
        pytest.skip("the ML.ENERGY table is not at hand")
    rows = curves.read(shared_data / "ml-energy")
    points, _ = curves.curves(rows)
    got = curves.errors_of(points, Form(curves.TERMS[curves.SHIPPED[0]])).told()
    assert got["interior"]["points"] == 583
    assert got["interior"]["median"] <= 0.025
    assert got["interior"]["p90"] <= 0.09
    recorded = json.loads((repository / "results/others/ml-energy-curves.json").read_text())["shipped"]
    for where in ("interior", "ends"):
        assert got[where] == pytest.approx(recorded[where], rel=1e-6)
