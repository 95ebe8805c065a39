"""What does one read in a log? One line for each second of the demo."""

from __future__ import annotations

from collections.abc import Callable

from loadgate.integrations.demo.record import Sample
from loadgate.integrations.demo.run import TITLES
from loadgate.integrations.demo.story import GREEDY, POLITE
from loadgate.integrations.loadgen import ClassCounts, Progress

Counter = Callable[[ClassCounts], int]


class PlainView:
    """The view for logs. Use as a context manager; call it with every report."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._half = -1
        self._since: list[Progress] = []

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __call__(self, half: int, progress: Progress, sample: Sample | None) -> None:
        """Take a report; every second it becomes a line."""
        if half != self._half:
            self._half = half
            self._since = []
            self._write(f"\n{TITLES[half]}")
        self._since.append(progress)
        seconds = sum(one.seconds for one in self._since)
        if seconds < 0.99:
            return

        def rate(count: Counter, *names: str) -> str:
            total = sum(count(one.classes[name]) for one in self._since for name in names)
            return f"{total / seconds:.0f}"

        slowest = max((one.p99 for one in self._since if one.p99 is not None), default=None)
        parts = [
            f"{progress.at:5.1f} s {self._since[0].phase:<17}",
            f"offered/s {rate(lambda one: one.sent, POLITE, GREEDY):>3}",
            f"good/s polite {rate(lambda one: one.good, POLITE):>3}",
            f"greedy {rate(lambda one: one.good, GREEDY):>3}",
            "p99 " + ("   -" if slowest is None else f"{slowest * 1e3:4.0f}") + " ms",
            f"gave up/s {rate(lambda one: one.gave_up + one.broken, POLITE, GREEDY):>3}",
            f"429/s {rate(lambda one: one.limited, POLITE, GREEDY):>3}",
            f"503/s {rate(lambda one: one.refused, POLITE, GREEDY):>3}",
        ]
        if sample is not None:
            parts.append(f"in flight {sample.in_flight:.0f}")
            if sample.limit is not None:
                parts.append(f"limit {sample.limit:.0f} waiting {sample.waiting:.0f}")
        self._write("  ".join(parts))
        self._since = []
