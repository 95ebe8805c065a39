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

from bisect import bisect_left
from collections.abc import Iterable
from math import inf
from typing import Final

from loadgate.telemetry import Histogram
from loadgate.ticket import Ticket

# A request is long-lived that has taken so many times as long as half of those who ended lately:
# of exponential times one in a million does.
_TIMES: Final = 20.0
# Seconds: what is shorter may be a pause, or one step of a heavy tail.
_SOONEST: Final = 1.0
# One that has not answered stays unless half of those who ended in this share of its life, up to
# now, took at most that share of its age: of exponential times one in a thousand is misjudged.
_LATELY: Final = 0.8
_QUICK: Final = 0.1
# Fewer answers than this show nothing: one or two may come out of a cache.
_FEWEST: Final = 3
# Share of that longest time between two looks, each of which remembers who had ended by then.
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
        "_after", "_ceiling", "_counts", "_most", "_pause", "_pool", "_times", "due", "places",
    )  # fmt: skip

    def __init__(self, after: float = inf, most: int | None = None, ceiling: int = 0) -> None:
        self._pool: set[Ticket] = set()
        # When the counts of the ended were read, rising, and what they were.
        self._times: list[float] = []
        self._counts: list[list[int]] = []
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
        self._forget(now)
        longest, (resumed, pause) = self._after, self._pause
        median = self._median(0, latency)
        after = min(max(_TIMES * median, _SOONEST), longest)
        room = (self._ceiling - limit if self._most is None else self._most) - self.places
        medians: dict[int, float] = {}
        chosen: list[Ticket] = []
        for ticket in running:
            started = ticket.started
            if now - started < after:
                break
            age = now - started - (pause if started < resumed else 0.0)
            if age < after or ticket.places > room:
                continue
            if not ticket.answered_at:
                # What is quick and ended in the last four fifths of its life began after it did;
                # a service that is stuck or slow since then shows little of the kind.
                first = bisect_left(self._times, now - _LATELY * min(age, longest))
                if first not in medians:
                    medians[first] = self._median(first, latency)
                if medians[first] > _QUICK * min(age, longest):
                    continue
            room -= ticket.places
            chosen.append(ticket)
        self._times.append(now)
        self._counts.append(latency.counts.copy())
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

    def _median(self, first: int, latency: Histogram) -> float:
        """What half of those took at most who ended since look `first`; inf if not known."""
        if first == len(self._counts) or len(self._counts[first]) != len(latency.counts):
            return inf
        ended = [n - before for n, before in zip(latency.counts, self._counts[first], strict=True)]
        if (count := sum(ended)) < _FEWEST:
            return inf
        seen = 0
        for edge, n in zip(latency.edges, ended, strict=False):
            seen += n
            if 2 * seen >= count:
                return edge
        return inf

    def _forget(self, now: float) -> None:
        """Forget looks that are too long ago; all of them if the clock was set back."""
        times = self._times
        old = bisect_left(times, now - self._after)
        if times and times[-1] > now:
            old = len(times)
        del times[:old], self._counts[:old]
