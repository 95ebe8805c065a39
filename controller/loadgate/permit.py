"""What holds one request's place, from the door to the end?"""

from __future__ import annotations

from collections.abc import Mapping
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import anyio

from loadgate.decisions import Outcome, Quota, Reason, Refuse
from loadgate.errors import Overloaded, RateLimited, Rejected, UsageError
from loadgate.shared import Charge
from loadgate.ticket import ENDED, NEW, WAITING, Ticket

if TYPE_CHECKING:
    from loadgate.controller import AdmissionController

_SUCCESS: Final = Outcome.SUCCESS
_RATE: Final = Reason.RATE
# Beside the states that admission knows: the shared store is being asked.
_ASKING: Final = -1
_OUTCOMES: Final = tuple(outcome.value for outcome in Outcome)
# How much later the loop may be for the highest of several classes: while the others are turned
# away it works off what it has, so twice the bound is seldom reached.
_FIRST_CLASS: Final = 2.0


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
        if get_ident() != owner.thread or not owner.runs():
            controller.claim()
        now = controller.clock()
        if self.timeout is not None:
            self.deadline = now + self.timeout
        rates = controller.rates
        if rates is not None:
            charged = rates.charge(self.client, self.cost, now)
            if isinstance(charged, Refuse):
                controller.count_rate_refusal(self, charged)
                raise RateLimited(charged)
            self.quotas = charged
        elif type(self.client) is not str and not is_client(self.client):
            raise TypeError(
                f"client must be str, bytes, a mapping or None, not {self.client!r:.100}"
            )
        if now - controller.watch.last > controller.look_after:
            self._look_around(now)
        if controller.shared is not None and not controller.admission.bypassed:
            return self._ask_the_store(now)
        if self.deadline > now and controller.admission.start(self, now):
            return True
        return self._queue(now)

    def _ask_the_store(self, now: float) -> bool:
        """Local rates allow it; what do those say that several processes share?"""
        controller = self.controller
        shared = controller.shared
        assert shared is not None
        refusal = controller.admission.refuse_early(self, now)
        if refusal is not None:
            raise self._refused(refusal, now)
        try:
            answer = shared.ask(self.client, self.cost, now)
        except BaseException:
            self._refund(now)
            raise
        if not self.patient and not isinstance(answer, Charge | Refuse):
            answer = shared.hurry(answer)
        if isinstance(answer, Charge | Refuse):
            return self._go_on(answer, now)
        self.asked = answer
        self.state = _ASKING
        return False

    async def _hear_the_store(self) -> None:
        controller = self.controller
        shared = controller.shared
        assert shared is not None
        try:
            answer = await shared.answer(self.asked)
        except BaseException:
            self.abandon()
            raise
        self.asked = None
        if self.state != _ASKING:
            return  # abandoned from outside meanwhile
        self.state = NEW
        self._go_on(answer, controller.clock())

    def _go_on(self, answer: Charge | Refuse, now: float) -> bool:
        """The shared rates have answered: take a place, or wait for one."""
        controller = self.controller
        if isinstance(answer, Refuse):
            self._refund(now)
            controller.count_rate_refusal(self, answer)
            raise RateLimited(answer) if answer.reason is _RATE else Overloaded(answer)
        self.charge = answer
        self.quotas += answer.quotas
        if self.deadline > now and controller.admission.start(self, now):
            return True
        return self._queue(now)

    def _look_around(self, now: float) -> None:
        """The last tick is old, because the loop is late or nobody watched; or memory is full."""
        controller = self.controller
        watch, brakes = controller.watch, controller.brakes
        loop = controller.owner.loop
        if not watch.running:
            watch.start(loop, now)
        elif (lag := watch.lag(now)) > controller.max_lag and not watch.started_here(loop):
            bound = controller.max_lag
            if self.level == 0 and len(controller.policy.priorities) > 1:
                bound *= _FIRST_CLASS  # the highest of several classes is refused last
            if lag > bound:
                self._refuse_for(Reason.LOOP_LAG, lag, bound, now)
        if brakes.memory_full:
            self._refuse_for(Reason.MEMORY, brakes.memory_used, brakes.memory_bound, now)

    def _refuse_for(self, reason: Reason, value: float, bound: float, now: float) -> None:
        controller = self.controller
        if not controller.brakes.enforced:
            controller.telemetry.would_refuse[reason] += 1
        elif (
            refusal := controller.admission.refuse_for(self, now, reason, value, bound)
        ) is not None:
            raise self._refused(refusal, now)

    def _queue(self, now: float) -> bool:
        controller = self.controller
        admission = controller.admission
        lowest = len(controller.policy.priorities) - 1
        if self.level > lowest:
            self.level = lowest  # its class has gone since it was made
        try:
            decision = (
                admission.join(self, now, controller.draw())
                if self.patient
                else admission.refuse_at_once(self, now)
            )
        except BaseException:
            self._refund(now)
            raise
        if admission.ended_waits:
            controller.wake()
        if isinstance(decision, Refuse):
            raise self._refused(decision, now)
        return self.runs()

    async def settle(self) -> None:
        """Wait for the shared store, and for the place that `begin` could not give at once.

        Cancelling it is safe: the place, even one just granted, goes to the next.

        Raises:
            RateLimited: The client has nothing left of a shared rate.
            Overloaded: No place became free in time, or somebody else needed the wait more.
        """
        controller = self.controller
        if self.state == _ASKING:
            await self._hear_the_store()
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
            raise self._refused(self.refusal, controller.clock())

    def abandon(self) -> None:
        """Leave: out of the queue, or out of a place that nothing used yet."""
        controller = self.controller
        controller.owner.check_thread()
        now = controller.clock()
        if self.state == _ASKING:
            self.state = ENDED
            if controller.shared is not None:
                controller.shared.abandon(self.asked)
            controller.telemetry.left += 1
            self._refund(now)
        elif controller.admission.leave(self, now):
            self._refund(now)
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
        if self.state == WAITING or self.state == _ASKING:
            self.abandon()
            return
        shown = self.outcome or outcome or _SUCCESS
        if type(shown) is not Outcome:
            if shown not in _OUTCOMES:
                self.outcome = None
                self.release(Outcome.ERROR)
                raise ValueError(f"outcome must be one of {', '.join(_OUTCOMES)}, not {shown!r}")
            shown = Outcome(shown)
        admission = controller.admission
        now = controller.clock()
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
        admission = controller.admission
        now = controller.clock()
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

    def _refused(self, refusal: Refuse, now: float) -> Rejected:
        """A 503 costs the client nothing: what was charged is given back."""
        self._refund(now)
        if self.controller.observers:
            self.controller.tell_refused(self, refusal, now)
        return Overloaded(refusal)

    def _refund(self, now: float) -> None:
        rates = self.controller.all_rates
        if rates is not None and self.quotas:
            rates.refund(self.quotas, now)
        self.quotas = ()
        if self.charge is not None and self.controller.shared is not None:
            self.controller.shared.refund(self.charge)
            self.charge = None


def is_client(client: Any) -> bool:
    """Whether rates could count it: checked also where none does, so that the first may come."""
    return client is None or isinstance(client, str | bytes | Mapping)


def outcome_of(kind: type[BaseException]) -> Outcome:
    """What an exception that ended a request says about the service."""
    if not issubclass(kind, Exception):
        return Outcome.CANCELLED  # asyncio's and trio's cancellation, and the end of the world
    if issubclass(kind, TimeoutError | Overloaded):
        return Outcome.OVERLOAD  # something behind this service is too slow or full
    return Outcome.ERROR


def check_request(cost: Any, timeout: Any, places: Any = 1) -> None:
    """Refuse arguments that mean nothing.

    Raises:
        ValueError: `cost` is not a finite number above 0, `timeout` is NaN, or `places` is
            not a whole number of at least 1.
    """
    if type(places) is not int or places < 1:
        raise ValueError(f"places must be a whole number of at least 1, not {places!r}")
    if not 0.0 < cost < float("inf"):
        raise ValueError(f"cost must be a finite number above 0, not {cost!r}")
    if timeout is not None and timeout != timeout:
        raise ValueError("timeout must be a number of seconds or None, not NaN")


class CancellingPermit(Permit, eq=False, gc=False, kw_only=True):
    """A permit whose block is cancelled when its timeout is over: the answer is worthless then.

    Attributes:
        scope: Around the block, from its place to its end.
    """

    scope: anyio.CancelScope | None = None

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        left = max(0.0, self.deadline - self.controller.clock())
        self.scope = anyio.CancelScope(deadline=anyio.current_time() + left)
        self.scope.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        scope, self.scope = self.scope, None
        assert scope is not None  # `async with` enters before it leaves
        try:
            scope.__exit__(kind, error, traceback)
        except BaseException as other:
            self.release(outcome_of(type(other)))
            raise
        if scope.cancelled_caught:
            # uvloop's timers come up to a millisecond early; the time is over all the same.
            self.deadline = min(self.deadline, self.started)
            self.release(Outcome.OVERLOAD)
            raise TimeoutError(f"not answered within {self.timeout:.15g} s, and cancelled")
        self.release(None if kind is None else outcome_of(kind))
