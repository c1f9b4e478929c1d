"""What a run finds where it begins: the server at an address, or what is there instead."""

from __future__ import annotations

import functools
import http.server
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

pytest.importorskip("aiohttp", reason="the extra endpoint is not installed")

from endpoint_runs import Server, plan, trials
from fake_server import Asked, Reply, fails
from joulewise.cli.main import app
from joulewise.energy.meter import Meter
from joulewise.energy.source import Discovery
from joulewise.energy.sources import nvml
from joulewise.engines.servers import served
from joulewise.engines.servers.process import free_port
from joulewise.errors import EnvironmentFault, JoulewiseError, ServerError, UserError
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
    ("key", "words"),
    [
        (None, "engine served: the environment variable SERVED_KEY of `key_env` is not set"),
        ("two words", "the server's key holds spaces"),
    ],
)
def test_a_dry_run_tells_a_key_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None, words: str
) -> None:
    planned = plan(tmp_path, "http://localhost:1/v1", engine={"key_env": "SERVED_KEY"})
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(planned.model_dump(mode="json")))
    command = ["run", str(tmp_path / "plan.yaml"), "--dry-run"]
    monkeypatch.setenv("SERVED_KEY", "k-987654321")
    assert CliRunner().invoke(app, command).exit_code == 0
    if key is None:
        monkeypatch.delenv("SERVED_KEY")
    else:
        monkeypatch.setenv("SERVED_KEY", key)
    done = CliRunner().invoke(app, command)
    assert words in str(done.exception)
    assert "two words" not in str(done.exception)


def test_a_dry_run_tells_a_gpu_that_cannot_be_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "discover", Discovery)
    planned = plan(tmp_path, "http://localhost:1/v1", engine={"power_limit_w": 300.0})
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(planned.model_dump(mode="json")))
    done = CliRunner().invoke(app, ["run", str(tmp_path / "plan.yaml"), "--dry-run"])
    assert "The plan asks for a power limit 300 W, and there is no NVIDIA GPU" in str(done.exception)
    assert "1 of 1 cell cannot run" in str(done.exception)


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


@pytest.fixture
def web_server(tmp_path: Path) -> Iterator[str]:
    """The address of a server of files and folders: pages for browsers, and no POST."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def test_a_web_server_is_no_engine(tmp_path: Path, meter: Meter, web_server: str) -> None:
    with pytest.raises(UserError) as told:
        run(plan(tmp_path, web_server), tmp_path / "run", meter=meter)
    assert str(told.value) == f"{web_server}/chat/completions answers HTTP 501 (a web page); check url"


@pytest.mark.parametrize(
    ("models", "completion", "words"),
    [
        (Reply([b"<!DOCTYPE html>", b"<p>Hello"]), fails(404), r"/v1/models answers, but .* \(a web page\); check url"),
        (fails(404), Reply([b" <html>"]), r"completions answers, but not as a completion does \(a web page\)"),
        (fails(404), Reply([b"<html>"], 404), r"answers HTTP 404 \(a web page\); check url"),
        (fails(404), Reply([b"<html>"], 502), r"answers HTTP 502 \(a web page\)"),
    ],
)
def test_what_is_no_such_api_is_told_before_the_first_trial(
    tmp_path: Path, meter: Meter, models: Reply, completion: Reply, words: str
) -> None:
    class Other(Server):
        def reply(self, asked: Asked) -> Reply:
            return models if asked.path == "/v1/models" else completion

    with Other() as server:
        with pytest.raises(JoulewiseError, match=words) as told:
            run(plan(tmp_path, server.url), tmp_path / "run", meter=meter)
        assert server.url in str(told.value)
    assert "<" not in str(told.value)
    assert not (tmp_path / "run" / "ledger.jsonl").read_text()


def test_a_server_that_lists_no_models_and_answers_is_measured(tmp_path: Path, meter: Meter) -> None:
    class Unlisted(Server):
        def reply(self, asked: Asked) -> Reply:
            return fails(404) if asked.path == "/v1/models" else super().reply(asked)

    with Unlisted() as server:
        found = trials(tmp_path, plan(tmp_path, server.url), meter)
        assert server.asked[0].json["max_tokens"] == 1
    assert [t.status for t in found] == ["ok", "ok"]


def test_a_server_that_still_loads_is_waited_for(tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp lists its model meanwhile, and answers nothing else."""
    monkeypatch.setattr(served, "LOOK_S", 0.01)
    health = iter([fails(503, "Loading model")] * 3)
    told: list[str] = []
    with Server(health=lambda: next(health, Reply([b"{}"]))) as server:
        done = run(plan(tmp_path, server.url), tmp_path / "run", meter=meter, on_progress=lambda p: told.append(p.text))
        assert sum(f"{server.url} is not ready yet" in text for text in told) == 3
    assert (done.done, done.failed) == (2, 0)


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
def test_a_server_that_goes_on_loading_is_given_up(tmp_path: Path, meter: Meter, path: str) -> None:
    class Loading(Server):
        def reply(self, asked: Asked) -> Reply:
            return fails(503, "Loading model") if asked.path == path else super().reply(asked)

    with Loading() as server, pytest.raises(ServerError, match=r"HTTP 503.* after 0.02 s: .*`timeout_s`"):
        run(plan(tmp_path, server.url, engine={"timeout_s": 0.02}), tmp_path / "run", meter=meter)


def test_a_run_that_ended_before_its_first_trial_is_nothing_to_report(tmp_path: Path, meter: Meter) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    with pytest.raises(JoulewiseError, match="cannot be reached"):
        run(plan(tmp_path, url), tmp_path / "run", meter=meter)
    done = CliRunner().invoke(app, ["report", str(tmp_path / "run")])
    assert isinstance(done.exception, UserError)  # exit code 2
    assert "run: no Trial was run, so there is nothing to report; run the plan again" in str(done.exception)
    assert not (tmp_path / "run" / "report.html").exists()
    with Server(port=int(url.rsplit(":", 1)[1].partition("/")[0])) as server:
        assert server.url == url
        assert run(plan(tmp_path, url), tmp_path / "run", meter=meter, resume=True).done == 2
    assert CliRunner().invoke(app, ["report", str(tmp_path / "run")]).exit_code == 0
