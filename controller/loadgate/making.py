"""How does a policy become an admission, and how does one go on under another policy?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from loadgate.accounts import Accounts, holders_for, reserves_for
from loadgate.admission import Admission
from loadgate.limits.base import Limit
from loadgate.limits.fixed import FixedLimit
from loadgate.policy import Concurrency, Policy, Queue
from loadgate.shedding.depth import DepthRule
from loadgate.shedding.fairness import FairShares, Key
from loadgate.shedding.laws import law
from loadgate.shedding.refused_share import RefusedShare
from loadgate.shedding.retry import RetryAfter
from loadgate.telemetry import Telemetry
from loadgate.ticket import Ticket
from loadgate.waiting import WaitingRoom

# `off`: no event loop holds this many requests, so the limit never binds.
_UNLIMITED: Final = 1_000_000


def make_admission(
    policy: Policy,
    telemetry: Telemetry,
    *,
    limit: Limit | None = None,
    draw: float = 0.0,
    digest: Callable[[Key], int] = hash,
) -> Admission:
    """The admission that enforces `policy`.

    Args:
        policy: What to enforce.
        telemetry: The counters to keep.
        limit: A limit to use instead of the policy's.
        draw: A number in [0, 1) where the spread of `Retry-After` begins.
        digest: The hash of clients (see `FairShares`); a simulation needs one that is the same
            in every process.
    """
    concurrency, queue = policy.concurrency, policy.queue
    admission = Admission(
        limit if limit is not None else _limit(concurrency),
        _depth(queue),
        WaitingRoom[Ticket](len(policy.priorities), queue.discipline),
        telemetry,
        observe=concurrency.mode == "observe",
        rule=law(queue.rule, queue.max_wait),
        accounts=Accounts(
            _fair_shares(queue, digest),
            queue.fair_by,
            reserves_for(policy.priorities, policy.reserve),
            holders_for(concurrency.max_share),
        ),
        retry=RetryAfter(draw),
    )
    admission.entrance.observe = queue.mode == "observe"
    admission.cap = _cap(queue)
    admission.long_lived.follow(*concurrency.pool())
    return admission


def remake_admission(admission: Admission, old: Policy, new: Policy, now: float) -> None:
    """Let `admission` go on under `new`: nobody who runs or waits is lost.

    What the limit has learned, what clients have used and who holds what survive; a limit of
    another kind starts where the old one stood. Whoever waits in a class that is gone goes on
    in the lowest.
    """
    limit = admission.limit
    if new.concurrency != old.concurrency:
        # A fixed limit is what is written down, and `off` has learned nothing.
        fresh = new.concurrency.algorithm == "fixed" or old.concurrency.mode == "off"
        limit = _limit(new.concurrency, None if fresh else admission.learned)
    if tuple(new.priorities) != tuple(old.priorities):
        lowest = len(new.priorities) - 1
        levels = {name: level for level, name in enumerate(new.priorities)}
        moved = [levels.get(name, lowest) for name in old.priorities]
        for ticket, level in admission.room.regroup(len(new.priorities), moved.__getitem__):
            ticket.level = level
    admission.room.follow(new.queue.discipline)
    accounts = admission.accounts
    table = (old.queue.fair_slots, old.queue.fair_hand, bool(old.queue.fair_by))
    if (new.queue.fair_slots, new.queue.fair_hand, bool(new.queue.fair_by)) != table:
        accounts.shares = _fair_shares(new.queue, hash)
    accounts.follow(
        new.queue.fair_by,
        reserves_for(new.priorities, new.reserve, accounts.reserves),
        holders_for(new.concurrency.max_share, accounts.holders),
    )
    admission.long_lived.follow(*new.concurrency.pool())
    same_rule = (new.queue.rule, new.queue.max_wait) == (old.queue.rule, old.queue.max_wait)
    admission.change(
        now,
        limit,
        _depth(new.queue),
        observe=new.concurrency.mode == "observe",
        rule=None if same_rule else law(new.queue.rule, new.queue.max_wait),
        observe_queue=new.queue.mode == "observe",
        cap=admission.cap if new.queue.max_refused == old.queue.max_refused else _cap(new.queue),
    )


def _limit(concurrency: Concurrency, initial: int | None = None) -> Limit:
    if concurrency.mode == "off":
        return FixedLimit(initial=_UNLIMITED, min=_UNLIMITED, max=_UNLIMITED)
    return concurrency.create(initial)


def _depth(queue: Queue) -> DepthRule:
    if queue.mode == "off":
        return DepthRule(0.0, 0, 0)
    return DepthRule(queue.max_wait, queue.max_queue, queue.max_depth)


def _fair_shares(queue: Queue, digest: Callable[[Key], int]) -> FairShares | None:
    if not queue.fair_by:
        return None
    return FairShares(queue.fair_slots, queue.fair_hand, digest=digest)


def _cap(queue: Queue) -> RefusedShare | None:
    return None if queue.max_refused is None else RefusedShare(queue.max_refused)
