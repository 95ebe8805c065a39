"""What is one question to the store, from being asked to being answered, or not?"""

from __future__ import annotations

from asyncio import Future, get_running_loop
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import anyio
import msgspec

# What `decide.lua` is asked to do.
CHARGE: Final = 1
GIVE_BACK: Final = 2
TAKE: Final = 3
LEASE: Final = 4
CHARGE_ONE: Final = 5

# What it answers.
REFUSED: Final = 0
DONE: Final = 1
STALE: Final = 2
WRONG_TYPE: Final = 3

# kind, flag, a, c, unit, k: one rate and a cost, as the script reads them
Setting = tuple[int, int, int, int, int, int]


class Ask(msgspec.Struct, eq=False):
    """One request to the script. The caller waits for it at most until `deadline`.

    A struct, because a decision makes one, and a plain class takes twice as long to make.

    Attributes:
        op: What to do.
        keys: One for each item.
        items: What the script needs to know for each key: settings, or what a lease asks for.
        deadline: Monotonic seconds; executed later it does nothing.
        owner: Whatever asked.
        id: Names what it writes into logs, and which process a lease is for.
        charged_at: Give back only: when it was charged, microseconds of the server's clock.
        on_late: Called with the ask when an answer comes after the wait was over.
        on_over: Called with the ask when the wait is over.
        answer: What the store said, None while it has not.
        server_us: The server's clock when it said so, microseconds.
        over: The wait is over, with or without an answer.
        trouble: Why there is no answer.
        tries: How often it was sent again because it certainly had not been done.
    """

    op: int
    keys: Sequence[bytes]
    items: Sequence[Sequence[int]]
    deadline: float
    owner: Any = None
    id: str = ""
    charged_at: int = 0
    on_late: Callable[[Ask], None] | None = None
    on_over: Callable[[Ask], None] | None = None
    answer: list[int] | None = None
    server_us: int = 0
    over: bool = False
    trouble: str = ""
    tries: int = 0
    _future: Future[None] | None = None
    _futures: tuple[Future[None], ...] = ()
    _event: anyio.Event | None = None

    def finish(self, answer: list[int], server_us: int) -> None:
        """The store has answered."""
        self.answer = answer
        self.server_us = server_us
        if not self.over:
            self._end()
            # The owner holds this; a cycle would be left to the garbage collector, which then
            # takes a third of the time of a decision.
            self.owner = None
        elif self.on_late is not None:
            self.on_late(self)

    def give_up(self, trouble: str) -> None:
        """There will be no answer, or none that anybody waits for."""
        if not self.over:
            self.trouble = trouble
            self._end()

    def _end(self) -> None:
        self.over = True
        if self.on_over is not None:
            self.on_over(self)
        future = self._future
        if future is not None:
            if not future.done():
                future.set_result(None)
            for future in self._futures:
                if not future.done():
                    future.set_result(None)
        elif self._event is not None:
            self._event.set()

    def wait(self) -> Awaitable[None]:
        """Awaited until the wait is over; the link sees to it that it ends in time.

        Only to be called before it is.
        """
        try:
            # A bare future takes a third of the time of an event. One for each who waits: whoever
            # is cancelled cancels its own.
            future: Future[None] = get_running_loop().create_future()
        except RuntimeError:
            if self._event is None:
                self._event = anyio.Event()
            return self._event.wait()
        if self._future is None:
            self._future = future
        else:
            self._futures += (future,)
        return future
