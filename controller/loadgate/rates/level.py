"""What do algorithms share that keep one float per key: up to where is it spent?

The algorithm has a clock that counts cost units and advances as they come back: steadily for a
token bucket, at the end of each window for a fixed window. `level <= clock` is a key that has
used nothing, `level = clock + burst` one that has nothing left.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from operator import le
from typing import Final

from loadgate.rates.base import Limiter, check
from loadgate.rates.spec import bounds
from loadgate.rates.table import Key, KeyTable

_FLOAT_BYTES: Final = 24


class LevelLimiter(Limiter[float]):
    """A level for each key, on the clock that an algorithm describes; see `Limiter` for the rest.

    `_origin` is where the clock would have stood at 0, had the rate always been this one. Until
    the clock reaches `_settled`, a level from before the last change may exceed the new burst.
    """

    __slots__ = ("_burst", "_origin", "_settled")

    def _make_table(self, max_keys: int, max_bytes: int) -> KeyTable[float]:
        return KeyTable(le, _FLOAT_BYTES, max_keys, max_bytes)

    def _start(self, limit: float, per: float, burst: float) -> None:
        self._settled = -math.inf
        self._burst = burst
        self._set(limit, per, 0.0, 0.0)

    @abstractmethod
    def _set(self, limit: float, per: float, now: float, clock: float) -> None:
        """Set a rate (its burst is set already) and the clock, to stand at `clock` at `now`."""

    @abstractmethod
    def _clock_at(self, now: float) -> float:
        """Where the clock stands at `now`."""

    def _sane(self, level: float, clock: float) -> float:
        """The level, brought back into one burst after the clock stepped back or a change.

        Steps back by up to one burst's time are waited out, so that a jittering clock grants
        nothing; after a longer one the key has nothing left, so that it waits one burst's time
        rather than as long as the step.
        """
        debt = level - clock
        if debt > 2.0 * self._burst or (debt > self._burst and clock < self._settled):
            return clock + self._burst
        return level

    def take(self, key: Key, now: float, cost: float = 1.0) -> None:
        """Charge `cost` whatever is left, at most all that is left."""
        check(now, cost)
        clock = self._clock_at(now)
        place, level = self._enter(key, clock, clock - self._idle, clock)
        level = self._sane(max(level, clock), clock)
        self._shard(place)[place] = max(level, min(level + cost, clock + self._burst))

    def change(self, limit: float, per: float, burst: float | None, now: float) -> None:
        """Set a new rate for all keys at once.

        What is used stays used, so a larger burst is had at once and a smaller one leaves a key
        with nothing, never in debt.
        """
        limit, per, burst = bounds(self.algorithm, limit, per, burst)
        clock = self._clock_at(now)
        self._settled = clock + self._burst
        self._burst = burst
        self._set(limit, per, now, clock)
