"""The bar of a run on a terminal."""

import io

import pytest

pytest.importorskip("aiohttp", reason="the extra endpoint is not installed")

from rich.console import Console

from joulewise.cli.progress import bar_of, live_words
from joulewise.under_load import Live

LONG = "smollm2-135m-int8/prompt-lookup-10/chain-of-thought/starter-summaries-of-long-texts [v2]"


def shown(width: int, label: str) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    bar = bar_of(console)
    bar.add_task(label, total=1200, completed=600, left="about 12 min left")
    with console.capture() as capture:
        console.print(bar.get_renderable())
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [70, 80, 100])
def test_a_long_label_gives_way_to_bar_count_and_time(width: int) -> None:
    (line,) = shown(width, LONG)
    assert len(line) <= width
    assert "600/1200 0:00:00 about 12 min left" in line
    assert line.count("━") == 10  # half of 20 columns
    assert line.startswith("smollm2-135m")
    assert "…" in line


def test_a_label_that_fits_is_shown_whole_brackets_and_all() -> None:
    assert LONG in shown(160, LONG)[0]


LIVE = Live(12.4, 60.0, in_flight=16, done=1240, failed=2, tokens_per_s=812.0, power_w=312.4, accepted=0.734)


def test_a_stretch_under_load_stands_above_the_bar_on_80_columns() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    bar = bar_of(console)
    bar.add_task("served/vanilla/direct/starter/c16", total=8, completed=3, left="")
    bar.under_load = LIVE
    with console.capture() as capture:
        console.print(bar.get_renderable())
    names, figures, line = capture.get().splitlines()
    assert names.split() == ["load", "in", "flight", "requests", "tokens/s", "W", "J/token", "accepted"]
    assert figures.split() == ["12/60", "s", "16", "1,240", "(2", "failures)", "812", "312", "0.385", "73%"]
    assert "3/8" in line
    assert max(map(len, (names, figures, line))) <= 80


def test_in_a_log_what_is_not_known_is_said_to_be() -> None:
    unknown = Live(1.0, 60.0, in_flight=1, done=0, failed=0, tokens_per_s=0.0, power_w=None, accepted=None)
    assert live_words(unknown) == (
        "load 1/60 s, in flight 1, requests 0, tokens/s 0, W unknown, J/token unknown, accepted –"
    )
