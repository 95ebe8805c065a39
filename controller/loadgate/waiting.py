"""Who is next? The waiting room of a service that is full.

Classes are strict: a higher priority is always next, and when someone must go, it is the
lowest. Within a class the order is first come, first served while the queue is a burst, and
newest first once it has stood for `STANDING`: a queue that never empties makes everybody
too late, while the newest can still be served well (adaptive LIFO, Facebook, "Fail at
Scale", 2015; there with a shorter timeout, here every waiter has its own bound).

Everything is O(1) in the number of waiters.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, Literal, TypeVar

T = TypeVar("T")

Discipline = Literal["default", "fifo"]

# Seconds for which a queue must have stood before the newest go first; Facebook's interval,
# and CoDel's (RFC 8289) for telling a standing queue from a burst.
STANDING = 0.1


class WaitingRoom(Generic[T]):
    """Waiters in priority classes.

    Args:
        classes: Number of priority classes, at least 1; class 0 is served first.
        discipline: `default` as the module says, or `fifo` at all times.
    """

    __slots__ = ("_classes", "_since", "depth", "discipline")

    def __init__(self, classes: int, discipline: Discipline = "default") -> None:
        self._classes: list[OrderedDict[T, None]] = [OrderedDict() for _ in range(classes)]
        self._since = 0.0
        self.depth = 0
        self.discipline: Discipline = discipline

    def standing(self, now: float) -> float:
        """Seconds for which the queue has not been empty."""
        return now - self._since if self.depth else 0.0

    def push(self, waiter: T, level: int, now: float) -> None:
        """Let `waiter` wait in class `level`."""
        if not self.depth:
            self._since = now
        self._classes[level][waiter] = None
        self.depth += 1

    def pop(self, now: float) -> T:
        """The next one; raises KeyError when nobody waits."""
        newest = self.discipline == "default" and now - self._since >= STANDING
        for waiters in self._classes:
            if waiters:
                self.depth -= 1
                return waiters.popitem(last=newest)[0]
        raise KeyError("nobody waits")

    def remove(self, waiter: T, level: int) -> None:
        """Take `waiter` out; raises KeyError when it does not wait in this class."""
        del self._classes[level][waiter]
        self.depth -= 1

    def pop_below(self, level: int) -> T | None:
        """The one to go in favour of an arrival of class `level`; None if nobody is lower.

        Of the lowest class the newest goes: it has invested least.
        """
        for lower in range(len(self._classes) - 1, level, -1):
            if self._classes[lower]:
                self.depth -= 1
                return self._classes[lower].popitem(last=True)[0]
        return None

    def pop_any(self) -> T | None:
        """Any one, in no promised order; None when nobody waits."""
        for waiters in self._classes:
            if waiters:
                self.depth -= 1
                return waiters.popitem()[0]
        return None

    @property
    def classes(self) -> int:
        """Number of priority classes."""
        return len(self._classes)

    def depth_of(self, level: int) -> int:
        """Waiters of one class."""
        return len(self._classes[level])
