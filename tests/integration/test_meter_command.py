"""``joulewise meter``: the report, the exit code, the signals."""

from __future__ import annotations

import json
import math
import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

JOULEWISE = [sys.executable, "-c", "from joulewise.cli.main import main; main()"]

SIGNALLED = """
import signal, sys
def told(number, frame):
    print(signal.Signals(number).name, flush=True)
    sys.exit(7)
for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(s, told)
print("ready", flush=True)
signal.pause()
"""


def meter(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*JOULEWISE, "meter", *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_stdout_is_the_commands_own_and_the_report_is_on_stderr() -> None:
    done = meter("--", "sh", "-c", "echo out; echo err >&2")
    assert done.returncode == 0
    assert done.stdout == "out\n"
    assert done.stderr.startswith("err\n")
    for word in ("joules", "95 % interval", "mean W", "cpu", "dram", "total", "CodeCarbon 2 would have said"):
        assert word in done.stderr


def test_the_exit_code_is_passed_on() -> None:
    assert meter("--", "sh", "-c", "exit 3").returncode == 3


def test_a_command_that_a_signal_ended_gives_128_and_its_number() -> None:
    done = meter("--", "sh", "-c", "kill -KILL $$")
    assert done.returncode == 128 + signal.SIGKILL
    assert "joules" in done.stderr


def test_the_commands_own_options_are_left_to_it() -> None:
    done = meter("-q", sys.executable, "-c", "import sys; print(sys.argv[1:])", "--json", "x", "--help", "-q")
    assert done.stdout == "['--json', 'x', '--help', '-q']\n"
    assert done.stderr == ""


@pytest.mark.parametrize("separator", [[], ["--"]])
def test_a_command_that_is_not_there_is_127_with_one_sentence(separator: list[str]) -> None:
    done = meter(*separator, "no-such-command-here")
    assert done.returncode == 127
    assert done.stderr == ("joulewise: command not found: no-such-command-here; check its spelling or give its path\n")


def test_a_file_that_is_no_program_is_126(tmp_path: Path) -> None:
    done = meter("--", str(tmp_path))
    assert done.returncode == 126
    assert done.stderr.startswith(f"joulewise: {tmp_path} cannot be run (Permission denied); ")
    assert len(done.stderr.splitlines()) == 1


def test_no_command_is_a_mistake_of_the_user() -> None:
    assert meter().returncode == 2


def test_the_figures_as_json_in_a_file(tmp_path: Path) -> None:
    target = tmp_path / "joules.json"
    assert meter("--json", str(target), "--quiet", "--", "sleep", "0.2").stderr == ""
    record = json.loads(target.read_text())
    assert record["command"] == ["sleep", "0.2"]
    assert record["exit_code"] == 0
    assert record["duration_s"] >= 0.2
    total = record["components"][-1]
    assert total["component"] == "total"
    for part in record["components"]:
        if part["energy_j"] is not None:
            assert part["type_a_j"] == pytest.approx(
                math.hypot(part["start_edge_j"], part["end_edge_j"], part["sampling_j"])
            )
            assert part["type_b_j"] == pytest.approx(part["gain_j"] + part["offset_j"])
            assert part["lower_j"] <= part["energy_j"] <= part["upper_j"]
            assert part["mean_power_w"] == pytest.approx(part["energy_j"] / record["duration_s"])
        assert part["provenance"] in ("measured", "modelled", "unknown")
    assert {s["source_id"] for s in record["sources"]} >= set(total["source_ids"])
    others = {(o["name"], o["component"]): o["energy_j"] for o in record["comparisons"]}
    assert others["CodeCarbon 2", "dram"] > 0
    # They stand beside the figures and are in no sum.
    parts_j = [part["energy_j"] for part in record["components"][:-1]]
    assert total["energy_j"] is None or total["energy_j"] == pytest.approx(math.fsum(parts_j))


@pytest.mark.parametrize("options", [["--json", "-"], ["--json=-"]])
def test_json_on_stdout_is_alone_there(options: list[str]) -> None:
    done = meter(*options, "-q", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert json.loads(done.stdout)["exit_code"] == 3
    assert done.stderr == "out\nerr\n"
    assert done.returncode == 3


@pytest.mark.parametrize("arguments", [["-x", "echo"], ["-q", "-x", "echo"], ["--jsn", "f", "--", "echo"], ["-x"]])
def test_an_option_that_is_not_the_meters_is_refused_with_the_way_out(arguments: list[str]) -> None:
    done = meter(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(r"joulewise: meter has no option (-x|--jsn); .* then -- and the command, .*\n", done.stderr)


def test_a_command_whose_name_begins_with_a_dash_comes_after_the_two() -> None:
    assert meter("-q", "--", "-x").returncode == 127


def test_the_help_tells_the_exit_codes() -> None:
    told = " ".join(meter("--help").stdout.split())
    assert "128 + N where signal N ended it; 127 where it is not there; 126 where it cannot be run" in told
    assert "......" not in told.replace(" ", "")


def test_a_file_that_cannot_be_written_is_told_before_the_command_runs(tmp_path: Path) -> None:
    done = meter("--json", str(tmp_path / "none" / "x.json"), "--", "touch", str(tmp_path / "ran"))
    assert done.returncode == 2
    assert "cannot be written (No such file or directory); choose another file for --json" in done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_passed_on(number: signal.Signals) -> None:
    command = [*JOULEWISE, "meter", "--", sys.executable, "-c", SIGNALLED]
    # In a session of its own it has no terminal, so nothing but the meter can send the signal on.
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # What the tests' own parent ignores (a background job, nohup) would be ignored here too.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert out == f"{number.name}\n"
    assert process.returncode == 7
    assert "joules" in err


def test_ctrl_c_at_a_terminal_reaches_the_command_once() -> None:
    """The terminal signals the whole group, so the meter must not signal a second time."""
    counting = (
        "import signal, sys, time\n"
        "times = []\n"
        "signal.signal(signal.SIGINT, lambda *_: times.append(1))\n"
        "print('ready', flush=True)\n"
        "while not times: time.sleep(0.01)\n"
        "time.sleep(0.3)\n"  # leaves a second one time to come
        "print('count', len(times), flush=True)\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execv(sys.executable, [*JOULEWISE, "meter", "--", sys.executable, "-c", counting])
    try:
        read_until(terminal, b"ready")
        os.write(terminal, b"\x03")
        assert b"count 1" in read_until(terminal, b"count")
    finally:
        os.close(terminal)  # hangs up on whatever still runs
        os.waitpid(pid, 0)


def read_until(terminal: int, word: bytes) -> bytes:
    seen = b""
    while word not in seen or not seen.endswith(b"\n"):
        ready, _, _ = select.select([terminal], [], [], 30)
        assert ready, f"{word!r} did not come: {seen!r}"
        seen += os.read(terminal, 4096)
    return seen
