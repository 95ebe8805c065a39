"""How does a controller use Redis or Valkey? Opened, followed, told how it fares, closed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

from loadgate.errors import PolicyError
from loadgate.integrations.redis.coredis_transport import CoredisTransport
from loadgate.integrations.redis.deciding import Deciding
from loadgate.integrations.redis.keys import Keys
from loadgate.integrations.redis.link import Link
from loadgate.integrations.redis.portfolio import Portfolio
from loadgate.integrations.redis.tally import Tally
from loadgate.integrations.redis.transport import Connection, Script, StoreError, Transport
from loadgate.integrations.redis.url import parse
from loadgate.policy import Policy
from loadgate.shared import StoreStats, resolve, secret_of

# Seconds between two signs of life; `nodes.lua` forgets a process after five.
_BEAT: Final = 1.0


class RedisStore:
    """The shared rates of one controller, in Redis or Valkey.

    Args:
        policy: The rates and the store.
        clock: The controller's monotonic seconds.
        draw: Numbers in [0, 1).
        name: The controller's name.
        transport: How to reach the store, instead of by its URL.

    Raises:
        PolicyError: The URL is wrong, or a rate cannot be kept exactly in the store.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        clock: Callable[[], float],
        draw: Callable[[], float],
        name: str,
        transport: Transport | None = None,
    ) -> None:
        store = policy.store
        if store is None:
            raise PolicyError("store", "is missing, but rates are shared")
        self.name = name
        try:
            address = parse(resolve(store.url, "url"))
            secret = secret_of(store)
            if transport is None:
                transport = CoredisTransport(address)
        except PolicyError as error:
            raise error.under("store") from None
        self._keys = Keys(store.prefix, secret)
        self._nodes_due = 0.0
        self._nodes_script = Script.read("nodes.lua")
        self._link = Link(
            transport,
            Script.read("decide.lua"),
            (self._nodes_script,),
            self._keys.nodes,
            time.monotonic,
            draw,
            store.budget,
            self,
        )
        self._id = os.urandom(8).hex()
        self._tally = Tally(transport.endpoint)
        self._rates = Portfolio(store, self._keys, self._link, self._id, clock)
        deciding = Deciding(
            self._rates,
            self._link,
            self._tally,
            self._id,
            split=address.kind == "cluster",
            clock=clock,
            draw=draw,
        )
        # `SharedRates`, without a call between for each decision.
        self.ask = deciding.ask
        self.answer = deciding.answer
        self.hurry = deciding.hurry
        self.abandon = deciding.abandon
        self.refund = deciding.refund
        self.settle = deciding.settle
        self.follow(policy, clock())

    def follow(self, policy: Policy, now: float) -> None:
        """Go on under the rates of another policy; see `Portfolio.follow`."""
        self._rates.follow(policy, now)

    @property
    def immediate(self) -> bool:
        """Whether every rate is decided in memory; see `SharedRates.immediate`."""
        return all(share.leases is not None for share in self._rates.active)

    # -- for the link ------------------------------------------------------------------

    def lost(self, cause: str) -> None:
        """The breaker has opened."""
        self._tally.lost(cause, self._rates.active)

    def found(self, seconds: float) -> None:
        """It has closed."""
        self._tally.found(seconds)

    async def beat(self, connection: Connection) -> float:
        """Say that this process is there, and learn how many are."""
        now = time.monotonic()
        if now >= self._nodes_due:
            self._nodes_due = now + _BEAT
            reply, _ = await connection.call(
                self._nodes_script, [self._keys.nodes], self._id.encode()
            )
            if not reply.isdigit():
                raise StoreError("LOST", f"a number of processes that is none: {reply!r:.40}")
            self._rates.count(int(reply))
        return min(_BEAT, self._rates.sweep(now))

    # -- life --------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect now rather than with the first request; see `SharedRates.open`."""
        trouble = await self._link.ready(2.0)
        if trouble and self._link.unusable:
            await self._link.close()
            raise PolicyError("store.url", f"the store cannot be used: {trouble}")

    async def close(self) -> None:
        """Send what is to be given back, and let go of the store."""
        self._rates.leave()
        await self._link.close()

    def stats(self) -> StoreStats:
        """How the store fares."""
        link, tally, rates = self._link, self._tally, self._rates
        counts, breaker = link.counts, link.breaker
        return StoreStats(
            state=breaker.state,
            connected=link.connected,
            decisions={**tally.decisions, "lease": tally.decisions["lease"] + rates.allowed},
            troubles=dict(tally.troubles),
            incidents=breaker.incidents,
            away=breaker.away(time.monotonic()),
            oldest=link.patience.oldest,
            waiting=link.patience.count,
            calls=counts.calls,
            asked=counts.asked,
            stale=counts.stale,
            late=counts.late,
            stalls=counts.stalls,
            connections=counts.connections,
            given_back=tally.given_back,
            forgotten=tally.forgotten,
            nodes=rates.nodes,
            wait=tally.wait.freeze(),
            rates={name: share.stats() for name, share in rates.shares.items()},
        )
