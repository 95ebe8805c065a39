"""What does the layer tell a client? The refusal of its request, or how much it has left."""

from __future__ import annotations

import time
from typing import Final

from loadgate.decisions import Reason, Refuse, Stage
from loadgate.integrations.answering import deny_websocket, send_refusal
from loadgate.integrations.decision_log import DecisionLog
from loadgate.integrations.http import (
    Answer,
    Contract,
    Header,
    Pressure,
    quota_headers,
    refusal_answer,
)
from loadgate.integrations.receive import Receive, ReceivePump, Scope, Send
from loadgate.integrations.websocket import BUSY, TOO_MUCH
from loadgate.permit import Permit
from loadgate.policy import Policy
from loadgate.rates.spec import Rate

# Seconds after which a request that was cancelled at its timeout may be tried again: the same as
# the door's, as there is no estimate for either.
_RETRY_AFTER: Final = 1.0


class Teller:
    """Says refusals, and counts them for the pressure that spreads their Retry-After.

    Args:
        contract: How refusals are told.
        log: Where they are logged, None for nowhere.
        max_drain: Bytes of a refused HTTP/1.x upload that are read at most.
        max_drain_time: Likewise in seconds.
    """

    __slots__ = (
        "_contract",
        "_enforced",
        "_log",
        "_max_drain",
        "_max_drain_time",
        "_policy",
        "_pressure",
    )

    def __init__(
        self, contract: Contract, log: DecisionLog | None, max_drain: int, max_drain_time: float
    ) -> None:
        self._contract = contract
        self._log = log
        self._max_drain = max_drain
        self._max_drain_time = max_drain_time
        self._pressure = Pressure()
        self._policy: Policy | None = None
        self._enforced: dict[str, Rate] = {}

    async def refuse(
        self,
        refusal: Refuse,
        permit: Permit,
        scope: Scope,
        receive: Receive,
        send: Send,
        pump: ReceivePump | None,
        *,
        waited: bool,
    ) -> None:
        """Answer a request that admission has refused.

        Args:
            refusal: Why.
            permit: The permit that was refused.
            scope: The request, or the handshake.
            receive: The server's, used only without a pump.
            send: The server's.
            pump: The pump, if one runs already.
            waited: Whether the request stood in the queue unread.
        """
        controller = permit.controller
        now = controller.clock()
        pressure = 0.0
        rate: Rate | None = None
        if refusal.reason is Reason.RATE:
            rate = _rate_named(controller.policy, refusal.subject)
        else:
            pressure = self._pressure.refused(now, lambda: sum(controller.telemetry.admitted))
        answer = refusal_answer(
            refusal,
            self._contract,
            pressure=pressure,
            draw=controller.draw(),
            epoch=time.time(),
            rate=rate,
        )
        if self._log is not None and not controller.tells(self._log):
            algorithm = "" if rate is None else rate.algorithm
            self._log.refused(refusal, permit.client, answer.status, now, algorithm=algorithm)
        code = BUSY if rate is None else TOO_MUCH
        await self._send(answer, scope, receive, send, pump, code, waited=waited)

    async def tell_timeout(
        self, permit: Permit, scope: Scope, receive: Receive, send: Send, pump: ReceivePump | None
    ) -> None:
        """Answer a request whose application was cancelled before it had said anything."""
        now = permit.controller.clock()
        refusal = Refuse(
            Stage.LIMIT, Reason.DEADLINE, _RETRY_AFTER, now - permit.started, permit.timeout or 0.0
        )
        answer = refusal_answer(
            refusal,
            self._contract,
            pressure=0.0,
            draw=permit.controller.draw(),
            epoch=time.time(),
        )
        await self._send(answer, scope, receive, send, pump, BUSY, waited=False)

    def quotas(self, permit: Permit) -> list[Header]:
        """What an admitted client has left, as header fields."""
        policy = permit.controller.policy
        if policy is not self._policy:
            self._policy = policy
            # What is only observed holds nobody back, so it is nothing to plan by.
            self._enforced = {rate.name: rate for rate in policy.rates if rate.mode == "enforce"}
        enforced = self._enforced
        pairs = [(enforced[one.rate], one) for one in permit.quotas if one.rate in enforced]
        return quota_headers(pairs, self._contract, epoch=time.time())

    async def _send(
        self,
        answer: Answer,
        scope: Scope,
        receive: Receive,
        send: Send,
        pump: ReceivePump | None,
        code: int,
        *,
        waited: bool,
    ) -> None:
        if scope["type"] == "websocket":
            await deny_websocket(answer, scope, send, code)
            return
        await send_refusal(
            answer,
            scope,
            receive,
            send,
            pump,
            max_bytes=self._max_drain,
            max_time=self._max_drain_time,
            waited=waited,
        )


def _rate_named(policy: Policy, name: str) -> Rate | None:
    for rate in policy.rates:
        if rate.name == name:
            return rate
    return None
