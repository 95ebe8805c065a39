"""How do several processes serve one address? A parent that listens, and workers that accept.

The parent binds the socket, starts the workers and never accepts. All of them share the one
socket, so whoever is idle takes the next connection, and none is lost when a worker ends. A worker
that dies is started again; one that says that it cannot start ends them all. SIGTERM, SIGINT and
SIGHUP are passed on, and the parent lets go of the socket before the workers drain, so that nobody
is accepted who will not be answered.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Final, Self

import anyio
import anyio.abc
import msgspec

from loadgate.policy import Policy
from loadgate.rates.spec import Rate

log = logging.getLogger("loadgate.serve")

_VARIABLE: Final = "LOADGATE_WORKER"
_END: Final = frozenset({signal.SIGTERM, signal.SIGINT})
_SIGNALS: Final = (*_END, signal.SIGHUP) if hasattr(signal, "SIGHUP") else tuple(_END)

# Codes of a worker that cannot start (`say.FAILED`, `say.CANNOT`); the next one could not either.
_HOPELESS: Final = frozenset({1, 2})

# Seconds before a worker that died is started again, doubled each time it dies within a minute.
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_STABLE: Final = 60.0


class Worker(msgspec.Struct, frozen=True):
    """What a worker is told by its parent.

    Attributes:
        index: 0 for the first.
        count: How many there are.
        listener: Descriptor of the listening socket.
        parent: Descriptor that becomes readable when the parent ends.
    """

    index: int
    count: int
    listener: int
    parent: int

    @classmethod
    def of_this_process(cls) -> Self | None:
        """Read what the parent says; None in a process that was not started by one."""
        text = os.environ.pop(_VARIABLE, "")
        return msgspec.json.decode(text, type=cls) if text else None

    def socket(self) -> socket.socket:
        """The listening socket."""
        listener = socket.socket(fileno=self.listener)
        listener.setblocking(False)
        return listener


def operators_address(spec: str, index: int) -> str:
    """Where a worker's port for operators is: the next port for each, a suffix for unix sockets.

    Args:
        spec: What the user has asked for, ``none`` included.
        index: 0 for the first worker.
    """
    if spec.startswith("unix:"):
        return f"{spec}.{index}" if index else spec
    host, _, port = spec.rpartition(":")
    if not port.isdigit() or port == "0" or not index:
        return spec
    return f"{host}:{int(port) + index}"


def multiplied(policy: Policy, workers: int) -> list[str]:
    """Say what `workers` processes make of a policy that each of them enforces by itself."""
    local = [rate for rate in policy.rates if not rate.shared and rate.mode != "off"]
    lines = [_rate_line(rate, workers) for rate in local]
    if policy.concurrency.mode != "off":
        lines.append(
            f"the in-flight limit is one for each of the {workers} workers"
            + (
                f": {workers} x {policy.concurrency.create().limit} in all"
                if policy.concurrency.algorithm == "fixed"
                else ""
            )
        )
    return lines


def _rate_line(rate: Rate, workers: int) -> str:
    return (
        f"rate {rate.name!r} is counted by each of the {workers} workers: a client may get up to "
        f"{rate.limit * workers:g} instead of {rate.limit:g} every {rate.per:g} s. Write "
        f"{rate.limit / workers:g} (burst {max(1.0, rate.burst / workers):g}), or share it "
        "(shared = true, with a store)"
    )


class Parent:
    """Keeps workers running until a signal ends them.

    Args:
        count: How many.
        listener: The bound socket.
        patience: Seconds that workers get to end after they were told to.
    """

    def __init__(self, count: int, listener: socket.socket, patience: float) -> None:
        self._count = count
        self._listener = listener
        self._patience = patience
        self._running: dict[int, anyio.abc.Process] = {}
        self._ending = False
        self._code = 0

    def run(self, arguments: Sequence[str]) -> int:
        """Run them; returns the exit code.

        Args:
            arguments: The command line, which each worker gets too.
        """
        return anyio.run(
            self._live, [sys.executable, "-m", "loadgate.integrations.cli", *arguments]
        )

    async def _live(self, command: list[str]) -> int:
        self._listener.listen(socket.SOMAXCONN)  # nobody is turned away while they start
        alive, dead = os.pipe()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._follow_signals, group.cancel_scope)
                async with anyio.create_task_group() as workers:
                    for index in range(self._count):
                        workers.start_soon(self._keep, index, command, alive)
                group.cancel_scope.cancel()
        finally:
            os.close(alive)
            os.close(dead)
        return self._code

    async def _keep(self, index: int, command: list[str], alive: int) -> None:
        """Run one worker, again and again."""
        pause = _FIRST_PAUSE
        told = Worker(index, self._count, self._listener.fileno(), alive)
        text = msgspec.json.encode(told).decode()
        while not self._ending:
            began = anyio.current_time()
            code = await self._run(index, command, text, (told.listener, alive))
            if self._ending:
                if code:
                    log.warning("worker %d ended with code %d", index + 1, code)
                    self._code = self._code or max(code, 0)
                return
            if code in _HOPELESS:
                self._code = self._code or code
                self._end(signal.SIGTERM)
                return
            if anyio.current_time() - began > _STABLE:
                pause = _FIRST_PAUSE
            log.error("worker %d ended with code %d; started again in %g s", index + 1, code, pause)
            await anyio.sleep(pause)
            pause = min(2.0 * pause, _LONGEST_PAUSE)

    async def _run(
        self, index: int, command: list[str], told: str, descriptors: Sequence[int]
    ) -> int:
        process = await anyio.open_process(
            command,
            stdin=None,
            stdout=None,
            stderr=None,
            env=os.environ | {_VARIABLE: told},
            pass_fds=descriptors,
            # A terminal sends SIGINT to its whole group: the parent alone is to hear it.
            start_new_session=True,
        )
        self._running[index] = process
        if self._ending:
            process.send_signal(signal.SIGTERM)
        try:
            return await process.wait()
        finally:
            del self._running[index]

    async def _follow_signals(self, everything: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(*_SIGNALS) as received:
            async for number in received:
                if number in _END:
                    self._end(number)
                    everything.deadline = min(
                        everything.deadline, anyio.current_time() + self._patience
                    )
                else:
                    self._tell(number)

    def _end(self, number: signal.Signals) -> None:
        self._ending = True
        self._listener.close()
        self._tell(number)

    def _tell(self, number: signal.Signals) -> None:
        for process in self._running.values():
            process.send_signal(number)
