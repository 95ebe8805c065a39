"""What is one rate of a set: its settings, its limiter, its counters, and whom does it count?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from loadgate.decisions import Quota
from loadgate.rates import create
from loadgate.rates.base import Limiter
from loadgate.rates.spec import BUCKETS, Rate, charged_by
from loadgate.rates.table import SharedBucket, overflow, plain

Client = str | bytes | Mapping[str, str | bytes] | None

# The key of a client that has none where it must.
NOBODY: Final = SharedBucket()


class RateStats(msgspec.Struct, frozen=True):
    """What one rate has done so far.

    Attributes:
        allowed: Requests it let through and charged (or, charged by outcome, let through).
        refused: Requests it refused.
        would_refuse: Requests it would have refused, in mode "observe".
        missing: Requests without the key it counts.
        exempt: Requests it did not count because their key is exempt.
        charged: Requests charged by their outcome.
        keys: Keys remembered now.
        forgotten: Idle keys dropped.
        evicted: Keys as good as new, dropped early to let another one in.
        overflowed: Decisions for unknown keys that had to share a bucket.
        size_bytes: Bytes held for keys and state, estimated.
    """

    name: str
    algorithm: str
    key: str
    mode: str
    limit: float
    per: float
    burst: float
    allowed: int
    refused: int
    would_refuse: int
    missing: int
    exempt: int
    charged: int
    keys: int
    forgotten: int
    evicted: int
    overflowed: int
    size_bytes: int


def _limiter(rate: Rate) -> Limiter[Any]:
    made: Limiter[Any] = create(
        rate.algorithm, limit=rate.limit, per=rate.per, burst=rate.burst, name=rate.name
    )
    return made


class Member:
    """One rate of the set: its settings, its limiter, its counters."""

    __slots__ = (
        "allowed",
        "anonymous",
        "charged",
        "exempt",
        "exempted",
        "hit",
        "key",
        "limiter",
        "match",
        "missing",
        "observe",
        "observed",
        "on_outcome",
        "outcomes",
        "plain",
        "position",
        "rate",
        "refused",
        "statuses",
        "would_refuse",
    )

    def __init__(self, rate: Rate) -> None:
        self.limiter = _limiter(rate)
        # Whoever has no key shares this one, which no client can name.
        self.anonymous = SharedBucket()
        # Decisions that the limiter's own counters do not tell: checks without a charge, and
        # refusals of `hit` that were only observed.
        self.allowed = self.refused = self.observed = 0
        self.would_refuse = self.missing = self.exempted = self.charged = 0
        self.position = 0
        self.follow(rate)

    def follow(self, rate: Rate) -> None:
        """Read the settings that the limiter does not need."""
        self.rate = rate
        self.observe = rate.mode == "observe"
        self.on_outcome = rate.on_outcome
        self.outcomes, self.statuses = charged_by(rate.charge)
        self.exempt = frozenset(rate.exempt)
        self.match = tuple(
            (name, frozenset((value,) if isinstance(value, str) else value))
            for name, value in rate.match.items()
        )
        self.limiter.resize(rate.max_keys, rate.max_bytes)
        # A plain rate only needs its key and its limiter.
        self.plain = not (self.observe or self.on_outcome or self.match or self.exempt)
        self.key = rate.key
        self.hit = self.limiter.hit

    def change(self, rate: Rate, now: float) -> None:
        """Follow a new setting of the same rate; what clients have used stays used."""
        before = self.rate
        family = (before.algorithm, rate.algorithm)
        if before.algorithm != rate.algorithm and not all(name in BUCKETS for name in family):
            counters = self.limiter.allowed, self.limiter.refused
            self.limiter = _limiter(rate)
            self.limiter.allowed, self.limiter.refused = counters
        elif (before.limit, before.per, before.burst) != (rate.limit, rate.per, rate.burst):
            self.limiter.change(rate.limit, rate.per, rate.burst, now)
        self.follow(rate)

    def key_of(self, client: Client) -> str | bytes | None:
        """The key of `client` that this rate counts.

        Returns:
            None when the rate does not apply, `NOBODY` when the key is missing and must not be.

        Raises:
            TypeError: The client is neither text, bytes, a mapping nor None, or the key is neither
                text nor bytes.
        """
        if client is None:
            found = None
        elif isinstance(client, str | bytes):
            if self.match:
                return None
            found = client if self.rate.key == "client" else None
        elif isinstance(client, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # from users
            for name, values in self.match:
                if client.get(name) not in values:
                    return None
            found = client.get(self.rate.key)
        else:
            raise TypeError(f"client must be str, bytes, a mapping or None, not {client!r:.100}")
        if found is None:
            self.missing += 1
            if client is None or self.rate.on_missing == "shared":
                return self.anonymous
            if self.rate.on_missing == "skip":
                return None
            return NOBODY
        if type(found) is not str:
            found = plain(found)  # a store would ask for the hash or the bytes of anything
        if found in self.exempt:
            self.exempted += 1
            return None
        return found

    def ask(self, key: str | bytes, now: float, cost: float) -> Quota:
        """Charge the key, or only look if the outcome charges."""
        limiter = self.limiter
        quota = (limiter.peek if self.on_outcome else limiter.hit)(key, now, cost)
        if self.on_outcome:
            self.allowed += quota.allowed
            self.refused += not quota.allowed and not self.observe
        if not quota.allowed and self.observe:
            self.would_refuse += 1
            self.observed += not self.on_outcome
        if key is self.anonymous:
            return overflow(quota, "", self.anonymous)
        return quota

    def undo(self, quota: Quota, now: float) -> None:
        """As if `ask` had never been answered like this."""
        if self.on_outcome:
            self.allowed -= 1
        else:
            self.limiter.refund(quota, now)
            self.limiter.allowed -= 1

    def stats(self) -> RateStats:
        """What the rate has done so far."""
        rate, limiter = self.rate, self.limiter
        return RateStats(
            name=rate.name,
            algorithm=rate.algorithm,
            key=rate.key,
            mode=rate.mode,
            limit=rate.limit,
            per=rate.per,
            burst=rate.burst,
            allowed=limiter.allowed + self.allowed,
            refused=limiter.refused + self.refused - self.observed,
            would_refuse=self.would_refuse,
            missing=self.missing,
            exempt=self.exempted,
            charged=self.charged,
            keys=limiter.keys,
            forgotten=limiter.forgotten,
            evicted=limiter.evicted,
            overflowed=limiter.overflowed,
            size_bytes=limiter.size_bytes,
        )
