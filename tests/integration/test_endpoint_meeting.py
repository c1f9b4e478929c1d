"""What a run finds where it begins: the server at an address, or what is there instead."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

pytest.importorskip("aiohttp", reason="the extra endpoint is not installed")

from endpoint_runs import Server, plan
from fake_server import Reply, fails
from joulewise.energy.meter import Meter
from joulewise.engines.servers.process import free_port
from joulewise.errors import EnvironmentFault, JoulewiseError, UserError
from joulewise.runner import run


def test_the_key_comes_from_the_environment_alone(
    tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVED_KEY", "k-987654321")
    with Server() as server:
        run(plan(tmp_path, server.url, engine={"key_env": "SERVED_KEY"}), tmp_path / "run", meter=meter)
        assert server.asked[0].headers["authorization"] == "Bearer k-987654321"
    for file in (tmp_path / "run").rglob("*"):
        assert file.is_dir() or b"k-987654321" not in file.read_bytes()


def test_a_key_that_is_not_set(tmp_path: Path, meter: Meter) -> None:
    with Server() as server, pytest.raises(UserError, match="variable NO_SUCH_KEY of `key_env` is not set"):
        run(plan(tmp_path, server.url, engine={"key_env": "NO_SUCH_KEY"}), tmp_path / "run", meter=meter)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (fails(401, "bad key"), "the server wants a key, and none is set"),
        (fails(404, "no"), "the server has no completions"),
    ],
)
def test_a_refusal_that_no_further_trial_would_overcome_ends_the_run(
    tmp_path: Path, meter: Meter, reply: Reply, words: str
) -> None:
    with Server(lambda _: reply) as server, pytest.raises(UserError, match=words):
        run(plan(tmp_path, server.url), tmp_path / "run", meter=meter)


def test_nobody_is_there(tmp_path: Path, meter: Meter) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    with pytest.raises(JoulewiseError, match=r"cannot be reached .*is the server up, and url right"):
        run(plan(tmp_path, url), tmp_path / "run", meter=meter)


def test_a_certificate_that_is_not_trusted(tmp_path: Path, meter: Meter, repository: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(repository / "tests" / "data" / "localhost.pem")
    with Server(tls=context) as server, pytest.raises(EnvironmentFault, match="no secure connection"):
        run(plan(tmp_path, server.url), tmp_path / "run", meter=meter)


def test_a_model_that_the_server_does_not_have(tmp_path: Path, meter: Meter) -> None:
    told = "has no model fake; it lists another, other"
    with Server(models=("other", "another")) as server, pytest.raises(UserError, match=told):
        run(plan(tmp_path, server.url), tmp_path / "run", meter=meter)


def test_a_decoding_without_an_address_is_refused(tmp_path: Path, meter: Meter) -> None:
    with Server() as server, pytest.raises(UserError, match="no address is given for coga-5"):
        run(plan(tmp_path, server.url, decodings=["vanilla", "coga"]), tmp_path / "run", meter=meter)
    assert server.asked == []
