"""Who stands at the door for how long? One timer for any number of connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from loadgate.integrations.door import LINGER, Door

# Bytes that a connection may send while it closes.
MAX_LINGER: Final = 256 * 1024

# Connections that may stand at the door without having sent a whole head; beyond that the oldest
# is dropped. Descriptors are scarcer than memory: 1,024 is the usual bound of a process.
_MAX_HELD: Final = 512


class Timeouts:
    """Closes what stands still: one timer for any number of connections with the same patience.

    Args:
        patience: Seconds after which `expire` is called.
        expire: What to do with one whose time is up.
    """

    __slots__ = ("_expire", "_patience", "_timer", "_until")

    def __init__(self, patience: float, expire: Callable[[Any], None]) -> None:
        self._patience = patience
        self._expire = expire
        self._until: dict[Any, float] = {}  # in the order of their times
        self._timer: asyncio.TimerHandle | None = None

    def add(self, one: Any) -> None:
        """Start its time."""
        loop = asyncio.get_running_loop()
        self._until[one] = loop.time() + self._patience
        if self._timer is None:
            self._timer = loop.call_later(self._patience, self._sweep, loop)

    def discard(self, one: Any) -> None:
        """It need not be watched any more."""
        self._until.pop(one, None)

    def drop_oldest_above(self, most: int) -> None:
        """Expire the oldest at once if there are more than `most`."""
        if len(self._until) > most:
            self._end(next(iter(self._until)))

    def stop(self) -> None:
        """Expire all of them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for one in list(self._until):
            self._end(one)

    def _end(self, one: Any) -> None:
        del self._until[one]
        self._expire(one)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        for one, until in list(self._until.items()):
            if until > now:
                self._timer = loop.call_at(until, self._sweep, loop)
                return
            self._end(one)


class Doorman:
    """The timers that the connections of one listening socket share.

    Args:
        door: Whom they ask.
        patience: Seconds until a connection must have sent a whole head.
    """

    def __init__(self, door: Door, patience: float) -> None:
        self.door = door
        self.held = Timeouts(patience, self._expire)
        self.lingering = Timeouts(LINGER, lambda one: one.abort())

    def hold(self, one: Any) -> None:
        """A connection has not sent a whole head yet."""
        self.held.add(one)
        self.held.drop_oldest_above(_MAX_HELD)

    def stop(self) -> None:
        """Close whoever stands at the door."""
        self.held.stop()
        self.lingering.stop()

    def _expire(self, one: Any) -> None:
        self.door.expired += 1
        one.abort()
