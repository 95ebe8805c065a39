"""What do the shared rates answer? Strictly, for all processes together, or by a failure policy.

Every question ends within the budget: with the store's answer, or with what the operator chose
for its absence. What was charged for a request that is turned away is given back in the
background, by the receipt of its charge.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

import msgspec

from loadgate.decisions import Outcome, Quota, Reason, Refuse, Stage
from loadgate.errors import PolicyError
from loadgate.integrations.redis.absence import take_back, without_store
from loadgate.integrations.redis.ask import (
    CHARGE,
    CHARGE_ONE,
    DONE,
    WRONG_TYPE,
    Ask,
)
from loadgate.integrations.redis.coredis_transport import CoredisTransport
from loadgate.integrations.redis.denied import Denied
from loadgate.integrations.redis.keys import Keys
from loadgate.integrations.redis.link import Link
from loadgate.integrations.redis.portfolio import Portfolio
from loadgate.integrations.redis.question import Entry, Leased, Question, quota_of, refused
from loadgate.integrations.redis.returns import Returns
from loadgate.integrations.redis.shares import ENFORCE, LOOK, OBSERVE, Share
from loadgate.integrations.redis.spending import (
    gather,
    lease_more,
    not_yet,
    nothing_left,
    spend,
    unspend,
)
from loadgate.integrations.redis.tally import Tally
from loadgate.integrations.redis.transport import Connection, Script, StoreError, Transport
from loadgate.integrations.redis.url import parse
from loadgate.policy import Policy
from loadgate.rates.group import NOBODY, Client
from loadgate.rates.table import Key
from loadgate.shared import Charge, Store, StoreStats, resolve, secret_of

# Seconds between two signs of life; `nodes.lua` forgets a process after five.
_BEAT: Final = 1.0
# The answer to a request that no shared rate concerns, or that has gone.
NOTHING: Final = Charge((), "none", None)


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
        self._store: Store = store
        self._clock = clock
        self._draw = draw
        try:
            address = parse(resolve(store.url, "url"))
            secret = secret_of(store)
            if transport is None:
                transport = CoredisTransport(address)
        except PolicyError as error:
            raise error.under("store") from None
        self._keys = Keys(store.prefix, secret)
        self._split = address.kind == "cluster"
        self._monotonic = clock is time.monotonic
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
        self._denied = Denied()
        self._on_late = self._late
        self._id = os.urandom(8).hex()
        self._number = 0
        self._tally = Tally(transport.endpoint)
        self._decisions = self._tally.decisions
        self._returns = Returns(self._link, self._denied, self._tally, self._next_id)
        self._rates = Portfolio(store, self._keys, self._link, self._id, clock)
        self.follow(policy, clock())

    def follow(self, policy: Policy, now: float) -> None:
        """Go on under the rates of another policy; see `Portfolio.follow`."""
        self._rates.follow(policy, now)

    # -- deciding ----------------------------------------------------------------------

    def ask(self, client: Client, cost: float, now: float) -> Charge | Refuse | Question:
        """Charge all shared rates that apply, or none; see `SharedRates.ask`."""
        asked = now if self._monotonic else time.monotonic()
        lone = self._rates.lone
        if lone is not None and type(client) is str:
            lease = lone.held.get(client)
            if lease is not None and asked < lease.until:
                # `Lease.spend`, `Lease.due` and `Leases.quota` written out: calls cost as much.
                units = lone.unit if cost == 1.0 else lone.scale.units(cost)
                credit = lease.credit - units
                if credit >= 0 and not lease.debt:
                    lease.credit = credit
                    lease.spent += units
                    lease.used_at = asked
                    lone.allowed += 1
                    if (credit < lease.low or asked >= lease.renew_at) and lease.due(asked):
                        lone.ask(client, lease, lone.unit)
                    left = lease.left + credit
                    rate = lone.rate
                    quota = Quota(
                        True,
                        rate.burst,
                        left / lone.unit,
                        (lone.scale.c - left) * lone.seconds_of_unit,
                        0.0,
                        client,
                        cost,
                        asked,
                        rate.name,
                    )
                    return Charge((quota,), "lease", (lease, units, asked))
        entries: list[Entry] = []
        local: list[Leased] = []
        for share in self._rates.active:
            member = share.member
            subject = client if share.by_text and type(client) is str else member.key_of(client)
            if subject is None:
                continue
            if subject is NOBODY:
                if member.observe:
                    member.would_refuse += 1
                    continue
                member.refused += 1
                return Refuse(Stage.RATE, Reason.RATE, float("inf"), cost, 0.0, share.rate.name)
            if share.leases is not None:
                lease = share.leases.lease(subject)
                if lease is not None:
                    local.append((share, subject, lease, share.scale.units(cost)))
                    continue
            entries.append((share, subject, share.key(subject), share.item(cost)))
        if not entries and not local:
            self._decisions["none"] += 1
            return NOTHING
        if entries and self._denied:
            refusal = self._still_denied(entries, cost, asked)
            if refusal is not None:
                return refusal
        question = Question(entries, local, cost, asked, now)
        if local:
            lacking = spend(question, asked)
            if lacking is not None:
                refusal = nothing_left(lacking, question, asked)
                if refusal is not None:
                    self._decisions["lease"] += 1
                    return refusal
                if lease_more(lacking, asked) is not None:
                    return question
                return self._fall_back(question, now)
            if not entries:
                return self._decide(question)
        self._submit(question)
        for part, _ in question.parts:
            if not part.over and not part.trouble:
                return question
        return self._fall_back(question, now)

    def _submit(self, question: Question) -> None:
        deadline = question.asked + self._store.budget
        if len(question.entries) == 1:
            share, _, key, setting = question.entries[0]
            if not share.log:
                ask = Ask(CHARGE_ONE, (key,), (setting,), deadline, question)
                ask.on_late = self._on_late
                question.parts.append((ask, question.entries))
                if not self._link.submit(ask):
                    ask.give_up(ask.trouble)
                return
        for entries in self._together(question.entries):
            ask = Ask(
                CHARGE,
                [entry[2] for entry in entries],
                [entry[3] for entry in entries],
                deadline,
                question,
                self._next_id(),
                on_late=self._on_late,
            )
            question.parts.append((ask, entries))
            if not self._link.submit(ask):
                ask.give_up(ask.trouble)

    def _together(self, entries: list[Entry]) -> list[list[Entry]]:
        """All in one call, or those of each subject if a cluster spreads them over its nodes."""
        if not self._split or len(entries) == 1:
            return [entries]
        by_tag: dict[bytes, list[Entry]] = {}
        for entry in entries:
            by_tag.setdefault(entry[2].partition(b"}")[0], []).append(entry)
        return list(by_tag.values())

    def _still_denied(self, entries: list[Entry], cost: float, asked: float) -> Refuse | None:
        worst: tuple[float, Share, Quota] | None = None
        for share, _, key, _ in entries:
            if share.flag == OBSERVE or share.rate.mode == "observe":
                continue
            found = self._denied.look(key, asked, cost)
            if found is not None and (worst is None or found[0] > worst[0]):
                worst = (found[0], share, found[1])
        if worst is None:
            return None
        retry_after, share, quota = worst
        share.member.refused += 1
        self._decisions["cache"] += 1
        reset_after = max(retry_after, quota.reset_after - (quota.retry_after - retry_after))
        quota = msgspec.structs.replace(
            quota, cost=cost, retry_after=retry_after, reset_after=reset_after
        )
        return refused(share, quota)

    async def answer(self, question: Question) -> Charge | Refuse:
        """The decision that `ask` could not give at once; see `SharedRates.answer`."""
        if question.local and not question.spent:
            refusal = await gather(question, self._store.budget)
            if refusal is not None:
                self._decisions["lease"] += 1
                question.decided = False
                return refusal
            if question.decided is not None:
                unspend(question)
                return NOTHING
            if not question.spent:
                return self._fall_back(question, self._clock())
            if question.entries:
                self._submit(question)
        for ask, _ in question.parts:
            if not ask.over:
                await ask.wait()
        self._tally.wait.add(time.monotonic() - question.asked)
        if question.decided is not None:
            return NOTHING  # abandoned meanwhile
        for ask, _ in question.parts:
            # Looked at again: the answer may have come in the turn in which the wait ended.
            if ask.answer is None or ask.answer[0] == WRONG_TYPE:
                return self._fall_back(question, self._clock())
        return self._decide(question)

    def _decide(self, question: Question) -> Charge | Refuse:
        if len(question.entries) == 1 and not question.local:
            # One plain rate that allows is the common case.
            ask = question.parts[0][0]
            share, subject, _, _ = question.entries[0]
            if share.flag == ENFORCE and ask.answer is not None and ask.answer[0] == DONE:
                question.decided = True
                self._decisions["store"] += 1
                cost = question.cost
                share.member.allowed += 1
                share.used(subject, cost, question.now)
                quota = quota_of(share, subject, cost, ask.server_us, ask.answer, 0)
                return Charge((quota,), "store", question)
        quotas: list[Quota] = []
        passed: list[tuple[Share, Key]] = []
        worst: tuple[Share, Quota, bytes] | None = None
        for ask, entries in question.parts:
            answer = ask.answer
            assert answer is not None
            for position, (share, subject, key, _) in enumerate(entries):
                quota = quota_of(share, subject, question.cost, ask.server_us, answer, position)
                if quota.allowed:
                    quotas.append(quota)
                    passed.append((share, subject))
                elif share.rate.mode == "observe":
                    share.member.would_refuse += 1
                elif worst is None or quota.retry_after > worst[1].retry_after:
                    worst = (share, quota, key)
        self._decisions["store" if question.parts else "lease"] += 1
        if worst is not None:
            self._returns.undo(question)
            share, quota, key = worst
            share.member.refused += 1
            self._denied.note(key, question.asked, question.cost, quota)
            return refused(share, quota)
        question.decided = True
        for share, subject in passed:
            share.member.allowed += 1
            if share.flag != LOOK:
                share.used(subject, question.cost, question.now)
        for share, subject, lease, _ in question.local:
            share.member.allowed += 1
            assert share.leases is not None
            quotas.append(
                share.leases.quota(subject, lease, question.cost, question.asked, allowed=True)
            )
        return Charge(tuple(quotas), "store" if question.parts else "lease", question)

    @property
    def immediate(self) -> bool:
        """Whether every rate is decided in memory; see `SharedRates.immediate`."""
        return all(share.leases is not None for share in self._rates.active)

    def hurry(self, question: Question) -> Charge | Refuse:
        """The decision without waiting for the store; see `SharedRates.hurry`."""
        now = time.monotonic()
        lacking = spend(question, now) if question.local and not question.spent else None
        if lacking is not None:
            question.decided = False
            self._decisions["lease"] += 1
            return not_yet(lacking, question, now, self._store.budget)
        if not question.entries:
            return self._decide(question)
        for ask, _ in question.parts:  # there was no room for another lease
            ask.give_up("timeout")
        return self._fall_back(question, self._clock())

    def abandon(self, question: Question) -> None:
        """Nobody waits any more; what was charged, or still is, goes back."""
        if question.decided is None:
            for ask, _ in question.parts:
                ask.give_up("closed")
            self._returns.undo(question)

    def _late(self, ask: Ask) -> None:
        """An answer came after the wait was over: the charge stays if the request went on."""
        question: Question = ask.owner
        if question.decided is False:
            for part, entries in question.parts:
                if part is ask:
                    self._returns.give_back(ask, entries)

    # -- without the store -------------------------------------------------------------

    def _fall_back(self, question: Question, now: float) -> Charge | Refuse:
        """Decide as the operator chose for a store that does not answer."""
        self._tally.unanswered(question)
        source, given, refusal = without_store(question, now, self._draw(), self._store.budget)
        self._decisions[source] += 1
        question.decided = refusal is None
        if refusal is None:
            return Charge(tuple(quota for _, quota in given), source, (question, given))
        self._returns.undo(question)
        return refusal

    # -- afterwards --------------------------------------------------------------------

    def refund(self, charge: Charge) -> None:
        """Give back in the background; see `SharedRates.refund`."""
        receipt = charge.receipt
        if isinstance(receipt, Question):
            self._returns.undo(receipt)
        elif charge.source == "lease":
            lease, units, spent_at = receipt
            lease.unspend(units, spent_at, time.monotonic())
        elif receipt is not None:
            question, given = receipt
            take_back(given, self._clock())
            self._returns.undo(question)

    def settle(self, charge: Charge, outcome: Outcome, status: int | None) -> None:
        """Charge the rates that wait for the outcome; see `SharedRates.settle`."""
        receipt = charge.receipt
        question = receipt if isinstance(receipt, Question) else receipt and receipt[0]
        if isinstance(question, Question):
            self._returns.settle(question, outcome, status, self._clock())

    def _next_id(self) -> str:
        self._number += 1
        return f"{self._id}{self._number:x}"

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
            reply = await connection.call(self._nodes_script, [self._keys.nodes], self._id.encode())
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
