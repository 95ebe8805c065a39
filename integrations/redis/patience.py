"""Who waits for an answer, until when, and for how long has the store been silent?"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from loadgate.integrations.redis.ask import Ask


class Patience:
    """The waits and the calls of one link. All times are monotonic seconds.

    Args:
        clock: Monotonic seconds.
        budget: Seconds that a caller waits at most; twice as long is silence.

    Attributes:
        waiting: Whoever waits, the earliest deadline first; some may be over.
    """

    __slots__ = ("_budget", "_clock", "_flights", "_number", "waiting")

    def __init__(self, clock: Callable[[], float], budget: float) -> None:
        self._clock = clock
        self._budget = budget
        self._flights: dict[int, tuple[float, list[Ask]]] = {}
        self._number = 0
        self.waiting: deque[Ask] = deque()

    def sent(self, batch: list[Ask], now: float) -> int:
        """A call has begun; its number."""
        self._number += 1
        self._flights[self._number] = now, batch
        return self._number

    def ended(self, number: int) -> None:
        """A call has ended, with an answer or without."""
        self._flights.pop(number, None)

    @property
    def idle(self) -> bool:
        """Whether no call is under way."""
        return not self._flights

    @property
    def flying(self) -> int:
        """Questions in calls under way."""
        return sum(len(batch) for _, batch in self._flights.values())

    @property
    def oldest(self) -> float:
        """Age of the oldest call without an answer, seconds."""
        sent = self._first()
        return 0.0 if sent is None else max(0.0, self._clock() - sent)

    @property
    def count(self) -> int:
        """Questions whose callers wait."""
        return sum(not ask.over for ask in self.waiting)

    def _first(self) -> float | None:
        return min((sent for sent, _ in self._flights.values()), default=None)

    def forgive(self) -> None:
        """We were late ourselves: what is under way counts from now."""
        now = self._clock()
        self._flights = {number: (now, batch) for number, (_, batch) in self._flights.items()}

    def tidy(self) -> None:
        """Forget the first waits, as far as they are over."""
        waiting = self.waiting
        while waiting and waiting[0].over:
            waiting.popleft()

    def next_moment(self) -> float | None:
        """When a wait ends or silence becomes an incident; None if nothing is awaited."""
        self.tidy()
        silent = self._first()
        if silent is not None:
            silent += 2 * self._budget
        if not self.waiting:
            return silent
        deadline = self.waiting[0].deadline
        return deadline if silent is None else min(deadline, silent)

    def expire(self, now: float) -> int:
        """End the waits whose time is up; how many that were."""
        waiting, expired = self.waiting, 0
        while waiting and (waiting[0].over or waiting[0].deadline <= now):
            ask = waiting.popleft()
            if not ask.over:
                expired += 1
                ask.give_up("timeout")
        return expired

    def silent(self, now: float) -> float | None:
        """Seconds without an answer, if they are too many."""
        sent = self._first()
        return None if sent is None or now - sent < 2 * self._budget else now - sent

    def give_up(self, trouble: str) -> None:
        """Nobody will be answered."""
        for _, batch in self._flights.values():
            for ask in batch:
                ask.give_up(trouble)
        for ask in self.waiting:
            ask.give_up(trouble)
        self.waiting.clear()
        self._flights.clear()
