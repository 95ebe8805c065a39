"""Do the leases of a request's rates have enough, and if not, will the store give more?"""

from __future__ import annotations

import math
import time

import msgspec

from loadgate.decisions import Refuse
from loadgate.integrations.redis.ask import Ask
from loadgate.integrations.redis.question import Leased, Question, refused


def spend(question: Question, now: float) -> Leased | None:
    """Charge all leases of a question, or none.

    Returns:
        The first that has not enough.
    """
    for position, leased in enumerate(question.local):
        if not leased[2].spend(leased[3], now):
            for _, _, lease, units in question.local[:position]:
                lease.unspend(units, now, now)
            return leased
    question.spent = True
    question.spent_at = now
    for share, subject, lease, _ in question.local:
        if lease.due(now) and share.leases is not None:
            share.leases.ask(subject, lease, share.leases.unit)
    return None


def unspend(question: Question) -> None:
    """Return to the leases what the question took from them."""
    if question.local and question.spent:
        question.spent = False
        now = time.monotonic()
        for _, _, lease, units in question.local:
            lease.unspend(units, question.spent_at, now)


def nothing_left(lacking: Leased, question: Question, now: float) -> Refuse | None:
    """The refusal, if the store is known to have nothing left either."""
    share, subject, lease, units = lacking
    possible = units <= share.scale.c
    if possible and now >= lease.denied_until:
        return None
    assert share.leases is not None
    quota = share.leases.quota(subject, lease, question.cost, now, allowed=False)
    if not possible:
        quota = msgspec.structs.replace(quota, retry_after=math.inf)
    share.member.refused += 1
    return refused(share, quota)


def not_yet(lacking: Leased, question: Question, now: float, budget: float) -> Refuse:
    """The refusal of a request that cannot wait: in `budget` seconds the store has answered."""
    share, subject, lease, _ = lacking
    assert share.leases is not None
    quota = share.leases.quota(subject, lease, question.cost, now, allowed=False)
    share.member.refused += 1
    return refused(share, msgspec.structs.replace(quota, retry_after=budget))


def lease_more(lacking: Leased, now: float) -> Ask | None:
    """The question for more that is under way, or a new one; None without the store."""
    share, subject, lease, units = lacking
    if lease.flight is not None:
        flight: Ask = lease.flight
        return flight
    if share.leases is None or not lease.may_ask(now):
        return None
    return share.leases.ask(subject, lease, units)


async def gather(question: Question, budget: float) -> Refuse | None:
    """Wait until the leases have enough; if they never do, `question.spent` stays false.

    Every turn of the loop is a round trip, and the budget bounds them.
    """
    while (lacking := spend(question, time.monotonic())) is not None:
        now = time.monotonic()
        refusal = nothing_left(lacking, question, now)
        if refusal is not None or now >= question.asked + budget:
            return refusal
        _, _, lease, units = lacking
        # What the next question asks for covers everybody who waits.
        lease.wanted += units
        try:
            flight = lease_more(lacking, now)
            if flight is None:
                return None
            await flight.wait()
        finally:
            lease.wanted -= units
        if flight.answer is None:
            return None
    return None
