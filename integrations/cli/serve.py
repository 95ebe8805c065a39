"""What does ``loadgate serve`` run? An app behind admission, from its startup to its last answer.

One process, one event loop, two ports: the app's, and one for operators with metrics and health.
SIGTERM and SIGINT drain: readiness goes first, arrivals get 503, who runs may finish within
a bounded time; a second signal ends it at once. SIGHUP reads the policy file again.
"""

from __future__ import annotations

import gc
import logging
import signal
import socket
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.abc
import msgspec
from prometheus_client import REGISTRY

from loadgate.controller import AdmissionController
from loadgate.errors import PolicyError, UsageError
from loadgate.integrations.asgi import AdmissionMiddleware
from loadgate.integrations.cli.bind import url
from loadgate.integrations.cli.fits import Fit, changes
from loadgate.integrations.cli.leaving import end_within, exit_in, leave
from loadgate.integrations.cli.ops import OpsApp, State
from loadgate.integrations.cli.policyfile import PolicyFileError
from loadgate.integrations.cli.say import announce
from loadgate.integrations.cli.words import told
from loadgate.integrations.cli.workers import Worker
from loadgate.integrations.console.live import Live, is_local
from loadgate.integrations.console.status import status_of
from loadgate.integrations.decision_timer import DecisionTimer
from loadgate.integrations.door import Door, Mode
from loadgate.integrations.hypercorn import BoundConfig, StartupError, run
from loadgate.integrations.identity import Address
from loadgate.integrations.prometheus import LoadgateCollector, MetricsPage, Reloads
from loadgate.integrations.witness import Witness
from loadgate.policy import Policy

log = logging.getLogger("loadgate.serve")

Backend = Literal["uvloop", "asyncio", "trio"]

_END = frozenset({signal.SIGTERM, signal.SIGINT})
_SIGNALS = (*_END, signal.SIGHUP) if hasattr(signal, "SIGHUP") else tuple(_END)

# Connections to the operators' port outlive the pause between two scrapes (15 to 60 s are
# usual), so that a scrape needs no handshake on a server that is full.
_OPS_KEEP_ALIVE = 75.0
# Seconds that connections get to close by themselves once nothing runs behind admission any more,
# however little of the graceful timeout is left.
_LAST_WORDS = 0.5
# Seconds beyond all timeouts after which a server that still does not return is cancelled.
_PATIENCE = 5.0


class Service(msgspec.Struct, kw_only=True):
    """Everything that one served process needs, bound and loaded.

    Attributes:
        name: How the app was named on the command line.
        app: The user's app.
        policy: What to enforce at first.
        policy_file: Where to read it again on SIGHUP, None if there is no file.
        listener: The bound socket of the app.
        ops_listener: The bound socket for operators, None for no such port.
        layer: Keyword arguments of `AdmissionMiddleware`.
        graceful_timeout: Seconds that running requests get to finish.
        access_log: Whether Hypercorn logs every request to stdout.
        witness: Sees the refusals, also the log of the layer; None for nobody.
        live_token: What the live view asks for, empty for nothing.
        door: What the door in front of Hypercorn does with whom it refuses, None for no door.
        worker: What the parent says if this is one of several processes.
        fit: What the options ask of a policy that is read again.
    """

    name: str
    app: Any
    policy: Policy
    policy_file: Path | None
    listener: socket.socket
    ops_listener: socket.socket | None
    layer: dict[str, Any]
    graceful_timeout: float
    access_log: bool
    witness: Witness | None = None
    live_token: str = ""
    door: Mode | None = None
    worker: Worker | None = None
    fit: Fit = Fit()


class Process:
    """The life of one served process.

    Args:
        service: What to serve.

    Raises:
        ValueError: A keyword argument of the layer is wrong.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._controller = AdmissionController(service.policy)
        self._protected = AdmissionMiddleware(service.app, self._controller, **service.layer)
        layer = service.layer
        self._door = service.door and Door(
            self._controller,
            exempt=layer.get("exempt"),
            priority=layer.get("priority"),
            contract=layer.get("contract"),
            mode=service.door,
            log=layer.get("log"),
        )
        witness = service.witness
        if witness is not None:
            witness.watch_slow(self._controller)
        collector = LoadgateCollector(
            self._controller, witness=witness, decisions=DecisionTimer(self._controller)
        )
        collector.reloads = self._reloads = Reloads()
        collector.door = self._door
        REGISTRY.register(collector)
        live = None
        if service.ops_listener is not None:
            live = Live(
                lambda: status_of(self._controller, witness),
                local=is_local(service.ops_listener),
                token=service.live_token,
            )
        self._ops = OpsApp(MetricsPage(REGISTRY).render, live, self._controller.ready)
        self._config = BoundConfig(service.listener, self._on_listening)
        self._config.graceful_timeout = service.graceful_timeout
        self._config.on_exit = partial(end_within, service.graceful_timeout)
        if service.access_log:
            self._config.accesslog = "-"

    def run(self, backend: Backend) -> int:
        """Live in a new event loop until a signal ends it.

        Returns:
            The exit code: 0, or 128 and the number of the second signal that cut it short.

        Raises:
            StartupError: The app's startup failed, or the shared store refuses to serve.
            SystemExit: The app has raised it; whatever does not end then is dropped in time.
        """
        # Hypercorn picks uvloop only in workers that it starts itself; here the loop is ours.
        options = {"use_uvloop": backend == "uvloop"} if backend != "trio" else {}
        try:
            anyio.run(
                self._live,
                backend="trio" if backend == "trio" else "asyncio",
                backend_options=options,
            )
        except PolicyError as error:
            raise StartupError(str(error)) from None
        except BaseException as error:
            if (ended := exit_in(error)) is None:
                raise
            leave(ended)
        return self._code

    async def _live(self) -> None:
        self._stop = anyio.Event()
        self._stop_ops = anyio.Event()
        self._ending = anyio.CancelScope()
        self._failure: StartupError | None = None
        self._code = 0
        async with self._controller, anyio.create_task_group() as group:
            group.start_soon(self._follow_signals, group)
            if self._service.worker is not None:
                group.start_soon(self._follow_parent, self._service.worker, group)
            with self._ending:
                await self._serve_both()
            if self._ending.cancelled_caught:
                log.error("connections that did not end were dropped")
            group.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    async def _serve_both(self) -> None:
        async with anyio.create_task_group() as ports:
            ports.start_soon(self._serve_app)
            ops_listener = self._service.ops_listener
            if ops_listener is not None:
                config = BoundConfig(ops_listener)
                config.keep_alive_timeout = _OPS_KEEP_ALIVE
                config.graceful_timeout = _LAST_WORDS
                ports.start_soon(run, self._ops, config, self._stop_ops.wait)

    async def _serve_app(self) -> None:
        try:
            await run(self._protected, self._config, self._stop.wait, self._door)
        except StartupError as error:
            self._failure = error
        finally:
            self._stop_ops.set()

    def _on_listening(self) -> None:
        # What there is now, imports above all, stays to the end. Looked through in every full
        # collection it makes the loop stand still for a tenth of a second, again and again.
        gc.collect()
        gc.freeze()
        if self._ops.state is State.STARTING:
            self._ops.state = State.SERVING
        service = self._service
        who = "" if service.worker is None else f" (worker {service.worker.index + 1})"
        if service.ops_listener is not None:
            announce(f"metrics and health on {url(service.ops_listener)}{who}")
        announce(f"serving {service.name} on {url(service.listener)}{who}")

    async def _follow_signals(self, group: anyio.abc.TaskGroup) -> None:
        with anyio.open_signal_receiver(*_SIGNALS) as received:
            async for number in received:
                if number not in _END:
                    await self._reload()
                elif self._ops.state is not State.DRAINING:
                    self._begin_to_drain(group, signal.Signals(number).name)
                else:
                    self._end_at_once(signal.Signals(number))

    def _end_at_once(self, second: signal.Signals) -> None:
        left = self._controller.admission.running()
        log.warning("a second signal: ending at once; %d running are dropped", left)
        # What a shell says of a program that a signal has ended.
        self._code = 128 + second
        # The tasks of connections end as cancelled, which asyncio reports with a traceback each:
        # that is what was asked for and no news.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        self._ending.cancel()

    async def _follow_parent(self, worker: Worker, group: anyio.abc.TaskGroup) -> None:
        await anyio.wait_readable(worker.parent)
        if self._ops.state is not State.DRAINING:
            self._begin_to_drain(group, "the parent has gone")

    def _begin_to_drain(self, group: anyio.abc.TaskGroup, why: str) -> None:
        self._ops.state = State.DRAINING
        group.start_soon(self._drain, why)

    async def _drain(self, why: str) -> None:
        graceful = self._service.graceful_timeout
        began = anyio.current_time()
        self._ending.deadline = began + graceful + _LAST_WORDS + _PATIENCE
        look = self._controller.snapshot()
        log.info(
            "%s: draining for up to %g s; %d running, %d waiting",
            why, graceful, look.in_flight + look.long_lived, look.waiting,
        )  # fmt: skip
        if not await self._controller.drain(graceful):
            left = self._controller.admission.running()
            log.warning("%d still running after %g s are cancelled", left, graceful)
        spent = anyio.current_time() - began
        self._config.graceful_timeout = max(_LAST_WORDS, graceful - spent)
        self._stop.set()

    async def _reload(self) -> None:
        path = self._service.policy_file
        if path is None:
            log.warning("SIGHUP: there is no policy file to read (--policy)")
            return
        try:
            policy, _ = self._service.fit.read(path)
            difference = changes(self._controller.policy, policy)
            await self._controller.apply(policy)
            # Nothing has run in between: no request meets the new rates with the old keys.
            identify = self._service.layer.get("identify")
            if isinstance(identify, Address):
                identify.tell(told(policy))
        except (PolicyFileError, UsageError) as error:
            self._reloads.note(succeeded=False)
            log.error("SIGHUP: the old policy stays in force: %s", error)
        except Exception:
            # A fault of ours must not end a service that runs.
            self._reloads.note(succeeded=False)
            log.exception("SIGHUP: the policy of %s could not be applied", path)
        else:
            self._reloads.note(succeeded=True)
            log.info("SIGHUP: the policy of %s is in force: %s", path, difference)
