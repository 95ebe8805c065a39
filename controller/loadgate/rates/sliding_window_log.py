"""Sliding window log: every request of the last `per` seconds is remembered.

State per key: 8 bytes for each cost unit of the limit, and about 160. Burst: `limit` at any
moment, and never more than `limit` in any `per` seconds: no boundary at all. Error: none. A cost
of 1 is decided in constant time, `remaining` is found by bisection; a larger cost writes as many
entries, so costs must be whole.
"""

from __future__ import annotations

import math
from array import array
from typing import Final

from loadgate.decisions import Quota
from loadgate.rates.base import Limiter, check, until
from loadgate.rates.spec import DEFAULT_MAX_BYTES, DEFAULT_MAX_KEYS, bounds
from loadgate.rates.table import (
    IDLE_SECONDS,
    REQUESTS_PER_WALK,
    STEPS_PER_WALK,
    Key,
    KeyTable,
    SharedBucket,
    overflow,
    plain,
    receipt_key,
)

_WALK_MASK: Final = REQUESTS_PER_WALK - 1
_ARRAY_BYTES: Final = 90  # an empty array and the slot that holds the head
_NEVER: Final = -math.inf


class SlidingWindowLog(Limiter["array[float]"]):
    """A log for each key: a ring of times, oldest first from its head on.

    The ring of a key is `state[1:]`, and `state[0]` says where its oldest entry stands. It grows
    up to the limit as it is needed; unused entries hold minus infinity, as if they had been
    written long ago. So a cost of k passes if the k-th oldest entry has left the window.

    Args:
        limit: Cost units in any `per` seconds, whole.
        per: Seconds, positive.
        burst: None, or the limit: a window has no other burst.
        name: Put into every `Quota`.
        max_keys: Most keys remembered.
        max_bytes: Most bytes of keys and state, each key counted with a full log.

    Raises:
        PolicyError: A value is out of bounds.
    """

    __slots__ = ("_limit", "_per", "_walk_at")

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
        limit, per, _ = bounds("sliding-window-log", limit, per, burst)
        super().__init__(name, KeyTable(_is_fresh, 0, max_keys, max_bytes))
        self._set(limit, per)

    def _set(self, limit: float, per: float) -> None:
        self._limit = int(limit)
        self._per = per
        self._walk_at = -math.inf
        self._table.weigh(_ARRAY_BYTES + 8 * self._limit)

    def hit(self, key: Key, now: float, cost: float = 1.0) -> Quota:
        """Write `cost` entries into the log of `key`, or nothing.

        Raises:
            ValueError: The cost is not positive, finite and whole, or `now` is not finite.
            TypeError: The key is neither str nor bytes.
        """
        units = _units(now, cost)
        place = key
        state = self._get(key)
        if state is None:
            if units > self._limit:
                self.refused += 1
                return self._answer(plain(key), _EMPTY, now, cost, allowed=False)
            place = self._table.place(key, now - self._per, now - self._per - IDLE_SECONDS)
            state = self._states.setdefault(place, _EMPTY[:])
            if isinstance(place, SharedBucket):
                return overflow(self.hit(place, now, cost), key, place)
        elif now >= self._walk_at and not (self.allowed + self.refused) & _WALK_MASK:
            if self._table.walk(now - self._per - IDLE_SECONDS, STEPS_PER_WALK):
                self._walk_at = now + IDLE_SECONDS / 2.0
            if self._get(key) is None:
                return self.hit(key, now, cost)
        state = self._sane(state, now)
        allowed = self._release(state, units) <= now
        if allowed:
            state = self._written(state, units, now)
        self._states[place] = state
        self.allowed += allowed
        self.refused += not allowed
        return self._answer(key, state, now, cost, allowed=allowed)

    def _release(self, state: array[float], units: int) -> float:
        """The moment from which so many entries may be written."""
        if units > self._limit:
            return math.inf
        # Entries that the ring has not grown to yet are as good as old.
        ring = len(state) - 1
        position = units - 1 - (self._limit - ring)
        return _NEVER if position < 0 else _entry(state, position) + self._per

    def _written(self, state: array[float], units: int, now: float) -> array[float]:
        ring = len(state) - 1
        if ring < units or _entry(state, units - 1) + self._per > now:
            state = _resized(state, min(self._limit, ring + max(ring, units)))
            ring = len(state) - 1
        head = int(state[0])
        # Should the clock have stepped back a little, the order stays.
        moment = max(now, _entry(state, ring - 1))
        for step in range(units):
            state[1 + (head + step) % ring] = moment
        state[0] = (head + units) % ring
        return state

    def _sane(self, state: array[float], now: float) -> array[float]:
        """The log, brought to the present limit, after a change or a step back of the clock.

        A step back by up to `per` is waited out; after a longer one what was written later than
        now counts as written now.
        """
        if len(state) - 1 > self._limit:
            state = _resized(state, self._limit)
        ring = len(state) - 1
        if _entry(state, ring - 1) - now > self._per:
            entries = [min(_entry(state, position), now) for position in range(ring)]
            state = array("d", [0.0, *entries])
        return state

    def _used(self, state: array[float], now: float) -> int:
        """Entries still in the window, by bisection."""
        low, high = 0, len(state) - 1
        while low < high:
            middle = (low + high) // 2
            if _entry(state, middle) + self._per <= now:
                low = middle + 1
            else:
                high = middle
        return len(state) - 1 - low

    def _answer(
        self, key: Key, state: array[float], now: float, cost: float, *, allowed: bool
    ) -> Quota:
        used = self._used(state, now)
        newest = _entry(state, len(state) - 2)
        retry_after = 0.0
        if not allowed:
            release = self._release(state, int(cost))
            retry_after = until(now, release, lambda at: at >= release)
        return Quota(
            allowed,
            float(self._limit),
            float(self._limit - used),
            newest + self._per - now if used else 0.0,
            retry_after,
            key,
            cost,
            now,
            self.name,
        )

    def peek(self, key: Key, now: float, cost: float = 1.0) -> Quota:
        """What `hit` would answer, without changing anything."""
        units = _units(now, cost)
        state = self._get(key)
        if state is None:
            state = self._get(self._table.find(key, now - self._per))
        state = (_EMPTY if state is None else state)[:]
        state = self._sane(state, now)
        allowed = self._release(state, units) <= now
        if allowed:
            state = self._written(state, units, now)
        return self._answer(key, state, now, cost, allowed=allowed)

    def refund(self, quota: Quota, now: float) -> None:
        """Strike the entries that `quota` wrote, if they are still in the window."""
        place = receipt_key(quota)
        state = self._get(place)
        if state is None or not quota.allowed or quota.at + self._per <= now:
            return
        left = int(quota.cost)
        kept: list[float] = []
        for position in reversed(range(len(state) - 1)):
            entry = _entry(state, position)
            if left and entry == quota.at:
                left -= 1
            else:
                kept.append(entry)
        unused = [_NEVER] * (len(state) - 1 - len(kept))
        self._states[place] = array("d", [0.0, *unused, *reversed(kept)])

    def take(self, key: Key, now: float, cost: float = 1.0) -> None:
        """Write `cost` entries whatever is left, at most as many as still fit."""
        units = _units(now, cost)
        place = key
        state = self._get(key)
        if state is None:
            place = self._table.place(key, now - self._per, now - self._per - IDLE_SECONDS)
            state = self._get(place, _EMPTY[:])
        state = self._sane(state, now)
        units = min(units, self._limit - self._used(state, now))
        self._states[place] = self._written(state, units, now) if units else state

    def change(self, limit: float, per: float, burst: float | None, now: float) -> None:
        """Set a new limit or window for all keys; each log follows when its key returns."""
        limit, per, _ = bounds("sliding-window-log", limit, per, burst)
        self._set(limit, per)


def _units(now: float, cost: float) -> int:
    check(now, cost)
    if cost != int(cost):
        raise ValueError(f"sliding-window-log counts whole costs, not {cost!r}")
    return int(cost)


def _entry(state: array[float], position: int) -> float:
    """The entry at `position` from the oldest."""
    return state[1 + (int(state[0]) + position) % (len(state) - 1)]


def _resized(state: array[float], ring: int) -> array[float]:
    """A log of `ring` entries: the newest, the rest unused."""
    head, known = int(state[0]), len(state) - 1
    entries = state[1 + head :] + state[1 : 1 + head]
    if ring <= known:
        return array("d", [0.0]) + entries[known - ring :]
    return array("d", [0.0]) + array("d", [_NEVER]) * (ring - known) + entries


def _is_fresh(state: array[float], moment: float) -> bool:
    return _entry(state, len(state) - 2) <= moment


_EMPTY: Final = array("d", [0.0, _NEVER])
