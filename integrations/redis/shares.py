"""What does one shared rate consist of on this side: its numbers, its keys, its emergency?"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from loadgate.integrations.redis.ask import Setting
from loadgate.integrations.redis.keys import Keys
from loadgate.integrations.redis.local import Leases
from loadgate.integrations.redis.units import LOG, scale
from loadgate.rates.group import Member, RateStats
from loadgate.rates.spec import BUCKETS, Rate
from loadgate.rates.table import Key
from loadgate.shared import OnFailure

# Flags of a setting of `decide.lua`.
ENFORCE: Final = 0
LOOK: Final = 1
OBSERVE: Final = 2

# Keys remembered for each rate: hashing one takes longer than everything else that a decision does
# here. About 200 bytes each.
_KEYS: Final = 4096

# Seconds for which what clients have used is collected before the local bucket hears of it: a
# request in ten of what a bucket takes, and what an incident may be wrong by.
_LATER: Final = 0.05


class Share:
    """One shared rate as this process sees it.

    Attributes:
        rate: What the operator wrote.
        member: A local limiter with this process' part of the rate, kept warm so that an
            emergency does not begin with a fresh burst for everybody; it also finds the key.
        scale: The rate in whole numbers.
        flag: How the script treats it.
        by_text: Whether a client given as text is simply counted: the common case.
        log: Whether the store keeps a log of requests, each under a name.
        on_failure: What happens without the store.
        leases: What this process has leased, if it decides in memory.
        known: Keys of the store that `key` has made, by subject.
        told: What `item` answered last, for the cost `told_cost`.
    """

    __slots__ = (
        "_keys", "_part", "_tail", "_tell_at", "_told_at", "_used", "by_text", "flag", "head",
        "known", "leases", "log", "member", "on_failure", "rate", "scale", "told", "told_cost",
    )  # fmt: skip

    def __init__(self, rate: Rate, keys: Keys, on_failure: OnFailure, part: float) -> None:
        self._part = part
        self.leases: Leases | None = None
        self.member = Member(_scaled(rate, part))
        self._used: dict[Key, float] = {}
        self._told_at = self._tell_at = 0.0
        self.follow(rate, keys, on_failure)

    def follow(self, rate: Rate, keys: Keys, on_failure: OnFailure) -> None:
        """Go on under another setting of the same rate."""
        self.rate = rate
        self._keys = keys
        self.head = keys.head(rate)
        self._tail = keys.tail(rate)
        self.scale = scale(rate)
        self.on_failure: OnFailure = on_failure
        self.by_text = rate.key == "client" and not rate.match and not rate.exempt
        self.log = self.scale.kind == LOG
        self.known: dict[Key, bytes] = {}
        self.told_cost = math.nan  # equals no cost
        self.told: Setting = (0, 0, 0, 0, 0, 0)
        self.flag = LOOK if rate.on_outcome else OBSERVE if rate.mode == "observe" else ENFORCE

    def change(
        self, rate: Rate, keys: Keys, on_failure: OnFailure, part: float, now: float
    ) -> None:
        """Another setting, or another part of it for this process; what was used stays used."""
        if rate != self.rate or part != self._part:
            self.tell(now)
            self._part = part
            self.member.change(_scaled(rate, part), now)
        self.follow(rate, keys, on_failure)

    def key(self, subject: Key) -> bytes:
        """Where the store keeps `subject`."""
        key = self.known.get(subject)
        if key is None:
            if len(self.known) >= _KEYS:
                self.known.clear()
            key = self._keys.key(self.head, subject, self._tail)
            self.known[subject] = key
        return key

    def used(self, subject: Key, cost: float, now: float) -> None:
        """The store has charged this; the local limiter hears of it soon, or when it is asked."""
        used = self._used
        used[subject] = used.get(subject, 0.0) + cost
        if not self._told_at <= now < self._tell_at or len(used) >= _KEYS:
            self.tell(now)

    def tell(self, now: float) -> None:
        """Tell the local limiter what the store has charged."""
        take = self.member.limiter.take
        for subject, cost in self._used.items():
            take(subject, now, cost)
        self._used.clear()
        self._told_at, self._tell_at = now, now + _LATER

    def item(self, cost: float) -> Setting:
        """The rate and the cost as the script reads them.

        Raises:
            ValueError: The cost means nothing.
        """
        if cost != self.told_cost:
            numbers = self.scale
            units = numbers.units(cost)
            self.told = (numbers.kind, self.flag, numbers.a, numbers.c, numbers.unit, units)
            self.told_cost = cost
        return self.told

    def stats(self) -> RateStats:
        """What it has done, under the operator's numbers."""
        rate, told = self.rate, self.member.stats()
        leased = self.leases.allowed if self.leases is not None else 0
        return msgspec.structs.replace(
            told,
            limit=rate.limit,
            per=rate.per,
            burst=rate.burst,
            allowed=told.allowed + leased,
        )


def _scaled(rate: Rate, part: float) -> Rate:
    """The part of `rate` that one process grants by itself, at least one request."""
    if part >= 1.0:
        return rate
    if rate.algorithm in BUCKETS:
        limit, burst = rate.limit * part, max(1.0, rate.burst * part)
    else:
        limit = burst = float(max(1, math.floor(rate.limit * part)))
    return msgspec.structs.replace(rate, rate="", limit=limit, burst=burst)
