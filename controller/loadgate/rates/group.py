"""Has the client something left of every rate that applies? All are charged, or none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from loadgate.decisions import Outcome, Quota, Reason, Refuse, Stage
from loadgate.rates import create
from loadgate.rates.base import Limiter
from loadgate.rates.spec import BUCKETS, Rate, charged_by
from loadgate.rates.table import SharedBucket, overflow, receipt_key

Client = str | bytes | Mapping[str, str | bytes] | None

# Looking up a member of an enum costs as much as a rate decision's arithmetic.
_STAGE: Final = Stage.RATE
_REASON: Final = Reason.RATE

# The key of a client that has none where it must.
_NOBODY: Final = SharedBucket()


def _refuse_nobody(rate: Rate, cost: float) -> Refuse:
    return Refuse(_STAGE, _REASON, math.inf, cost, 0.0, rate.name)


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


class _Member:
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
        "rate",
        "refused",
        "statuses",
        "would_refuse",
    )

    def __init__(self, rate: Rate) -> None:
        self.limiter: Limiter[Any] = create(
            rate.algorithm, limit=rate.limit, per=rate.per, burst=rate.burst, name=rate.name
        )
        # Whoever has no key shares this one, which no client can name.
        self.anonymous = SharedBucket()
        # Decisions that the limiter's own counters do not tell: checks without a charge, and
        # refusals of `hit` that were only observed.
        self.allowed = self.refused = self.observed = 0
        self.would_refuse = self.missing = self.exempted = self.charged = 0
        self.follow(rate)

    def follow(self, rate: Rate) -> None:
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
            self.limiter = create(
                rate.algorithm, limit=rate.limit, per=rate.per, burst=rate.burst, name=rate.name
            )
            self.limiter.allowed, self.limiter.refused = counters
        elif (before.limit, before.per, before.burst) != (rate.limit, rate.per, rate.burst):
            self.limiter.change(rate.limit, rate.per, rate.burst, now)
        self.follow(rate)

    def key_of(self, client: Client) -> str | bytes | None:
        """The key of `client` that this rate counts.

        Returns:
            None when the rate does not apply, `_NOBODY` when the key is missing and must not be.

        Raises:
            TypeError: The client is neither text, bytes, a mapping nor None.
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
            return _NOBODY
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


class RateSet:
    """Several rates, each on its own key, charged together.

    A rate marked as shared is counted here too if it is given: whoever keeps it in a store leaves
    it out. Counters and what clients have used survive `update`.

    Args:
        rates: The rates, with different names.
    """

    __slots__ = ("_active", "_hit", "_members", "_name", "_settles", "rates")

    def __init__(self, rates: Sequence[Rate]) -> None:
        self._members: dict[str, _Member] = {}
        self._follow({rate.name: _Member(rate) for rate in rates}, rates)

    def _follow(self, members: dict[str, _Member], rates: Sequence[Rate]) -> None:
        self.rates = tuple(rates)
        self._members = members
        self._active = [member for member in members.values() if member.rate.mode != "off"]
        self._settles = any(member.on_outcome for member in self._active)
        # One plain rate and a client given as text is the common case: straight to its limiter.
        self._hit = None
        self._name = ""
        if len(self._active) == 1:
            only = self._active[0]
            if only.plain and only.key == "client":
                self._hit = only.hit
                self._name = only.rate.name

    def charge(self, client: Client, cost: float, now: float) -> tuple[Quota, ...] | Refuse:
        """Charge `cost` to every rate that applies, or to none.

        Args:
            client: Who asks: text or bytes count as the key "client"; a mapping has several
                keys; None shares one bucket with all who are nobody.
            cost: What it costs in every rate, positive.
            now: Monotonic seconds.

        Returns:
            One receipt for each rate that applied, in the order of the rates (`Quota.rate` says
            which); or the refusal of the rate that makes the client wait longest, exact in
            `retry_after` for all of them together.

        Raises:
            ValueError: The cost is not positive and finite, or `now` is not finite.
            TypeError: The client or one of its keys has the wrong type.
        """
        hit = self._hit
        if hit is not None and type(client) is str:
            quota = hit(client, now, cost)
            if quota.allowed:
                return (quota,)
            left = quota.remaining if cost <= quota.limit else quota.limit
            return Refuse(_STAGE, _REASON, quota.retry_after, cost, left, self._name, quota)
        return self._charge_all(client, cost, now)

    def _charge_all(self, client: Client, cost: float, now: float) -> tuple[Quota, ...] | Refuse:
        given: list[Quota] = []
        # To ask whether it is a Mapping costs half a decision; a dict or text is told at once.
        entries = client if isinstance(client, dict) else None
        text = client if isinstance(client, str) else None
        try:
            for position, member in enumerate(self._active):
                key = None
                if member.plain:
                    if entries is not None:
                        key = entries.get(member.key)
                    elif text is not None and member.key == "client":
                        key = text
                if key is not None:
                    quota = member.hit(key, now, cost)
                else:
                    key = member.key_of(client)
                    if key is None:
                        continue
                    if key is _NOBODY:
                        if member.observe:
                            member.would_refuse += 1
                            continue
                        member.refused += 1
                        self._take_back(given, now)
                        return _refuse_nobody(member.rate, cost)
                    quota = member.ask(key, now, cost)
                if quota.allowed:
                    given.append(quota)
                elif not member.observe:
                    self._take_back(given, now)
                    return self._worst(member, quota, position + 1, client, cost, now)
        except (TypeError, ValueError):
            self._take_back(given, now)
            raise
        return tuple(given)

    def _take_back(self, given: list[Quota], now: float) -> None:
        for quota in reversed(given):
            self._members[quota.rate].undo(quota, now)

    def _worst(
        self, member: _Member, quota: Quota, others: int, client: Client, cost: float, now: float
    ) -> Refuse:
        """The refusal that lasts longest: at its `retry_after` every rate allows the cost."""
        for other in self._active[others:]:
            if other.observe:
                continue
            key = other.key_of(client)
            if key is _NOBODY:
                return _refuse_nobody(other.rate, cost)
            if key is not None:
                answer = other.limiter.peek(key, now, cost)
                if answer.retry_after > quota.retry_after:
                    member, quota = other, answer
        left = quota.remaining if cost <= quota.limit else quota.limit
        return Refuse(_STAGE, _REASON, quota.retry_after, cost, left, member.rate.name, quota)

    def refund(self, quotas: Sequence[Quota], now: float) -> None:
        """Give back what `charge` took: the request was turned away and cost its client nothing."""
        members = self._members
        for quota in quotas:
            member = members.get(quota.rate)
            if member is not None and not member.on_outcome:
                member.limiter.refund(quota, now)

    def settle(
        self,
        quotas: Sequence[Quota],
        now: float,
        outcome: Outcome,
        status: int | None = None,
    ) -> None:
        """Charge the rates that wait for the outcome, if this is one that they count.

        Many requests may have been let through at the same moment, so such a rate can be charged
        for more than was left; it is then empty, never in debt.

        Args:
            quotas: What `charge` returned for the request.
            now: Monotonic seconds.
            outcome: How it ended.
            status: The HTTP status of the answer, if there was one.
        """
        if not self._settles:
            return
        for quota in quotas:
            member = self._members.get(quota.rate)
            if member is None or not member.on_outcome:
                continue
            if outcome.value in member.outcomes or status in member.statuses:
                member.limiter.take(receipt_key(quota), now, quota.cost)
                member.charged += 1

    def update(self, rates: Sequence[Rate], now: float) -> None:
        """Follow new settings.

        A rate of the same name keeps its counters and what its clients have used, at most one
        burst of it; only a change between buckets and windows, or between windows, starts anew.
        """
        members: dict[str, _Member] = {}
        for rate in rates:
            member = self._members.get(rate.name)
            if member is None:
                member = _Member(rate)
            elif rate != member.rate:
                member.change(rate, now)
            members[rate.name] = member
        self._follow(members, rates)

    def stats(self) -> dict[str, RateStats]:
        """What each rate has done, by its name."""
        return {name: member.stats() for name, member in self._members.items()}

    def rate(self, name: str) -> Rate | None:
        """The settings of the rate of this name."""
        member = self._members.get(name)
        return None if member is None else member.rate


# A shared store finds keys by the same rules, and keeps a local limiter for when it is away.
Member = _Member
NOBODY: Final = _NOBODY
