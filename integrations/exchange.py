"""When does a request answer, when does it end, and what did it show? Seen in its messages.

A permit ends when the application *emits* its last message, before the server's `send` is
awaited: on Hypercorn that waits for a slow client, for whom no place is held. `send` is a plain
function that returns the server's awaitable, which saves a coroutine per message.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

import anyio
import msgspec

from loadgate.decisions import Outcome
from loadgate.integrations.body_wait import BodyWait
from loadgate.integrations.receive import Message, Receive, ReceivePump, Send
from loadgate.permit import Permit, outcome_of
from loadgate.plain_fields import plain_fields

Header = tuple[bytes, bytes]

_CANCELLED: Final = Outcome.CANCELLED
_IGNORED: Final = Outcome.IGNORED
_NEVER: Final = float("inf")

# RFC 9110, 15.5.9: the client did not produce a whole request in time. The connection is of no
# further use: the rest of the body may still come.
_TIMEOUT_HEADERS: Final = ((b"content-length", b"0"), (b"connection", b"close"))


@plain_fields
class Exchange(msgspec.Struct):
    """One HTTP request and its response.

    Tracked by the garbage collector: a traceback that the server keeps leads from its own object
    through here back to it.

    Attributes:
        permit: The permit to end.
        inner_receive: The server's or the pump's.
        inner_send: The server's.
        pump: The pump, if one runs.
        holds: Hold the permit until the application returns.
        finishes: Let the upload end before the response does; needs the pump.
        extra: Headers to add to the response.
        gone: Whether the application was told that the client has left.
        started: Whether the response has begun.
        ended: Whether its last message was emitted.
        trailers: Whether trailers come after the body.
        shown: What the response shows, None for success.
        head: The message that began the response, to tell streams from documents.
        frees_streams: Give the place back when a stream of events begins.
        patience: Seconds that its body may be waited for, None for ever.
        closes: Whether its connection can be closed after it, which HTTP/2 does not know.
        timed_out: Whether its body was waited for in vain.
        until_answer: What cancels the application unless it begins to answer in time.
        wait: The wait for its body, once the application has asked for it.
    """

    permit: Permit
    inner_receive: Receive
    inner_send: Send
    pump: ReceivePump | None = None
    holds: bool = False
    patience: float | None = None
    special: bool = True
    finishes: bool = False
    extra: list[Header] | None = None
    gone: bool = False
    started: bool = False
    ended: bool = False
    trailers: bool = False
    shown: Outcome | None = None
    head: Message | None = None
    frees_streams: bool = False
    wait: BodyWait | None = None
    closes: bool = True
    timed_out: bool = False
    until_answer: anyio.CancelScope | None = None

    def send(self, message: Message) -> Awaitable[None]:
        """What the application gets as `send`."""
        kind = message["type"]
        if kind == "http.response.body":
            if message.get("more_body", False):
                if self.head is not None:
                    self._look_for_stream()
            elif not self.trailers:
                self.ended = True  # `_end` written out
                if not self.holds:
                    self.permit.release(self.shown)
                if self.finishes:
                    return self._finish(message)
        elif kind == "http.response.start":
            if not self.started:
                self.started = True
                permit = self.permit
                if not permit.answered_at:
                    clock = permit.controller.clock
                    permit.answered_at = clock()
                if "trailers" in message:
                    self.trailers = message["trailers"]
                self.head = message
                permit.status = status = message["status"]
                if status >= 500:
                    self.shown = Outcome.OVERLOAD if status == 503 else Outcome.ERROR
                if self.special:
                    message = self._look_closer(message)
        elif kind == "http.response.trailers":
            if not message.get("more_trailers", False):
                self._end()
                if self.finishes:
                    return self._finish(message)
        elif kind == "http.response.pathsend" or (
            kind == "http.response.zerocopysend" and not message.get("more_body", False)
        ):
            self._end()
        return self.inner_send(message)

    def _look_closer(self, message: Message) -> Message:
        """The response begins, and something about this exchange is not as nearly always."""
        if self.until_answer is not None:
            self.until_answer.deadline = _NEVER
        if self.wait is not None:
            # The client's slowness is none of the service's.
            self.permit.answered_at -= self.wait.waited
        if self._is_gone():
            # It left before the answer: the age is a bound of the latency, no more.
            self.shown = _CANCELLED
        if self.frees_streams:
            self._look_for_stream()
        if self.extra is None:
            return message
        # A new list: the framework may have given one that it keeps.
        return {**message, "headers": [*(message.get("headers") or ()), *self.extra]}

    async def receive(self) -> Message:
        """What the application gets as `receive`."""
        if self.patience is None:
            message = await self.inner_receive()
        elif self.wait is None and self.permit.controller.owner.loop is not None:
            # `BodyWait.next` written out for what nearly always happens on asyncio: the whole
            # body is there. It saves half a microsecond.
            steps = self.inner_receive().__await__()
            try:
                trap = next(steps)
            except StopIteration as over:
                message = over.value
                if message.get("more_body", False):
                    self._begin_to_wait(self.patience).note(message)
                else:
                    self.patience = None
            else:
                return self._found(await self._begin_to_wait(self.patience).rest(trap, steps))
        else:
            wait = self.wait or self._begin_to_wait(self.patience)
            # A `receive` that lost the race with its timeout is not called again: a message may
            # have gone with it.
            return self._found(None if wait.expired else await wait.next(self.inner_receive()))
        if message["type"] == "http.disconnect":
            self.gone = self.special = True
        return message

    def _begin_to_wait(self, patience: float) -> BodyWait:
        self.special = True
        wait = self.wait = BodyWait(patience, self.permit.controller.clock)
        return wait

    def _found(self, message: Message | None) -> Message:
        """What came, or that nothing did."""
        if message is None:
            self._give_up()
            return {"type": "http.disconnect"}
        if self.wait is not None and self.wait.complete:
            self.patience = None
        if message["type"] == "http.disconnect":
            self.gone = self.special = True
        return message

    async def tell_timeout(self) -> None:
        """Answer 408 if the client did not send its body and the application said nothing."""
        if self.timed_out and not self.started:
            self.started = self.ended = True
            headers = _TIMEOUT_HEADERS if self.closes else _TIMEOUT_HEADERS[:1]
            await self.inner_send(
                {"type": "http.response.start", "status": 408, "headers": headers}
            )
            end: Message = {"type": "http.response.body", "body": b""}
            await (self._finish(end) if self.finishes else self.inner_send(end))

    def _give_up(self) -> None:
        """The client took too long: its place goes to somebody else now."""
        self.gone = self.special = self.timed_out = True
        if not self.started:
            self.permit.answered()
            if self.wait is not None:
                self.permit.answered_at -= self.wait.waited
        self.permit.release(_CANCELLED)

    def has_answered(self) -> bool:
        """Whether its response has begun."""
        return self.started

    def answer_for_it(self) -> None:
        """Somebody else answers in place of the application."""
        self.started = self.ended = True

    def returned(self) -> None:
        """The application has returned."""
        if self.ended:
            self.permit.release(self.shown)
        elif self._is_gone():
            self.permit.release(_CANCELLED)
        else:
            # No response, or half of one: the server answers 500 or cuts the connection.
            self.permit.release(Outcome.ERROR)

    def raised(self, error: BaseException) -> None:
        """The application has raised."""
        self.permit.release(_CANCELLED if self._is_gone() else outcome_of(type(error)))

    async def drain(self) -> None:
        """Read the rest of the upload, if `finishes` asks for it."""
        if self.finishes and self.pump is not None:
            self.pump.discard()
            await self.pump.wait_until_over(float("inf"))

    async def _finish(self, message: Message) -> None:
        """Send the last message, but its end only after the upload's."""
        pump = self.pump
        if pump is not None and not (pump.ended or pump.is_over):
            if message["type"] == "http.response.body":
                await self.inner_send({**message, "more_body": True})
                message = {"type": "http.response.body", "body": b"", "more_body": False}
            await self.drain()
        await self.inner_send(message)

    def _end(self) -> None:
        self.ended = True
        if not self.holds:
            self.permit.release(self.shown)

    def _is_gone(self) -> bool:
        return self.gone or (self.pump is not None and self.pump.gone is not None)

    def _look_for_stream(self) -> None:
        """Server-sent events last as long as the client likes; they teach nothing."""
        for name, value in (self.head or {}).get("headers") or ():
            if name.lower() == b"content-type" and value.startswith(b"text/event-stream"):
                self.shown = self.shown or _IGNORED
                if self.frees_streams:
                    self.permit.release(self.shown)
        self.head = None
