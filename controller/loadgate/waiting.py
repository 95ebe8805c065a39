"""Who is next, and who must go? The waiting room of a service that is full.

Classes are strict: a higher priority is always next, and when someone must go, it is of the
lowest. Within a class the order is one of three:

default
    First come, first served while the queue is a burst, and newest first once it has stood for
    `STANDING`: a queue that never empties makes everybody too late, while the newest can still
    be served well (adaptive LIFO, Facebook, "Fail at Scale", 2015; there with a shorter
    timeout, here every waiter has its own bound). Those above their fair share (their tag is
    above 0) stand behind those within it, in a queue of their own, whose standing says nothing
    about the others: otherwise one heavy client buries them under its newest.
fifo
    First come, first served, whatever happens.
fair
    The smallest start tag first: fair queueing (see `shedding.fairness`).

A waiter that needs several places and has become the next one stays it (`put_back`) until it
fits: nobody of its class or a lower one is started before it from then on.

Everything is O(1) in the number of waiters, or O(log n) where tags are compared.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Generic, Literal, TypeVar

T = TypeVar("T")

Discipline = Literal["default", "fifo", "fair"]

# Seconds for which a queue must have stood before the newest go first; Facebook's interval,
# and CoDel's (RFC 8289) for telling a standing queue from a burst.
STANDING = 0.1

# Entries of waiters who have gone that a heap may hold beside as many living ones.
_SLACK = 64


class _Line(Generic[T]):
    """The waiters of one class."""

    __slots__ = ("above", "above_since", "head", "heaviest", "lightest", "within", "within_since")

    def __init__(self) -> None:
        # Tag and order of each waiter, those within their share and those above it.
        self.within: OrderedDict[T, tuple[float, int]] = OrderedDict()
        self.above: OrderedDict[T, tuple[float, int]] = OrderedDict()
        # Since when each of them has not been empty.
        self.within_since = 0.0
        self.above_since = 0.0
        # Heaps of (-tag, -order, waiter), of those above their share only, and, if fair, of
        # (tag, order, waiter). Who has gone stays in them until it comes up or there are too
        # many of its kind.
        self.heaviest: list[tuple[float, int, T]] = []
        self.lightest: list[tuple[float, int, T]] = []
        self.head: T | None = None

    def __len__(self) -> int:
        return len(self.within) + len(self.above) + (self.head is not None)

    def stands(self, now: float) -> bool:
        """Whether whoever is next here is so because the queue stands: the newest."""
        if self.within:
            return not self.above and now - self.within_since >= STANDING
        return now - self.above_since >= STANDING

    def spent(self) -> bool:
        """Whether most of a heap are those who have gone."""
        living = 2 * (len(self.within) + len(self.above)) + _SLACK
        return len(self.heaviest) > living or len(self.lightest) > living

    def tidy(self) -> None:
        """Forget those who have gone when they are the most."""
        living = 2 * (len(self.within) + len(self.above)) + _SLACK
        for heap in (self.heaviest, self.lightest):
            if len(heap) > living:
                heap[:] = [entry for entry in heap if self.waits(entry[2])]
                heapify(heap)

    def waits(self, waiter: T) -> bool:
        """Whether it is here, and not at the head."""
        return waiter in self.within or waiter in self.above

    def drop(self, waiter: T) -> None:
        """Take out one that is here."""
        if waiter in self.within:
            del self.within[waiter]
        else:
            del self.above[waiter]

    def worst(self) -> tuple[float, T] | None:
        """Who would go: the largest tag, the newest among equals. The one at the head never."""
        if self.above and (entry := self.top(self.heaviest)) is not None:
            return -entry[0], entry[2]
        if self.within:  # every tag is 0
            return 0.0, next(reversed(self.within))
        return None

    def top(self, heap: list[tuple[float, int, T]]) -> tuple[float, int, T] | None:
        """The first entry of a heap whose waiter is still here."""
        while heap:
            if self.waits(heap[0][2]):
                return heap[0]
            heappop(heap)
        return None


class WaitingRoom(Generic[T]):
    """Waiters in priority classes.

    Args:
        classes: Number of priority classes, at least 1; class 0 is served first.
        discipline: As the module says.
    """

    __slots__ = ("_lines", "_order", "depth", "discipline")

    def __init__(self, classes: int, discipline: Discipline = "default") -> None:
        self._lines: list[_Line[T]] = [_Line() for _ in range(classes)]
        self._order = 0
        self.depth = 0
        self.discipline: Discipline = discipline

    @property
    def classes(self) -> int:
        """Number of priority classes."""
        return len(self._lines)

    def push(self, waiter: T, level: int, now: float, tag: float = 0.0) -> None:
        """Let `waiter` wait in class `level`.

        Args:
            waiter: Whoever it is; it can be hashed, and waits only once.
            level: Its class.
            now: Monotonic seconds.
            tag: Its start tag: what its client has had beyond its share, 0 for nothing.
        """
        line = self._lines[level]
        self._order = order = self._order + 1
        if tag > 0.0:
            if not line.above:
                line.above_since = now
            line.above[waiter] = (tag, order)
            heappush(line.heaviest, (-tag, -order, waiter))
        else:
            if not line.within:
                line.within_since = now
            line.within[waiter] = (tag, order)
        if self.discipline == "fair":
            heappush(line.lightest, (tag, order, waiter))
        self.depth += 1
        if (line.heaviest or line.lightest) and line.spent():
            line.tidy()

    def first(self) -> int | None:
        """The highest class that waits, None when nobody does."""
        for level, line in enumerate(self._lines):
            if line.within or line.above or line.head is not None:
                return level
        return None

    def pop(self, now: float, level: int | None = None) -> T:
        """The next one (of class `level`); raises KeyError when nobody waits (there)."""
        if level is None:
            level = self.first()
        line = self._lines[level] if level is not None else None
        if line is None or not (line.within or line.above or line.head is not None):
            raise KeyError("nobody waits")
        self.depth -= 1
        if (head := line.head) is not None:
            line.head = None
            return head
        discipline = self.discipline
        if discipline == "fair" and (entry := line.top(line.lightest)) is not None:
            line.drop(entry[2])
            return heappop(line.lightest)[2]
        if discipline == "fifo" and line.within and line.above:
            oldest, other = next(iter(line.within.items())), next(iter(line.above.items()))
            first = line.within if oldest[1][1] < other[1][1] else line.above
            return first.popitem(last=False)[0]
        newest = discipline == "default" and line.stands(now)
        return (line.within or line.above).popitem(last=newest)[0]

    def put_back(self, waiter: T, level: int) -> None:
        """`waiter`, just popped, does not fit: it stays the next of its class."""
        self._lines[level].head = waiter
        self.depth += 1

    def remove(self, waiter: T, level: int) -> None:
        """Take `waiter` out; raises KeyError when it does not wait in this class."""
        line = self._lines[level]
        if line.head is waiter and waiter is not None:
            line.head = None
        else:
            line.drop(waiter)
        self.depth -= 1

    def evict(
        self, level: int, tag: float, spared: Callable[[int, int], bool] | None = None
    ) -> T | None:
        """The one to go in favour of an arrival of class `level`; None if it is the arrival.

        Of the lowest class below `level` the largest tag goes, else the largest of the same
        class if it is larger than the arrival's. Among equal tags the newest goes: it has
        invested least. The next one of a class (`put_back`) is not asked to go.

        Args:
            level: The class of the arrival.
            tag: Its start tag.
            spared: Told a class and how many of it wait, answers whether none of them goes.
        """
        for lower in range(len(self._lines) - 1, level - 1, -1):
            line = self._lines[lower]
            worst = line.worst()
            if worst is None or (spared is not None and spared(lower, len(line))):
                continue
            if lower == level and worst[0] <= tag:
                break
            line.drop(worst[1])
            self.depth -= 1
            return worst[1]
        return None

    def pop_any(self) -> T | None:
        """Any one, in no promised order; None when nobody waits."""
        level = self.first()
        if level is None:
            return None
        line = self._lines[level]
        self.depth -= 1
        if (head := line.head) is not None:
            line.head = None
            return head
        return (line.within or line.above).popitem()[0]

    def depth_of(self, level: int) -> int:
        """Waiters of one class."""
        return len(self._lines[level])

    def ahead_of(self, level: int, now: float) -> int:
        """Waiters who are served before an arrival of this class that is within its share."""
        higher = sum(len(line) for line in self._lines[:level])
        line = self._lines[level]
        if self.discipline == "fifo":
            return higher + len(line)
        if self.discipline == "default" and line.within and line.stands(now):
            return higher  # the newest goes first
        return higher + len(line.within)

    def waits_below(self, level: int) -> bool:
        """Whether someone waits in a lower class."""
        return any(len(line) for line in self._lines[level + 1 :])

    def regroup(self, classes: int, level_of: Callable[[int], int]) -> Iterable[tuple[T, int]]:
        """Other classes: everyone keeps its tag and its turn.

        Args:
            classes: Their number.
            level_of: Told an old class, answers the new one.

        Returns:
            Everyone who waits, with its new class.
        """
        old, self._lines = self._lines, [_Line() for _ in range(classes)]
        everyone: list[tuple[int, float, T, int, float]] = []
        for level, line in enumerate(old):
            new = level_of(level)
            if line.head is not None:
                # It keeps its turn if it is the first of its new class who had one.
                if self._lines[new].head is None:
                    self._lines[new].head = line.head
                else:
                    everyone.append((0, 0.0, line.head, new, line.within_since))
            for since, waiters in (
                (line.within_since, line.within),
                (line.above_since, line.above),
            ):
                everyone += [
                    (order, tag, waiter, new, since) for waiter, (tag, order) in waiters.items()
                ]
        everyone.sort(key=lambda found: found[0])
        found: list[tuple[T, int]] = [
            (line.head, level) for level, line in enumerate(self._lines) if line.head is not None
        ]
        self.depth = len(found)
        for _, tag, waiter, new, since in everyone:
            self.push(waiter, new, since, tag)
            found.append((waiter, new))
        return found

    def size(self) -> int:
        """Entries held, those of waiters who have gone included: it is bounded by the depth."""
        return sum(len(line.heaviest) + len(line.lightest) for line in self._lines)

    def follow(self, discipline: Discipline) -> None:
        """Go on with another discipline; it holds for those who wait already, too."""
        if discipline == self.discipline:
            return
        self.discipline = discipline
        for line in self._lines:
            line.lightest = []
            if discipline == "fair":
                for waiters in (line.within, line.above):
                    line.lightest += [
                        (tag, order, waiter) for waiter, (tag, order) in waiters.items()
                    ]
                heapify(line.lightest)
