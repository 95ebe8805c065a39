"""Which of those who run are long-lived, so that they need no place any more?

A limit counts requests that use the service. One that is held open for seconds after its
answer began (a download, a stream of events) or that only waits for something to happen (a
long poll) uses next to nothing, and a few dozen of them would take every place. They move to a
pool beside the limit, and their places become free.

One that has answered is known to be past its work. Of one that has not, it is only known while
the others are quick: where nothing ends, or everything takes seconds, an old request is a
stuck or a slow one, and that is just what the limit is there for.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final

from loadgate.telemetry import Histogram
from loadgate.ticket import Ticket

# A request is long-lived that has taken so many times as long as half of the others: of
# exponential times one in a million does.
_TIMES: Final = 20.0
# Seconds: what is shorter may be a pause, or one step of a heavy tail.
_SOONEST: Final = 1.0
# Where the median is above this share of the longest time that the operator allows, requests
# that have not answered stay: of exponential times one in a thousand would be misjudged there.
_QUICK: Final = 0.1
# Fewer answers than this show nothing: one or two may come out of a cache.
_FEWEST: Final = 3
# Share of that longest time between two looks.
_LOOK: Final = 0.05


class LongLived:
    """The pool of the long-lived, and who belongs there.

    Args:
        after: Seconds after which a request is long-lived at the latest; inf for never.
        most: Places that the pool has; None for as many as make `ceiling` with the limit.
        ceiling: Places in all, those under the limit included, if `most` is None.

    Attributes:
        places: Places that those in the pool would take under the limit.
        due: When to look next.
    """

    __slots__ = (
        "_after", "_before", "_ceiling", "_latest", "_most", "_pause", "_pool", "due", "places",
    )  # fmt: skip

    def __init__(self, after: float = inf, most: int | None = None, ceiling: int = 0) -> None:
        self._pool: set[Ticket] = set()
        # When the counts of the ended were read, and what they were; and the time before.
        self._latest: tuple[float, list[int]] = (-inf, [])
        self._before = self._latest
        self._pause = (-inf, 0.0)  # the end of the last one, and its seconds
        self.places = 0
        self.follow(after, most, ceiling)

    def follow(self, after: float, most: int | None, ceiling: int) -> None:
        """Go on with other settings; whoever is in the pool stays there."""
        self._after = after
        self._most = most
        self._ceiling = ceiling
        self.due = -inf if after < inf else inf

    def __len__(self) -> int:
        """Requests in the pool."""
        return len(self._pool)

    def choose(
        self, running: Iterable[Ticket], limit: int, latency: Histogram, now: float
    ) -> list[Ticket]:
        """Those who shall move now, oldest first.

        Args:
            running: Those under the limit, oldest first.
            limit: How many there may be.
            latency: How long requests took that have ended, since the beginning.
            now: Monotonic seconds.
        """
        self.due = now + _LOOK * self._after
        median = self._median(latency, now)
        after = min(max(_TIMES * median, _SOONEST), self._after)
        quick = median <= _QUICK * self._after
        room = (self._ceiling - limit if self._most is None else self._most) - self.places
        resumed, pause = self._pause
        chosen: list[Ticket] = []
        for ticket in running:
            age = now - ticket.started
            if age < after:
                break
            if ticket.started < resumed and age < after + pause:
                continue
            places = ticket.places
            if (quick or ticket.answered_at) and places <= room:
                room -= places
                chosen.append(ticket)
        return chosen

    def stalled(self, now: float, duration: float) -> None:
        """Everything stood still for `duration` seconds until `now`: nobody has aged."""
        self._pause = now, duration

    def take(self, ticket: Ticket) -> None:
        """Let `ticket` into the pool."""
        self._pool.add(ticket)
        self.places += ticket.places

    def leave(self, ticket: Ticket) -> bool:
        """`ticket` has ended; False if it is not in the pool."""
        if ticket not in self._pool:
            return False
        self._pool.remove(ticket)
        self.places -= ticket.places
        return True

    def _median(self, latency: Histogram, now: float) -> float:
        """What half of those took at most who ended lately, seconds; inf if that is not known.

        Only those count who ended in the last half to whole of `after`: while every request
        ran that is older than that.
        """
        since, counts = self._latest
        if not 0.0 <= now - since < 0.5 * self._after:
            self._before = since, counts
            self._latest = now, latency.counts.copy()
        since, counts = self._before
        if not 0.0 <= now - since <= self._after or len(counts) != len(latency.counts):
            return inf
        ended = [n - before for n, before in zip(latency.counts, counts, strict=True)]
        if (count := sum(ended)) < _FEWEST:
            return inf
        seen = 0
        for edge, n in zip(latency.edges, ended, strict=False):
            seen += n
            if 2 * seen >= count:
                return edge
        return inf
