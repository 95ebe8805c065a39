"""What is drawn? Both halves as panels of plain series, for whoever paints them.

Two painters share this description, `png.py` (matplotlib) and `svg.py` (nothing but text), so that
both pictures show the same.
"""

from __future__ import annotations

from typing import Final

import msgspec

from loadgate.integrations.demo.record import Half
from loadgate.integrations.demo.story import CAPACITY, GREEDY, PATIENCE, POLITE, SLO, STORM_RATE

# Colours that stay apart for the colour-blind (after Okabe and Ito) and on white.
GREEN: Final = "#1b9e77"
ORANGE: Final = "#e69f00"
RED: Final = "#d1495b"
BLUE: Final = "#3a6ea5"
GREY: Final = "#8a8f98"
SAND: Final = "#f0d9a8"


class Line(msgspec.Struct, frozen=True):
    """Points joined; where `ys` is None the line is broken."""

    label: str
    color: str
    xs: list[float]
    ys: list[float | None]
    width: float = 1.8


class Area(msgspec.Struct, frozen=True):
    """The space between two rows of points, as in a stack."""

    label: str
    color: str
    xs: list[float]
    low: list[float]
    high: list[float]


class Mark(msgspec.Struct, frozen=True):
    """A horizontal line that means something."""

    label: str
    value: float


class Panel(msgspec.Struct, frozen=True):
    """One drawing: what the axis means, its range, and what is on it."""

    title: str
    bottom: float
    top: float
    log: bool
    areas: list[Area]
    lines: list[Line]
    marks: list[Mark]


def panels(half: Half, peak_in_flight: float) -> list[Panel]:
    """The four panels of one half, from top to bottom."""
    return [_goodput(half), _latency(half), _endings(half), _places(half, peak_in_flight)]


def _goodput(half: Half) -> Panel:
    xs = [at for at, _ in half.bins()]
    offered = [tally.offered / tally.seconds for _, tally in half.bins()]
    polite = [tally.goodput for _, tally in half.bins(POLITE)]
    greedy = [tally.goodput for _, tally in half.bins(GREEDY)]
    both = [a + b for a, b in zip(polite, greedy, strict=True)]
    return Panel(
        title="goodput: answered within the SLO, per second",
        bottom=0.0,
        top=2.6 * CAPACITY,
        log=False,
        areas=[
            Area("polite clients", GREEN, xs, [0.0] * len(xs), polite),
            Area("the greedy client", ORANGE, xs, polite, both),
        ],
        lines=[Line("offered (to 500)", GREY, xs, [*offered], 1.2)],
        marks=[Mark("capacity", CAPACITY)],
    )


def _latency(half: Half) -> Panel:
    xs = [at for at, _ in half.bins()]
    tallies = [tally for _, tally in half.bins()]
    seen = [sum(tally.count(status) for status in ("200",)) > 0 for tally in tallies]
    p50 = [tally.p50 * 1e3 if any_ok else None for tally, any_ok in zip(tallies, seen, strict=True)]
    p99 = [tally.p99 * 1e3 if any_ok else None for tally, any_ok in zip(tallies, seen, strict=True)]
    return Panel(
        title="latency of the admitted, milliseconds (none drawn: nobody was served)",
        bottom=40.0,
        top=1.5e3 * PATIENCE,
        log=True,
        areas=[],
        lines=[Line("p99", RED, xs, p99), Line("p50", BLUE, xs, p50)],
        marks=[Mark("SLO", SLO * 1e3)],
    )


def _endings(half: Half) -> Panel:
    xs = [at for at, _ in half.bins()]
    tallies = [tally for _, tally in half.bins()]
    stack = [0.0] * len(xs)
    areas: list[Area] = []
    for label, color, counts in (
        ("good", GREEN, [tally.good for tally in tallies]),
        ("too late", SAND, [tally.count(200) - tally.good for tally in tallies]),
        ("429", ORANGE, [tally.count(429) for tally in tallies]),
        ("503", BLUE, [tally.count(503) for tally in tallies]),
        ("client gave up", RED, [t.offered - t.count(200, 429, 503) for t in tallies]),
    ):
        low, stack = (
            stack,
            [
                base + count / tally.seconds
                for base, count, tally in zip(stack, counts, tallies, strict=True)
            ],
        )
        areas.append(Area(label, color, xs, low, stack))
    return Panel(
        title="how the requests ended, per second",
        bottom=0.0,
        top=1.15 * STORM_RATE,
        log=False,
        areas=areas,
        lines=[],
        marks=[],
    )


def _places(half: Half, peak_in_flight: float) -> Panel:
    xs = [sample.at for sample in half.samples]
    lines = [Line("in flight", BLUE, xs, [max(0.1, one.in_flight) for one in half.samples])]
    if any(one.limit is not None for one in half.samples):
        lines.append(Line("limit", RED, xs, [one.limit for one in half.samples]))
        lines.append(Line("waiting", GREY, xs, [max(0.1, one.waiting) for one in half.samples], 1))
    return Panel(
        title="requests inside the service",
        bottom=1.0,
        top=max(100.0, 1.5 * peak_in_flight),
        log=True,
        areas=[],
        lines=lines,
        marks=[Mark("the pool", 10.0)],
    )
