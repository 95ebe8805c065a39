"""How are leases kept, renewed, given back and forgotten? For all clients of one rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import Final

from loadgate.decisions import Quota
from loadgate.integrations.redis.ask import DONE, LEASE, Ask
from loadgate.integrations.redis.keys import Keys
from loadgate.integrations.redis.leases import PARTS, Lease
from loadgate.integrations.redis.link import Link
from loadgate.integrations.redis.units import Scale
from loadgate.rates.spec import Rate
from loadgate.rates.table import Key, SharedBucket

# Clients that a process holds leases for; about 50 MB. Beyond it the oldest without a debt goes,
# and what it held is void after its term.
MOST: Final = 100_000
# Leases looked at in one go, so that a large table never holds up the loop.
_SWEEP: Final = 1000
_EVICT: Final = 64


class Leases:
    """The leases of one rate.

    Args:
        rate: The rate.
        scale: The same in units.
        keys: Names keys.
        term: Seconds a lease lasts.
        overdraft: Cost units that may be let through without having them, of each client.
        link: The way to the store.
        process: The id of this process.
        used: Told what a client has spent, cost units, now and then.
    """

    __slots__ = (
        "_head", "_keys", "_link", "_process", "_swept", "_tail", "_used",
        "allowed", "held", "overdraft", "rate", "scale", "seconds_of_unit", "term", "unit",
    )  # fmt: skip

    def __init__(
        self,
        rate: Rate,
        scale: Scale,
        keys: Keys,
        term: float,
        overdraft: float,
        link: Link,
        process: str,
        used: Callable[[Key, float], None],
    ) -> None:
        self.rate = rate
        self.scale = scale
        self.unit = scale.unit
        self.seconds_of_unit = 1e-6 / scale.a
        self.allowed = 0  # by the short way of `RedisStore.ask`
        self.term = term
        self.overdraft = round(overdraft * scale.unit)
        self.held: dict[Key, Lease] = {}
        self._keys = keys
        self._head = keys.head(rate)
        self._tail = keys.lease_tail(rate)
        self._link = link
        self._process = process
        self._used = used
        self._swept = 0

    def key(self, subject: Key) -> bytes:
        """Where the store keeps `subject`."""
        return self._keys.key(self._head, subject, self._tail)

    def lease(self, subject: Key) -> Lease | None:
        """The lease for `subject`; None if there is no room for another."""
        lease = self.held.get(subject)
        if lease is None:
            if len(self.held) >= MOST and not self._evict():
                return None
            lease = self.held[subject] = Lease(self.scale, self.term, self.overdraft)
        return lease

    def _evict(self) -> bool:
        for subject, lease in islice(self.held.items(), _EVICT):
            if lease.asked_at is None and not lease.debt and not lease.wanted:
                del self.held[subject]
                return True
        return False

    def ask(self, subject: Key, lease: Lease, least: int, *, leave: bool = False) -> Ask | None:
        """Ask the store for more, or give everything back.

        Returns:
            The question under way; None if the store cannot be asked.
        """
        now = time.monotonic()
        if lease.spent > 0:
            self._used(subject, lease.spent / self.unit)
        ask = Ask(
            LEASE,
            (self.key(subject),),
            (lease.question(now, least, leave=leave),),
            now + self._link.budget,
            lease,
            self._process,
            on_over=_over,
        )
        lease.flight = ask
        if self._link.submit(ask):
            return ask
        ask.give_up(ask.trouble)
        return None

    def quota(self, subject: Key, lease: Lease, cost: float, now: float, *, allowed: bool) -> Quota:
        """What this process knows of the client's bucket: as of the last answer, less its own."""
        scale = self.scale
        left = min(scale.c, max(0, lease.left + lease.credit - lease.debt))
        retry_after = 0.0 if allowed else max(1e-6, lease.retry_at - now)
        return Quota(
            allowed,
            self.rate.burst,
            left / scale.unit,
            (scale.c - left) / scale.a / 1e6,
            retry_after,
            "" if isinstance(subject, SharedBucket) else subject,
            cost,
            now,
            self.rate.name,
        )

    def sweep(self, now: float) -> None:
        """Give back what nobody uses, and forget what is void; a part of the table each time."""
        held = self.held
        if self._swept >= len(held):
            self._swept = 0
        part = list(islice(held.items(), self._swept, self._swept + _SWEEP))
        self._swept += len(part)
        for subject, lease in part:
            if lease.over(now):
                del held[subject]
                self._swept -= 1
            elif lease.idle(now):
                self.ask(subject, lease, 0, leave=True)
            elif lease.due(now):
                self.ask(subject, lease, self.unit)

    def leave(self, now: float) -> None:
        """The process ends: give everything back."""
        for subject, lease in self.held.items():
            if lease.may_ask(now) and (lease.debt or (now < lease.until and lease.credit > 0)):
                self.ask(subject, lease, 0, leave=True)

    @property
    def pause(self) -> float:
        """Seconds between two sweeps."""
        return self.term / PARTS


def _over(ask: Ask) -> None:
    lease: Lease = ask.owner
    lease.flight = None
    if ask.answer is not None and ask.answer[0] == DONE:
        lease.heard(ask.answer, time.monotonic())
    else:
        lease.unheard(ask.deadline, ask.trouble or "wrong_type")
