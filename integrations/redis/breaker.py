"""May the store be asked now? A circuit breaker that opens on silence, not on error rates.

On one multiplexed connection silence concerns everybody at once, so no statistics are needed:
the age of the oldest unanswered request says it all. Only the link probes; while the breaker is
open a decision costs a comparison and what the failure policy costs.
"""

from __future__ import annotations

from typing import Final, Literal

State = Literal["closed", "open", "half-open"]
STATES: Final = ("closed", "half-open", "open")

# Failed batches in a row. One may be a hiccup; three are the store's state.
FAILURES: Final = 3
# Probes in a row, each answered within the budget, before requests follow.
PROBES: Final = 3
# Seconds that it stays open at least: a store that restarts answers before it is ready.
LEAST_OPEN: Final = 0.25
# Seconds between attempts: doubled from the first to the last, each 20 % longer or shorter so
# that a fleet does not come back at one moment.
FIRST_PAUSE: Final = 0.1
LAST_PAUSE: Final = 1.0
SPREAD: Final = 0.2


class Breaker:
    """What is known about the store. It starts closed: nothing has failed yet.

    Attributes:
        state: `closed`, `open` or `half-open` (connected again and being probed).
        incidents: How often it has opened.
        attempts: Connections tried in the present incident.
        cause: What opened it last.
        opened_at: When, monotonic seconds.
        open_seconds: Time not closed in incidents that are over, seconds.
    """

    __slots__ = (
        "_failures", "_probes",
        "attempts", "cause", "incidents", "open_seconds", "opened_at", "state",
    )  # fmt: skip

    def __init__(self) -> None:
        self.state: State = "closed"
        self.incidents = 0
        self.attempts = 0
        self.cause = ""
        self.opened_at = 0.0
        self.open_seconds = 0.0
        self._failures = 0
        self._probes = 0

    def answered(self) -> None:
        """A batch was answered."""
        self._failures = 0

    def failed(self, now: float, cause: str) -> bool:
        """A batch failed although the connection stands.

        Returns:
            Whether this opened the breaker.
        """
        self._failures += 1
        return self._failures >= FAILURES and self.trip(now, cause)

    def trip(self, now: float, cause: str) -> bool:
        """The store is gone.

        Returns:
            Whether this opened the breaker.
        """
        self._failures = self._probes = 0
        was = self.state
        self.state = "open"
        if was != "closed":
            return False
        self.incidents += 1
        self.attempts = 0
        self.cause = cause
        self.opened_at = now
        return True

    def probed(self, now: float) -> bool:
        """A probe was answered within the budget.

        Returns:
            Whether this closed the breaker.
        """
        if self.state == "closed":
            return False
        self.state = "half-open"
        self._probes += 1
        if self._probes < PROBES or now - self.opened_at < LEAST_OPEN:
            return False
        self.state = "closed"
        self.open_seconds += max(0.0, now - self.opened_at)
        return True

    def pause(self, draw: float) -> float:
        """Seconds until the next attempt; counts it.

        Args:
            draw: A number in [0, 1).
        """
        # The exponent is bounded, or a week's outage overflows.
        pause = min(LAST_PAUSE, FIRST_PAUSE * 2.0 ** min(self.attempts, 16))
        self.attempts += 1
        return pause * (1.0 + SPREAD * (2.0 * draw - 1.0))

    def away(self, now: float) -> float:
        """Seconds not closed, until `now`."""
        current = 0.0 if self.state == "closed" else max(0.0, now - self.opened_at)
        return self.open_seconds + current
