"""When is it worth to go below for a window, only to see how fast requests are there?

The unloaded latency is measured where throughput is lost, so each look has a price. What one brings
decides how long the next one can wait.
"""

from __future__ import annotations

from math import inf, log
from typing import Final

from loadgate.limits.window import WINDOW

# Throughput that probes may cost on average in the long run. At first the pause is so many times
# what the probe took; one that agrees doubles it.
PROBE_COST: Final = 0.004
PROBE_PAUSE: Final = 40.0
PROBE_RARELY: Final = 64.0
PROBE_AT_ONCE: Final = 3
PROBE_OFTEN: Final = 0.6
PROBE_AGREES: Final = 0.1
# Seconds without a probe after one that was given up; twice as many after the next, up to so many.
GIVEN_UP: Final = 10.0
GIVEN_UP_MOST: Final = 60.0
# Completions, and completions per unit of the knee, that make the unloaded latency known.
KNOWN: Final = 40.0
KNOWN_PER_KNEE: Final = 3.0


class Probes:
    """The rhythm of the probes.

    Attributes:
        count: How many there were.
        due: When the next one is.
        barred: None begins before, as one in which nothing ended was given up.
    """

    __slots__ = ("_bar", "_began", "_factor", "_run", "_unloaded", "barred", "count", "due")

    def __init__(self) -> None:
        self.count = 0
        self.due = -inf
        self.barred = -inf
        self._bar = GIVEN_UP
        self._factor = 1.0
        self._run = 0  # since the service was found changed
        self._began = 0.0
        self._unloaded = 0.0

    def changed(self, due: float) -> None:
        """The service is another one: what earlier probes agreed on is nothing."""
        self.due = due
        self._factor = 1.0
        self._run = 0

    def begin(self, now: float, unloaded: float) -> None:
        """One begins; `unloaded` is the latency known, 0.0 if none is."""
        self.count += 1
        self._began = now
        self._unloaded = unloaded

    def hung(self, now: float) -> None:
        """Nothing has ended in it."""
        self.barred = now + self._bar
        self._bar = min(2.0 * self._bar, GIVEN_UP_MOST)

    def heard(self) -> None:
        """It has come to an end."""
        self._bar = GIVEN_UP

    def measured(
        self,
        now: float,
        latency: float,
        share: float,
        *,
        unloaded: float,
        weight: float,
        knee: float,
    ) -> None:
        """It has shown the unloaded latency: find out when to look again.

        Args:
            now: The moment.
            latency: Seconds that a request took in the probe.
            share: Throughput of the probe, as a share of the best.
            unloaded: The latency known now, seconds.
            weight: Completions on which it rests.
            knee: The level up to which requests do not disturb each other.
        """
        known = weight > max(KNOWN, KNOWN_PER_KNEE * knee)
        before = self._unloaded
        if before > 0.0 and abs(log(unloaded / before)) < PROBE_AGREES and known:
            self._factor = min(2.0 * self._factor, PROBE_RARELY)
        else:
            self._factor = 1.0 if known else PROBE_OFTEN
        took = now - self._began
        cost = took * max(0.0, 1.0 - share)
        pause = min(cost / PROBE_COST, PROBE_PAUSE * took * self._factor)
        self._run += 1
        if weight <= WINDOW and self._run <= PROBE_AT_ONCE:
            pause = 0.0
        self.due = now + max(pause, 10.0 * latency)
