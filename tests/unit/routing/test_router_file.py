from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from joulewise.errors import UserError
from joulewise.routing.performance import fit, predict_all
from joulewise.routing.router_file import MOST_BYTES, load_router, save
from planted_outcomes import planted

pytest.importorskip("scipy", reason="learning needs the extra routing")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("router") / "router.npz"
    save(fit(planted(200, named=True)), file)
    return file


def rewritten(source: Path, target: Path, change: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, change.get(name, old.read(name)))
    return target


def test_what_is_read_predicts_what_was_written(path: Path) -> None:
    model, again = fit(planted(200, named=True)), load_router(path)
    assert (again.options, again.domains, again.reference) == (model.options, model.domains, model.reference)
    queries = planted(50, seed=2).queries
    np.testing.assert_allclose(predict_all(again, queries).gain, predict_all(model, queries).gain, atol=2e-3)
    assert path.stat().st_size < MOST_BYTES


def test_the_same_fit_writes_the_same_bytes(path: Path, tmp_path: Path) -> None:
    save(fit(planted(200, named=True)), tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == path.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["again.npz"]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused(path: Path, tmp_path: Path, share: float) -> None:
    whole = path.read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(UserError, match="truncated, damaged or no router file"):
        load_router(tmp_path / "cut.npz")


def test_another_version_is_refused(path: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        header = json.loads(archive.read("header.json")) | {"version": 99}
    other = rewritten(path, tmp_path / "other.npz", {"header.json": json.dumps(header).encode()})
    with pytest.raises(UserError, match="version 99, and this reads 1"):
        load_router(other)


def test_pickled_arrays_are_refused(path: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "evil.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    other = rewritten(path, tmp_path / "other.npz", {"means.npy": (tmp_path / "evil.npy").read_bytes()})
    with pytest.raises(UserError, match="no router file"):
        load_router(other)


def test_arrays_of_another_shape_are_refused(path: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "short.npy", np.zeros(1))
    other = rewritten(path, tmp_path / "other.npz", {"means.npy": (tmp_path / "short.npy").read_bytes()})
    with pytest.raises(UserError, match="means is float64 of shape"):
        load_router(other)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        load_router(tmp_path / "none.npz")
