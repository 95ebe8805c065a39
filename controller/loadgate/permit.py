"""What holds one request's place, from the door to the end?"""

from __future__ import annotations

from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import anyio

from loadgate.asked import is_client
from loadgate.asking_store import ASKING, ask_the_store, hear_the_store, leave_the_store
from loadgate.decisions import Outcome, Quota, Refuse
from loadgate.errors import Overloaded, RateLimited, Rejected, UsageError
from loadgate.looking import look_around
from loadgate.plain_fields import plain_fields
from loadgate.shared import Charge
from loadgate.ticket import ENDED, NEW, WAITING, Ticket

if TYPE_CHECKING:
    from loadgate.controller import AdmissionController

_SUCCESS: Final = Outcome.SUCCESS
_OUTCOMES: Final = tuple(outcome.value for outcome in Outcome)


@plain_fields
class Permit(Ticket, eq=False, gc=False, kw_only=True):
    """A place held by one request; made by `AdmissionController.admit`, used once.

    ``async with`` it. It ends exactly once, whatever happens in between; ending it again is
    harmless.

    Attributes:
        outcome: What this request showed. Set it when you know better than the default: no
            exception is SUCCESS, an expired timeout OVERLOAD, cancellation CANCELLED, any
            other exception ERROR.
        quotas: What each rate answered: local ones in the order of the policy, then shared ones.
        status: The HTTP status of the answer, for rates that are charged by it.
    """

    controller: AdmissionController
    cost: float = 1.0
    timeout: float | None = None
    patient: bool = True
    outcome: Outcome | None = None
    quotas: tuple[Quota, ...] = ()
    status: int | None = None
    event: anyio.Event | None = None
    asked: Any = None
    charge: Charge | None = None

    # -- for those who drive it by hand (the ASGI layer); users write `async with` ---------

    def begin(self) -> bool:
        """Ask for a place, without waiting.

        Returns:
            True if it runs now; False if it stands in the queue or asks a shared store, and
            `settle` must be awaited.

        Raises:
            RateLimited: The client has nothing left.
            Overloaded: The service is full.
            UsageError: The permit was used before, or the controller belongs to another loop.
        """
        if self.state != NEW:
            raise UsageError("a permit is used once; ask admit() for another")
        controller = self.controller
        owner = controller.owner
        runs, clock = owner.runs, controller.clock
        if get_ident() != owner.thread or not runs():
            controller.claim()
        now = clock()
        if self.timeout is not None:
            self.deadline = now + self.timeout
        rates = controller.rates
        if rates is not None:
            charged = rates.charge(self.client, self.cost, now)
            if not isinstance(charged, tuple):  # asking for `Refuse` asks its metaclass: 140 ns
                controller.count_rate_refusal(self, charged)
                raise RateLimited(charged)
            self.quotas = charged
        elif type(self.client) is not str and not is_client(self.client):
            raise TypeError(
                f"client must be str, bytes, a mapping or None, not {self.client!r:.100}"
            )
        if now - controller.watch.last > controller.look_after:
            look_around(self, now)
        if controller.shared is not None and not controller.admission.bypassed:
            return ask_the_store(self, now)
        if self.deadline > now and controller.admission.start(self, now):
            return True
        return self.queue(now)

    def queue(self, now: float) -> bool:
        """The short way gave no place: go the long one, to a place or into the queue.

        Returns:
            Whether it runs.

        Raises:
            Overloaded: It may not wait.
        """
        controller = self.controller
        admission = controller.admission
        classes = len(controller.policy.priorities)
        if self.level >= classes:
            self.level = classes - 1  # its class has gone since it was made
        draw = controller.draw
        try:
            decision = (
                admission.join(self, now, draw())
                if self.patient
                else admission.refuse_at_once(self, now)
            )
        except BaseException:
            self.refund(now)
            raise
        if admission.ended_waits or admission.intake.turning:
            controller.wake()
        if isinstance(decision, Refuse):
            raise self.refused_with(decision, now)
        return self.runs()

    async def settle(self) -> None:
        """Wait for the shared store, and for the place that `begin` could not give at once.

        Cancelling it is safe: the place, even one just granted, goes to the next.

        Raises:
            RateLimited: The client has nothing left of a shared rate.
            Overloaded: No place became free in time, or somebody else needed the wait more.
        """
        controller = self.controller
        if self.state == ASKING:
            await hear_the_store(self)
        try:
            if self.state == WAITING:
                self.event = anyio.Event()
                with anyio.move_on_after(max(0.0, self.until - controller.clock())):
                    await self.event.wait()
        except BaseException:
            self.abandon()
            raise
        finally:
            self.event = None
        if self.state == WAITING:
            now = max(controller.clock(), self.until)
            controller.admission.expire(self, now)
            if controller.admission.ended_waits:
                controller.wake()
        if self.refusal is not None:
            raise self.refused_with(self.refusal, controller.clock())

    def abandon(self) -> None:
        """Leave: out of the queue, or out of a place that nothing used yet."""
        controller = self.controller
        controller.owner.check_thread()
        now = controller.clock()
        if self.state == ASKING:
            leave_the_store(self, now)
        elif controller.admission.leave(self, now):
            self.refund(now)
            controller.wake()  # places that were gathered for it are others' now
            if self.event is not None:
                self.event.set()  # `settle` returns; there is nothing to wait for any more
        else:
            self.release(Outcome.CANCELLED)

    def hurry(self) -> None:
        """Wait no longer: be refused now, as at the end of the wait.

        Harmless unless it waits in the queue.
        """
        controller = self.controller
        if controller.admission.expire(self, controller.clock()) is not None:
            controller.wake()
            if self.event is not None:
                self.event.set()

    def answered(self) -> None:
        """The first message of the answer leaves now: this is where latency ends."""
        if not self.answered_at:
            self.answered_at = self.controller.clock()

    def release(self, outcome: Outcome | None = None) -> None:
        """End the permit now; its place goes to whoever is next. Harmless when it has ended.

        Args:
            outcome: What the request showed; by default `self.outcome`, or success.

        Raises:
            UsageError: Called from another thread.
            ValueError: The outcome is none.
        """
        controller = self.controller
        owner = controller.owner
        if get_ident() != owner.thread:
            owner.check_thread()
        if self.state == WAITING or self.state == ASKING:
            self.abandon()
            return
        shown = self.outcome or outcome or _SUCCESS
        if type(shown) is not Outcome:
            if shown not in _OUTCOMES:
                self.outcome = None
                self.release(Outcome.ERROR)
                raise ValueError(f"outcome must be one of {', '.join(_OUTCOMES)}, not {shown!r}")
            shown = Outcome(shown)
        admission, clock = controller.admission, controller.clock
        now = clock()
        if admission.finish(self, now, shown):
            if admission.ended_waits:
                controller.wake()
            if controller.settles or admission.draining:
                controller.after_release(self, now, shown)

    def __bool__(self) -> bool:
        """A permit says nothing about admission before it is entered, so it has no truth then.

        Raises:
            UsageError: It was not entered yet: ``if controller.try_admit():`` decides nothing.
        """
        if self.state == NEW:
            raise UsageError(
                "a permit decides nothing until it is entered: write "
                "`with controller.try_admit(...)` or `async with controller.admit(...)`, "
                "which raise RateLimited or Overloaded"
            )
        return True

    # -- context managers ------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if not self.begin():
            await self.settle()
            if not self.runs():
                raise UsageError("the permit was abandoned or released while it waited")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None or self.outcome is not None:
            self.release(None if kind is None else outcome_of(kind))
            return
        # `release` written out for what nearly always happens: the call is 3 % of an admission.
        controller = self.controller
        admission, clock = controller.admission, controller.clock
        now = clock()
        if admission.finish(self, now, _SUCCESS):
            if admission.ended_waits:
                controller.wake()
            if controller.settles or admission.draining:
                controller.after_release(self, now, _SUCCESS)

    def __enter__(self) -> Self:
        if self.patient:
            raise UsageError("admit() may have to wait: use `async with`, or try_admit()")
        self.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release(None if kind is None else outcome_of(kind))

    # -- inside ----------------------------------------------------------------------------

    def refuse_now(self, refusal: Refuse) -> None:
        """A rate has refused: this permit is over before admission saw it."""
        self.state = ENDED
        self.refusal = refusal

    def refused_with(self, refusal: Refuse, now: float) -> Rejected:
        """What to raise for a 503. It costs the client nothing: what was charged is given back."""
        if self.quotas or self.charge is not None:
            self.refund(now)
        if self.controller.observers:
            self.controller.tell_refused(self, refusal, now)
        return Overloaded(refusal)

    def refund(self, now: float) -> None:
        """Give back what rates were charged, each to the window that it was charged to."""
        rates = self.controller.all_rates
        if rates is not None and self.quotas:
            rates.refund(self.quotas, now)
        self.quotas = ()
        if self.charge is not None and self.controller.shared is not None:
            self.controller.shared.refund(self.charge)
            self.charge = None


def outcome_of(kind: type[BaseException]) -> Outcome:
    """What an exception that ended a request says about the service."""
    if not issubclass(kind, Exception):
        return Outcome.CANCELLED  # asyncio's and trio's cancellation, and the end of the world
    if issubclass(kind, TimeoutError | Overloaded):
        return Outcome.OVERLOAD  # something behind this service is too slow or full
    return Outcome.ERROR
