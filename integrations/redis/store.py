"""What do the shared rates answer? Strictly, for all processes together, or by a failure policy.

Every question ends within the budget: with the store's answer, or with what the operator chose
for its absence. What was charged for a request that is turned away is given back in the
background, by the receipt of its charge.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from loadgate.decisions import Outcome, Quota, Reason, Refuse, Stage
from loadgate.errors import PolicyError
from loadgate.integrations.redis.absence import take_back, without_store
from loadgate.integrations.redis.ask import (
    CHARGE,
    CHARGE_ONE,
    DONE,
    GIVE_BACK,
    REFUSED,
    TAKE,
    WRONG_TYPE,
    Ask,
    Setting,
)
from loadgate.integrations.redis.coredis_transport import CoredisTransport
from loadgate.integrations.redis.denied import Denied
from loadgate.integrations.redis.incidents import Incidents
from loadgate.integrations.redis.keys import Keys
from loadgate.integrations.redis.link import Link
from loadgate.integrations.redis.local import Leases
from loadgate.integrations.redis.question import Entry, Leased, Question, quota_of, refused
from loadgate.integrations.redis.shares import ENFORCE, LOOK, OBSERVE, Share
from loadgate.integrations.redis.spending import (
    gather,
    lease_more,
    not_yet,
    nothing_left,
    spend,
    unspend,
)
from loadgate.integrations.redis.transport import Connection, Script, StoreError, Transport
from loadgate.integrations.redis.units import BUCKET
from loadgate.integrations.redis.url import parse
from loadgate.policy import Policy
from loadgate.rates.group import NOBODY, Client
from loadgate.rates.spec import Rate
from loadgate.rates.table import Key
from loadgate.shared import Charge, Store, StoreStats, resolve, secret_of
from loadgate.telemetry import Histogram

# Seconds in which a charge can still be given back: after that its client has lost interest.
_GIVE_BACK: Final = 2.0
# Seconds between two signs of life; `nodes.lua` forgets a process after five.
_BEAT: Final = 1.0
# Round trips: from a Unix socket to a budget of a second.
_EDGES: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)

# The answer to a request that no shared rate concerns, or that has gone.
NOTHING: Final = Charge((), "none", None)

_SOURCES: Final = ("store", "cache", "lease", "emergency", "open", "closed", "none")
_TROUBLES: Final = (
    "timeout", "lost", "failed", "stale", "open", "saturated", "closed", "wrong_type",
)  # fmt: skip


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
        self.nodes = 0
        self._shares: dict[str, Share] = {}
        self._active: list[Share] = []
        self._lone: Leases | None = None
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
        self._incidents = Incidents(transport.endpoint)
        self._denied = Denied()
        self._on_late = self._late
        self._id = os.urandom(8).hex()
        self._number = 0
        self._decisions: dict[str, int] = dict.fromkeys(_SOURCES, 0)
        self._troubles: dict[str, int] = dict.fromkeys(_TROUBLES, 0)
        self._before = dict(self._decisions)
        self._given_back = 0
        self._forgotten = 0
        self._told_type: set[bytes] = set()
        self._wait = Histogram(_EDGES)
        self.follow(policy, clock())

    # -- settings ----------------------------------------------------------------------

    def follow(self, policy: Policy, now: float) -> None:
        """Go on under the rates of another policy.

        Raises:
            PolicyError: The store itself is another, or a rate cannot be kept in it.
        """
        store = policy.store
        if not any(rate.shared for rate in policy.rates):
            self._shares, self._active = {}, []
            return
        if store is None or (store.url, store.secret, store.prefix, store.budget) != (
            self._store.url,
            self._store.secret,
            self._store.prefix,
            self._store.budget,
        ):
            raise PolicyError("store", "cannot change while the service runs; restart it")
        part = _part(store, self.nodes)
        shares: dict[str, Share] = {}
        for position, rate in enumerate(policy.rates):
            if rate.shared:
                try:
                    shares[rate.name] = self._share(rate, store, part, now)
                except PolicyError as error:
                    raise error.under(f"rates[{position}]") from None
        self._store = store
        self._shares = shares
        self._active = [share for share in shares.values() if share.rate.mode != "off"]
        # One plain rate and a client given as text is the common case: straight to its leases.
        self._lone = None
        if len(self._active) == 1:
            only = self._active[0]
            if only.rate.key == "client" and not (only.member.match or only.member.exempt):
                self._lone = only.leases

    def _share(self, rate: Rate, store: Store, part: float, now: float) -> Share:
        share = self._shares.get(rate.name)
        if share is None:
            share = Share(rate, self._keys, store.failure(rate.name), part)
        elif share.rate == rate:
            share.on_failure = store.failure(rate.name)
            return share
        else:
            if share.leases is not None:
                share.leases.leave(time.monotonic())
                share.member.allowed += share.leases.allowed
                self._decisions["lease"] += share.leases.allowed
                share.leases = None
            share.change(rate, self._keys, store.failure(rate.name), part, now)
        # Windows have no level that could be leased: they are decided strictly.
        if store.mode == "local" and share.scale.kind == BUCKET and share.flag == ENFORCE:
            share.leases = Leases(
                rate, share.scale, self._keys, store.lease, store.overdraft, self._link, self._id,
                lambda subject, cost: share.used(subject, cost, self._clock()),
            )  # fmt: skip
        return share

    def _count_nodes(self, nodes: int) -> None:
        if nodes != self.nodes:
            self.nodes = nodes
            part, now = _part(self._store, nodes), self._clock()
            for share in self._active:
                share.change(share.rate, self._keys, share.on_failure, part, now)

    # -- deciding ----------------------------------------------------------------------

    def ask(self, client: Client, cost: float, now: float) -> Charge | Refuse | Question:
        """Charge all shared rates that apply, or none; see `SharedRates.ask`."""
        asked = now if self._monotonic else time.monotonic()
        lone = self._lone
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
        for share in self._active:
            member = share.member
            subject = member.key_of(client)
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
        self._wait.add(time.monotonic() - question.asked)
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
            self._undo(question)
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
        return all(share.leases is not None for share in self._active)

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
            self._undo(question)

    def _late(self, ask: Ask) -> None:
        """An answer came after the wait was over: the charge stays if the request went on."""
        question: Question = ask.owner
        if question.decided is False:
            for part, entries in question.parts:
                if part is ask:
                    self._give_back(ask, entries)

    # -- without the store -------------------------------------------------------------

    def _fall_back(self, question: Question, now: float) -> Charge | Refuse:
        """Decide as the operator chose for a store that does not answer."""
        self._note_trouble(question)
        source, given, refusal = without_store(question, now, self._draw(), self._store.budget)
        self._decisions[source] += 1
        question.decided = refusal is None
        if refusal is None:
            return Charge(tuple(quota for _, quota in given), source, (question, given))
        self._undo(question)
        return refusal

    def _note_trouble(self, question: Question) -> None:
        for ask, entries in question.parts:
            if ask.answer is not None and ask.answer[0] == WRONG_TYPE:
                self._note_wrong_type(entries[0][0], entries[0][2])
                return
            if ask.answer is None:
                self._troubles[ask.trouble] += 1
                return
        if question.spent:
            return
        for share, subject, lease, _ in question.local:
            if lease.trouble == "wrong_type" and share.leases is not None:
                self._note_wrong_type(share, share.leases.key(subject))
                return
            if lease.trouble:
                self._troubles[lease.trouble] += 1
                return
        if question.local:
            self._troubles["timeout"] += 1  # answers, but never enough in time

    def _note_wrong_type(self, share: Share, key: bytes) -> None:
        self._troubles["wrong_type"] += 1
        if key not in self._told_type and len(self._told_type) < 100:
            self._told_type.add(key)
            self._incidents.wrong_type(share.rate.name, key)

    # -- afterwards --------------------------------------------------------------------

    def refund(self, charge: Charge) -> None:
        """Give back in the background; see `SharedRates.refund`."""
        receipt = charge.receipt
        if isinstance(receipt, Question):
            self._undo(receipt)
        elif charge.source == "lease":
            lease, units, spent_at = receipt
            lease.unspend(units, spent_at, time.monotonic())
        elif receipt is not None:
            question, given = receipt
            take_back(given, self._clock())
            self._undo(question)

    def _undo(self, question: Question) -> None:
        """The request does not go on: return what the store and the leases charged for it."""
        question.decided = False
        unspend(question)
        for ask, entries in question.parts:
            self._give_back(ask, entries)

    def _give_back(self, ask: Ask, entries: list[Entry]) -> None:
        """Undo one part, if it was charged."""
        answer = ask.answer
        if answer is None or answer[0] != DONE:
            return
        charged = [
            entry
            for position, entry in enumerate(entries)
            if entry[0].flag != LOOK and answer[1 + 4 * position]
        ]
        ask.answer = [REFUSED]  # a receipt counts once
        if not charged:
            return
        for _, _, key, _ in charged:
            self._denied.forget(key)
        self._send(
            GIVE_BACK,
            ask.id,
            [key for _, _, key, _ in charged],
            [setting for _, _, _, setting in charged],
            ask.server_us,
        )

    def _send(
        self,
        op: int,
        id: str,
        keys: Sequence[bytes],
        settings: Sequence[Setting],
        charged_at: int = 0,
    ) -> None:
        deadline = time.monotonic() + _GIVE_BACK
        ask = Ask(op, keys, settings, deadline, id=id, charged_at=charged_at)
        if self._link.submit(ask, waits=False):
            self._given_back += op == GIVE_BACK
        else:
            self._forgotten += 1

    def settle(self, charge: Charge, outcome: Outcome, status: int | None) -> None:
        """Charge the rates that wait for the outcome; see `SharedRates.settle`."""
        receipt = charge.receipt
        question = receipt if isinstance(receipt, Question) else receipt and receipt[0]
        if not isinstance(question, Question):
            return
        now = self._clock()
        for share, subject, key, item in question.entries:
            member = share.member
            if share.flag != LOOK:
                continue
            if outcome.value in member.outcomes or status in member.statuses:
                member.charged += 1
                member.limiter.take(subject, now, question.cost)
                self._send(TAKE, self._next_id(), [key], [item])

    def _next_id(self) -> str:
        self._number += 1
        return f"{self._id}{self._number:x}"

    # -- for the link ------------------------------------------------------------------

    def lost(self, cause: str) -> None:
        """The breaker has opened."""
        self._before = dict(self._decisions)
        choices = sorted({share.on_failure for share in self._active})
        self._incidents.lost(time.monotonic(), cause, ", ".join(choices))

    def found(self, seconds: float) -> None:
        """It has closed."""
        since = {source: count - self._before[source] for source, count in self._decisions.items()}
        told = ", ".join(f"{count} {source}" for source, count in since.items() if count)
        self._incidents.found(seconds, told or "no decisions")

    async def beat(self, connection: Connection) -> float:
        """Say that this process is there, and learn how many are."""
        now = time.monotonic()
        if now >= self._nodes_due:
            self._nodes_due = now + _BEAT
            reply = await connection.call(self._nodes_script, [self._keys.nodes], self._id.encode())
            if not reply.isdigit():
                raise StoreError("LOST", f"a number of processes that is none: {reply!r:.40}")
            self._count_nodes(int(reply))
        pause = _BEAT
        for share in self._active:
            if share.leases is not None:
                share.leases.sweep(now)
                pause = min(pause, share.leases.pause)
        return pause

    # -- life --------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect now rather than with the first request; see `SharedRates.open`."""
        trouble = await self._link.ready(2.0)
        if trouble and self._link.unusable:
            await self._link.close()
            raise PolicyError("store.url", f"the store cannot be used: {trouble}")

    async def close(self) -> None:
        """Send what is to be given back, and let go of the store."""
        for share in self._active:
            if share.leases is not None:
                share.leases.leave(time.monotonic())
        await self._link.close()

    def stats(self) -> StoreStats:
        """How the store fares."""
        link = self._link
        counts, breaker = link.counts, link.breaker
        return StoreStats(
            state=breaker.state,
            connected=link.connected,
            decisions={**self._decisions, "lease": self._decisions["lease"] + self._allowed()},
            troubles=dict(self._troubles),
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
            given_back=self._given_back,
            forgotten=self._forgotten,
            nodes=self.nodes,
            wait=self._wait.freeze(),
            rates={name: share.stats() for name, share in self._shares.items()},
        )

    def _allowed(self) -> int:
        """Decisions of the short way through the leases."""
        return sum(share.leases.allowed for share in self._active if share.leases is not None)


def _part(store: Store, nodes: int) -> float:
    return store.share if store.share is not None else 1.0 / max(1, nodes)
