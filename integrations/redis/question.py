"""What is one request's question to its shared rates, and how are the answers read?"""

from __future__ import annotations

from loadgate.decisions import Quota, Reason, Refuse, Stage
from loadgate.integrations.redis.ask import Ask
from loadgate.integrations.redis.leases import Lease
from loadgate.integrations.redis.shares import Item, Share
from loadgate.rates.table import Key, SharedBucket

Entry = tuple[Share, Key, bytes, Item]  # the rate, who is counted, where, what it is asked


# The rate, who is counted, the lease, and the cost in units.
Leased = tuple[Share, Key, Lease, int]


class Question:
    """One request's shared rates, while the store is being asked.

    Attributes:
        entries: The rates that apply.
        parts: What is asked; one, or one for each slot of a cluster.
        cost: In cost units.
        asked: Our monotonic seconds.
        decided: What the caller was told meanwhile: True if the request went on.
        local: Rates that are decided in memory, and what they need of their leases.
        spent: Whether their leases have been charged, if there are any.
        spent_at: When.
    """

    __slots__ = ("asked", "cost", "decided", "entries", "local", "parts", "spent", "spent_at")

    def __init__(
        self, entries: list[Entry], local: list[Leased], cost: float, asked: float
    ) -> None:
        self.entries = entries
        self.local = local
        self.spent = not local
        self.spent_at = asked
        self.parts: list[tuple[Ask, list[Entry]]] = []
        self.cost = cost
        self.asked = asked
        self.decided: bool | None = None


def quota_of(
    share: Share, subject: Key, cost: float, server_us: int, answer: list[int], position: int
) -> Quota:
    """What the script's answer says of the rate at `position`."""
    first = 1 + 4 * position
    allowed, remaining, reset, retry = answer[first : first + 4]
    rate = share.rate
    return Quota(
        allowed == 1,
        rate.burst,
        remaining / share.scale.unit,
        reset / 1e6,
        float("inf") if retry < 0 else retry / 1e6,
        "" if isinstance(subject, SharedBucket) else subject,
        cost,
        server_us / 1e6,
        rate.name,
    )


def refused(share: Share, quota: Quota) -> Refuse:
    """The refusal of one rate."""
    left = quota.remaining if quota.cost <= quota.limit else quota.limit
    return Refuse(
        Stage.RATE, Reason.RATE, quota.retry_after, quota.cost, left, share.rate.name, quota
    )
