"""What of a WebSocket is admitted? Its handshake, or the whole connection, and each message.

Close codes (RFC 6455, 7.4.1, and its registry at IANA): 1008, policy violation, tells a client
that it sends too much; 1013, try again later, that the service is full.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

import anyio
import anyio.lowlevel
import msgspec

from loadgate.decisions import Outcome, Refuse
from loadgate.errors import RateLimited, Rejected
from loadgate.integrations.decision_log import DecisionLog
from loadgate.integrations.receive import Message, Receive, ReceivePump, Send
from loadgate.permit import Permit, outcome_of
from loadgate.rates.group import RateSet
from loadgate.rates.spec import Rate

_CANCELLED: Final = Outcome.CANCELLED
_IGNORED: Final = Outcome.IGNORED
_NEVER: Final = float("inf")

TOO_MUCH: Final = 1008
"""The close code for a client that asks for more than its share."""

BUSY: Final = 1013
"""The close code of a service that is full."""


def close_message(rejected: Rejected) -> Message:
    """What an application sends to close a WebSocket because of a refusal.

    For admission of single messages: ``async with controller.admit(...)`` around the handling of
    each, and ``await send(close_message(rejected))`` where that raises.
    """
    code = TOO_MUCH if isinstance(rejected, RateLimited) else BUSY
    return {"type": "websocket.close", "code": code, "reason": rejected.reason.value}


class MessageRate:
    """Counts the messages that clients send, over all of their connections.

    Args:
        rate: How many; its key is one of those that the layer's `identify` tells.
        log: Where refusals are logged, None for nowhere.

    Attributes:
        refused: Connections closed because of it.
    """

    __slots__ = ("_log", "_rate", "_rates", "refused")

    def __init__(self, rate: Rate, log: DecisionLog | None = None) -> None:
        self._rate = rate
        self._rates = RateSet([rate])
        self._log = log
        self.refused = 0

    def refuses(self, permit: Permit) -> bool:
        """Charge the client of `permit` for one message; True if it has nothing left."""
        now = permit.controller.clock()
        charged = self._rates.charge(permit.client, 1.0, now)
        if not isinstance(charged, Refuse):
            return False
        self.refused += 1
        if self._log is not None:
            self._log.refused(charged, permit.client, TOO_MUCH, now, algorithm=self._rate.algorithm)
        return True


class Socket(msgspec.Struct):
    """One WebSocket: its handshake, or the whole connection.

    How long a handshake takes says little about requests, so it never teaches the limit.

    Attributes:
        permit: The permit to end.
        inner_receive: The server's or the pump's.
        inner_send: The server's.
        pump: The pump, if one runs.
        holds: Hold the permit to the end of the connection.
        gone: Whether the client has left.
        answered: Whether the application has answered the handshake.
        until_answer: What cancels the application unless it answers in time.
        messages: What bounds the messages of its client, None for nothing.
        closed: Whether the connection was closed for the application.
    """

    permit: Permit
    inner_receive: Receive
    inner_send: Send
    pump: ReceivePump | None = None
    holds: bool = False
    gone: bool = False
    answered: bool = False
    until_answer: anyio.CancelScope | None = None
    messages: MessageRate | None = None
    closed: bool = False

    def send(self, message: Message) -> Awaitable[None]:
        """What the application gets as `send`."""
        if self.closed:
            return anyio.lowlevel.checkpoint()  # servers raise when something follows a close
        kind = message["type"]
        if self.until_answer is not None:
            self.until_answer.deadline = _NEVER
        if kind == "websocket.accept" or kind == "websocket.http.response.start":
            self.answered = True
            self.permit.answered()
            self.permit.status = message.get("status", 101)
            if kind == "websocket.accept" and not self.holds:
                self.permit.release(_IGNORED)
        elif kind == "websocket.close" or (
            kind == "websocket.http.response.body" and not message.get("more_body", False)
        ):
            self.answered = True
            self.permit.release(_IGNORED)
        return self.inner_send(message)

    async def receive(self) -> Message:
        """What the application gets as `receive`."""
        if not self.closed:
            message = await self.inner_receive()
            kind = message["type"]
            if kind == "websocket.disconnect":
                self.gone = True
            if (
                kind != "websocket.receive"
                or self.messages is None
                or not self.messages.refuses(self.permit)
            ):
                return message
            await self.send({"type": "websocket.close", "code": TOO_MUCH, "reason": "rate"})
            self.closed = True
        return {"type": "websocket.disconnect", "code": TOO_MUCH, "reason": "rate"}

    def has_answered(self) -> bool:
        """Whether the handshake is over."""
        return self.answered

    def answer_for_it(self) -> None:
        """Somebody else answers in place of the application."""
        self.answered = True

    def returned(self) -> None:
        """The application has returned."""
        if self.answered:
            self.permit.release(_IGNORED)
        else:
            self.permit.release(_CANCELLED if self._is_gone() else Outcome.ERROR)

    def raised(self, error: BaseException) -> None:
        """The application has raised."""
        self.permit.release(_CANCELLED if self._is_gone() else outcome_of(type(error)))

    def _is_gone(self) -> bool:
        return self.gone or (self.pump is not None and self.pump.gone is not None)
