"""Progress of a run on the terminal: a bar for people, a line now and then for logs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Column, Table
from rich.text import Text

from joulewise.counted import counted
from joulewise.run_result import Progress

if TYPE_CHECKING:
    from joulewise.under_load import Live

LINE_EVERY_S = 15.0
"""Without a terminal, one line about so often."""


class _Label(ProgressColumn):
    """What is done now, on one line. Alone among the columns it may be cut, so that the others stay whole."""

    def render(self, task: Task) -> Text:
        return Text(task.description, no_wrap=True, overflow="ellipsis")


class RunBar(Bar):
    """The bar of a run; while a stretch under load goes on, its figures stand above it."""

    under_load: Live | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        if self.under_load is not None:
            yield live_table(self.under_load)
        yield from super().get_renderables()


def live_table(live: Live) -> Table:
    """One line of figures under their names."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name, _ in _figures(live):
        table.add_column(name, no_wrap=True, style="bold", header_style="dim")
    table.add_row(*(value for _, value in _figures(live)))
    return table


def live_words(live: Live) -> str:
    """The same on one line, for logs."""
    return ", ".join(f"{name} {value}" for name, value in _figures(live))


def _figures(live: Live) -> list[tuple[str, str]]:
    power_w, token_j = live.power_w, live.energy_per_token_j
    return [
        ("load", f"{live.elapsed_s:.0f}/{live.duration_s:.0f} s"),
        ("in flight", f"{live.in_flight:,}"),
        ("requests", f"{live.done:,}" + (f" ({counted(live.failed, 'failure')})" if live.failed else "")),
        ("tokens/s", f"{live.tokens_per_s:,.3g}" if live.tokens_per_s < 100 else f"{live.tokens_per_s:,.0f}"),
        ("W", "unknown" if power_w is None else f"{power_w:,.0f}"),
        ("J/token", "unknown" if token_j is None else f"{token_j:.3g}"),
        ("accepted", "–" if live.accepted is None else f"{live.accepted:.0%}"),
    ]


def bar_of(console: Console) -> RunBar:
    """The bar of a run; its task has a field ``left``, the time that is left in words."""
    return RunBar(
        _Label(),
        BarColumn(bar_width=20, table_column=Column(no_wrap=True)),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[left]}"),
        console=console,
        transient=True,
    )


@contextmanager
def show_progress() -> Iterator[Callable[[Progress], None]]:
    """A function to hand to the runner; shows on standard error."""
    console = Console(stderr=True, soft_wrap=True)
    remaining = Remaining()
    if console.is_terminal:
        with bar_of(console) as bar:
            task = bar.add_task("starting", total=None, left="")

            def on_bar(progress: Progress) -> None:
                if progress.stage == "notice":
                    console.print(progress.text, markup=False, highlight=False)
                    return
                bar.under_load = progress.live
                left = remaining.text(progress)
                bar.update(task, description=progress.text, completed=progress.done, total=progress.total, left=left)

            yield on_bar
        return
    last_line_s = 0.0

    def on_line(progress: Progress) -> None:
        nonlocal last_line_s
        left = remaining.text(progress)
        due = time.monotonic() - last_line_s >= LINE_EVERY_S
        if progress.stage not in ("trial", "warm-up", "live") or due or progress.done == progress.total:
            last_line_s = time.monotonic()
            told = [progress.text, live_words(progress.live) if progress.live else "", left]
            count = f"[{progress.done}/{progress.total}] "
            console.print(count + ", ".join(part for part in told if part), markup=False, highlight=False)

    yield on_line


class Remaining:
    """The time that is left, from the mean pace of this session."""

    def __init__(self) -> None:
        self.first_s: float | None = None
        self.first_done = 0

    def text(self, progress: Progress) -> str:
        """``about 3 min left``; empty before there is anything to judge by."""
        now = time.monotonic()
        if progress.stage != "trial" or progress.done == progress.total:
            return ""
        if self.first_s is None:
            self.first_s, self.first_done = now, progress.done
            return ""
        done = progress.done - self.first_done
        if done < 3:
            return ""
        left_s = (now - self.first_s) / done * (progress.total - progress.done)
        return f"about {left_s:.0f} s left" if left_s < 90 else f"about {left_s / 60:.0f} min left"
