"""What is one request's question to its shared rates, and how are the answers read?"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadgate.decisions import Quota, Reason, Refuse, Stage
from loadgate.integrations.redis.ask import Ask, Setting
from loadgate.integrations.redis.leases import Lease
from loadgate.integrations.redis.shares import Share
from loadgate.rates.group import NOBODY, Client
from loadgate.rates.table import Key, SharedBucket

# The rate, who is counted, where, and what is asked.
Entry = tuple[Share, Key, bytes, Setting]

# The rate, who is counted, the lease, and the cost in units.
Leased = tuple[Share, Key, Lease, int]


class Question(msgspec.Struct, eq=False):
    """One request's shared rates, while the store is being asked.

    Attributes:
        entries: The rates that apply.
        local: Rates that are decided in memory, and what they need of their leases.
        cost: In cost units.
        asked: Our monotonic seconds.
        now: The same moment by the controller's clock.
        parts: What is asked; one, or one for each slot of a cluster.
        decided: What the caller was told meanwhile: True if the request went on.
        spent: Whether the leases have been charged.
        spent_at: When.
    """

    entries: list[Entry]
    local: list[Leased]
    cost: float
    asked: float
    now: float
    parts: list[tuple[Ask, list[Entry]]] = []
    decided: bool | None = None
    spent: bool = False
    spent_at: float = 0.0


def applying(
    shares: Sequence[Share], client: Client, cost: float
) -> tuple[list[Entry], list[Leased]] | Refuse:
    """The rates that apply to a request: those to ask about, and those decided in memory.

    Returns:
        Them, or the refusal of one whose key the client does not tell.

    Raises:
        TypeError: The client has the wrong type.
        ValueError: The cost means nothing.
    """
    entries: list[Entry] = []
    local: list[Leased] = []
    for share in shares:
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
    return entries, local


def by_subject(entries: list[Entry]) -> list[list[Entry]]:
    """The rates of each subject: their keys share a slot of a cluster."""
    by_tag: dict[bytes, list[Entry]] = {}
    for entry in entries:
        by_tag.setdefault(entry[2].partition(b"}")[0], []).append(entry)
    return list(by_tag.values())


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
        subject if type(subject) is str or not isinstance(subject, SharedBucket) else "",
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
