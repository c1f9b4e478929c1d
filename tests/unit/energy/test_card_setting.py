"""Power limits and locked clocks on a fake NVML: set where a plan asks, and put back on every way out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import file_nvml
from file_nvml import ONE, TWO, fresh, state
from joulewise.energy import card_setting
from joulewise.energy.card_setting import CardSetting, cards_of, check_held, held
from joulewise.energy.source import SourceSpec
from joulewise.errors import EnvironmentFault, UserError

LIMIT, CLOCK = CardSetting(power_limit_w=300.0), CardSetting(locked_sm_clock_hz=1.965e9)
FREE = {"power_limit_mw": 700_000, "locked_mhz": None}


@pytest.fixture(autouse=True)
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "nvml.json"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(file_nvml.__file__).parent), *sys.path]))
    monkeypatch.setattr(card_setting, "NVML", "file_nvml")
    fresh(file_nvml.file())


def test_cards_are_set_and_put_back() -> None:
    with held(CardSetting(300.0, 1.965e9), [ONE]) as found:
        assert found == {ONE: 700.0}
        assert state()["cards"] == {ONE: {"power_limit_mw": 300_000, "locked_mhz": 1965}, TWO: FREE}
    assert state()["cards"] == {ONE: FREE, TWO: FREE}


def test_what_the_plan_does_not_ask_for_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    with held(LIMIT, [ONE]):
        pass
    with held(CLOCK, [ONE]) as found:
        assert found == {}
    assert [name for _, name, _ in state()["sets"]] == ["power_limit_mw"] * 2 + ["locked_mhz"] * 2
    monkeypatch.setattr(card_setting, "NVML", "there_is_no_such_module")
    with held(CardSetting(), []) as found:
        assert found == {}


def test_whether_cards_can_be_held_is_told_without_changing_them() -> None:
    check_held(LIMIT, [ONE, TWO])
    check_held(CardSetting(), [])
    with pytest.raises(UserError, match="beyond what fake card takes"):
        check_held(CardSetting(100.0), [ONE])
    with pytest.raises(EnvironmentFault, match="no NVIDIA GPU here that could be set"):
        check_held(LIMIT, [])
    assert state()["sets"] == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_an_error_or_ctrl_c_puts_them_back(error: type[BaseException]) -> None:
    with pytest.raises(error), held(LIMIT, [ONE, TWO]):  # noqa: PT012 (what is raised must be raised inside)
        assert state()["cards"][TWO]["power_limit_mw"] == 300_000
        raise error
    assert state()["cards"] == {ONE: FREE, TWO: FREE}


def test_a_card_that_may_not_be_changed_leaves_the_others_as_they_were() -> None:
    fresh(file_nvml.file(), rights=[ONE])
    with pytest.raises(
        EnvironmentFault, match=r"a power limit 300 W, and you may not change the GPU GPU-2: run as root"
    ):
        held(LIMIT, [ONE, TWO]).__enter__()
    assert state()["cards"] == {ONE: FREE, TWO: FREE}
    assert state()["sets"][0] == [ONE, "power_limit_mw", 300_000]


def test_without_rights_nothing_changes() -> None:
    fresh(file_nvml.file(), rights=False)
    with pytest.raises(EnvironmentFault, match="you may not change"), held(CLOCK, [ONE]):
        pass
    assert state()["sets"] == []


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (CardSetting(100.0), "power_limit_w: 100 is beyond what fake card takes: give 200 to 700 W"),
        (CardSetting(701.0), "power_limit_w: 701 is beyond what fake card takes"),
        (
            CardSetting(None, 2.1e9),
            r"locked_sm_clock_hz: 2.1e\+09 is beyond what fake card takes: give 3.45e\+08 to 1.98e",
        ),
    ],
)
def test_beyond_the_card_s_limits(setting: CardSetting, words: str) -> None:
    with pytest.raises(UserError, match=words), held(setting, [ONE]):
        pass
    assert state()["sets"] == []


def test_above_the_limit_that_the_meter_relies_on() -> None:
    file_nvml.nvmlDeviceSetPowerManagementLimit(ONE, 400_000)
    with (
        pytest.raises(UserError, match=r"above the limit that fake card has now.*\(400 W\)"),
        held(CardSetting(500.0), [ONE]),
    ):
        pass


def test_no_card_and_no_nvml() -> None:
    with pytest.raises(EnvironmentFault, match="there is no NVIDIA GPU here"), held(LIMIT, []):
        pass
    with pytest.raises(EnvironmentFault, match="GPU-3 cannot be set so"), held(LIMIT, ["GPU-3"]):
        pass
    file_nvml.file().unlink()
    with pytest.raises(EnvironmentFault, match="there is no NVIDIA GPU that could be set"), held(LIMIT, [ONE]):
        pass


def test_a_card_that_cannot_be_put_back_is_told() -> None:
    told: list[str] = []
    with held(LIMIT, [ONE], told.append):
        fresh(file_nvml.file(), rights=False)
    (words,) = told
    assert words.startswith("A GPU could not be put back as it was found: GPU-1: power limit 700 W: ")


def test_without_the_guard_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path[:0]))  # the guard does not find the fake
    with pytest.raises(EnvironmentFault, match="No GPU was changed"), held(LIMIT, [ONE]):
        pass
    assert state()["sets"] == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("forked", [False, True])
def test_a_kill_puts_them_back(number: signal.Signals, forked: bool) -> None:
    """Also where a forked child of Joulewise's lives on, with the guard's pipe open."""
    program = (
        "import os, signal, sys\n"
        "from joulewise.energy import card_setting\n"
        "card_setting.NVML = 'file_nvml'\n"
        f"with card_setting.held(card_setting.CardSetting(300.0), ['{ONE}']):\n"
        f"    child = os.fork() if {forked} else 1\n"
        "    if child: print(child, flush=True)\n"
        "    signal.pause()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        assert state()["cards"][ONE]["power_limit_mw"] == 300_000
        (guard,) = guards_of(process.pid)
        process.send_signal(number)
        process.wait(30)
        assert wait_for(guard)
        assert state()["cards"][ONE] == FREE
    finally:
        if forked:
            os.kill(child, signal.SIGKILL)


def guards_of(pid: int) -> list[int]:
    import psutil

    return [p.pid for p in psutil.Process(pid).children() if "joulewise.energy.card_guard" in p.cmdline()]


def wait_for(pid: int) -> bool:
    """Whether a process that is no child of ours ends within half a minute."""
    import psutil

    try:
        psutil.Process(pid).wait(30)
    except psutil.NoSuchProcess:
        pass
    except psutil.TimeoutExpired:
        return False
    return True


def test_which_cards_an_engine_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def source(name: str) -> SourceSpec:
        return SourceSpec(name, "gpu", "card", "measured", "NVML")

    sources = [source("nvml:GPU-a"), source("prometheus:GPU-b"), source("rapl:0")]
    assert cards_of(None, sources) == ["GPU-a"]
    monkeypatch.setattr(card_setting, "local_uuids", lambda: ["GPU-a", "GPU-c"])
    assert cards_of([1, "GPU-a"], sources) == ["GPU-c", "GPU-a"]
    with pytest.raises(UserError, match="there is no GPU 2 here: 2 are seen"):
        cards_of([2], sources)


def test_words() -> None:
    assert str(CardSetting(300.0, 1.41e9)) == "power limit 300 W, SM clock 1.41 GHz"
