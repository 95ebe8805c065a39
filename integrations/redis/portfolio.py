"""Which rates are shared now, and how is each decided: strictly, or against leased shares?"""

from __future__ import annotations

import time
from collections.abc import Callable

from loadgate.errors import PolicyError
from loadgate.integrations.redis.keys import Keys
from loadgate.integrations.redis.link import Link
from loadgate.integrations.redis.local import Leases
from loadgate.integrations.redis.shares import ENFORCE, Share
from loadgate.integrations.redis.units import BUCKET
from loadgate.policy import Policy
from loadgate.rates.spec import Rate
from loadgate.shared import Store


class Portfolio:
    """The shared rates of one policy after the other.

    Args:
        store: The settings of the store; only what rates need of them may change.
        keys: Names keys.
        link: The way to the store.
        process: The id of this process.
        clock: The controller's monotonic seconds.

    Attributes:
        shares: All shared rates, by name.
        active: Those that are not switched off.
        lone: The leases of the only rate, if it is a plain one: most decisions are about it.
        plain: The only rate, if it is a plain one that is asked about strictly.
        nodes: Processes that share them, as far as known.
        leased: Decisions against leases that were given up since.
    """

    __slots__ = (
        "_clock", "_keys", "_link", "_process", "_store",
        "active", "leased", "lone", "nodes", "plain", "shares",
    )  # fmt: skip

    def __init__(
        self, store: Store, keys: Keys, link: Link, process: str, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._keys = keys
        self._link = link
        self._process = process
        self._clock = clock
        self.nodes = 0
        self.leased = 0
        self.shares: dict[str, Share] = {}
        self.active: list[Share] = []
        self.lone: Leases | None = None
        self.plain: Share | None = None

    def follow(self, policy: Policy, now: float) -> None:
        """Go on under the rates of another policy.

        Raises:
            PolicyError: The store itself is another, or a rate cannot be kept in it.
        """
        store, known = policy.store, self._store
        if not any(rate.shared for rate in policy.rates):
            for share in self.shares.values():
                self._leave(share)
            self.shares, self.active, self.lone, self.plain = {}, [], None, None
            return
        if store is None or (store.url, store.secret, store.prefix, store.budget) != (
            known.url, known.secret, known.prefix, known.budget,
        ):  # fmt: skip
            raise PolicyError("store", "cannot change while the service runs; restart it")
        part = _part(store, self.nodes)
        shares: dict[str, Share] = {}
        for position, rate in enumerate(policy.rates):
            if rate.shared:
                try:
                    shares[rate.name] = self._share(rate, store, part, now)
                except PolicyError as error:
                    raise error.under(f"rates[{position}]") from None
        for name, share in self.shares.items():
            if name not in shares:
                self._leave(share)
        self._store = store
        self.shares = shares
        self.active = [share for share in shares.values() if share.rate.mode != "off"]
        self.lone = self.plain = None
        if len(self.active) == 1 and self.active[0].by_text:
            only = self.active[0]
            self.lone = only.leases
            if only.leases is None and only.flag == ENFORCE and not only.log:
                self.plain = only

    def _share(self, rate: Rate, store: Store, part: float, now: float) -> Share:
        share = self.shares.get(rate.name)
        if share is None:
            share = Share(rate, self._keys, store.failure(rate.name), part)
        elif share.rate == rate and self._leases_as(store):
            share.on_failure = store.failure(rate.name)
            return share
        else:
            self._leave(share)
            share.change(rate, self._keys, store.failure(rate.name), part, now)
        # Windows have no level that could be leased: they are decided strictly.
        if store.mode == "local" and share.scale.kind == BUCKET and share.flag == ENFORCE:
            share.leases = Leases(
                rate, share.scale, self._keys, store.lease, store.overdraft, self._link,
                self._process, lambda subject, cost: share.used(subject, cost, self._clock()),
            )  # fmt: skip
        return share

    def _leases_as(self, store: Store) -> bool:
        known = self._store
        return (store.mode, store.lease, store.overdraft) == (
            known.mode, known.lease, known.overdraft,
        )  # fmt: skip

    def _leave(self, share: Share) -> None:
        """Give back what is leased of it."""
        if share.leases is not None:
            share.leases.leave(time.monotonic())
            share.member.allowed += share.leases.allowed
            self.leased += share.leases.allowed
            share.leases = None

    def count(self, nodes: int) -> None:
        """So many processes share the rates: each stands in for its part in an emergency."""
        if nodes != self.nodes:
            self.nodes = nodes
            part, now = _part(self._store, nodes), self._clock()
            for share in self.active:
                share.change(share.rate, self._keys, share.on_failure, part, now)

    def sweep(self, now: float) -> float:
        """Look after the leases; seconds until the next time, infinite if there are none."""
        pause = float("inf")
        for share in self.active:
            if share.leases is not None:
                share.leases.sweep(now)
                pause = min(pause, share.leases.pause)
        return pause

    def leave(self) -> None:
        """The process ends: give back all that is leased."""
        for share in self.active:
            if share.leases is not None:
                share.leases.leave(time.monotonic())

    @property
    def allowed(self) -> int:
        """Decisions by the short way through leases."""
        return self.leased + sum(
            share.leases.allowed for share in self.active if share.leases is not None
        )


def _part(store: Store, nodes: int) -> float:
    return store.share if store.share is not None else 1.0 / max(1, nodes)
