"""What happens to a request while the store does not answer? What the operator chose."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from loadgate.decisions import Quota, Reason, Refuse, Stage
from loadgate.integrations.redis.question import Question, refused
from loadgate.integrations.redis.shares import Share
from loadgate.rates.spec import Rate

# Seconds after which a client that was refused for want of a store may ask again, up to twice
# as long: by then the breaker has tried several times.
RETRY: Final = 1.0

Given = list[tuple[Share, Quota]]


def without_store(
    question: Question, now: float, draw: float, budget: float
) -> tuple[str, Given, Refuse | None]:
    """Decide by each rate's failure policy: all are charged, or none.

    Args:
        question: What could not be asked.
        now: The controller's monotonic seconds.
        draw: A number in [0, 1).
        budget: Seconds the store had, for the explanation.

    Returns:
        Who decided (`emergency`, `open` or `closed`), what was charged locally, and the refusal.
    """
    given: Given = []
    source = "open"
    missing = [(entry[0], entry[1]) for entry in question.entries]
    if question.local and not question.spent:
        missing += [(leased[0], leased[1]) for leased in question.local]
    refusal: Refuse | None = None
    for share, subject in missing:
        if share.rate.mode == "observe" or share.on_failure == "open":
            continue
        if share.on_failure == "closed":
            source = "closed"
            share.member.refused += 1
            refusal = Refuse(
                Stage.RATE,
                Reason.STORE_UNAVAILABLE,
                RETRY * (1.0 + draw),
                time.monotonic() - question.asked,
                budget,
                share.rate.name,
            )
            break
        source = "emergency"
        share.tell(now)
        quota = share.member.ask(subject, now, question.cost)
        if not quota.allowed:
            refusal = refused(share, _possible(quota, share.rate))
            break
        given.append((share, quota))
    if refusal is not None:
        take_back(given, now)
        given = []
    return source, given, refusal


def take_back(given: Given, now: float) -> None:
    """The request was turned away: undo what was charged locally."""
    for share, quota in reversed(given):
        share.member.undo(quota, now)


def _possible(quota: Quota, rate: Rate) -> Quota:
    """In an emergency a cost may be above this process' part: that is not for ever."""
    if quota.retry_after == float("inf") and quota.cost <= rate.burst:
        return msgspec.structs.replace(quota, retry_after=RETRY)
    return quota
