"""How is a load run in a process of its own? The plan goes in as JSON, lines of JSON come out.

A generator that shares a process with anything else shares its stalls, and would report
them as latency of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from loadgate.integrations.loadgen.engine import Engine
from loadgate.integrations.loadgen.plan import Plan
from loadgate.integrations.loadgen.progress import Progress
from loadgate.integrations.loadgen.result import Result

# A result holds a row for each request: about 50 bytes of JSON, a million requests in a line.
LONGEST_LINE: Final = 2**28


class Finished(msgspec.Struct, frozen=True, tag="result"):
    """The last line: the result."""

    result: Result


class GeneratorError(RuntimeError):
    """The process of the generator ended without a result; the message holds its last words."""


def run(plan: Plan, report: Callable[[Progress], None] | None = None) -> Result:
    """Run a plan in this process, on uvloop where there is one.

    Raises:
        OSError: The host of the url is unknown.
    """
    _prepare(plan.core)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(Engine(plan, report).run())


async def run_elsewhere(plan: Plan, report: Callable[[Progress], None] | None = None) -> Result:
    """Run a plan in a process of its own and follow it from here.

    Cancelled, it ends the process.

    Raises:
        GeneratorError: The process ended without a result.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "loadgate.integrations.loadgen",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=LONGEST_LINE,
        env=environment(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    errors = asyncio.create_task(process.stderr.read())
    try:
        process.stdin.write(msgspec.json.encode(plan))
        process.stdin.close()
        async for line in process.stdout:
            try:
                message = msgspec.json.decode(line, type=Progress | Finished)
            except msgspec.DecodeError:
                break  # it was killed in the middle of a line, or printed something else
            if isinstance(message, Finished):
                return message.result
            if report is not None:
                report(message)
        raise GeneratorError((await errors).decode(errors="replace").strip()[-2000:])
    finally:
        errors.cancel()
        if process.returncode is None:
            # Not process.kill(): Popen would reap a process that has just ended by itself, and
            # asyncio, which waits for it, would complain that it is gone.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        await process.wait()


def environment() -> dict[str, str]:
    """The environment for a child: it must import the very modules that this process imports."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def serve_stdin() -> None:
    """Be that process: read a plan, run it, write progress and the result."""
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)

    # Not sys.stdout: under PYTHONUNBUFFERED it is raw, and a raw write of a long line may end
    # halfway when a signal arrives.
    with open(sys.stdout.fileno(), "wb", closefd=False) as out:

        def say(message: Progress | Finished) -> None:
            out.write(msgspec.json.encode(message) + b"\n")
            out.flush()

        say(Finished(run(plan, say)))


def _prepare(core: int | None) -> None:
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    # Nothing here makes reference cycles per request; a collection would only add lag.
    gc.freeze()
    gc.disable()
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
