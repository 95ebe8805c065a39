"""Who was refused just now, and for how long is that certain?

"Nothing left until x" stays true until x: only a refund or a new limit can make it wrong, and
then only towards refusing. So a client that hammers on costs the store nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from loadgate.decisions import Quota, Refuse
from loadgate.integrations.redis.question import Entry, refused
from loadgate.integrations.redis.shares import Share

# Seconds that a refusal is believed at most, so that a key removed by hand counts soon.
_LONGEST: Final = 1.0
# Refusals remembered; the oldest goes. 4096 entries are about a megabyte.
_MOST: Final = 4096


class Denied:
    """Refusals of the last second, by key of the store.

    Attributes:
        known: Those that are remembered; whoever finds none there need not `look`.
    """

    __slots__ = ("known",)

    def __init__(self) -> None:
        self.known: dict[bytes, tuple[float, float, float, Quota]] = {}

    def note(self, key: bytes, asked: float, cost: float, quota: Quota) -> None:
        """The store refused `cost`, in answer to a question that was `asked` then."""
        retry_after = min(quota.retry_after, 1e9)
        known = self.known
        known.pop(key, None)
        if len(known) >= _MOST:
            del known[next(iter(known))]
        # Counted from the question, not the answer: the end may come too early, never too late.
        known[key] = (asked + min(retry_after, _LONGEST), asked + retry_after, cost, quota)

    def look(self, key: bytes, now: float, cost: float) -> tuple[float, Quota] | None:
        """Seconds still to wait and what the store answered, if that still holds for `cost`."""
        found = self.known.get(key)
        if found is None:
            return None
        until, free, least, quota = found
        if now >= until:
            del self.known[key]
            return None
        return (free - now, quota) if cost >= least else None

    def refusal(self, entries: Sequence[Entry], cost: float, asked: float) -> Refuse | None:
        """The refusal of a request one of whose rates certainly has not enough; counts it."""
        worst: tuple[float, Share, Quota] | None = None
        for share, _, key, _ in entries:
            if share.rate.mode == "observe":
                continue
            found = self.look(key, asked, cost)
            if found is not None and (worst is None or found[0] > worst[0]):
                worst = (found[0], share, found[1])
        if worst is None:
            return None
        retry_after, share, quota = worst
        share.member.refused += 1
        reset_after = max(retry_after, quota.reset_after - (quota.retry_after - retry_after))
        quota = msgspec.structs.replace(
            quota, cost=cost, retry_after=retry_after, reset_after=reset_after
        )
        return refused(share, quota)

    def forget(self, key: bytes) -> None:
        """Something was given back."""
        self.known.pop(key, None)
