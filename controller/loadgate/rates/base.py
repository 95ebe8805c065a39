"""What does a limiter of many keys see, and what does it answer?"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from loadgate.decisions import Quota
from loadgate.rates.table import SHARD_SHIFT, Key, KeyTable

State = TypeVar("State")


class Limiter(ABC, Generic[State]):
    """The state of all keys of one rate, and the decisions about them.

    Driven by its caller: every `now` is monotonic seconds. Keys are str or bytes; `"a"` and
    `b"a"` are two keys. Text is counted as it stands (no Unicode normalisation, no trimming).

    Attributes:
        name: Put into every `Quota`.
        allowed: Decisions of `hit` that charged.
        refused: Decisions of `hit` that refused.
    """

    __slots__ = ("_shards", "_table", "allowed", "name", "refused")

    def __init__(self, name: str, table: KeyTable[State]) -> None:
        self.name = name
        self.allowed = 0
        self.refused = 0
        self._table = table
        self._shards = table.shards

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
