"""Which event loop owns this controller? Nothing in it is locked, so only one may use it."""

from __future__ import annotations

from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final

from loadgate.errors import UsageError

_NOBODY: Final = object()


def _never() -> bool:
    return False


class Owner:
    """The event loop that a controller belongs to, since it was used first.

    Args:
        name: How the controller is called.

    Attributes:
        loop: The asyncio loop; None on trio, and before the first use.
        thread: The thread that it runs in, 0 on trio and before the first use.
        runs: Whether the loop runs now. If it does, and this is its thread, then this is code
            of that loop: for that, and not for which loop runs, a hot path asks, because
            asyncio's own answer costs a system call.
    """

    __slots__ = ("_claimed", "_name", "_thread", "_token", "loop", "runs", "thread")

    def __init__(self, name: str) -> None:
        self._name = name
        self.free()

    def free(self) -> None:
        """Let the next one that asks have it."""
        self.loop: AbstractEventLoop | None = None
        self.thread = self._thread = 0
        self.runs: Callable[[], bool] = _never
        self._claimed: Any = _NOBODY  # the loop, or the token of a trio run

    def claim(self) -> None:
        """Make sure that the running loop is the owner; if there is none, it becomes that.

        Raises:
            UsageError: Another loop is, or none is running.
        """
        loop, here = running_loop(), get_ident()
        asks = loop if loop is not None else _trio_token()
        if asks is None:
            raise UsageError("an AdmissionController works inside a running event loop")
        if self._claimed is _NOBODY:
            self._claimed = asks
        elif self._claimed is not asks:
            raise UsageError(
                f"AdmissionController {self._name!r} belongs to another event loop or thread; "
                "make one controller for each event loop, or leave `async with controller` "
                "in the first before using it in a second"
            )
        self._thread = here
        if loop is not None:
            self.loop, self.thread, self.runs = loop, here, loop.is_running

    def check_thread(self) -> None:
        """Make sure that this is the owner's thread, where its loop may but need not run.

        Raises:
            UsageError: It is another.
        """
        if get_ident() != self._thread and self._claimed is not _NOBODY:
            self.claim()


def running_loop() -> AbstractEventLoop | None:
    """The asyncio loop that runs here."""
    try:
        return get_running_loop()
    except RuntimeError:
        return None


def _trio_token() -> Any:
    """The token of the running trio, None if trio does not run in this thread."""
    try:
        import trio

        return trio.lowlevel.current_trio_token()
    except (ImportError, RuntimeError):
        return None
