"""How is a request cancelled when its answer is worthless?"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import anyio

from loadgate.decisions import Outcome
from loadgate.permit import Permit, outcome_of


class CancellingPermit(Permit, eq=False, gc=False, kw_only=True):
    """A permit whose block is cancelled when its timeout is over: the answer is worthless then.

    Attributes:
        scope: Around the block, from its place to its end.
    """

    scope: anyio.CancelScope | None = None

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        left = max(0.0, self.deadline - self.controller.clock())
        self.scope = anyio.CancelScope(deadline=anyio.current_time() + left)
        self.scope.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        scope, self.scope = self.scope, None
        assert scope is not None  # `async with` enters before it leaves
        try:
            scope.__exit__(kind, error, traceback)
        except BaseException as other:
            self.release(outcome_of(type(other)))
            raise
        if scope.cancelled_caught:
            # uvloop's timers come up to a millisecond early; the time is over all the same.
            self.deadline = min(self.deadline, self.started)
            self.release(Outcome.OVERLOAD)
            raise TimeoutError(f"not answered within {self.timeout:.15g} s, and cancelled")
        self.release(None if kind is None else outcome_of(kind))
