"""How are the two services started? The same app and server; only the command differs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from loadgate.integrations.demo.record import Sample
from loadgate.integrations.loadgen.process import environment

APP: Final = "loadgate.integrations.demo.service:app"
POLICY: Final = Path(__file__).with_name("policy.toml")

# A cold start imports a web server; a busy machine needs some seconds for that.
STARTUP: Final = 20.0

# loadgate serve drains; the demo's own requests are over by then.
SHUTDOWN: Final = 5.0


class ServerError(RuntimeError):
    """The sample service did not start, or ended by itself; the message holds its last words."""


class Launch(msgspec.Struct, frozen=True):
    """How a service is started and reached.

    Attributes:
        command: The command line.
        url: Where it serves.
        stats: A page that answers 200 as soon as it serves: `/metrics` of loadgate, or a number.
    """

    command: list[str]
    url: str
    stats: str


class Server:
    """A running service."""

    def __init__(self, launch: Launch, pid: int) -> None:
        self.url = launch.url
        self.pid = pid
        self._stats = launch.stats

    async def look(self, at: float) -> Sample:
        """Ask it how it is.

        Raises:
            OSError: It does not answer.
        """
        text = await get(self._stats)
        if text.strip().isdigit():
            return Sample(at, float(text))
        return Sample(
            at,
            in_flight=_gauge(text, "in_flight"),
            waiting=_gauge(text, "waiting"),
            limit=_gauge(text, "limit"),
        )


def bare(app: str = APP, stats: str = "/stats") -> Launch:
    """Serve an app as one does without loadgate."""
    port, _ = free_ports()
    worker = "uvloop" if find_spec("uvloop") else "asyncio"
    command = [
        sys.executable, "-m", "hypercorn", "--worker-class", worker,
        "--bind", f"127.0.0.1:{port}", "--log-level", "WARNING",
        "--graceful-timeout", "0",  # thousands of requests of clients that have left
        app,
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    return Launch(command, url, url + stats)


def guarded(
    app: str = APP,
    policy: Path | None = POLICY,
    options: Sequence[str] = (),
    *,
    trusting: bool = True,
) -> Launch:
    """Serve the same app behind loadgate; without a policy, with the default one.

    The load plays the reverse proxy that many clients come through; not `trusting` is for
    options that say themselves who asks.
    """
    port, metrics_port = free_ports()
    command = [
        sys.executable, "-m", "loadgate.integrations.cli", "serve", app,
        "--bind", f"127.0.0.1:{port}", "--metrics-bind", f"127.0.0.1:{metrics_port}",
        *options,
    ]  # fmt: skip
    if trusting:
        command += ["--trusted-proxy", "127.0.0.1"]
    if policy is not None:
        command += ["--policy", str(policy)]
    return Launch(command, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics_port}/metrics")


@contextlib.asynccontextmanager
async def serving(launch: Launch) -> AsyncGenerator[Server]:
    """Run a service in a process of its own; it is gone afterwards, whatever happens.

    Raises:
        ServerError: It does not start.
    """
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *launch.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment(),
            start_new_session=True,  # Hypercorn has a worker: both must go
        )
        try:
            server = Server(launch, process.pid)
            try:
                await _ready(process, server)
            except (OSError, TimeoutError) as error:
                log.seek(0)
                words = log.read().decode(errors="replace").strip()
                raise ServerError(
                    f"{' '.join(launch.command)}\n{words[-2000:]}\n{error}".strip()
                ) from error
            yield server
        finally:
            await _stop(process)


async def _ready(process: asyncio.subprocess.Process, server: Server) -> None:
    async with asyncio.timeout(STARTUP):
        while True:
            if process.returncode is not None:
                raise OSError(f"ended with exit code {process.returncode}")
            with contextlib.suppress(OSError):
                await server.look(0.0)
                return
            await asyncio.sleep(0.05)


async def _stop(process: asyncio.subprocess.Process) -> None:
    # Not process.terminate(): Popen would reap a process that has just ended by itself, and
    # asyncio, which waits for it, would complain that it is gone.
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(process.wait()), SHUTDOWN)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def cancel_on_signals() -> None:
    """Cancel the current task on SIGTERM and SIGHUP.

    Whoever ends this process, or closes its terminal, must end the services that it started too.
    """
    task = asyncio.current_task()
    if task is not None and hasattr(signal, "SIGHUP"):
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)


def free_ports() -> tuple[int, int]:
    """Two ports that were free a moment ago."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


async def get(url: str) -> str:
    """Fetch a page of the local service.

    Raises:
        OSError: There is no answer within a second, or not a 200.
    """
    host, _, path = url.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    async with asyncio.timeout(1.0):
        reader, writer = await asyncio.open_connection(name, int(port))
        try:
            writer.write(
                f"GET /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode()
            )
            answer = await reader.read(-1)
        finally:
            writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200" not in head[:16]:
        raise ConnectionError(f"{url}: {head[:60]!r}")
    return body.decode(errors="replace")


def _gauge(metrics: str, name: str) -> float:
    """Read one gauge of loadgate from a Prometheus page, summed over its series."""
    found = re.findall(rf"^loadgate_{name}(?:\{{[^}}]*\}})? (\S+)", metrics, re.MULTILINE)
    return sum(float(value) for value in found)
