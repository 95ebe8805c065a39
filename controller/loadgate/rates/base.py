"""What does a limiter of many keys see, and what does it answer?"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Final, Generic, TypeVar

from loadgate.decisions import Quota
from loadgate.rates.spec import DEFAULT_MAX_BYTES, DEFAULT_MAX_KEYS, bounds
from loadgate.rates.table import (
    SHARD_SHIFT,
    STEPS_PER_WALK,
    Key,
    KeyTable,
    SharedBucket,
    overflow,
)

State = TypeVar("State")

# Of a window's limit. Whole costs add exactly. Fractions (cost=0.1) do not: the last of a window
# is not refused for a billionth.
WINDOW_FORBEARANCE: Final = 2.0**-30


class Limiter(ABC, Generic[State]):
    """The state of all keys of one rate, and the decisions about them.

    Driven by its caller: every `now` is monotonic seconds. Keys are str or bytes; `"a"` and
    `b"a"` are two keys. Text is counted as it stands (no Unicode normalisation, no trimming).

    An algorithm tells the key table moments on a clock of its own. On that clock it sets `_idle`,
    how long a key must have been as good as new to be forgotten, and `_rest`, how long the
    table's hand stands still after a round in which it found nothing.

    Attributes:
        algorithm: What operators call it.
        name: Put into every `Quota`.
        allowed: Decisions of `hit` that charged.
        refused: Decisions of `hit` that refused.

    Args:
        limit: Cost units per `per` seconds, positive.
        per: Seconds, positive.
        burst: Cost units that may be had at once; buckets only.
        name: Put into every `Quota`.
        max_keys: Most keys remembered.
        max_bytes: Most bytes of keys and state.

    Raises:
        PolicyError: A value is out of bounds.
    """

    __slots__ = ("_idle", "_rest", "_shards", "_table", "_walk_at", "allowed", "name", "refused")

    algorithm: ClassVar[str]

    def __init__(
        self,
        limit: float,
        per: float = 1.0,
        burst: float | None = None,
        *,
        name: str = "",
        max_keys: int = DEFAULT_MAX_KEYS,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        limit, per, burst = bounds(self.algorithm, limit, per, burst)
        self.name = name
        self.allowed = 0
        self.refused = 0
        self._table = self._make_table(max_keys, max_bytes)
        self._shards = self._table.shards
        self._idle = self._rest = 0.0
        self._walk_at = -math.inf
        self._start(limit, per, burst)

    @abstractmethod
    def _make_table(self, max_keys: int, max_bytes: int) -> KeyTable[State]:
        """A table that knows when a state is fresh and what it weighs."""

    @abstractmethod
    def _start(self, limit: float, per: float, burst: float) -> None:
        """Set the first rate, which is within bounds, while no key is known."""

    @abstractmethod
    def hit(self, key: Key, now: float, cost: float = 1.0) -> Quota:
        """Charge `cost` to `key` if it has that much left, else change nothing.

        Raises:
            ValueError: The cost is not positive and finite, or `now` is not finite.
            TypeError: The key is neither str nor bytes.
        """

    @abstractmethod
    def peek(self, key: Key, now: float, cost: float = 1.0) -> Quota:
        """What `hit` would answer, without changing anything."""

    @abstractmethod
    def refund(self, quota: Quota, now: float) -> None:
        """Give back what `quota` charged, unless time has already done so.

        A receipt counts once: the caller promises not to return it twice.
        """

    @abstractmethod
    def take(self, key: Key, now: float, cost: float = 1.0) -> None:
        """Charge `cost` whatever is left, at most down to nothing left."""

    @abstractmethod
    def change(self, limit: float, per: float, burst: float | None, now: float) -> None:
        """Set a new rate. What each key has used stays used, at most one burst of it."""

    def retry_after(self, key: Key, now: float, cost: float = 1.0) -> float:
        """Seconds until `hit` would allow `cost`, 0.0 for at once; changes nothing."""
        return self.peek(key, now, cost).retry_after

    def _shard(self, key: object) -> dict[object, State]:
        """The dict that holds the state of `key`."""
        return self._shards[hash(key) >> SHARD_SHIFT]

    def _get(self, key: object) -> State | None:
        return self._shards[hash(key) >> SHARD_SHIFT].get(key)

    def _look(self, key: Key, fresh_at: float, fresh: State) -> State:
        """The state by which `key` would be judged; `fresh` if it has none. Changes nothing."""
        state = self._get(key)
        if state is None:
            place = self._table.find(key, fresh_at)
            state = self._shard(place).get(place, fresh)
        return state

    def _enter(self, key: Key, fresh_at: float, idle_at: float, fresh: State) -> tuple[Key, State]:
        """Where `key` is counted, and its state there; it gets an entry if it has none."""
        state = self._get(key)
        if state is not None:
            return key, state
        place = self._table.place(key, fresh_at, idle_at)
        return place, self._shard(place).setdefault(place, fresh)

    def _hit_placed(self, place: Key, key: Key, now: float, cost: float, fresh: State) -> Quota:
        """Decide about a key that was unknown, where the table has placed it."""
        self._shards[hash(place) >> SHARD_SHIFT].setdefault(place, fresh)
        quota = self.hit(place, now, cost)
        return overflow(quota, key, place) if isinstance(place, SharedBucket) else quota

    def _walk(self, clock: float) -> None:
        """Let the table's hand go on; after a round that found nothing to drop it rests."""
        if self._table.walk(clock - self._idle, STEPS_PER_WALK):
            self._walk_at = clock + self._rest

    def resize(self, max_keys: int, max_bytes: int) -> None:
        """Set new bounds of the key table; entries beyond them go when as good as new."""
        self._table.resize(max_keys, max_bytes)

    @property
    def keys(self) -> int:
        """Keys remembered now."""
        return len(self._table)

    @property
    def forgotten(self) -> int:
        """Idle keys dropped so far."""
        return self._table.forgotten

    @property
    def evicted(self) -> int:
        """Keys as good as new, dropped early to let another one in."""
        return self._table.evicted

    @property
    def overflowed(self) -> int:
        """Decisions for unknown keys that went to an overflow bucket."""
        return self._table.overflowed

    @property
    def size_bytes(self) -> int:
        """Bytes held for keys and their states, estimated."""
        return self._table.size_bytes


def check(now: float, cost: float) -> None:
    """Raise ValueError unless the cost is positive and finite and `now` is finite."""
    if not 0.0 < cost < math.inf:
        raise ValueError(f"cost must be positive and finite, not {cost!r}")
    if not -math.inf < now < math.inf:
        raise ValueError(f"now must be finite, not {now!r}")


def until(now: float, moment: float, passed: Callable[[float], bool]) -> float:
    """Seconds from `now` to the first moment, from `moment` on, at which `passed` holds.

    Whoever adds the answer to `now` must arrive late enough in spite of rounding, so the sum
    itself is tested and moved by steps that start at the smallest there is.
    """
    moment = max(moment, now)
    step = 0.0
    while True:
        retry_after = moment - now
        arrival = now + retry_after
        if arrival < moment:
            retry_after = math.nextafter(retry_after, math.inf)
            arrival = now + retry_after
        if passed(arrival):
            return retry_after
        step = max(2.0 * step, math.ulp(moment), math.ulp(now))
        moment += step


def end_of_window(window: float, per: float) -> float:
    """The first moment after window number `window`: the least float in the next one."""
    end = (window + 1.0) * per
    while end // per <= window:
        end = math.nextafter(end, math.inf)
    return end
