"""When should a refused client come back? Later and later while refusing goes on.

The answer is the larger of two: the time in which those who wait will have drained, and a
pause that doubles while refusals go on and falls back by a second at a time when they stop.
That law is Kubernetes' (its priority and fairness, dropped-requests tracker): a second at the
start, a factor of two, and thresholds of three refusals a second and one are taken from there.
Two changes: a service that does thousands a second may refuse one in a hundred of them before
that counts as sustained, and every answer is stretched by up to half, evenly spread, because
clients that were refused together must not come back together (a constant pause of a second
made herds of kubelets).
"""

from __future__ import annotations

from typing import Final

# Bounds in seconds of what a 503 tells the client: a browser or proxy that comes back within
# the second finds the same queue, and nobody believes a promise beyond half a minute.
FLOOR: Final = 1.0
CEILING: Final = 30.0
# Refusals a second at which the pause doubles, and below which it shrinks (Kubernetes).
_MANY: Final = 3.0
_FEW: Final = 1.0
# Share of what the service can do that may be refused before it counts as sustained.
_SHARE: Final = 0.01
# An answer is stretched by up to this share of it.
_SPREAD: Final = 0.5
_LONGEST: Final = CEILING / (1.0 + _SPREAD)
# The golden ratio's fraction: its multiples, modulo 1, spread evenly however many are taken.
_GOLDEN: Final = 0.6180339887498949


class RetryAfter:
    """The pause that refused clients are told.

    Args:
        draw: A number in [0, 1) where the spread begins, so that processes differ.

    Attributes:
        pause: Seconds, before it is stretched; at least `FLOOR`, stretched within `CEILING`.
    """

    __slots__ = ("_count", "_due", "_spread", "pause")

    def __init__(self, draw: float = 0.0) -> None:
        self.pause = FLOOR
        self._spread = draw
        self._count = 0
        self._due = float("-inf")

    def after(self, now: float, drained: float, rate: float) -> float:
        """Count one refusal, and say when to come back.

        Args:
            now: Monotonic seconds.
            drained: Seconds until those who wait now will have got their places.
            rate: Requests a second that the service can do.
        """
        if now >= self._due:
            self._look(now, rate)
        self._count += 1
        pause = self.pause
        if drained > pause:
            pause = drained if drained < _LONGEST else _LONGEST
        self._spread = spread = (self._spread + _GOLDEN) % 1.0
        return pause + pause * _SPREAD * spread

    def _look(self, now: float, rate: float) -> None:
        """A stretch of `pause` seconds is over: were there many refusals in it, or few?"""
        pause, count = self.pause, self._count
        overdue = now - self._due
        if overdue >= pause or count < _FEW * pause:
            # A second less for each stretch with few; those in which nobody was refused at all
            # have passed in the meantime.
            self.pause = max(FLOOR, pause - 1.0 - min(CEILING, overdue / pause))
        elif count >= max(_MANY, _SHARE * rate) * pause:
            self.pause = min(2.0 * pause, _LONGEST)
        self._count = 0
        self._due = now + self.pause
