"""What does one shared rate consist of on this side: its numbers, its keys, its emergency?"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from loadgate.integrations.redis.keys import Keys
from loadgate.integrations.redis.local import Leases
from loadgate.integrations.redis.units import scale
from loadgate.rates.group import Member, RateStats
from loadgate.rates.spec import BUCKETS, Rate
from loadgate.rates.table import Key
from loadgate.shared import OnFailure

# Flags of an item of `decide.lua`.
ENFORCE: Final = 0
LOOK: Final = 1
OBSERVE: Final = 2

# kind, flag, a, c, unit, k, at
Item = tuple[int, int, int, int, int, int, int]


class Share:
    """One shared rate as this process sees it.

    Attributes:
        rate: What the operator wrote.
        member: A local limiter with this process' part of the rate, kept warm so that an
            emergency does not begin with a fresh burst for everybody; it also finds the key.
        scale: The rate in whole numbers.
        flag: How the script treats it.
        on_failure: What happens without the store.
        leases: What this process has leased, if it decides in memory.
    """

    __slots__ = (
        "_cost", "_item", "_keys", "_part", "_tail",
        "flag", "head", "leases", "member", "on_failure", "rate", "scale",
    )  # fmt: skip

    def __init__(self, rate: Rate, keys: Keys, on_failure: OnFailure, part: float) -> None:
        self._part = part
        self.leases: Leases | None = None
        self.member = Member(_scaled(rate, part))
        self.follow(rate, keys, on_failure)

    def follow(self, rate: Rate, keys: Keys, on_failure: OnFailure) -> None:
        """Go on under another setting of the same rate."""
        self.rate = rate
        self._keys = keys
        self.head = keys.head(rate)
        self._tail = keys.tail(rate)
        self.scale = scale(rate)
        self.on_failure: OnFailure = on_failure
        self._cost = 0.0
        self._item: Item = (0, 0, 0, 0, 0, 0, 0)
        self.flag = LOOK if rate.on_outcome else OBSERVE if rate.mode == "observe" else ENFORCE

    def change(
        self, rate: Rate, keys: Keys, on_failure: OnFailure, part: float, now: float
    ) -> None:
        """Another setting, or another part of it for this process; what was used stays used."""
        if rate != self.rate or part != self._part:
            self._part = part
            self.member.change(_scaled(rate, part), now)
        self.follow(rate, keys, on_failure)

    def key(self, subject: Key) -> bytes:
        """Where the store keeps `subject`."""
        return self._keys.key(self.head, subject, self._tail)

    def item(self, cost: float) -> Item:
        """The rate and the cost as the script reads them.

        Raises:
            ValueError: The cost means nothing.
        """
        if cost != self._cost:
            numbers = self.scale
            units = numbers.units(cost)
            self._item = (numbers.kind, self.flag, numbers.a, numbers.c, numbers.unit, units, 0)
            self._cost = cost
        return self._item

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
