"""How does a process end that its app has ended from inside? Soon, with the app's code.

`sys.exit()` in a handler leaves the event loop at once, on asyncio past everything that would have
told threads to end; whoever comes next (the runner, the interpreter) waits for them for ever,
with all ports closed. Under Hypercorn's own command it stays like that.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import suppress
from queue import Full
from typing import Any, NoReturn

log = logging.getLogger("loadgate.serve")


def exit_in(error: BaseException) -> SystemExit | None:
    """The `SystemExit` that `error` is or, as trio's nurseries wrap it, holds; None if none."""
    if isinstance(error, SystemExit):
        return error
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # narrowed to BaseExceptionGroup[Unknown]
            found = exit_in(one)  # pyright: ignore[reportUnknownArgumentType]  # as above
            if found is not None:
                return found
    return None


def end_within(patience: float, ended: SystemExit) -> None:
    """See to it that the process is over in `patience` seconds, whoever waits for whom then."""
    clock = threading.Timer(patience, _drop, [ended.code])
    clock.daemon = True
    clock.start()


def leave(ended: SystemExit) -> NoReturn:
    """End the process as `ended` asks for; idle threads do not hold it up.

    Raises:
        SystemExit: `ended`.
    """
    log.error("the app has ended the process: %r", ended)
    for thread in threading.enumerate():
        if type(thread).__module__.startswith("anyio."):
            # It waits for work until the task that it belongs to tells it to stop: that is over.
            worker: Any = thread
            with suppress(Full):
                worker.stop()
    raise ended from None


def _drop(code: object) -> None:
    log.error("what did not end after the app had ended the process is dropped")
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)  # as the interpreter does
        code = 1
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit((code or 0) & 0xFF)
