"""Has the client something left of every rate that applies? All are charged, or none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from loadgate.decisions import Outcome, Quota, Reason, Refuse, Stage
from loadgate.rates.member import NOBODY, Client, Member, RateStats
from loadgate.rates.spec import Rate
from loadgate.rates.table import plain, receipt_key

__all__ = ["NOBODY", "Client", "Member", "RateSet", "RateStats"]

Hit = Callable[[str | bytes, float, float], Quota]
RetryAfter = Callable[[str | bytes, float, float], float]

# Looking up a member of an enum costs as much as a rate decision's arithmetic.
_STAGE: Final = Stage.RATE
_REASON: Final = Reason.RATE


def _refuse_nobody(rate: Rate, cost: float) -> Refuse:
    return Refuse(_STAGE, _REASON, math.inf, cost, 0.0, rate.name)


class RateSet:
    """Several rates, each on its own key, charged together.

    A rate marked as shared is counted here too if it is given: whoever keeps it in a store leaves
    it out. Counters and what clients have used survive `update`.

    Args:
        rates: The rates, with different names.
    """

    __slots__ = (
        "_active",
        "_asked",
        "_by_client",
        "_hit",
        "_members",
        "_name",
        "_none",
        "_others",
        "_plain",
        "_settles",
        "rates",
    )

    def __init__(self, rates: Sequence[Rate]) -> None:
        self._members: dict[str, Member] = {}
        self._follow({rate.name: Member(rate) for rate in rates}, rates)

    def _follow(self, members: dict[str, Member], rates: Sequence[Rate]) -> None:
        self.rates = tuple(rates)
        self._members = members
        self._active = [member for member in members.values() if member.rate.mode != "off"]
        for position, member in enumerate(self._active):
            member.position = position
        # In this order they are asked: whoever refused last comes first.
        self._asked = self._active[:]
        self._none: list[Quota | None] = [None] * len(self._active)
        self._plain: list[tuple[int, str, Hit, RetryAfter, bool]] = []
        self._others = self._plain
        if all(member.plain for member in self._active):
            self._list_plain()
        self._by_client = all(member.key == "client" for member in self._active)
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
        if self._plain:
            kind: Any = type(client)
            if kind is dict or (kind is str and self._by_client):
                charged = self._charge_plain(client, cost, now)
                if charged is not None:
                    return charged
        return self._charge_all(client, cost, now)

    def _charge_plain(
        self, client: Any, cost: float, now: float
    ) -> tuple[Quota, ...] | Refuse | None:
        """`_charge_all` for the common case: no rate needs more than its key and its limiter.

        Returns:
            None, and nothing has happened, if the client lacks a key that it should have.
        """
        get: Any = None if type(client) is str else client.get
        given: list[Any] = self._none[:]
        absent = place = 0
        try:
            for position, name, hit, _, skips in self._plain:
                key = client if get is None else get(name)
                if key is None:
                    if not skips:
                        self._take_back(given, now)
                        return None
                    absent += 1
                else:
                    quota = hit(key, now, cost)
                    if not quota.allowed:
                        break
                    given[position] = quota
                place += 1
            else:
                if not absent:
                    return tuple(given)
                self._count_absent(client)
                return tuple([quota for quota in given if quota is not None])
            if place:
                self._take_back(given, now)
                return self._refuse(place, quota, client, cost, now)
            longest = quota.retry_after
            for other, name, _, retry_after, skips in self._others:
                key = client if get is None else get(name)
                if key is not None:
                    wait = retry_after(key, now, cost)
                    if wait > longest or (wait == longest and other < position):
                        return self._refuse(place, quota, client, cost, now)
                elif not skips:
                    return self._refuse(place, quota, client, cost, now)
        except (TypeError, ValueError) as error:
            self._take_back(given, now)
            if isinstance(error, TypeError):
                self._check_keys(client)
            raise
        left = quota.remaining if cost <= quota.limit else quota.limit
        return Refuse(_STAGE, _REASON, longest, cost, left, quota.rate, quota)

    def _check_keys(self, client: Client) -> None:
        """Say what a key is that cannot be counted; Python says only that it has no hash."""
        if isinstance(client, Mapping):
            for member in self._active:
                for name in (member.key, *dict(member.match)):
                    if (key := client.get(name)) is not None:
                        plain(key)

    def _count_absent(self, client: Any) -> None:
        for member in self._active:
            member.missing += client.get(member.key) is None

    def _charge_all(self, client: Client, cost: float, now: float) -> tuple[Quota, ...] | Refuse:
        given: list[Quota | None] = self._none[:]
        try:
            for place, member in enumerate(self._asked):
                key = member.key_of(client)
                if key is None:
                    continue
                if key is NOBODY:
                    if member.observe:
                        member.would_refuse += 1
                        continue
                    member.refused += 1
                    self._take_back(given, now)
                    return _refuse_nobody(member.rate, cost)
                quota = member.ask(key, now, cost)
                if quota.allowed:
                    given[member.position] = quota
                elif not member.observe:
                    self._take_back(given, now)
                    return self._refuse(place, quota, client, cost, now)
        except (TypeError, ValueError) as error:
            self._take_back(given, now)
            if isinstance(error, TypeError):
                self._check_keys(client)
            raise
        return tuple([quota for quota in given if quota is not None])

    def _take_back(self, given: list[Quota | None], now: float) -> None:
        for quota in given:
            if quota is not None:
                self._members[quota.rate].undo(quota, now)

    def _refuse(self, place: int, quota: Quota, client: Client, cost: float, now: float) -> Refuse:
        """The refusal that lasts longest: at its `retry_after` every rate allows the cost.

        Those asked before `place` would have let the request through.
        """
        asked = self._asked
        first = member = asked[place]
        for other in asked[place + 1 :]:
            if other.observe:
                continue
            key = other.key_of(client)
            if key is None:
                continue
            if key is NOBODY:
                first.refused -= 1
                other.refused += 1
                return _refuse_nobody(other.rate, cost)
            # Only the refusal that is told needs a receipt.
            wait, longest = other.limiter.retry_after(key, now, cost), quota.retry_after
            if wait > longest or (wait == longest and other.position < member.position):
                member, quota = other, other.limiter.peek(key, now, cost)
        if place:
            # Whoever is refused usually asks again: this rate comes first then, and nothing has
            # to be charged and given back before it is known.
            del asked[place]
            asked.insert(0, first)
            if self._plain:
                self._list_plain()
        if member is not first:
            first.refused -= 1
            member.refused += 1
        left = quota.remaining if cost <= quota.limit else quota.limit
        return Refuse(_STAGE, _REASON, quota.retry_after, cost, left, member.rate.name, quota)

    def _list_plain(self) -> None:
        """What `_charge_plain` needs of each rate, in the order in which they are asked."""
        self._plain = [
            (
                member.position,
                member.key,
                member.hit,
                member.limiter.retry_after,
                member.rate.on_missing == "skip",
            )
            for member in self._asked
        ]
        self._others = self._plain[1:]

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
        members: dict[str, Member] = {}
        for rate in rates:
            member = self._members.get(rate.name)
            if member is None:
                member = Member(rate)
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
