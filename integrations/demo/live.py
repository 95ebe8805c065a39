"""What does one see while the demo runs? Both halves side by side, one line for each quantity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from loadgate.integrations.demo.record import Sample, phase_starts
from loadgate.integrations.demo.run import TITLES
from loadgate.integrations.demo.sparkline import sparkline
from loadgate.integrations.demo.story import (
    BACK,
    CALM,
    CALM_RATE,
    CAPACITY,
    FALLING,
    GREEDY,
    ONE_GREEDY,
    PATIENCE,
    POLITE,
    POLITE_CLIENTS,
    RISING,
    SLO,
    STORM,
    STORM_RATE,
)
from loadgate.integrations.loadgen import ClassCounts, Progress

LABEL: Final = 17
NUMBER: Final = 6
GOOD: Final = "green"
BAD: Final = "bold red"
OURS: Final = "cyan"
THEIRS: Final = "yellow"
QUIET: Final = "dim"

SHORT: Final = {
    CALM: "calm",
    ONE_GREEDY: "greedy",
    RISING: "up",
    STORM: "5x",
    FALLING: "",
    BACK: "calm",
}

WORDS: Final = {
    CALM: f"{CALM_RATE:.0f}/s from {POLITE_CLIENTS} polite clients: every service is fine",
    RISING: "the greedy one has gone, and the polite ones become more and more",
    FALLING: "the storm ends",
    BACK: "as calm as in the beginning; who is still down now was broken by the storm",
    ONE_GREEDY: f"one client alone asks {2 * CAPACITY:.0f}/s, twice what the service can do",
    STORM: f"{STORM_RATE:.0f}/s from {POLITE_CLIENTS} polite clients: nobody's fault, "
    "but five times too much",
}


class Column:
    """What one half has shown so far, one cell for each column of text."""

    def __init__(self, width: int, duration: float) -> None:
        self.width = width
        self.cell = duration / width
        self.progress: list[list[Progress]] = [[] for _ in range(width)]
        self.samples: list[Sample | None] = [None] * width
        self.last: Progress | None = None

    def add(self, progress: Progress, sample: Sample | None) -> None:
        """Take the next interval."""
        # The interval ends at `at`: its middle says where it belongs.
        middle = max(0.0, progress.at - progress.seconds / 2)
        index = min(int(middle / self.cell), self.width - 1)
        self.progress[index].append(progress)
        self.samples[index] = sample
        self.last = progress

    def rate(self, count: Callable[[ClassCounts], int], *names: str) -> list[float | None]:
        """A count per second in each cell, of some classes."""
        row: list[float | None] = []
        for cell in self._filled():
            seconds = sum(one.seconds for one in cell)
            total = sum(count(one.classes[name]) for one in cell for name in names)
            row.append(total / seconds if seconds > 0 else None)
        return row

    def p99(self) -> list[float | None]:
        """The worst p99 of each cell; None while nobody is served."""
        return [
            max((one.p99 for one in cell if one.p99 is not None), default=None)
            for cell in self._filled()
        ]

    def of_samples(self, read: Callable[[Sample], float | None]) -> list[float | None]:
        """A number of the service itself in each cell."""
        return [read(sample) if sample else None for sample in self.samples[: len(self._filled())]]

    def _filled(self) -> list[list[Progress]]:
        filled = [index for index, cell in enumerate(self.progress) if cell]
        kept = self.progress[: filled[-1] + 1] if filled else []
        # A report may be late: a cell without one repeats its neighbour rather than blink.
        return [cell or kept[max(0, index - 1)] for index, cell in enumerate(kept)]


class LiveView:
    """The view on a terminal. Use as a context manager; call it with every report."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._duration = phase_starts()[-1][2]
        side_by_side = console.width >= 100
        inner = (console.width // 2 if side_by_side else console.width) - 6
        cells = max(10, min(76, inner - LABEL - NUMBER - 2))
        self._side_by_side = side_by_side
        self._columns = [Column(cells, self._duration) for _ in TITLES]
        self._now = 0
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        self._live.update(self.draw(), refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(None, None, None)

    def __call__(self, half: int, progress: Progress, sample: Sample | None) -> None:
        """Take a report and draw it."""
        self._now = half
        self._columns[half].add(progress, sample)
        self._live.update(self.draw(), refresh=True)

    def draw(self) -> RenderableType:
        """The whole view as it is now."""
        halves = [self._half(number) for number in range(len(TITLES))]
        if self._side_by_side:
            grid = Table.grid(expand=True)
            for _ in halves:
                grid.add_column(ratio=1)
            grid.add_row(*halves)
            return Group(self._headline(), grid)
        return Group(self._headline(), halves[self._now])

    def _headline(self) -> Text:
        last = self._columns[self._now].last
        text = Text()
        text.append("loadgate demo  ", style="bold")
        text.append(f"capacity {CAPACITY:.0f}/s, SLO {SLO * 1e3:.0f} ms, ")
        text.append(f"half {self._now + 1} of 2: ")
        text.append(f"{TITLES[self._now]}\n", style="bold green" if self._now else "bold red")
        phase = last.phase if last else ""
        for name, _, _ in phase_starts():
            text.append(f" {name} ", style="reverse" if name == phase else "dim")
            text.append(" ")
        text.append(f"\n{WORDS.get(phase, '')}", style="italic")
        return text

    def _half(self, number: int) -> Panel:
        column = self._columns[number]
        rows = Table.grid(padding=(0, 1))
        rows.add_column(width=LABEL, no_wrap=True)
        rows.add_column(no_wrap=True)
        rows.add_column(width=NUMBER, justify="right", no_wrap=True)
        for label, line, value in self._rows(column):
            rows.add_row(label, line, value)
        rows.add_row("", self._phase_axis(column.width), "")
        style = "green" if number else "red"
        return Panel(
            rows,
            title=f"[bold]{TITLES[number]}",
            border_style=style if number == self._now else "dim",
            box=box.ROUNDED,
        )

    def _rows(self, column: Column) -> list[tuple[str, Text, str]]:
        width = column.width
        offered = column.rate(lambda one: one.sent, POLITE, GREEDY)
        polite = column.rate(lambda one: one.good, POLITE)
        polite_offered = column.rate(lambda one: one.sent, POLITE)
        greedy = column.rate(lambda one: one.good, GREEDY)

        def fairly(index: int, value: float) -> str:
            asked = polite_offered[index] or 0.0
            return GOOD if value >= 0.75 * min(asked, CAPACITY) else BAD

        def in_time(_: int, value: float) -> str:
            return GOOD if value <= SLO else BAD

        def always(name: str) -> Callable[[int, float], str]:
            return lambda _, value: name if value > 0 else QUIET

        def counted(
            label: str,
            count: Callable[[ClassCounts], int],
            style: str,
            *names: str,
            top: float = STORM_RATE,
        ) -> tuple[str, Text, str]:
            row = column.rate(count, *names)
            line = sparkline(row, width, top=top, zero="·", style=always(style))
            return label, line, _last(row)

        latency = column.p99()
        inside = column.of_samples(lambda one: one.in_flight)
        limit = column.of_samples(lambda one: one.limit)

        def places(
            label: str, row: list[float | None], style: Callable[[int, float], str]
        ) -> tuple[str, Text, str]:
            # From one request to more than the bare service ever holds in its worst minute.
            line = sparkline(row, width, bottom=1.0, top=2000.0, logarithmic=True, style=style)
            return label, line, _last(row)

        return [
            ("offered/s", sparkline(offered, width, top=STORM_RATE), _last(offered)),
            (
                "polite goodput/s",
                sparkline(polite, width, top=1.1 * CAPACITY, style=fairly),
                _last(polite),
            ),
            (
                "greedy goodput/s",
                sparkline(greedy, width, top=1.1 * CAPACITY, zero="·", style=always(THEIRS)),
                _last(greedy),
            ),
            (
                "p99 served, ms",
                sparkline(
                    latency, width, bottom=0.05, top=PATIENCE, logarithmic=True, style=in_time
                ),
                _last(latency, 1e3),
            ),
            counted("gave up/s", lambda one: one.gave_up + one.broken, BAD, POLITE, GREEDY),
            counted("429/s greedy", lambda one: one.limited, THEIRS, GREEDY, top=2 * CAPACITY),
            counted("429/s polite", lambda one: one.limited, BAD, POLITE, top=2 * CAPACITY),
            counted("503/s", lambda one: one.refused, OURS, POLITE, GREEDY),
            places("in flight", inside, _crowded),
            places("limit", limit, always(OURS))
            if not column.last or any(value is not None for value in limit)
            else ("limit", Text("none: everybody is let in".ljust(width), style=QUIET), ""),
        ]

    def _phase_axis(self, width: int) -> Text:
        text = Text()
        for number, (name, start, end) in enumerate(phase_starts()):
            cells = round(end / self._duration * width) - round(start / self._duration * width)
            short = SHORT[name][:cells].center(cells)
            text.append(short, style="dim" if number % 2 else "dim reverse")
        return text


def _crowded(_: int, value: float) -> str:
    # Three times what the pool can run at once is a crowd that waits inside the service.
    return OURS if value <= 30 else BAD


def _last(row: Sequence[float | None], scale: float = 1.0) -> str:
    if not row or row[-1] is None:
        return "-"
    return f"{row[-1] * scale:.0f}"
