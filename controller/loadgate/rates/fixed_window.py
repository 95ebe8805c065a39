"""Fixed window: `limit` in each window of `per` seconds, counted from 0.

State per key: one float. Burst at a boundary: up to 2 x limit within a moment, the end of one
window and the start of the next; over any T seconds at most limit x (T/per + 2). Error: none
against its own definition, but that definition is a poor fit for most purposes; it is here
because quotas ("1000 a day, from midnight") are sold that way. Windows begin at multiples of
`per` on the caller's clock.

A fixed window is a token bucket whose clock stands still within a window and then advances by a
whole `limit`, and so it is written: `level <= clock` is an unused window, `level = clock +
limit` a spent one.
"""

from __future__ import annotations

import math

from loadgate.decisions import Quota
from loadgate.rates.base import WINDOW_FORBEARANCE, check, end_of_window, until
from loadgate.rates.level import LevelLimiter
from loadgate.rates.table import IDLE_SECONDS, SHARD_SHIFT, WALK_MASK, Key, plain, receipt_key


class FixedWindow(LevelLimiter):
    """A fixed window for each key.

    Args:
        limit: Cost units per window, whole.
        per: Seconds of a window, positive.
        burst: None, or the limit: a window has no other burst.
        name: Put into every `Quota`.
        max_keys: Most keys remembered.
        max_bytes: Most bytes of keys and state.

    Raises:
        PolicyError: A value is out of bounds.
    """

    __slots__ = ("_begin", "_clock", "_end", "_line", "_per", "_room")

    algorithm = "fixed-window"

    def _set(self, limit: float, per: float, now: float, clock: float) -> None:
        # `_burst` is the limit, as for every window.
        self._per = per
        self._origin = clock - now // per * limit
        self._room = limit + limit * WINDOW_FORBEARANCE
        self._idle = limit * math.ceil(IDLE_SECONDS / per)
        self._rest = self._idle / 2.0
        self._walk_at = -math.inf
        # The window that was asked for last, which is the same for nearly every decision.
        self._begin, self._end = math.inf, -math.inf
        self._clock = self._line = 0.0

    def _turn(self, now: float) -> None:
        """Look up the window that holds `now`."""
        self._clock = self._clock_at(now)
        self._line = self._clock + self._room
        self._begin = now
        self._end = end_of_window(now // self._per, self._per)

    def hit(self, key: Key, now: float, cost: float = 1.0) -> Quota:
        """Charge `cost` to the window of `key` that holds `now`, or nothing.

        Raises:
            ValueError: The cost is not positive and finite, or `now` is not finite.
            TypeError: The key is neither str nor bytes.
        """
        states = self._shards[hash(key) >> SHARD_SHIFT]
        level = states.get(key)
        if level is None:
            return self._hit_unknown(key, now, cost)
        if not self._begin <= now < self._end:
            check(now, cost)
            self._turn(now)
        clock = self._clock
        if level < clock:
            level = clock
            if clock >= self._walk_at and not self.allowed & WALK_MASK:
                states[key] = level
                self._walk(clock)
        after = level + cost
        limit = self._burst
        if level < after <= self._line:
            states[key] = after
            self.allowed += 1
            left = limit - (after - clock)
            return Quota(
                True,
                limit,
                left if left > 0.0 else 0.0,
                self._end - now,
                0.0,
                key,
                cost,
                now,
                self.name,
            )
        left = limit - (level - clock)
        if 0.0 < cost <= limit and left >= 0.0:
            retry_after = self._end - now
            if now + retry_after >= self._end and after > self._line:
                refused = self.refused = self.refused + 1
                if clock >= self._walk_at and not refused & WALK_MASK:
                    self._walk(clock)
                return Quota(
                    False,
                    limit,
                    left,
                    retry_after,
                    retry_after,
                    key,
                    cost,
                    now,
                    self.name,
                )
        return self._hit_unusual(key, level, now, cost)

    def _hit_unusual(self, key: Key, level: float, now: float, cost: float) -> Quota:
        """Decide what the short way leaves: odd costs, clock steps, a lowered limit."""
        check(now, cost)
        level = self._sane(level, self._clock_at(now))
        allowed = self._fits(level, cost, now)
        # A cost too small to move the level still moves it.
        after = max(level + cost, math.nextafter(level, math.inf)) if allowed else level
        self._shard(key)[key] = after
        self.allowed += allowed
        self.refused += not allowed
        return self._answer(key, level, now, cost, allowed=allowed)

    def _hit_unknown(self, key: Key, now: float, cost: float) -> Quota:
        check(now, cost)
        clock = self._clock_at(now)
        if cost > self._burst:
            self.refused += 1
            return self._answer(plain(key), clock, now, cost, allowed=False)
        place = self._table.place(key, clock, clock - self._idle)
        return self._hit_placed(place, key, now, cost, clock)

    def _clock_at(self, now: float) -> float:
        return now // self._per * self._burst + self._origin

    def _fits(self, level: float, cost: float, now: float) -> bool:
        clock = self._clock_at(now)
        return max(level, clock) + cost <= clock + self._room

    def _answer(self, key: Key, level: float, now: float, cost: float, *, allowed: bool) -> Quota:
        window = now // self._per
        used = max(0.0, level - self._clock_at(now)) + (cost if allowed else 0.0)
        # Not below 0, where rounding puts it if `per` is next to nothing beside `now`.
        reset_after = 0.0
        if used:
            end = (window + max(1.0, math.ceil(used / self._burst))) * self._per
            reset_after = max(0.0, end - now)
        retry_after = 0.0
        if not allowed:
            retry_after = math.inf
            if cost <= self._burst:
                windows = max(1.0, math.ceil((used + cost - self._room) / self._burst))
                moment = (window + windows) * self._per
                retry_after = until(now, moment, lambda at: self._fits(level, cost, at))
        return Quota(
            allowed,
            self._burst,
            max(0.0, self._burst - used),
            reset_after,
            retry_after,
            key,
            cost,
            now,
            self.name,
        )

    def peek(self, key: Key, now: float, cost: float = 1.0) -> Quota:
        """What `hit` would answer, without changing anything."""
        check(now, cost)
        clock = self._clock_at(now)
        level = self._sane(max(self._look(key, clock, clock), clock), clock)
        return self._answer(key, level, now, cost, allowed=self._fits(level, cost, now))

    def refund(self, quota: Quota, now: float) -> None:
        """Give back what `quota` charged if its window still lasts."""
        place = receipt_key(quota)
        level = self._get(place)
        if level is None or quota.at // self._per != now // self._per or not quota.allowed:
            return
        clock = self._clock_at(now)
        if level > clock:
            self._shard(place)[place] = max(level - quota.cost, clock)
