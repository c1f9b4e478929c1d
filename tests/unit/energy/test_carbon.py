"""Carbon: which intensity, from where, how old; and what a person is told where there is none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.energy import carbon
from joulewise.energy.carbon import TOKEN, grid
from joulewise.errors import EnvironmentFault, JoulewiseError, UserError

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def series(path: Path, *values: float) -> str:
    """A CSV file with a value an hour from noon on."""
    lines = [f"{(NOON + i * HOUR).isoformat()},{value}" for i, value in enumerate(values)]
    path.write_text("\n".join(["time,g_per_kwh", *lines]), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", ["FRA", "fr", "france"])
def test_a_country_by_its_name_or_either_code(name: str) -> None:
    intensity = grid(name)(NOON, NOON)
    assert intensity.g_per_kwh == 56.039
    assert intensity.where == "France"
    assert "CodeCarbon" in intensity.source
    assert intensity.age == "mean of the year 2023, 3 years before the joules"
    assert intensity.g_per_j * 3.6e6 == pytest.approx(56.039)


def test_the_table_knows_no_country_without_carbon() -> None:
    with pytest.raises(UserError, match="no country"):
        grid("CAF")


def test_a_country_that_is_misspelt() -> None:
    with pytest.raises(UserError, match=r"--carbon Germny: .*did you mean Germany\?"):
        grid("Germny")


def test_a_file_is_averaged_over_the_time_of_the_joules(tmp_path: Path) -> None:
    at = grid(series(tmp_path / "grid.csv", 100.0, 200.0, 400.0))
    mean = at(NOON + 0.5 * HOUR, NOON + 1.25 * HOUR)
    assert mean.g_per_kwh == pytest.approx((0.5 * 100 + 0.25 * 200) / 0.75)
    assert mean.age == "mean of 2 values, of the joules' own time"
    one = at(NOON + 2 * HOUR, NOON + 2 * HOUR)
    assert one.g_per_kwh == 400.0
    assert one.age == "value of 2026-03-01 14:00 UTC, of the joules' own time"
    assert one.where == "grid.csv"


def test_a_file_of_another_time_gives_its_nearest_value_and_says_how_far_it_is(tmp_path: Path) -> None:
    at = grid(series(tmp_path / "grid.csv", 100.0, 200.0))
    late = at(NOON + 5 * HOUR, NOON + 6 * HOUR)
    assert late.g_per_kwh == 200.0
    assert late.age == "value of 2026-03-01 13:00 UTC, up to 4 hours away from the joules"
    assert late.away_s == 4 * 3600
    early = at(NOON - 49 * HOUR, NOON - 48 * HOUR)
    assert early.g_per_kwh == 100.0
    assert early.age.endswith("up to 3 days away from the joules")


def test_a_json_file_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "grid.json"
    rows = [{"time": "2026-03-01T14:00:00+01:00", "g_per_kwh": 2}, {"time": "2026-03-01T12:00:00Z", "g_per_kwh": 1}]
    path.write_text(json.dumps(rows))
    assert grid(str(path))(NOON, NOON).g_per_kwh == 1.0
    assert grid(str(path))(NOON + HOUR, NOON + HOUR).g_per_kwh == 2.0


@given(
    values=st.lists(st.floats(0, 2000), min_size=1, max_size=6),
    start_h=st.floats(-10, 10),
    hours=st.floats(0, 20),
)
def test_a_mean_lies_between_the_values(values: list[float], start_h: float, hours: float) -> None:
    entries = [carbon._Entry(time=NOON + i * HOUR, g_per_kwh=v) for i, v in enumerate(values)]
    start = NOON + start_h * HOUR
    mean = carbon._Series("grid.csv", entries)(start, start + hours * HOUR).g_per_kwh
    assert min(values) - 1e-6 <= mean <= max(values) + 1e-6


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.csv", "time,g\n", r"a\.csv:1: no column g_per_kwh"),
        ("a.csv", "time,g_per_kwh\n", r"a\.csv: holds no values"),
        ("a.csv", "time,g_per_kwh\n2026-03-01T12:00:00,1\n", r"a\.csv:2: time: .*zone"),
        ("a.csv", "time,g_per_kwh\n2026-03-01T12:00:00Z,-1\n", r"a\.csv:2: g_per_kwh: "),
        ("a.csv", "time,g_per_kwh\n2026-03-01T12:00:00Z,nan\n", r"a\.csv:2: g_per_kwh: "),
        ("a.csv", "time,g_per_kwh\n2026-03-01T12:00:00Z\n", r"a\.csv:2: g_per_kwh: "),
        ("a.csv", "time,g_per_kwh\n2026-03-01T12:00Z,1\n2026-03-01T13:00+01:00,2\n", r"a\.csv: two values"),
        ("a.json", "{", r"a\.json: not JSON"),
        ("a.json", "{}", r"a\.json: needs a list"),
        ("a.json", '[{"time": "2026-03-01T12:00:00Z"}]', r"a\.json, entry 1: g_per_kwh"),
    ],
)
def test_a_file_that_does_not_hold_what_it_should_is_told_with_its_place(
    tmp_path: Path, name: str, text: str, told: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=told):
        grid(str(tmp_path / name))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"no\.csv: cannot be read"):
        grid(str(tmp_path / "no.csv"))


class Api:
    """A stand-in for Electricity Maps on this machine."""

    def __init__(self) -> None:
        self.status = 200
        self.body: object = {}
        self.location: str | None = None
        self.asked: list[tuple[str, str | None]] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.asked.append((self.path, self.headers.get("auth-token")))
                body = json.dumps(api.body).encode()
                redirect = api.location is not None and len(api.asked) == 1
                self.send_response(302 if redirect else api.status)
                if redirect:
                    self.send_header("Location", str(api.location))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/latest"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    api = Api()
    thread = threading.Thread(target=api.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setattr(carbon, "ELECTRICITY_MAPS_URL", api.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv(TOKEN, "secret-token")
    yield api
    api.server.shutdown()
    thread.join()
    api.server.server_close()


ANSWER = {
    "zone": "DE",
    "carbonIntensity": 322,
    "datetime": "2026-03-01T12:00:00.000Z",
    "updatedAt": "2026-03-01T12:30:00.000Z",
    "emissionFactorType": "lifecycle",
    "isEstimated": True,
}


def test_electricity_maps_is_asked_once_with_the_token_in_a_header(api: Api) -> None:
    api.body = ANSWER
    at = grid("electricitymaps:DE")
    assert api.asked == [("/latest?zone=DE", "secret-token")]
    intensity = at(NOON + 26 * HOUR, NOON + 27 * HOUR)
    assert intensity.g_per_kwh == 322.0
    assert intensity.where == "zone DE"
    assert intensity.source == "Electricity Maps (lifecycle, estimated)"
    assert intensity.age == "value of 2026-03-01 12:00 UTC, 2 days before the joules"
    assert intensity.away_s == 26 * 3600
    assert at(NOON - HOUR, NOON + HOUR).age == "value of 2026-03-01 12:00 UTC"
    assert len(api.asked) == 1


def test_the_token_does_not_follow_a_redirect(api: Api) -> None:
    api.body, api.location = ANSWER, f"{api.url}/elsewhere"
    grid("electricitymaps:DE")
    assert api.asked == [("/latest?zone=DE", "secret-token"), ("/latest/elsewhere", None)]


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (401, {}, f"HTTP 401.*check {TOKEN}"),
        (404, {}, "HTTP 404.*check the zone"),
        (503, {}, "HTTP 503.*try again later"),
        (200, {}, "gave no intensity for zone DE"),
        (200, ANSWER | {"carbonIntensity": None}, "gave no intensity"),
    ],
)
def test_what_electricity_maps_refuses_is_told_without_the_token(
    api: Api, status: int, body: object, told: str
) -> None:
    api.status, api.body = status, body
    with pytest.raises(EnvironmentFault, match=told) as fault:
        grid("electricitymaps:DE")
    assert "secret-token" not in str(fault.value)


def test_offline_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.server_close()  # a port where nobody listens
    monkeypatch.setattr(carbon, "ELECTRICITY_MAPS_URL", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv(TOKEN, "secret-token")
    with pytest.raises(EnvironmentFault, match=r"cannot be reached .*; give --carbon a country or a file instead"):
        grid("electricitymaps:DE")


@pytest.mark.parametrize(
    ("token", "zone", "told"),
    [
        (None, "DE", f"set the environment variable {TOKEN}"),
        ("a\nsecret", "DE", f"the token in {TOKEN} holds characters"),
        ("t", "DE&lat=1", "not a zone"),
        ("t", "", "not a zone"),
    ],
)
def test_nothing_is_asked_without_a_token_and_a_zone(
    monkeypatch: pytest.MonkeyPatch, token: str | None, zone: str, told: str
) -> None:
    monkeypatch.setattr(carbon, "ELECTRICITY_MAPS_URL", "never://asked")
    monkeypatch.delenv(TOKEN, raising=False)
    if token is not None:
        monkeypatch.setenv(TOKEN, token)
    with pytest.raises(JoulewiseError, match=told) as fault:
        grid(f"electricitymaps:{zone}")
    assert "secret" not in str(fault.value)
