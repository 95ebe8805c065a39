"""How does an ASGI request go through admission? One layer in front of any application.

Pure ASGI: no framework, no copy of the scope, no task group on the way of a request that finds a
free place. What it does, message by message, was tried against Hypercorn (asyncio, uvloop and
trio; HTTP/1.1 and HTTP/2), uvicorn and Granian, which differ dangerously in what an unread body,
an early answer or a cancelled `receive()` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Literal

import anyio

from loadgate.admission import RUNNING, WAITING
from loadgate.cancelling import CancellingPermit
from loadgate.controller import AdmissionController
from loadgate.decisions import Outcome, Refuse
from loadgate.errors import Rejected
from loadgate.integrations.answering import expects_continue, is_multiplexed
from loadgate.integrations.asking import Asker
from loadgate.integrations.decision_log import DecisionLog
from loadgate.integrations.exchange import Exchange
from loadgate.integrations.exempt import Exemptions, is_preflight
from loadgate.integrations.http import Contract
from loadgate.integrations.identity import MAX_HOST_CHARS, Identify
from loadgate.integrations.receive import (
    App,
    Buffers,
    Receive,
    ReceivePump,
    Scope,
    Send,
    run_beside,
)
from loadgate.integrations.telling import Teller
from loadgate.integrations.websocket import MessageRate, Socket
from loadgate.permit import Permit
from loadgate.policy import Policy
from loadgate.rates.spec import Rate

PERMIT: Final = "loadgate.permit"
"""The scope key under which the application finds its `Permit` (to set `outcome`)."""

# One HTTP/2 window of 64 KiB is what every client may send unasked; four of them let an ordinary
# upload wait without being stopped.
_MAX_BUFFER: Final = 256 * 1024
# 256 waiting uploads with full buffers.
_MAX_BUFFERS: Final = 64 * 1024 * 1024

# Seconds without a byte, in sum, after which a client that has a place loses it. nginx waits 60 s
# and Apache 20 s (client_body_timeout, RequestReadTimeout), but there it costs no place.
_BODY_TIMEOUT: Final = 10.0

# How much of a refused HTTP/1.1 upload is read to keep the connection. Reading a megabyte costs
# less than a new TCP and TLS handshake; beyond that closing is cheaper.
_MAX_DRAIN: Final = 1024 * 1024
# nginx lingers 5 s between two reads, 30 s in all (lingering_timeout, lingering_time). The client
# has its answer already, so a short time is enough.
_MAX_DRAIN_TIME: Final = 2.0


class AdmissionMiddleware:
    """Admits, delays or refuses each request before the application sees it.

    Args:
        app: The ASGI application.
        controller: The controller to ask; or a `Policy`, then each event loop gets a controller
            of its own on its first request (servers that run several loops in one process).
        identify: Who asks: scope to client key, mapping of keys, None or `Caller`. It runs on
            the event loop for each request and must not wait.
        exempt: What is never counted and never refused: ``"/path"`` (GET and HEAD) or
            ``"METHOD /path"`` (``*`` for any method), or a function of the scope. The default
            are the usual health and metrics paths.
        cost: What a request costs, or a function of the scope.
        priority: Its class, or a function of the scope.
        timeout: Seconds until its answer is worthless, None for never, or a function of the
            scope.
        contract: How refusals are told.
        preflights: So many CORS preflights may be running past admission at once (a refused
            preflight is an opaque error in browsers); more are treated like any request.
        websockets: What a permit covers: the ``handshake``, the whole ``connection``, or
            nothing (``off``).
        message_rate: How many WebSocket messages a client may send, over all of its connections:
            a `Rate`, or as one is written (``"20/second burst 50"``). A connection that sends
            more is closed with 1008. None for as many as it likes.
        hold_background: Hold the permit until the application returns, so that background tasks
            after the last message count too.
        streams: Whether a stream of server-sent events will ``hold`` its place to its end, or
            ``release`` it when it begins: then only beginning one is limited.
        finish_uploads: Let the upload of each HTTP/2 request end before its response does, also
            when the application answers early (a 401, say) or fails. Hypercorn 0.18 loses the
            connection otherwise, its trio worker the process. Costs a pump for each HTTP/2
            request, about 15 µs on asyncio and 100 on trio.
        max_buffer: Bytes of an upload that are kept for a request in the queue. A longer HTTP/1.x
            upload is paused; on HTTP/2 it would block its neighbours, so its wait ends at once.
        max_buffers: The same for all waiting requests together.
        max_drain: Bytes of the upload of a refused HTTP/1.x request that are read before the
            server closes the connection.
        max_drain_time: Likewise in seconds.
        body_timeout: Seconds that an admitted request may wait in `receive` for its client's
            body, all its waits together, and one more for each 500 bytes that come. Then
            the application is told that the client has left, the place is given back, and the
            client gets 408 unless the application answers. None waits for ever.
        log: Where decisions are logged, None for nowhere.

    Raises:
        ValueError: A setting is out of bounds.
    """

    def __init__(
        self,
        app: App,
        controller: AdmissionController | Policy,
        *,
        identify: Identify | None = None,
        exempt: Iterable[str] | Callable[[Scope], bool] | None = None,
        cost: float | Callable[[Scope], float] = 1.0,
        priority: str | Callable[[Scope], str] = "default",
        timeout: float | Callable[[Scope], float | None] | None = None,
        contract: Contract | None = None,
        preflights: int = 16,
        websockets: Literal["handshake", "connection", "off"] = "handshake",
        message_rate: Rate | str | None = None,
        hold_background: bool = False,
        streams: Literal["hold", "release"] = "hold",
        finish_uploads: bool = False,
        max_buffer: int = _MAX_BUFFER,
        max_buffers: int = _MAX_BUFFERS,
        max_drain: int = _MAX_DRAIN,
        max_drain_time: float = _MAX_DRAIN_TIME,
        body_timeout: float | None = _BODY_TIMEOUT,
        log: DecisionLog | None = None,
    ) -> None:
        if websockets not in ("handshake", "connection", "off"):
            raise ValueError(
                f"websockets: {websockets!r} is none of 'handshake', 'connection', 'off'"
            )
        if message_rate is not None and websockets == "off":
            raise ValueError("message_rate: with websockets='off' no message is counted")
        if streams not in ("hold", "release"):
            raise ValueError(f"streams: {streams!r} is neither 'hold' nor 'release'")
        for name, value in (
            ("preflights", preflights),
            ("max_buffer", max_buffer),
            ("max_buffers", max_buffers),
            ("max_drain", max_drain),
            ("max_drain_time", max_drain_time),
        ):
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name}: {value!r} is not a number of at least 0")
        if body_timeout is not None and not 0 < body_timeout < float("inf"):
            raise ValueError(f"body_timeout: {body_timeout!r} is not a finite number above 0")
        self.app = app
        if not callable(app) or isinstance(app, Policy | AdmissionController):
            raise TypeError(f"app must be an ASGI application, not {app!r:.100}")
        self._asker = asker = Asker(controller, identify, cost, priority, timeout)
        # What is usual has a way of its own, see `__call__`.
        self._by_peer = asker.by_peer
        self._usual = asker.usual
        self._exempt = Exemptions(exempt)
        self._preflights = preflights
        contract = Contract() if contract is None else contract
        self._teller = Teller(contract, log, max_drain, max_drain_time)
        self._tells_quotas = contract.on_admitted
        self._websockets = websockets
        if isinstance(message_rate, str):
            message_rate = Rate("messages", message_rate)
        self._messages = None if message_rate is None else MessageRate(message_rate, log)
        self._hold_background = hold_background
        self._finish_uploads = finish_uploads
        self._frees_streams = streams == "release"
        self._buffers = Buffers(max_buffer, max_buffers)
        self._body_timeout = body_timeout
        self._log = log
        self._logs_admitted = log is not None and log.admitted_every > 0
        self._short = not (
            self._tells_quotas or self._logs_admitted or finish_uploads or self._frees_streams
        )

    @property
    def controller(self) -> AdmissionController:
        """The controller of the running event loop."""
        return self._asker.controller()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection scope.

        It must be a coroutine function: Hypercorn takes anything else for WSGI.
        """
        if scope["type"] != "http":
            await self._other(scope, receive, send)
            return
        # Exemptions are looked at closely only if a path matches or may match after its root.
        exempt = self._exempt
        paths = exempt.paths
        if (paths is None or scope["path"] in paths or scope.get("root_path")) and exempt.covers(
            scope
        ):
            await self.app(scope, receive, send)
            return
        if scope["method"] == "OPTIONS" and self._preflights > 0 and is_preflight(scope):
            # Not counted by rates, yet not without bound: it costs the application something.
            self._preflights -= 1
            try:
                await self.app(scope, receive, send)
            finally:
                self._preflights += 1
            return
        client, by_peer = scope.get("client"), self._by_peer
        if by_peer is not None and client and len(host := client[0] or "") <= MAX_HOST_CHARS:
            # `Asker.ask` written out for what is usual, which saves two calls.
            controller, cost, priority, timeout = self._usual
            permit = controller.admit(by_peer(host), cost, priority, timeout)
            try:  # noqa: SIM105  # contextlib.suppress costs 0.2 µs
                permit.begin()
            except Rejected:
                pass  # the permit knows why
        else:
            permit = self._asker.ask(scope)
        if permit.state == RUNNING and self._short and permit.timeout is None:
            # `_run`, written out: a coroutine less for each request that finds a free place.
            exchange = Exchange(
                permit, receive, send, None, self._hold_background, self._body_timeout, False
            )
            try:
                scope[PERMIT] = permit
                app = self.app
                await app(scope, exchange.receive, exchange.send)
            except BaseException as error:
                exchange.raised(error)
                if exchange.timed_out and isinstance(error, Exception):
                    await self._after(exchange, scope)
                raise
            if exchange.holds or not exchange.ended:
                exchange.returned()
                if exchange.timed_out:
                    await self._after(exchange, scope)
        else:
            await self._go_on(permit, scope, receive, send)

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket" or self._websockets == "off" or self._exempt.covers(scope):
            # lifespan, and whatever ASGI comes to know
            await self.app(scope, receive, send)
            return
        await self._go_on(self._asker.ask(scope), scope, receive, send)

    # -- waiting ---------------------------------------------------------------------------

    async def _go_on(self, permit: Permit, scope: Scope, receive: Receive, send: Send) -> None:
        """Run, be refused, or stand in the queue with a pump that sees the client leave."""
        finishes = self._finish_uploads and scope["type"] == "http" and is_multiplexed(scope)
        if permit.state == RUNNING and not finishes:
            await self._run(permit, scope, receive, send, None)
            return
        if permit.refusal is not None:
            await self._teller.refuse(
                permit.refusal, permit, scope, receive, send, None, waited=False
            )
            return
        if expects_continue(scope):
            # Reading would invite the upload before anyone knows whether it is wanted.
            await self._settle(permit, scope, receive, send, None)
            return
        pump = ReceivePump(receive, self._buffers)
        if permit.state == WAITING:
            pump.on_gone = permit.abandon
        if is_multiplexed(scope):
            pump.on_full = permit.hurry
        try:
            await run_beside(pump, partial(self._settle, permit, scope, receive, send, pump))
        except BaseException:
            permit.abandon()  # cancelled before it could even begin to wait
            raise

    async def _settle(
        self,
        permit: Permit,
        scope: Scope,
        receive: Receive,
        send: Send,
        pump: ReceivePump | None,
    ) -> None:
        refusal: Refuse | None = None
        try:
            if pump is None or permit.state == WAITING or permit.state == RUNNING:
                await permit.settle()
            else:
                # A shared store is being asked; that can only be cancelled. The scope costs
                # 10 µs, which is why the queue has a way without one.
                with anyio.CancelScope() as asking:
                    pump.on_gone = asking.cancel
                    await permit.settle()
        except Rejected as rejected:
            refusal = rejected.refusal
        if pump is not None:
            pump.on_gone = pump.on_full = None
            if refusal is None:
                if pump.is_over:
                    permit.abandon()  # also if its turn came at the same moment
                    pump.raise_failure()
                    return  # the client left; nobody would read an answer
                receive = pump.receive
        if refusal is None:
            await self._run(permit, scope, receive, send, pump)
        else:
            await self._teller.refuse(refusal, permit, scope, receive, send, pump, waited=True)

    # -- running ---------------------------------------------------------------------------

    async def _run(
        self,
        permit: Permit,
        scope: Scope,
        receive: Receive,
        send: Send,
        pump: ReceivePump | None,
    ) -> None:
        """Run the application and end the permit when its last message leaves."""
        exchange: Exchange | Socket
        if scope["type"] == "websocket":
            exchange = Socket(permit, receive, send, pump, self._websockets == "connection")
            exchange.messages = self._messages
        else:
            exchange = Exchange(permit, receive, send, pump, self._hold_background)
            exchange.frees_streams = self._frees_streams
            exchange.patience = self._body_timeout
            exchange.finishes = pump is not None and self._finish_uploads and is_multiplexed(scope)
        try:
            scope[PERMIT] = permit
            if self._tells_quotas and isinstance(exchange, Exchange):
                exchange.extra = self._teller.quotas(permit)
            if self._logs_admitted and self._log is not None:
                self._log.admitted(permit.client, permit.wait, permit.quotas)
            if isinstance(permit, CancellingPermit):
                await self._in_time(permit, exchange, scope)
            else:
                await self.app(scope, exchange.receive, exchange.send)
        except BaseException as error:
            exchange.raised(error)
            if isinstance(exchange, Exchange) and isinstance(error, Exception):
                await self._after(exchange, scope)
                await exchange.drain()
            raise
        exchange.returned()
        if isinstance(exchange, Exchange) and not exchange.ended:
            await self._after(exchange, scope)
            await exchange.drain()

    async def _in_time(
        self, permit: CancellingPermit, exchange: Exchange | Socket, scope: Scope
    ) -> None:
        """Run the application, but not beyond its timeout unless it has begun to answer."""
        left = max(0.0, permit.deadline - permit.controller.clock())
        with anyio.CancelScope(deadline=anyio.current_time() + left) as exchange.until_answer:
            await self.app(scope, exchange.receive, exchange.send)
        if not exchange.until_answer.cancelled_caught:
            return
        # uvloop's timers come up to a millisecond early; the time is over all the same.
        permit.deadline = min(permit.deadline, permit.started)
        permit.release(Outcome.OVERLOAD)
        if exchange.has_answered():
            return
        exchange.answer_for_it()
        await self._teller.tell_timeout(
            permit, scope, exchange.inner_receive, exchange.inner_send, exchange.pump
        )

    async def _after(self, exchange: Exchange, scope: Scope) -> None:
        """The application is done; has its client been told of the timeout, if there was one?"""
        exchange.closes = not is_multiplexed(scope)
        await exchange.tell_timeout()
