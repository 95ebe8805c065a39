"""What is drawn? Both halves as panels of plain series, for whoever paints them.

Two painters share this description, `png.py` (matplotlib) and `svg.py` (nothing but text), so that
both pictures show the same.
"""

from __future__ import annotations

from math import isnan
from typing import Final

import msgspec

from loadgate.integrations.demo.record import Half
from loadgate.integrations.demo.service import CONNECTIONS
from loadgate.integrations.demo.story import CAPACITY, GREEDY, PATIENCE, POLITE, SLO, STORM_RATE

# Colours that stay apart for the colour-blind (after Okabe and Ito) and on white.
GREEN: Final = "#1b9e77"
ORANGE: Final = "#e69f00"
RED: Final = "#d1495b"
BLUE: Final = "#3a6ea5"
DARK: Final = "#333333"
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


class Note(msgspec.Struct, frozen=True):
    """Words in the middle of the drawing, at a moment."""

    text: str
    at: float


class Panel(msgspec.Struct, frozen=True):
    """One drawing: what the axis means, its range, and what is on it."""

    title: str
    bottom: float
    top: float
    log: bool
    areas: list[Area]
    lines: list[Line]
    marks: list[Mark]
    notes: list[Note] = []  # msgspec copies it for each panel


def panels(half: Half, peak_in_flight: float) -> list[Panel]:
    """The four panels of one half, from top to bottom."""
    return [_goodput(half), _latency(half), _endings(half), _places(half, peak_in_flight)]


def _goodput(half: Half) -> Panel:
    xs = [at for at, _ in half.bins()]
    polite = [tally.goodput for _, tally in half.bins(POLITE)]
    greedy = [tally.goodput for _, tally in half.bins(GREEDY)]
    both = [a + b for a, b in zip(polite, greedy, strict=True)]
    asked = [tally.offered / tally.seconds for _, tally in half.bins(POLITE)]
    top = 1.6 * CAPACITY
    return Panel(
        title="goodput within the SLO, per second",
        bottom=0.0,
        top=top,
        log=False,
        areas=[
            Area("polite clients", GREEN, xs, [0.0] * len(xs), polite),
            Area("the greedy one", ORANGE, xs, polite, both),
        ],
        # Above the top it would only hide what matters; the third panel shows all of it.
        lines=[
            Line("polite demand", DARK, xs, [rate if rate <= top else None for rate in asked], 1.0)
        ],
        marks=[Mark("capacity", CAPACITY)],
        notes=_gaps(xs, [total > 0 for total in both], "no goodput at all"),
    )


def _latency(half: Half) -> Panel:
    xs = [at for at, _ in half.bins()]
    tallies = [tally for _, tally in half.bins()]
    served = [not isnan(tally.p50) for tally in tallies]
    p50 = [None if isnan(tally.p50) else tally.p50 * 1e3 for tally in tallies]
    p99 = [None if isnan(tally.p99) else tally.p99 * 1e3 for tally in tallies]
    return Panel(
        title="latency of the served, milliseconds",
        bottom=40.0,
        top=1.5e3 * PATIENCE,
        log=True,
        areas=[],
        lines=[Line("p99", RED, xs, p99), Line("p50", BLUE, xs, p50)],
        marks=[Mark("SLO", SLO * 1e3)],
        notes=_gaps(xs, served, "nobody was served"),
    )


def _gaps(xs: list[float], fine: list[bool], text: str) -> list[Note]:
    """A note in the middle of the longest stretch that is not fine, if it is worth one."""
    longest: list[float] = []
    current: list[float] = []
    for at, ok in zip(xs, fine, strict=True):
        current = [] if ok else [*current, at]
        longest = max(longest, current, key=len)
    # Three seconds of half a second each are wide enough for the words.
    return [Note(text, (longest[0] + longest[-1]) / 2)] if len(longest) >= 6 else []


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
    # The last clients may keep the load running beyond the last phase.
    seen = [sample for sample in half.samples if sample.at <= half.result.plan.duration]
    xs = [sample.at for sample in seen]
    lines = [Line("in flight", BLUE, xs, [max(0.1, one.in_flight) for one in seen])]
    if any(one.limit is not None for one in seen):
        lines.append(Line("limit", RED, xs, [one.limit for one in seen]))
        lines.append(Line("waiting", GREY, xs, [max(0.1, one.waiting) for one in seen], 1))
    return Panel(
        title="requests inside the service, logarithmic",
        bottom=1.0,
        top=max(100.0, 4 * peak_in_flight),
        log=True,
        areas=[],
        lines=lines,
        marks=[Mark(f"pool of {CONNECTIONS}", CONNECTIONS)],
    )
