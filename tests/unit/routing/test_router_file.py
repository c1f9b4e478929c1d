from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from joulewise.errors import UserError
from joulewise.routing.fitting import fit_router
from joulewise.routing.past_answers import Past, PastAnswer
from joulewise.routing.performance import predict_all
from joulewise.routing.policy import Goal
from joulewise.routing.router import Router
from joulewise.routing.router_file import MOST_BYTES, load_router, save
from planted_outcomes import planted

pytest.importorskip("scipy", reason="learning needs the extra routing")


def fitted() -> Router:
    found = planted(200, named=True)
    answers = [
        PastAnswer(
            option, option, query, score, domain, prompt_tokens=20 + i % 7, output_tokens=10 + i % 5,
            energy_j=3 + i % 5, first_token_s=0.1, total_s=0.5 + 0.1 * (i % 5),
        )
        for i, (query, scores, domain) in enumerate(zip(found.queries, found.correct, found.domains, strict=True))
        for option, score in zip(found.options, scores.tolist(), strict=True)
    ]  # fmt: skip
    return fit_router(Past(tuple(answers)))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("router") / "router.npz"
    save(fitted(), file)
    return file


def rewritten(source: Path, target: Path, change: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, change.get(name, old.read(name)))
    return target


@pytest.mark.parametrize("name", ["router.npz", "router.json"])
def test_what_is_read_predicts_what_was_written(tmp_path: Path, name: str) -> None:
    router = fitted()
    save(router, tmp_path / name)
    again = load_router(tmp_path / name)
    model, read = router.performance, again.performance
    assert (read.options, read.domains, read.reference) == (model.options, model.domains, model.reference)
    queries = planted(50, seed=2).queries
    np.testing.assert_allclose(predict_all(read, queries).gain, predict_all(model, queries).gain, atol=2e-3)
    assert (tmp_path / name).stat().st_size < MOST_BYTES
    for query in queries[:5]:
        one, other = (r.choose(query, Goal(within=0.1), domain="law") for r in (router, again))
        assert one.option == other.option
        assert one.estimate.energy_j.mean == pytest.approx(other.estimate.energy_j.mean, rel=1e-6)
        assert one.estimate.total_s is not None
        assert other.estimate.total_s is not None
        assert one.estimate.total_s.mean == pytest.approx(other.estimate.total_s.mean, rel=1e-6)
    assert again.saw(planted(200, named=True).queries[0])
    assert not again.saw("never asked")


@pytest.mark.parametrize("name", ["again.npz", "again.json"])
def test_the_same_fit_writes_the_same_bytes(tmp_path: Path, name: str) -> None:
    save(fitted(), tmp_path / name)
    before = (tmp_path / name).read_bytes()
    save(fitted(), tmp_path / name)
    assert (tmp_path / name).read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 0.999])
def test_truncated_json_is_refused(tmp_path: Path, share: float) -> None:
    save(fitted(), tmp_path / "router.json")
    whole = (tmp_path / "router.json").read_bytes()
    (tmp_path / "cut.json").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(UserError, match="truncated, damaged or no router file"):
        load_router(tmp_path / "cut.json")


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
    with pytest.raises(UserError, match="version 99, and this reads 2"):
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
