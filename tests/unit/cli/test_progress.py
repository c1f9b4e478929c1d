"""The bar of a run on a terminal."""

import io

import pytest
from rich.console import Console

from joulewise.cli.progress import bar_of

LONG = "smollm2-135m-int8/prompt-lookup-10/chain-of-thought/starter-summaries-of-long-texts [v2]"


def shown(width, label):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    bar = bar_of(console)
    bar.add_task(label, total=1200, completed=600, left="about 12 min left")
    with console.capture() as capture:
        console.print(bar.get_renderable())
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [70, 80, 100])
def test_a_long_label_gives_way_to_bar_count_and_time(width):
    (line,) = shown(width, LONG)
    assert len(line) <= width
    assert "600/1200 0:00:00 about 12 min left" in line
    assert line.count("━") == 10  # half of 20 columns
    assert line.startswith("smollm2-135m")
    assert "…" in line


def test_a_label_that_fits_is_shown_whole_brackets_and_all():
    assert LONG in shown(160, LONG)[0]
