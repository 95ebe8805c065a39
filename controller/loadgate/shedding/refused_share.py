"""May one more be refused? A cap on the share of arrivals that get a 503."""

from __future__ import annotations

from math import inf
from typing import Final

# Seconds over which the share is looked at: some ten requests at 1/s, and short enough that a
# cap which was reached does not bind for minutes.
_WINDOW: Final = 10.0


class RefusedShare:
    """A cap on the share of arrivals that may be refused with 503.

    Whoever would be refused beyond it is let through, above the limit if need be: a seat belt
    against a rule or signal that is wrong, and the end of protection while it binds.

    Args:
        cap: The share, in (0, 1].
    """

    __slots__ = ("_arrived", "_refused", "_since", "cap")

    def __init__(self, cap: float) -> None:
        self.cap = cap
        self._arrived = 0
        self._refused = 0
        self._since = -inf

    def allows(self, now: float, arrived: int, refused: int) -> bool:
        """Whether one more may be refused.

        Args:
            now: Monotonic seconds.
            arrived: Arrivals since the start, this one included.
            refused: Refused with 503 since the start.
        """
        if now - self._since >= _WINDOW or now < self._since:
            self._since, self._arrived, self._refused = now, arrived - 1, refused
        return refused - self._refused + 1 <= self.cap * (arrived - self._arrived)
