"""What is one question to the store, from being asked to being answered, or not?"""

from __future__ import annotations

from asyncio import Future, get_running_loop
from collections.abc import Callable, Sequence
from typing import Any, Final

import anyio

# What `decide.lua` is asked to do.
CHARGE: Final = 1
GIVE_BACK: Final = 2
TAKE: Final = 3
LEASE: Final = 4

# What it answers.
REFUSED: Final = 0
DONE: Final = 1
STALE: Final = 2
WRONG_TYPE: Final = 3


class Ask:
    """One request to the script. The caller waits for it at most until `deadline`.

    Attributes:
        op: What to do.
        id: Unique to the request; names what it writes into logs.
        keys: One for each item.
        items: What the script needs to know for each key.
        deadline: Monotonic seconds; executed later it does nothing.
        answer: What the store said, None while it has not.
        server_us: The server's clock when it said so, microseconds.
        over: The wait is over, with or without an answer.
        trouble: Why there is no answer.
        tries: How often it was sent again because it certainly had not been done.
        owner: Whatever asked.
        on_late: Called with the ask when an answer comes after the wait was over.
        on_over: Called with the ask when the wait is over.
    """

    __slots__ = (
        "_event", "_futures", "answer", "deadline", "id", "items", "keys", "on_late", "on_over",
        "op", "over",
        "owner", "server_us", "tries", "trouble",
    )  # fmt: skip

    def __init__(
        self,
        op: int,
        id: str,
        keys: Sequence[bytes],
        items: Sequence[Sequence[int]],
        deadline: float,
        owner: Any = None,
        on_late: Callable[[Ask], None] | None = None,
        on_over: Callable[[Ask], None] | None = None,
    ) -> None:
        self.op = op
        self.id = id
        self.keys = keys
        self.items = items
        self.deadline = deadline
        self.answer: list[int] | None = None
        self.server_us = 0
        self.over = False
        self.trouble = ""
        self.tries = 0
        self.owner: Any = owner
        self.on_late = on_late
        self.on_over = on_over
        self._futures: tuple[Future[None], ...] = ()
        self._event: anyio.Event | None = None

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
        for future in self._futures:
            if not future.done():
                future.set_result(None)
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        """Until the wait is over; the link sees to it that it ends in time."""
        if self.over:
            return
        try:
            # A bare future takes a third of the time of an event. One for each who waits: whoever
            # is cancelled cancels its own.
            future: Future[None] = get_running_loop().create_future()
        except RuntimeError:
            if self._event is None:
                self._event = anyio.Event()
            await self._event.wait()
        else:
            self._futures += (future,)
            await future
