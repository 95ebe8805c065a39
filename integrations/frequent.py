"""Who is refused most? Counts per client in bounded memory, however many clients come.

Misra and Gries' summary ("Finding repeated elements", 1982): a client that is new when every
counter is taken lowers all of them by one and is not kept. Each such round is paid for by the
arrivals it removes, so an arrival costs the same on average whoever attacks, and a client
whose share is above 1 / (counters + 1) is always among those kept. Beyond the paper: two
summaries, for the current stretch of time and for the one before, so that what is over is
forgotten.

One thread adds; others may read (a scrape in a thread of its own): reading changes nothing, and
takes its copies in one step each.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

K = TypeVar("K")

# Whoever has more than 1/257 of the refusals is seen. Memory: about 40 kB and the keys.
COUNTERS: Final = 256
# Seconds. Long enough for a scrape each minute to see a steady share, short enough that a client
# which behaves again is gone from the list before the incident's report is written.
STRETCH: Final = 300.0


class Frequent(Generic[K]):
    """The most frequent keys of the last one to two `stretch`es.

    Args:
        counters: Keys that are told apart at the same time, at least 1.
        stretch: Seconds after which a count is forgotten at the earliest; at the latest after
            twice as long.
    """

    __slots__ = ("_before", "_now", "_size", "_stretch", "_total", "_total_before", "_until")

    def __init__(self, counters: int = COUNTERS, stretch: float = STRETCH) -> None:
        self._size = counters
        self._stretch = stretch
        self._now: dict[K, int] = {}
        self._before: dict[K, int] = {}
        self._total = self._total_before = 0
        self._until = float("-inf")

    def add(self, key: K, now: float) -> None:
        """Count `key` once.

        Args:
            key: Who.
            now: Monotonic seconds.
        """
        if now >= self._until:
            self._turn(now)
        self._total += 1
        counts = self._now
        if key in counts:
            counts[key] += 1
        elif len(counts) < self._size:
            counts[key] = 1
        else:
            self._now = {kept: count - 1 for kept, count in counts.items() if count > 1}

    def counts(self, now: float) -> dict[K, int]:
        """Lower bounds of the counts of the keys that are kept, the highest first.

        The true count is higher by at most `total / counters`.
        """
        before, counts, _ = self._seen(now)
        both = dict(before)
        for key, count in dict(counts).items():
            both[key] = both.get(key, 0) + count
        return dict(sorted(both.items(), key=lambda item: -item[1]))

    def total(self, now: float) -> int:
        """All that was counted in the time that `counts` looks at."""
        *_, total = self._seen(now)
        return total

    def _seen(self, now: float) -> tuple[dict[K, int], dict[K, int], int]:
        """The counts of the stretch before and of this one, and all of both."""
        if now < self._until:
            return self._before, self._now, self._total_before + self._total
        if now - self._until < self._stretch:  # nothing was added since it was over
            return self._now, {}, self._total
        return {}, {}, 0

    def _turn(self, now: float) -> None:
        """Begin another stretch; what is more than one of them ago is forgotten."""
        if now - self._until < self._stretch:
            self._before, self._total_before = self._now, self._total
        else:
            self._before, self._total_before = {}, 0
        self._now, self._total = {}, 0
        self._until = now + self._stretch
