"""Who is told how a link to the store fares, and what has it done so far?"""

from __future__ import annotations

from typing import Protocol

from loadgate.integrations.redis.transport import Connection


class Watcher(Protocol):
    """Who is told how the link fares."""

    def lost(self, cause: str) -> None:
        """The breaker has opened."""

    def found(self, seconds: float) -> None:
        """It has closed after so many seconds."""

    async def beat(self, connection: Connection) -> float:
        """Do what must be done now and then on a working connection; seconds until the next."""
        ...


class Counts:
    """What the link has done so far.

    Attributes:
        calls: Calls of the script.
        asked: Requests in them.
        expired: Requests whose caller stopped waiting.
        stale: Requests that the server saw too late, so did nothing.
        late: Answers that came after their caller had stopped waiting.
        failed: Requests in calls that failed or were lost.
        saturated: Requests that found the queue full.
        connections: Connections that came up.
        stalls: Times when our own event loop was late and the store was not blamed.
    """

    __slots__ = (
        "asked", "calls", "connections", "expired", "failed", "late", "saturated", "stale",
        "stalls",
    )  # fmt: skip

    def __init__(self) -> None:
        self.calls = self.asked = self.expired = self.stale = self.late = 0
        self.failed = self.saturated = self.connections = self.stalls = 0
