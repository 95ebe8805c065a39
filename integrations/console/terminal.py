"""What does ``loadgate watch`` draw? One screen of text from the last few minutes of readings."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from loadgate.integrations.console.reading import Reading, between
from loadgate.integrations.console.status import Status

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
# Columns of a history; at a look each second it is a minute.
WIDTH: Final = 60
# What the states of the circuit breaker mean.
STORE: Final = {"closed": "works", "half-open": "is being probed", "open": "is away"}
# Refusals that are explained below the numbers.
_SHOWN: Final = 6


class Watch:
    """Remembers readings and draws them."""

    def __init__(self) -> None:
        self._last: Status | None = None
        self._readings: deque[Reading] = deque(maxlen=WIDTH)

    def add(self, status: Status) -> None:
        """Take in another look."""
        if self._last is not None:
            reading = between(self._last, status)
            if reading is None:
                self._readings.clear()  # another process answers by now
            else:
                self._readings.append(reading)
        self._last = status

    def screen(self, trouble: str = "") -> RenderableType:
        """The screen.

        Args:
            trouble: Why the last look failed, if it did.
        """
        status = self._last
        if status is None:
            return Text(trouble or "looking …", style="red" if trouble else "dim")
        parts: list[RenderableType] = [_head(status, trouble)]
        if self._readings:
            parts += [self._numbers(status), self._refusals(), self._classes()]
        else:
            parts.append(Text("the second look will tell rates", style="dim"))
        parts.append(_sightings(status))
        return Group(*parts)

    def _numbers(self, status: Status) -> Table:
        readings = list(self._readings)
        now = readings[-1]
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", min_width=22)
        table.add_column(justify="right", min_width=9)
        table.add_column(no_wrap=True)
        table.add_column(style="dim", no_wrap=True)

        def row(
            name: str,
            value: Callable[[Reading], float | None],
            said: Callable[[float | None], str],
            note: str = "",
            style: str = "",
            top: float | None = None,
        ) -> None:
            values = [value(reading) for reading in readings]
            table.add_row(name, said(values[-1]), spark(values, top=top, style=style), note)

        most = max((reading.limit for reading in readings), default=1.0)
        row("limit", lambda r: r.limit, number, f"{status.low} to {status.high}", "red", most)
        row("in flight", lambda r: r.in_flight, number,
            f"every place taken {percent(now.saturated)} of the time", "green", most)  # fmt: skip
        row("waiting", lambda r: r.waiting, number,
            f"everyone may wait up to {number(status.max_queue)}", "blue")  # fmt: skip
        row("latency, median", lambda r: r.p50, seconds)
        target = status.latency_target
        row("latency, p99", lambda r: r.p99, seconds,
            f"target {seconds(target)}" if target else "", "yellow")  # fmt: skip
        row("wait, p99", lambda r: r.wait99, seconds, f"at most {seconds(status.max_wait)}", "blue")
        row("asked each second", lambda r: r.asked, number)
        row("admitted each second", lambda r: r.admitted, number, style="green")
        row("done well each second", lambda r: r.done, number, style="green")
        lag = f"late by {seconds(status.loop_lag)} now" + (", paced" if status.paced else "")
        row("event loop stands still", lambda r: r.stalled, percent, lag, "red")
        if status.store is not None:
            row("decided without store", lambda r: r.stood_in, percent,
                f"it {STORE.get(status.store.state, status.store.state)}, "
                f"{status.store.nodes} processes share it", "dark_orange", 1.0)  # fmt: skip
        return table

    def _refusals(self) -> RenderableType:
        readings = list(self._readings)
        reasons = {reason for reading in readings for reason in reading.refused}
        if not reasons:
            return Text("\nnothing refused in the last minute", style="dim")
        table = Table.grid(padding=(0, 2))
        table.add_column(min_width=22)
        table.add_column(justify="right", min_width=9)
        table.add_column(no_wrap=True)
        table.add_row("\nrefused each second", "", "")
        total = {reason: sum(r.refused.get(reason, 0.0) for r in readings) for reason in reasons}
        for reason in sorted(reasons, key=lambda reason: -total[reason]):
            values = [reading.refused.get(reason, 0.0) for reading in readings]
            style = "magenta" if reason == "rate" else "dark_orange"
            table.add_row(f"  {reason}", number(values[-1]), spark(values, style=style))
        return table

    def _classes(self) -> RenderableType:
        now = self._readings[-1].classes
        if len(now) < 2:  # one class is everybody
            return Text("")
        table = Table.grid(padding=(0, 2))
        table.add_column(min_width=22)
        for _ in range(3):
            table.add_column(justify="right", min_width=9)
        table.add_row("\npriority, each second", "\nadmitted", "\n429", "\n503", style="dim")
        for name, counts in now.items():
            table.add_row(
                plain(f"  {name}"),
                *(
                    number(counts.get(key, 0.0))
                    for key in ("admitted", "rate_limited", "overloaded")
                ),
            )
        return table


def _head(status: Status, trouble: str) -> Text:
    text = Text.assemble(
        ("loadgate ", "bold"),
        (plain(status.name).plain, "bold"),
        (f"  {status.algorithm}  up {lasting(status.up)}", "dim"),
        ("" if status.mode == "enforce" else f"  mode {status.mode}", "yellow"),
        ("  draining" if status.draining else "", "yellow"),
        ("" if status.brake >= 1.0 else f"  braked to {percent(status.brake)}", "yellow"),
        ("  kill switch on: everyone is let through" if status.bypassing else "", "bold red"),
    )
    if status.store is not None and status.store.state != "closed":
        text.append(f"  shared store {STORE.get(status.store.state, '')}", style="bold red")
    if trouble:
        text.append(f"  no answer: {trouble}", style="bold red")
    return text


def _sightings(status: Status) -> RenderableType:
    if not status.sightings:
        return Text("")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    # The newest of each reason, then whatever else there is place for.
    newest = {one.reason: one for one in reversed(status.sightings)}.values()
    others = [one for one in status.sightings if one not in newest]
    for one in sorted([*newest, *others][:_SHOWN], key=lambda one: -one.at):
        table.add_row(
            when(one.at, time.time()),
            plain(f"{one.status} {one.reason}"),
            plain(one.client),
            plain(one.explanation),
        )
    return Panel(table, title="last refusals", title_align="left", border_style="dim")


def plain(text: str) -> Text:
    """Text as it is: names are no markup, and cannot move the cursor."""
    return Text("".join(char if char.isprintable() else "?" for char in text))


def when(at: float, now: float) -> str:
    """A moment of the past: the time of today, or the day and the time.

    Args:
        at: Seconds since the epoch.
        now: Likewise.
    """
    then, today = time.localtime(at), time.localtime(now)
    same = (then.tm_year, then.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M:%S" if same else "%b %d %H:%M", then)


def lasting(seconds: float) -> str:
    """How long something has run, in its two largest units."""
    minutes = int(seconds) // 60
    hours, days = minutes // 60, minutes // 1440
    if days:
        return f"{days} d {hours % 24} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min {int(seconds) % 60} s"


def spark(values: Sequence[float | None], *, top: float | None = None, style: str = "") -> Text:
    """A history as blocks of eight heights; nothing at all is a dot, no value a gap.

    Args:
        values: From the oldest to the newest.
        top: The value of a full block, by default the highest there is.
        style: The colour.
    """
    highest = top if top is not None else max((v for v in values if v is not None), default=0.0)
    text = Text()
    for value in values:
        if value is None:
            text.append(" ")
        elif value <= 0.0 or highest <= 0.0:
            text.append("·", style="dim")
        else:
            text.append(_BLOCKS[min(7, int(8 * value / highest))], style=style)
    return text


def number(value: float | None) -> str:
    """A count or rate in three digits or so."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def percent(value: float | None) -> str:
    """A share; nearly all is not all."""
    if value is None:
        return "-"
    if 0.995 <= value < 1.0:
        return ">99 %"
    return f"{100 * value:.0f} %" if value >= 0.1 else f"{100 * value:.2g} %"


def seconds(value: float | None) -> str:
    """A length of time in its natural unit."""
    if value is None:
        return "-"
    if value >= 1.0:
        return f"{value:.2f} s"
    return f"{value * 1e3:.3g} ms" if value >= 0.001 else f"{value * 1e6:.0f} µs"
