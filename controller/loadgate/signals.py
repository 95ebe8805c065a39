"""How late is the event loop? A tick that should come every 5 ms, and its age.

The age of the last tick is the saturation signal of an async process: handlers that burn CPU
never show up in an in-flight count, but while they run no tick comes (LinkedIn's Hodor calls
the same thing a heartbeat). The watch costs one timer while something runs or waits, and
nothing at all otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

# Seconds between ticks. A stall shows at entry as soon as the tick is overdue, so this only
# has to be small beside `max_lag` (0.1 s); 200 timers a second cost well under 1 % of a core.
TICK: Final = 0.005

# Seconds a tick must be late for the loop to count as having stood still. Below it lies
# ordinary scheduling: one busy turn of the loop.
STALL: Final = 0.05


_NEVER: Final = float("-inf")


class _OnLoop:
    """Something that is called by the loop: a handle of asyncio, or the scope of a task of trio."""

    __slots__ = ("_handle", "_scope")

    def __init__(self) -> None:
        self._handle: asyncio.Handle | None = None
        self._scope: Any = None

    def _drop(self) -> None:
        """Be called no more, at once."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._scope is not None:
            with suppress(RuntimeError):  # the run it belonged to is over
                self._scope.cancel()
            self._scope = None


class LoopWatch(_OnLoop):
    """Ticks on the running loop as long as there is something to watch.

    Args:
        clock: Monotonic seconds.
        busy: Whether anything runs or waits; when not, the watch stops.
        on_stall: Called with `(now, duration)` after the loop stood still.
        on_tick: Called with `(now, lag)` at every tick; `lag` is how late it came.

    Attributes:
        last: When the last tick came; minus infinity while not `running`, so that one
            comparison at entry asks both questions.
        running: Whether the watch ticks.
    """

    __slots__ = (
        "_busy", "_clock", "_on_stall", "_on_tick", "_starter", "last", "running",
    )  # fmt: skip

    def __init__(
        self,
        clock: Callable[[], float],
        busy: Callable[[], bool],
        on_stall: Callable[[float, float], None],
        on_tick: Callable[[float, float], None],
    ) -> None:
        super().__init__()
        self._clock = clock
        self._busy = busy
        self._on_stall = on_stall
        self._on_tick = on_tick
        self._starter: Any = None
        self.last = _NEVER
        self.running = False

    def start(self, loop: asyncio.AbstractEventLoop | None, now: float) -> None:
        """Begin to tick; `loop` is None on trio. Starting twice is harmless."""
        if self.running:
            return
        self.running = True
        self.last = now
        self._starter = _current_task(loop)
        if loop is None:
            import trio

            self._scope = trio.CancelScope()
            trio.lowlevel.spawn_system_task(
                self._run_on_trio, self._scope, name="loadgate loop watch"
            )
        else:
            self._handle = loop.call_later(TICK, self._tick_on_asyncio, loop)

    def stop(self) -> None:
        """Stop ticking, at once."""
        self._end()
        self._drop()

    def started_here(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Whether the running task started the watch and has not let the loop turn since.

        Such a task is itself what keeps the loop from ticking: it admits in a row without
        ever awaiting, as a batch job or a benchmark does. Refusing it would protect nobody.
        """
        return self._starter is not None and self._starter is _current_task(loop)

    def lag(self, now: float) -> float:
        """Age of the last tick beyond the one that is due, seconds; 0.0 when stopped."""
        return max(0.0, now - self.last - TICK) if self.running else 0.0

    def _end(self) -> None:
        self.running = False
        self.last = _NEVER
        self._starter = None

    def _tick(self) -> bool:
        now = self._clock()
        self._starter = None
        late = now - self.last - TICK
        self.last = now
        if late >= STALL:
            self._on_stall(now, late)
        self._on_tick(now, max(0.0, late))
        return self.running and self._busy()

    def _tick_on_asyncio(self, loop: asyncio.AbstractEventLoop) -> None:
        goes_on = False
        try:
            goes_on = self._tick()
        finally:
            # A limit of the user's own may raise; the next request then starts it anew.
            if goes_on:
                self._handle = loop.call_later(TICK, self._tick_on_asyncio, loop)
            else:
                self._end()
                self._handle = None

    async def _run_on_trio(self, scope: Any) -> None:
        import trio

        with scope:
            while True:
                await trio.sleep(TICK)
                if not self._tick():
                    break
        if self._scope is scope:
            self._scope = None
            self._end()


class LoopTurns(_OnLoop):
    """Tells of each turn of the running loop for as long as somebody wants to hear.

    Args:
        on_turn: Called once in each turn; answers whether to be called in the next.
    """

    __slots__ = ("_on_turn", "_told")

    def __init__(self, on_turn: Callable[[], bool]) -> None:
        super().__init__()
        self._on_turn = on_turn
        self._told = False

    def start(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Begin with the next turn; `loop` is None on trio. Starting twice is harmless."""
        if self._told:
            return
        self._told = True
        if loop is None:
            import trio

            self._scope = trio.CancelScope()
            trio.lowlevel.spawn_system_task(
                self._run_on_trio, self._scope, name="loadgate loop turns"
            )
        else:
            self._handle = loop.call_soon(self._turn_on_asyncio, loop)

    def stop(self) -> None:
        """Tell of no more turns, at once."""
        self._told = False
        self._drop()

    def _turn_on_asyncio(self, loop: asyncio.AbstractEventLoop) -> None:
        goes_on = True  # also when it raises, as a limit of the user's own may: somebody waits
        try:
            goes_on = self._on_turn()
        finally:
            if goes_on:
                self._handle = loop.call_soon(self._turn_on_asyncio, loop)
            else:
                self._told = False
                self._handle = None

    async def _run_on_trio(self, scope: Any) -> None:
        import trio

        with scope:
            while True:
                await trio.lowlevel.checkpoint()
                if not self._on_turn():
                    break
        if self._scope is scope:
            self._scope = None
            self._told = False


def _current_task(loop: asyncio.AbstractEventLoop | None) -> Any:
    if loop is not None:
        return asyncio.current_task(loop)
    import trio

    return trio.lowlevel.current_task()
