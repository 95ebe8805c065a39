"""Sliding window log: every request of the last `per` seconds is remembered.

State per key: 8 bytes for each cost unit of the limit that was ever in use at once, and about
160. Burst: `limit` at any moment, and never more than `limit` in any `per` seconds: no boundary
at all. Error: none. A decision takes constant time unless entries have expired since the last
one, then it finds out how many by bisection; a larger cost writes as many entries, so costs must
be whole.
"""

from __future__ import annotations

import math
from array import array
from typing import Final

from loadgate.decisions import Quota
from loadgate.rates.base import Limiter, check, until
from loadgate.rates.spec import bounds
from loadgate.rates.table import (
    IDLE_SECONDS,
    SHARD_SHIFT,
    WALK_MASK,
    Key,
    KeyTable,
    SharedBucket,
    overflow,
    plain,
    receipt_key,
)

_ARRAY_BYTES: Final = 96  # an empty array, and the two numbers before the ring


class SlidingWindowLog(Limiter["array[float]"]):
    """A log for each key: a ring of times in one array.

    `state[0]` is the position of the newest entry in the ring `state[2:]`, `state[1]` how many
    entries, up to the newest, were in the window when it was last looked at. The ring grows up
    to the limit as it is needed.

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

    __slots__ = ("_limit", "_per")

    algorithm = "sliding-window-log"

    def _make_table(self, max_keys: int, max_bytes: int) -> KeyTable[array[float]]:
        return KeyTable(_is_fresh, _ARRAY_BYTES, max_keys, max_bytes)

    def _start(self, limit: float, per: float, burst: float) -> None:
        self._set(limit, per)

    def _set(self, limit: float, per: float) -> None:
        self._limit = int(limit)
        self._per = per
        self._idle = per + IDLE_SECONDS
        self._rest = IDLE_SECONDS / 2.0
        self._walk_at = -math.inf
        self._table.weigh(_ARRAY_BYTES + 8 * self._limit)

    def hit(self, key: Key, now: float, cost: float = 1.0) -> Quota:
        """Write `cost` entries into the log of `key`, or nothing.

        Raises:
            ValueError: The cost is not positive, finite and whole, or `now` is not finite.
            TypeError: The key is neither str nor bytes.
        """
        if cost != 1.0 or not -math.inf < now < math.inf:
            _whole(now, cost)
        states = self._shards[hash(key) >> SHARD_SHIFT]
        state = states.get(key)
        if state is None:
            if cost > self._limit:
                self.refused += 1
                return self._answer(plain(key), _EMPTY, 0, now, cost, allowed=False)
            place = self._table.place(key, now - self._per, now - self._idle)
            states = self._shard(place)
            state = states.setdefault(place, _EMPTY[:])
            if isinstance(place, SharedBucket):
                return overflow(self.hit(place, now, cost), key, place)
            key = place
        elif now >= self._walk_at and not (self.allowed + self.refused) & WALK_MASK:
            self._walk(now)
            # The hand may have dropped this key, idle until this moment.
            if key not in states:
                return self.hit(key, now, cost)
        per = self._per
        newest = state[2 + int(state[0])]
        if newest - now > per:
            state = states[key] = _rebased(state, now)
        count = self._count(state, now)
        state[1] = count
        allowed = count + cost <= self._limit
        if allowed:
            count += int(cost)
            if count > len(state) - 2:
                state = states[key] = _grown(state, count, self._limit)
            _write(state, int(cost), now)
            self.allowed += 1
        else:
            self.refused += 1
        return self._answer(key, state, count, now, cost, allowed=allowed)

    def _count(self, state: array[float], now: float) -> int:
        """How many entries are still in the window."""
        count = int(state[1])
        if not count:
            return 0
        per, ring, newest = self._per, len(state) - 2, int(state[0])
        if state[2 + newest] + per <= now:
            return 0
        oldest = newest - count + 1
        if state[2 + oldest % ring] + per > now:
            return count
        # Usually one or two have left since the last request; after a pause it may be many.
        for position in range(oldest + 1, min(oldest + 4, newest)):
            if state[2 + position % ring] + per > now:
                return newest - position + 1
        low, high = oldest + 1, newest
        while low < high:
            middle = (low + high) // 2
            if state[2 + middle % ring] + per <= now:
                low = middle + 1
            else:
                high = middle
        return newest - low + 1

    def _answer(
        self, key: Key, state: array[float], count: int, now: float, cost: float, *, allowed: bool
    ) -> Quota:
        per, limit = self._per, self._limit
        newest = int(state[0])
        retry_after = 0.0
        if not allowed:
            if cost > limit:
                retry_after = math.inf
            else:
                # So many of the oldest must leave before the cost fits in.
                leaving = count + int(cost) - limit
                moment = state[2 + (newest - count + leaving) % (len(state) - 2)] + per
                retry_after = moment - now
                if now + retry_after < moment:
                    retry_after = until(now, moment, moment.__le__)
        return Quota(
            allowed,
            float(limit),
            float(limit - count) if count < limit else 0.0,
            state[2 + newest] + per - now if count else 0.0,
            retry_after,
            key,
            cost,
            now,
            self.name,
        )

    def peek(self, key: Key, now: float, cost: float = 1.0) -> Quota:
        """What `hit` would answer, without changing anything."""
        _whole(now, cost)
        state = self._look(key, now - self._per, _EMPTY)
        if state[2 + int(state[0])] - now > self._per:
            state = _rebased(state, now)
        count = self._count(state, now)
        allowed = count + cost <= self._limit
        if allowed:
            # The answer looks at nothing but the newest entry, which this one would be.
            state = array("d", [0.0, 1.0, max(now, state[2 + int(state[0])])])
            count += int(cost)
        return self._answer(key, state, count, now, cost, allowed=allowed)

    def refund(self, quota: Quota, now: float) -> None:
        """Strike the entries that `quota` wrote, if they are still in the window."""
        place = receipt_key(quota)
        state = self._get(place)
        if state is None or not quota.allowed or quota.at + self._per <= now:
            return
        left = int(quota.cost)
        kept: list[float] = []
        for entry in reversed(_entries(state)):
            if left and entry == quota.at:
                left -= 1
            else:
                kept.append(entry)
        kept.reverse()
        unused = [-math.inf] * max(0, len(state) - 2 - len(kept))
        ring = unused + kept
        self._shard(place)[place] = array("d", [len(ring) - 1.0, float(len(kept)), *ring])

    def take(self, key: Key, now: float, cost: float = 1.0) -> None:
        """Write `cost` entries whatever is left, at most as many as still fit."""
        _whole(now, cost)
        place, state = self._enter(key, now - self._per, now - self._idle, _EMPTY[:])
        if state[2 + int(state[0])] - now > self._per:
            state = self._shard(place)[place] = _rebased(state, now)
        count = self._count(state, now)
        state[1] = count
        units = min(int(cost), self._limit - count)
        if units > 0:
            if count + units > len(state) - 2:
                state = self._shard(place)[place] = _grown(state, count + units, self._limit)
            _write(state, units, now)

    def change(self, limit: float, per: float, burst: float | None, now: float) -> None:
        """Set a new limit or window for all keys at once; what was written stays."""
        limit, per, _ = bounds(self.algorithm, limit, per, burst)
        self._set(limit, per)


_EMPTY: Final = array("d", [0.0, 0.0, -math.inf])


def _whole(now: float, cost: float) -> None:
    check(now, cost)
    if cost != int(cost):
        raise ValueError(f"sliding-window-log counts whole costs, not {cost!r}")


def _entries(state: array[float]) -> list[float]:
    """The entries that count, oldest first."""
    newest, count, ring = int(state[0]), int(state[1]), len(state) - 2
    return [state[2 + position % ring] for position in range(newest - count + 1, newest + 1)]


def _write(state: array[float], units: int, now: float) -> None:
    """Add so many entries to a ring that has room for them."""
    ring, position = len(state) - 2, int(state[0])
    # Should the clock have stepped back a little, the order stays.
    moment = max(now, state[2 + position])
    for _ in range(units):
        position = (position + 1) % ring
        state[2 + position] = moment
    state[0] = position
    state[1] += units


def _grown(state: array[float], need: int, limit: int) -> array[float]:
    """The same log in a ring twice as large, or as large as needed, up to the limit."""
    entries = _entries(state)
    room = max(need, min(limit, 2 * (len(state) - 2))) - len(entries)
    ring = entries + [-math.inf] * room
    return array("d", [float(max(0, len(entries) - 1)), float(len(entries)), *ring])


def _rebased(state: array[float], now: float) -> array[float]:
    """The log after the clock stepped far back: what was written later counts as written now.

    Steps back by up to one window are waited out instead, so that jitter grants nothing.
    """
    ring = [min(entry, now) for entry in state[2:]]
    return array("d", [*state[:2], *ring])


def _is_fresh(state: array[float], moment: float) -> bool:
    return not state[1] or state[2 + int(state[0])] <= moment
