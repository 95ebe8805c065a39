"""What happens at the door, before any HTTP machinery? A head is read, and maybe answered at once.

The rule (`loadgate.shedding.door`) decides when; this is its shell on asyncio and uvloop. It knows
one server-independent thing: how an HTTP/1.1 connection starts a request. Each server has its own
protocol class that asks here first (`hypercorn_door`, `uvicorn`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final, Literal

import msgspec

from loadgate.controller import AdmissionController
from loadgate.decisions import Reason, Refuse
from loadgate.integrations.classes import PathClasses
from loadgate.integrations.decision_log import DecisionLog
from loadgate.integrations.decision_timer import DECISION_EDGES, EVERY
from loadgate.integrations.door_head import MAX_BODY, target
from loadgate.integrations.exempt import Exemptions
from loadgate.integrations.http import Contract, Pressure, refusal_answer, spread_seconds
from loadgate.integrations.receive import Receive, Scope, Send
from loadgate.integrations.telling import Teller
from loadgate.permit import Permit
from loadgate.policy import Policy
from loadgate.shedding.door import DoorRule
from loadgate.telemetry import Histogram, HistogramSnapshot

Mode = Literal["answer", "drop"]

# Seconds that a connection gets to close by itself after its last answer (RFC 9112, 9.6).
LINGER: Final = 1.0

# An empty SETTINGS frame, which must come first, and GOAWAY: no stream was processed (0), the
# reason is ENHANCE_YOUR_CALM (11). Clients may repeat everything (RFC 9113, 6.8).
GOAWAY: Final = (
    b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    b"\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x0b"
)


class DoorCounts(msgspec.Struct, frozen=True, gc=False):
    """What the door did since the start.

    Attributes:
        passed: Requests let through to the server.
        exempt: Requests on exempt paths, let through without being asked about.
        answered: Requests answered with a refusal.
        dropped: Connections closed without an answer: HTTP/2, or in the mode `drop`.
        expired: Connections closed because no whole head came in time, or too many stood there.
        late: Requests that passed and were refused on reaching the application, being late.
        closed: Whether the door narrows arrivals now.
    """

    passed: int
    exempt: int
    answered: int
    dropped: int
    expired: int
    late: int
    closed: bool


class Door:
    """Asks the rule for each request head and prepares what refused clients are told.

    Args:
        controller: Whose loop this protects. The door follows it: without `signals.max_lag`,
            while signals or limit only observe, and while it is bypassed, nobody is refused.
        exempt: What always passes, as for `AdmissionMiddleware` (a function is not possible:
            there is no scope yet).
        priority: Classes by path, the same object as the layer's; None if all are refused alike.
        contract: How refusals are told; the same as the layer's.
        mode: ``answer`` with the overload's status, or ``drop`` the connection (RFC 6585, section
            4, allows it under attack).
        log: Where refusals are logged.

    Raises:
        ValueError: `exempt` is a function or malformed, or `mode` is unknown.

    Attributes:
        rule: The rule that decides.
        name: The controller's name.
        expired: Connections closed because they stood at the door for too long.
    """

    def __init__(
        self,
        controller: AdmissionController,
        *,
        exempt: Iterable[str] | None = None,
        priority: PathClasses | None = None,
        contract: Contract | None = None,
        mode: Mode = "answer",
        log: DecisionLog | None = None,
    ) -> None:
        if mode not in ("answer", "drop"):
            raise ValueError(f"mode: {mode!r} is neither 'answer' nor 'drop'")
        if callable(exempt):
            raise ValueError("exempt: at the door there is no scope to call a function with")
        if priority is not None and not isinstance(priority, PathClasses):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
            raise ValueError("priority: the door knows no more than a path; give it a PathClasses")
        self.mode: Mode = mode
        self.rule = DoorRule()
        self.expired = 0
        self.name = controller.name
        self._controller = controller
        self._clock = controller.clock
        self._exempt = Exemptions(exempt)
        self._priority = priority
        self._contract = Contract() if contract is None else contract
        self._log = log
        self._pressure = Pressure()
        self._teller = Teller(self._contract, None, MAX_BODY, LINGER)
        self._answers: dict[int, tuple[bytes, bytes]] = {}
        self._passed = self._spared = self._answered = self._dropped = self._late = 0
        self._policy: Policy | None = None
        self._follows = self._enforced = False
        self._levels: dict[str, int] = {}
        self._level = 0
        self._durations = Histogram(DECISION_EDGES)
        self._until_timed = EVERY

    def durations(self) -> HistogramSnapshot:
        """Seconds that deciding took, of one request in `EVERY`."""
        return self._durations.freeze()

    def counts(self) -> DoorCounts:
        """What happened so far, and whether it is closed now, also when nobody comes any more."""
        now = self._clock()
        if now >= self.rule.due:
            self._look(now)
        return DoorCounts(
            self._passed,
            self._spared,
            self._answered,
            self._dropped,
            self.expired,
            self._late,
            self.rule.closed,
        )

    def ask(self, head: bytes) -> float | Refuse:
        """Decide about the request that begins with `head`.

        Returns:
            The refusal; or when it passed, for `entered`; 0.0 for one that need not be followed.
        """
        self._until_timed -= 1
        if self._until_timed:
            return self._decide(head)
        self._until_timed = EVERY
        began = time.perf_counter()
        decided = self._decide(head)
        self._durations.add(time.perf_counter() - began)
        return decided

    def _decide(self, head: bytes) -> float | Refuse:
        now = self._clock()
        rule = self.rule
        if now >= rule.due:
            self._look(now)
        level = 0
        if self._exempt.paths or self._priority is not None:
            method, path = target(head)
            if self._is_exempt(method, path):
                self._spared += 1
                return 0.0
            if self._priority is not None:
                level = self._level_of(path)
        if not self._enforced:
            self._passed += 1
            return 0.0
        refusal = rule.arrive(now, level)
        if refusal is not None:
            return refusal
        self._passed += 1
        return now

    def entered(self, passed: float) -> Refuse | None:
        """A request that passed at `passed` has reached the application.

        Returns:
            None if it may go on, else what to `tell` its client.
        """
        return self.rule.enter(self._clock(), passed)

    def left(self) -> None:
        """A request that passed will never reach the application."""
        self.rule.leave()

    async def tell(self, refusal: Refuse, scope: Scope, receive: Receive, send: Send) -> None:
        """Count a refusal of a request that is inside already, and answer it in its place."""
        self._late += 1
        level = self._level_of(scope["path"])
        self._count(refusal, level)
        permit = Permit(controller=self._controller, client=None, level=level)
        await self._teller.refuse(refusal, permit, scope, receive, send, None, waited=True)

    def answer(self, refusal: Refuse, head: bytes, *, close: bool) -> bytes:
        """Count a refusal and return the whole response to it."""
        self._answered += 1
        now = self._count(refusal, self._level_in(head))
        contract = self._contract
        pressure = self._pressure.refused(now, self._useful)
        draw = self._controller.draw()
        wait = spread_seconds(refusal.retry_after, pressure, draw, contract.max_retry_after)
        if contract.retry_after == "date" or contract.render is not None:
            prepared = self._prepare(refusal, wait)
        else:
            prepared = self._answers.get(wait) or self._prepare(refusal, wait)
            self._answers[wait] = prepared
        start, body = prepared
        connection = b"connection: close\r\n\r\n" if close else b"\r\n"
        return start + connection + (b"" if head.startswith(b"HEAD ") else body)

    def drop(self, refusal: Refuse, head: bytes) -> None:
        """Count a refusal that nobody is told about."""
        self._dropped += 1
        self._count(refusal, self._level_in(head))

    # -- inside ----------------------------------------------------------------------------

    def _count(self, refusal: Refuse, level: int) -> float:
        now = self._clock()
        telemetry = self._controller.telemetry
        telemetry.refused[refusal.reason] += 1
        telemetry.overloaded[level] += 1
        if self._log is not None:
            self._log.refused(refusal, None, self._contract.overload_status, now)
        return now

    def _useful(self) -> int:
        telemetry = self._controller.telemetry
        return sum(telemetry.admitted) + telemetry.refused[Reason.RATE]

    def _look(self, now: float) -> None:
        policy = self._controller.policy
        if policy is not self._policy:
            self._policy = policy
            max_lag = policy.signals.max_lag
            self._follows = (
                max_lag is not None
                and policy.signals.mode == "enforce"
                and policy.concurrency.mode != "observe"
            )
            if max_lag is not None:
                self.rule.max_lag = max_lag
            classes = list(policy.priorities)
            self._levels = {name: level for level, name in enumerate(classes)}
            # Without `priority` nobody says which class a request is of; it counts as most are.
            self._level = self._levels.get("default", len(classes) - 1)
            if self._priority is not None:
                self.rule.classes, self.rule.usual = len(classes), self._level
        self._enforced = self._follows and not self._controller.admission.bypassed
        admission = self._controller.admission
        self.rule.look(now, self._useful(), admission.intake.paced)
        # A closed door chooses for a tenth of what taking everybody in costs.
        admission.step_aside(self.rule.closed, now)
        self._controller.wake()

    def _is_exempt(self, method: str, path: str) -> bool:
        paths = self._exempt.paths
        return (
            paths is not None
            and path in paths
            and self._exempt.covers({"method": method, "path": path})
        )

    def _level_in(self, head: bytes) -> int:
        return self._level if self._priority is None else self._level_of(target(head)[1])

    def _level_of(self, path: str) -> int:
        if self._priority is None:
            return self._level
        return self._levels.get(self._priority.of(path), self._level)

    def _prepare(self, refusal: Refuse, wait: int) -> tuple[bytes, bytes]:
        answer = refusal_answer(
            refusal, self._contract, pressure=0.0, draw=0.0, epoch=time.time() + wait - 1
        )
        lines = [b"HTTP/1.1 %d %b" % (answer.status, _phrase(answer.status))]
        for name, value in answer.headers:
            if name == b"retry-after" and value.isdigit():
                value = b"%d" % wait
            lines.append(name + b": " + value)
        return b"\r\n".join(lines) + b"\r\n", answer.body


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode("ascii")
    except ValueError:
        return b""
