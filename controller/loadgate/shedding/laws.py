"""How likely is it that an arrival may join a queue of this depth? Three laws to choose from.

All of them are asked for each arrival, never on a timer: a threshold that is worked out every
second makes priorities meaningless for handlers of 20 ms (measured on failsafe-go's).

==========  ======================================================  =========================
law         an arrival survives with probability                    the depth settles at
==========  ======================================================  =========================
survival    `max_queue / depth` above `max_queue`                   `max_queue * load`
ramp        1 at `max_queue`, falling to 0 at `max_depth`           `a + (1 - 1/load)(b - a)`
budget      1 if the expected wait is within the budget, else 0     `budget * capacity`
==========  ======================================================  =========================

with `load` the offered rate over the capacity, `a = max_queue`, `b = max_depth`; and nobody
survives at `max_depth`, whichever law it is. `budget` is `max_wait` while the queue is a burst
and a twentieth of it once it stands: CoDel (RFC 8289) tells the one from the other, by the
smallest wait in an interval, with a target of 5 % of it. Its own way to drop, faster and faster
by the square root of a count, needs senders that back off, and web clients do not; Facebook
("Fail at Scale", 2015) put a short budget in its place, as is done here.
"""

from __future__ import annotations

from math import inf
from typing import Final, Literal, Protocol

from loadgate.shedding.depth import survival

RuleName = Literal["survival", "ramp", "budget"]

# RFC 8289: the target is 5 to 10 % of the interval.
_TARGET_SHARE: Final = 0.05


class Law(Protocol):
    """What is asked for each arrival that finds no free place."""

    def chance(
        self, depth: float, max_queue: float, max_depth: float, rate: float, now: float
    ) -> float:
        """The probability with which it may join.

        Args:
            depth: Waiters before it.
            max_queue: The soft threshold.
            max_depth: The hard one.
            rate: Requests a second that get a place.
            now: Monotonic seconds.
        """
        ...

    def waited(self, now: float, wait: float) -> None:
        """Someone left the queue after `wait` seconds."""
        ...


class Survival:
    """`max_queue / depth`: gentle, and unbounded but for `max_depth`."""

    __slots__ = ()

    def chance(
        self, depth: float, max_queue: float, max_depth: float, rate: float, now: float
    ) -> float:
        """See `Law`."""
        return survival(depth, max_queue)

    def waited(self, now: float, wait: float) -> None:
        """It does not look at waits."""


class Ramp:
    """From 1 at `max_queue` down to 0 at `max_depth`, in a straight line."""

    __slots__ = ()

    def chance(
        self, depth: float, max_queue: float, max_depth: float, rate: float, now: float
    ) -> float:
        """See `Law`."""
        if depth <= max_queue:
            return 1.0 if max_queue > 0.0 else 0.0
        if depth >= max_depth:
            return 0.0
        return (max_depth - depth) / (max_depth - max_queue)

    def waited(self, now: float, wait: float) -> None:
        """It does not look at waits."""


class WaitBudget:
    """The expected wait must fit into a budget, a short one while the queue stands.

    Args:
        max_wait: The budget of a burst and CoDel's interval, seconds.

    Attributes:
        standing: Whether nobody waited for less than the target in the last interval.
    """

    __slots__ = ("_begun", "_least", "max_wait", "standing")

    def __init__(self, max_wait: float) -> None:
        self.max_wait = max_wait
        self.standing = False
        self._least = inf
        self._begun = -inf

    def chance(
        self, depth: float, max_queue: float, max_depth: float, rate: float, now: float
    ) -> float:
        """See `Law`."""
        if depth <= 0:
            self.standing = False  # the queue has drained: whatever comes is a burst again
            self._begin(now)
        return 1.0 if depth < self.budget * rate else 0.0

    @property
    def budget(self) -> float:
        """Seconds that an arrival may be expected to wait, now."""
        return self.max_wait * _TARGET_SHARE if self.standing else self.max_wait

    def waited(self, now: float, wait: float) -> None:
        """See `Law`."""
        if wait < self._least:
            self._least = wait
        if now - self._begun >= self.max_wait:
            self.standing = self._least >= self.max_wait * _TARGET_SHARE
            self._begin(now)

    def _begin(self, now: float) -> None:
        self._begun = now
        self._least = inf


def law(name: RuleName, max_wait: float) -> Law:
    """The law of this name."""
    if name == "budget":
        return WaitBudget(max_wait)
    return Ramp() if name == "ramp" else Survival()
