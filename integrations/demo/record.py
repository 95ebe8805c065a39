"""What was seen in one half of the demo: the load's own rows, and the service from inside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from loadgate.integrations.demo.story import PHASES, STORM
from loadgate.integrations.loadgen import Result, Tally

# Half a second holds 30 requests in the calm and 250 in the storm: enough for a share.
BIN: Final = 0.5


class Sample(msgspec.Struct, frozen=True):
    """The service, looked at from inside.

    Attributes:
        at: Seconds after the start of the load.
        in_flight: Requests that run.
        waiting: Requests that wait for a place (loadgate's queue).
        limit: Requests that may run at once; None without loadgate.
    """

    at: float
    in_flight: float
    waiting: float = 0.0
    limit: float | None = None


class Half(msgspec.Struct):
    """One half of the demo.

    Attributes:
        title: "without loadgate" or "with loadgate".
        result: What the clients saw.
        samples: What the service said of itself, in order.
    """

    title: str
    result: Result
    samples: list[Sample]

    def bins(self, *classes: str) -> Iterator[tuple[float, Tally]]:
        """The run in steps of half a second: the middle of each, and what was due in it."""
        start = 0.0
        while start + BIN <= self.result.plan.duration + 1e-6:
            yield start + BIN / 2, self.result.tally(classes, between=(start, start + BIN))
            start += BIN

    def recovery(self, share: float = 0.95) -> float | None:
        """Seconds from the end of the storm until requests are served well and stay so.

        None when that does not happen within the run.
        """
        end = self.result.interval(STORM)[1]
        back: float | None = None
        for middle, tally in self.bins():
            if middle > end:
                if tally.share < share:
                    back = None
                elif back is None:
                    back = middle - BIN / 2 - end
        return back


def phase_starts() -> list[tuple[str, float, float]]:
    """Name, start and end of each phase, in seconds after the start."""
    spans: list[tuple[str, float, float]] = []
    at = 0.0
    for phase in PHASES:
        spans.append((phase.name, at, at + phase.duration))
        at += phase.duration
    return spans
