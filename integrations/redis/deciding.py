"""What do the shared rates answer to a request? Strictly, for all processes together, or by policy.

Every question ends within the budget: with the store's answer, or with what the operator chose
for its absence. What was charged for a request that is turned away is given back in the
background, by the receipt of its charge.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from loadgate.decisions import Outcome, Quota, Refuse
from loadgate.integrations.redis.absence import take_back, without_store
from loadgate.integrations.redis.ask import CHARGE, CHARGE_ONE, DONE, WRONG_TYPE, Ask
from loadgate.integrations.redis.denied import Denied
from loadgate.integrations.redis.link import Link
from loadgate.integrations.redis.portfolio import Portfolio
from loadgate.integrations.redis.question import Question, applying, by_subject, quota_of, refused
from loadgate.integrations.redis.returns import Returns
from loadgate.integrations.redis.shares import LOOK, Share
from loadgate.integrations.redis.single import Single
from loadgate.integrations.redis.spending import (
    gather,
    lease_more,
    not_yet,
    nothing_left,
    spend,
    unspend,
)
from loadgate.integrations.redis.tally import Tally
from loadgate.rates.group import Client
from loadgate.rates.table import Key
from loadgate.shared import Charge

# The answer to a request that no shared rate concerns, or that has gone.
NOTHING: Final = Charge((), "none", None)


class Deciding:
    """Asks the store for one controller, and reads its answers.

    Args:
        rates: The shared rates.
        link: The way to the store; its budget bounds every wait.
        tally: Counts.
        process: The id of this process.
        split: Whether the keys of a request may lie on several servers.
        clock: The controller's monotonic seconds.
        draw: Numbers in [0, 1).
    """

    __slots__ = (
        "_budget", "_clock", "_decisions", "_denied", "_draw", "_link", "_monotonic", "_number",
        "_on_late", "_process", "_rates", "_refused", "_returns", "_split", "_tally", "_waits",
    )  # fmt: skip

    def __init__(
        self,
        rates: Portfolio,
        link: Link,
        tally: Tally,
        process: str,
        *,
        split: bool,
        clock: Callable[[], float],
        draw: Callable[[], float],
    ) -> None:
        self._rates = rates
        self._link = link
        self._tally = tally
        self._waits = tally.wait
        self._budget = link.budget
        self._decisions = tally.decisions
        self._process = process
        self._split = split
        self._clock = clock
        self._draw = draw
        self._monotonic = clock is time.monotonic
        self._denied = Denied()
        self._refused = self._denied.known
        self._on_late = self._late
        self._number = 0
        self._returns = Returns(link, self._denied, tally, self._next_id)

    def ask(self, client: Client, cost: float, now: float) -> Charge | Refuse | Single | Question:
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
        plain = self._rates.plain
        if plain is not None and type(client) is str:
            key = plain.known.get(client) or plain.key(client)
            if not self._refused or self._denied.look(key, asked, cost) is None:
                single = Single(
                    CHARGE_ONE,
                    (key,),
                    (plain.told if cost == plain.told_cost else plain.item(cost),),
                    asked + self._budget,
                    on_late=self._on_late,
                    share=plain,
                    subject=client,
                    cost=cost,
                    asked=asked,
                    now=now,
                )
                if self._link.submit(single):
                    return single
                single.give_up(single.trouble)
                return self._fall_back(single.question(), now)
        found = applying(self._rates.active, client, cost)
        if isinstance(found, Refuse):
            return found
        entries, local = found
        if not entries and not local:
            self._decisions["none"] += 1
            return NOTHING
        if entries and self._refused:
            refusal = self._denied.refusal(entries, cost, asked)
            if refusal is not None:
                self._decisions["cache"] += 1
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
        deadline = question.asked + self._budget
        if len(question.entries) == 1:
            share, _, key, setting = question.entries[0]
            if not share.log:
                ask = Ask(CHARGE_ONE, (key,), (setting,), deadline, question)
                ask.on_late = self._on_late
                question.parts.append((ask, question.entries))
                if not self._link.submit(ask):
                    ask.give_up(ask.trouble)
                return
        # In a cluster those of each subject, for they may lie on several nodes.
        parts = by_subject(question.entries) if self._split else [question.entries]
        for entries in parts:
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

    async def answer(self, question: Single | Question) -> Charge | Refuse:
        """The decision that `ask` could not give at once; see `SharedRates.answer`."""
        if isinstance(question, Single):
            if not question.over:
                await question.wait()
            self._waits.add(time.monotonic() - question.asked)
            answer = question.answer
            if answer is None or answer[0] != DONE or question.owner or question.decided:
                return self._read(question.question())
            # `quota_of` written out: in the common case every object is a percent of a decision.
            question.decided = True
            self._decisions["store"] += 1
            share, cost, rate = question.share, question.cost, question.share.rate
            share.member.allowed += 1
            share.used(question.subject, cost, question.now)
            return Charge(
                (
                    Quota(
                        True,
                        rate.burst,
                        answer[2] / share.scale.unit,
                        answer[3] / 1e6,
                        0.0,
                        question.subject,
                        cost,
                        question.server_us / 1e6,
                        rate.name,
                    ),
                ),
                "store",
                question,
            )
        if question.local and not question.spent:
            refusal = await gather(question, self._budget)
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
        self._waits.add(time.monotonic() - question.asked)
        return self._read(question)

    def _read(self, question: Question) -> Charge | Refuse:
        """The wait is over: the store's answer, or what its absence means."""
        if question.decided is not None:
            return NOTHING  # abandoned meanwhile
        for ask, _ in question.parts:
            # Looked at again: the answer may have come in the turn in which the wait ended.
            if ask.answer is None or ask.answer[0] == WRONG_TYPE:
                return self._fall_back(question, self._clock())
        return self._decide(question)

    def _decide(self, question: Question) -> Charge | Refuse:
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

    def hurry(self, pending: Single | Question) -> Charge | Refuse:
        """The decision without waiting for the store; see `SharedRates.hurry`."""
        question = _whole(pending)
        now = time.monotonic()
        lacking = spend(question, now) if question.local and not question.spent else None
        if lacking is not None:
            question.decided = False
            self._decisions["lease"] += 1
            return not_yet(lacking, question, now, self._budget)
        if not question.entries:
            return self._decide(question)
        for ask, _ in question.parts:  # there was no room for another lease
            ask.give_up("timeout")
        return self._fall_back(question, self._clock())

    def abandon(self, pending: Single | Question) -> None:
        """Nobody waits any more; what was charged, or still is, goes back."""
        question = _whole(pending)
        if question.decided is None:
            for ask, _ in question.parts:
                ask.give_up("closed")
            self._returns.undo(question)

    def _late(self, ask: Ask) -> None:
        """An answer came after the wait was over: the charge stays if the request went on."""
        question: Question | None = ask.owner
        if question is not None and question.decided is False:
            for part, entries in question.parts:
                if part is ask:
                    self._returns.give_back(ask, entries)

    # -- without the store -------------------------------------------------------------

    def _fall_back(self, question: Question, now: float) -> Charge | Refuse:
        """Decide as the operator chose for a store that does not answer."""
        self._tally.unanswered(question)
        source, given, refusal = without_store(question, now, self._draw(), self._budget)
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
        if isinstance(receipt, Single | Question):
            self._returns.undo(_whole(receipt))
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
        if isinstance(receipt, Single):
            return  # a plain rate was charged on arrival
        question = receipt if isinstance(receipt, Question) else receipt and receipt[0]
        if isinstance(question, Question):
            self._returns.settle(question, outcome, status, self._clock())

    def _next_id(self) -> str:
        self._number += 1
        return f"{self._process}{self._number:x}"


def _whole(pending: Single | Question) -> Question:
    """The question with all that the uncommon ways need."""
    return pending if isinstance(pending, Question) else pending.question()
