"""Token bucket: `burst` at once, `limit` per `per` seconds for ever after.

State per key: one float in a dict, about 75 to 95 bytes with its share of the table. Burst: a
client that saved up may spend `burst` at any moment, so over any T seconds it is admitted at
most burst + limit/per x T, and one that returns at each `retry_after` at least limit/per x T - 1.
Error: none; tokens and time are real numbers, nothing is rounded to whole seconds or tokens.

The bucket is kept in the form of GCRA (ITU-T I.371, the virtual scheduling algorithm): instead
of tokens and the moment of the last refill, one number says up to where the bucket is spent, on
a clock that advances by one per token. `level <= clock` is a full bucket, `level = clock +
burst` an empty one. Unlike GCRA as published the clock counts tokens rather than seconds: whole
costs then add without rounding, a change of rate is one change of the clock for all keys, and
an idle key needs no update to be known as full.
"""

from __future__ import annotations

import math
from typing import Final

from loadgate.decisions import Quota
from loadgate.rates.base import check
from loadgate.rates.level import LevelLimiter
from loadgate.rates.table import (
    IDLE_SECONDS,
    SHARD_SHIFT,
    WALK_MASK,
    Key,
    SharedBucket,
    plain,
    receipt_key,
)

# A decision is taken with this much forbearance, so that rounding never refuses the last request
# of a burst or one that returns exactly at `retry_after`. 2**-48 of the clock is 16 units in the
# last place: a third of a nanosecond after a day of uptime. 2**-40 of a burst of 200 is 2e-10.
_OF_CLOCK: Final = 2.0**-48
_OF_BURST: Final = 2.0**-40


class TokenBucket(LevelLimiter):
    """A token bucket for each key.

    Args:
        limit: Tokens that come back per `per` seconds, positive.
        per: Seconds, positive.
        burst: Most tokens saved, at least 1; `limit` (at least 1) when None.
        name: Put into every `Quota`.
        max_keys: Most keys remembered.
        max_bytes: Most bytes of keys and state.

    Raises:
        PolicyError: A value is out of bounds.
    """

    __slots__ = ("_line", "_line_rate", "_rate")

    algorithm = "token-bucket"

    def _set(self, limit: float, per: float, now: float, clock: float) -> None:
        burst = self._burst
        self._rate = rate = limit / per
        self._origin = origin = clock - now * rate
        # The line that no level may cross: clock + burst, with forbearance, as a function of now.
        self._line_rate = rate + rate * _OF_CLOCK
        self._line = origin + burst + abs(origin) * _OF_CLOCK + burst * _OF_BURST
        self._idle = rate * IDLE_SECONDS + burst
        self._rest = rate * IDLE_SECONDS / 2.0
        self._walk_at = -math.inf

    def hit(self, key: Key, now: float, cost: float = 1.0) -> Quota:
        """Take `cost` tokens from the bucket of `key`, or none.

        Raises:
            ValueError: The cost is not positive and finite, or `now` is not finite.
            TypeError: The key is neither str nor bytes.
        """
        states = self._shards[hash(key) >> SHARD_SHIFT]
        level = states.get(key)
        if level is None:
            return self._hit_unknown(key, now, cost)
        clock = now * self._rate + self._origin
        if level < clock:
            level = clock
            if clock >= self._walk_at and not self.allowed & WALK_MASK:
                states[key] = level
                self._walk(clock)
        after = level + cost
        burst = self._burst
        if level < after <= now * self._line_rate + self._line:
            states[key] = after
            self.allowed += 1
            used = after - clock
            left = burst - used
            return Quota(
                True,
                burst,
                left if left > 0.0 else 0.0,
                used / self._rate,
                0.0,
                key,
                cost,
                now,
                self.name,
            )
        short = after - clock - burst
        if 0.0 < short <= cost <= burst:
            refused = self.refused = self.refused + 1
            if clock >= self._walk_at and not refused & WALK_MASK:
                self._walk(clock)
            rate = self._rate
            return Quota(
                False,
                burst,
                cost - short,
                (level - clock) / rate,
                short / rate,
                key,
                cost,
                now,
                self.name,
            )
        return self._hit_unusual(key, level, now, cost)

    def _clock_at(self, now: float) -> float:
        # The frequent ways write it out: the call would cost more than the arithmetic.
        return now * self._rate + self._origin

    def _hit_unknown(self, key: Key, now: float, cost: float) -> Quota:
        check(now, cost)
        clock = now * self._rate + self._origin
        if cost > self._burst:
            self.refused += 1
            return self._answer(plain(key), clock, clock, now, cost, allowed=False)
        place = self._table.place(key, clock, clock - self._idle)
        states = self._shard(place)
        if place not in states and not isinstance(place, SharedBucket):
            after = states[place] = max(clock + cost, math.nextafter(clock, math.inf))
            self.allowed += 1
            return self._answer(place, clock, after, now, cost, allowed=True)
        return self._hit_placed(place, key, now, cost, clock)

    def _hit_unusual(self, key: Key, level: float, now: float, cost: float) -> Quota:
        """Decide what the short way leaves: odd costs, rounding at the line, clock steps."""
        check(now, cost)
        clock = self._clock_at(now)
        level = self._sane(level, clock)
        after = max(level + cost, math.nextafter(level, math.inf))
        allowed = after <= now * self._line_rate + self._line
        self._shard(key)[key] = after if allowed else level
        self.allowed += allowed
        self.refused += not allowed
        return self._answer(key, clock, after if allowed else level, now, cost, allowed=allowed)

    def _answer(
        self,
        key: Key,
        clock: float,
        level: float,
        now: float,
        cost: float,
        *,
        allowed: bool,
    ) -> Quota:
        used = max(0.0, level - clock)
        retry_after = 0.0
        if not allowed:
            short = used + cost - self._burst
            retry_after = math.inf if cost > self._burst else max(short, 0.0) / self._rate
        return Quota(
            allowed,
            self._burst,
            max(0.0, self._burst - used),
            used / self._rate,
            retry_after,
            key,
            cost,
            now,
            self.name,
        )

    def peek(self, key: Key, now: float, cost: float = 1.0) -> Quota:
        """What `hit` would answer, without changing anything."""
        level = self._get(key)
        clock = now * self._rate + self._origin
        burst = self._burst
        if level is not None and clock < level <= clock + burst and 0.0 < cost <= burst:
            short = level + cost - clock - burst
            if short > 0.0 and level + cost > now * self._line_rate + self._line:
                rate = self._rate
                return Quota(
                    False,
                    burst,
                    max(0.0, cost - short),
                    (level - clock) / rate,
                    short / rate,
                    key,
                    cost,
                    now,
                    self.name,
                )
        check(now, cost)
        if level is None:
            level = self._look(key, clock, clock)
        level = self._sane(max(level, clock), clock)
        after = max(level + cost, math.nextafter(level, math.inf))
        allowed = after <= now * self._line_rate + self._line
        return self._answer(key, clock, after if allowed else level, now, cost, allowed=allowed)

    def retry_after(self, key: Key, now: float, cost: float = 1.0) -> float:
        """Seconds until `hit` would allow `cost`, 0.0 for at once; changes nothing."""
        level = self._shards[hash(key) >> SHARD_SHIFT].get(key)
        if level is not None and 0.0 < cost <= self._burst:
            clock = now * self._rate + self._origin
            after = (clock if level < clock else level) + cost
            if level < after <= now * self._line_rate + self._line:
                return 0.0
            short = after - clock - self._burst
            if 0.0 < short <= cost:
                return short / self._rate
        return self.peek(key, now, cost).retry_after

    def refund(self, quota: Quota, now: float) -> None:
        """Give back what `quota` took, unless the bucket has refilled since anyway.

        One burst's time after the charge it has: giving more would admit above the burst.
        """
        place = receipt_key(quota)
        level = self._get(place)
        if level is None or (now - quota.at) * self._rate >= self._burst or not quota.allowed:
            return
        clock = now * self._rate + self._origin
        self._shard(place)[place] = max(level - quota.cost, clock) if level > clock else level

    def seconds(self, cost: float) -> float:
        """How long `cost` tokens take to come back."""
        return cost / self._rate
