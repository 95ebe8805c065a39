"""Should a load balancer stay away for a while?"""

from __future__ import annotations

from math import inf
from typing import Final

# A balancer that takes an instance out sends its load to the others, so the answer must be slow
# and sure: more than half refused, for five seconds without a break. Back after five seconds
# with at most a twentieth: by then a queue of `max_wait` has drained many times over.
_NOT_READY_ABOVE: Final = 0.5
_READY_BELOW: Final = 0.05
_FOR: Final = 5.0
# Seconds between two looks: two balancers that ask at once must not halve the evidence.
_APART: Final = 0.5


class Readiness:
    """Whether a load balancer should send requests here, with hysteresis.

    Ask every second or so; between two looks nothing happens.

    Attributes:
        ready: The last answer.
    """

    __slots__ = ("_arrived", "_at", "_refused", "_since", "ready")

    def __init__(self) -> None:
        self.ready = True
        self._arrived = 0
        self._refused = 0
        self._at = -inf
        self._since: float | None = None

    def look(self, now: float, arrived: int, refused: int) -> bool:
        """Look again, and answer.

        Args:
            now: Monotonic seconds.
            arrived: Arrivals since the start.
            refused: Refused with 503 since the start.
        """
        if 0.0 <= now - self._at < _APART:
            return self.ready
        came, went = arrived - self._arrived, refused - self._refused
        share = went / came if came > 0 else 0.0
        against = share > _NOT_READY_ABOVE if self.ready else share <= _READY_BELOW
        begun = self._at if self._at > -inf else now
        self._at, self._arrived, self._refused = now, arrived, refused
        if not against:
            self._since = None
            return self.ready
        if self._since is None:
            self._since = begun
        if now - self._since >= _FOR:
            self.ready = not self.ready
            self._since = None
        return self.ready
