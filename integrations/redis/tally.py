"""What has the store decided, what went wrong, and who has been told?"""

from __future__ import annotations

import time
from typing import Final

from loadgate.integrations.redis.ask import WRONG_TYPE
from loadgate.integrations.redis.incidents import Incidents
from loadgate.integrations.redis.question import Question
from loadgate.integrations.redis.shares import Share
from loadgate.telemetry import Histogram

# Round trips: from a Unix socket to a budget of a second.
_EDGES: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)

_SOURCES: Final = ("store", "cache", "lease", "emergency", "open", "closed", "none")
_TROUBLES: Final = (
    "timeout", "lost", "failed", "stale", "moving", "open", "saturated", "closed", "wrong_type",
)  # fmt: skip

# Keys written into the log in the life of a process: the first ones tell the cause.
_TOLD: Final = 100


class Tally:
    """The counters of one store; `StoreStats` says what they mean.

    Args:
        endpoint: Where the store is, without credentials.
    """

    __slots__ = (
        "_before", "_incidents", "_told", "decisions", "forgotten", "given_back", "troubles",
        "wait",
    )  # fmt: skip

    def __init__(self, endpoint: str) -> None:
        self.decisions: dict[str, int] = dict.fromkeys(_SOURCES, 0)
        self.troubles: dict[str, int] = dict.fromkeys(_TROUBLES, 0)
        self.given_back = 0
        self.forgotten = 0
        self.wait = Histogram(_EDGES)
        self._before = dict(self.decisions)
        self._incidents = Incidents(endpoint)
        self._told: set[bytes] = set()

    def unanswered(self, question: Question) -> None:
        """A question whose rates must be decided without the store: why?"""
        for ask, entries in question.parts:
            if ask.answer is not None and ask.answer[0] == WRONG_TYPE:
                self._wrong_type(entries[0][0], entries[0][2])
                return
            if ask.answer is None:
                self.troubles[ask.trouble] += 1
                return
        if question.spent:
            return
        for share, subject, lease, _ in question.local:
            if lease.trouble == "wrong_type" and share.leases is not None:
                self._wrong_type(share, share.leases.key(subject))
                return
            if lease.trouble:
                self.troubles[lease.trouble] += 1
                return
        if question.local:
            self.troubles["timeout"] += 1  # answers, but never enough in time

    def _wrong_type(self, share: Share, key: bytes) -> None:
        self.troubles["wrong_type"] += 1
        if key not in self._told and len(self._told) < _TOLD:
            self._told.add(key)
            self._incidents.wrong_type(share.rate.name, key)

    def lost(self, cause: str, shares: list[Share]) -> None:
        """The store went away: from now on these rates' policies decide."""
        self._before = dict(self.decisions)
        choices = sorted({share.on_failure for share in shares})
        self._incidents.lost(time.monotonic(), cause, ", ".join(choices))

    def found(self, seconds: float) -> None:
        """It is back after so many seconds."""
        since = {source: count - self._before[source] for source, count in self.decisions.items()}
        told = ", ".join(f"{count} {source}" for source, count in since.items() if count)
        self._incidents.found(seconds, told or "no decisions")
