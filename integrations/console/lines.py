"""What does ``loadgate watch`` write where it cannot draw? One line for each look, for pipes.

    time=2026-12-01T09:30:01 name=default limit=24 in_flight=22.7 waiting=3.1 asked=412 ...

Times are seconds, rates are per second since the look before; what is not known is left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

from loadgate.integrations.console.reading import Reading, between
from loadgate.integrations.console.status import Status


class Lines:
    """Remembers the look before and says what has happened since.

    Args:
        wall: Seconds since the epoch.
    """

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._last: Status | None = None

    def add(self, status: Status) -> str:
        """The line for another look; the first one, and that of another process, has no rates."""
        reading = None if self._last is None else between(self._last, status)
        self._last = status
        return self._line([("name", status.name), *_now(status, reading), *_flags(status)])

    def trouble(self, why: str) -> str:
        """The line for a look that failed."""
        return self._line([("trouble", why)])

    def _line(self, fields: list[tuple[str, str | float | None]]) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(self._wall()))
        known = ((name, value) for name, value in [("time", at), *fields] if value is not None)
        return " ".join(f"{name}={_text(value)}" for name, value in known)


def _now(status: Status, reading: Reading | None) -> Iterator[tuple[str, str | float | None]]:
    if reading is None:
        yield "limit", status.limit
        yield "in_flight", status.in_flight
        yield "waiting", status.waiting
        return
    for name in (
        "limit", "in_flight", "waiting", "saturated", "asked", "admitted", "done", "p50", "p99",
        "wait99", "stalled", "stood_in",
    ):  # fmt: skip
        yield name, getattr(reading, name)
    for reason, rate in sorted(reading.refused.items()):
        yield f"refused_{reason}", rate


def _flags(status: Status) -> Iterator[tuple[str, str | float | None]]:
    """What is out of the ordinary."""
    if status.mode != "enforce":
        yield "mode", status.mode
    if status.draining:
        yield "draining", 1
    if status.bypassing:
        yield "bypassing", 1
    if status.brake < 1.0:
        yield "brake", status.brake
    if status.paced:
        yield "paced", 1
    if status.store is not None:
        yield "store", status.store.state


def _text(value: str | float) -> str:
    """A value without a space that is not quoted, so that lines can be cut at spaces."""
    if not isinstance(value, str):
        # A look lasts a second or so: what is behind the third figure is noise.
        return f"{value:.0f}" if value >= 100.0 else f"{value:.3g}"
    plain = value.isprintable() and not set(value) & set(' "\\=')
    return value if value and plain else json.dumps(value)
