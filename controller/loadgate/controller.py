"""How does one async request go through? The shell around the rules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar, overload

import anyio
import anyio.lowlevel

from loadgate.asked import check_request
from loadgate.cancelling import CancellingPermit
from loadgate.errors import UsageError
from loadgate.guard import guarded
from loadgate.making import remake_admission
from loadgate.permit import Permit
from loadgate.policy import Policy
from loadgate.rates.group import Client
from loadgate.snapshots import take_snapshot
from loadgate.telemetry import Snapshot
from loadgate.ticket import Note
from loadgate.wiring import Observer, Wiring

P = ParamSpec("P")
R = TypeVar("R")

_NEVER: Final = float("inf")

# Seconds without a tick after which the watch is started for memory and gauges alone; with a
# bound on the lag it is started sooner anyway.
_LOOK_AFTER: Final = 1.0


class AdmissionController(Wiring):
    """Decides for one event loop who runs, who waits and who is refused.

    Used as it is, its watch over the event loop starts with the first request and stops when
    nothing runs or waits. ``async with controller`` bounds its life instead: leaving the
    block refuses whoever still waits, and frees the controller for another loop.

    Args:
        policy: What to enforce; the default has no rates and an adaptive limit.
        clock: Seconds. Change it only in tests. After a step back, as `time.time` may make one,
            time goes on from where it was.
        draw: Numbers in [0, 1). Change it only in tests.
        name: How metrics and logs call this controller.
        gauges: What else says that the service is full, by name: functions without arguments
            that answer a pressure, 0 for none and 1 for full. Above `signals.gauge_target`
            they brake the limit. They are called ten times a second while something runs,
            must not block, and are ignored while they raise or answer no number.

    Raises:
        PolicyError: The policy is wrong (already when it is made).
    """

    # -- asking ------------------------------------------------------------------------

    def admit(
        self,
        client: Client = None,
        cost: float = 1.0,
        priority: str = "default",
        timeout: float | None = None,
        places: int = 1,
        *,
        cancel: bool | None = None,
    ) -> Permit:
        """Ask for a place: ``async with controller.admit(client="acct-42") as permit``.

        Args:
            client: Who asks: a string or bytes, or a mapping of key name to string when
                rates count several keys; None shares one anonymous bucket.
            cost: What this request takes from each rate, above 0.
            priority: One of the policy's classes.
            timeout: Seconds from now until the answer is worthless; None means never.
            places: Places that it occupies, for a request that weighs as much as several.
                One that needs more than the limit runs alone. Once it is the next of its
                class no other of it is started before.
            cancel: Whether to cancel the block when the timeout is over, and raise TimeoutError
                out of it; by default as `policy.cancel` says.

        Raises:
            RateLimited: On entering: the client asks for more than its share.
            Overloaded: On entering: the service is full.
            UsageError: The priority is unknown.
            ValueError: Cost, timeout or places mean nothing.
        """
        try:
            level = self._levels[priority]
        except KeyError:
            raise self._unknown_priority(priority) from None
        if timeout is None and cost == 1.0 and places == 1:
            return Permit(controller=self, client=client, level=level)
        check_request(cost, timeout, places)
        kind = Permit
        if timeout is not None and (self.policy.cancel if cancel is None else cancel):
            kind = CancellingPermit
        return kind(
            controller=self,
            client=client,
            cost=cost,
            level=level,
            timeout=timeout,
            note=Note(places) if places > 1 else None,
        )

    def try_admit(
        self,
        client: Client = None,
        cost: float = 1.0,
        priority: str = "default",
        timeout: float | None = None,
        places: int = 1,
    ) -> Permit:
        """Ask for a place but never wait: ``with controller.try_admit(...) as permit``.

        Takes and raises what `admit` does; a service that is full refuses at once.
        """
        if self.shared is not None and not self.shared.immediate:
            raise UsageError(
                "try_admit never waits, and a shared rate may have to: use admit, or buckets in "
                "local mode"
            )
        permit = self.admit(client, cost, priority, timeout, places, cancel=False)
        permit.patient = False
        return permit

    @overload
    def guard(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R]]: ...

    @overload
    def guard(
        self,
        /,
        *,
        client: Client | Callable[..., Client] = None,
        cost: float | Callable[..., float] = 1.0,
        priority: str | Callable[..., str] = "default",
        timeout: float | None = None,
        places: int | Callable[..., int] = 1,
        cancel: bool | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    def guard(
        self,
        function: Any = None,
        /,
        *,
        client: Client | Callable[..., Client] = None,
        cost: float | Callable[..., float] = 1.0,
        priority: str | Callable[..., str] = "default",
        timeout: float | None = None,
        places: int | Callable[..., int] = 1,
        cancel: bool | None = None,
    ) -> Any:
        """Admit every call of a coroutine function or async generator function.

        ``@controller.guard`` or ``@controller.guard(client=lambda user_id, *_: user_id)``; name,
        docs and signature are kept.

        Args:
            function: The function, when used without arguments.
            client: As for `admit`, or a callable that gets the arguments of the call.
            cost: As for `admit`, or such a callable.
            priority: As for `admit`, or such a callable.
            timeout: As for `admit`.
            places: As for `admit`, or such a callable.
            cancel: As for `admit`; never for a generator, whose consumer a cancelled scope
                would hit between two items.

        Raises:
            TypeError: The function is neither, or a generator is to be cancelled.
        """

        def permit_for(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Permit:
            return self.admit(
                client(*args, **kwargs) if callable(client) else client,
                cost(*args, **kwargs) if callable(cost) else cost,
                priority(*args, **kwargs) if callable(priority) else priority,
                timeout,
                places(*args, **kwargs) if callable(places) else places,
                cancel=False if streams else cancel,
            )

        streams = False

        def wrap(function: Any) -> Any:
            nonlocal streams
            streams = inspect.isasyncgenfunction(function)
            if streams and cancel:
                raise TypeError(
                    f"guard(cancel=True) cannot cancel {function!r}: it is a generator, and its "
                    "consumer runs between two items"
                )
            return guarded(function, permit_for)

        return wrap if function is None else wrap(function)

    # -- looking -----------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Everything there is to know, at this moment."""
        return take_snapshot(self)

    def ready(self) -> bool:
        """Whether a load balancer should send requests here; ask about every second.

        Not while draining, and not once more than half of the requests were refused with 503
        for five seconds; again after five seconds with at most a twentieth. Never use it as a
        liveness probe: a restart makes an overload worse.
        """
        refused = sum(self.telemetry.overloaded)
        arrived = self.telemetry.arrived(self.admission.room.depth)
        ready = self._readiness.look(self.clock(), arrived, refused)
        return ready and not self.admission.draining

    def observe(self, observer: Observer) -> None:
        """Tell `observer` of each refusal and of each end from now on; harmless when it knows."""
        if not self.tells(observer):
            self.observers += (observer,)
        self._follow_ends()

    def tells(self, observer: object) -> bool:
        """Whether `observer` hears of refusals and ends."""
        return observer in self.observers

    # -- changing ----------------------------------------------------------------------

    async def apply(self, policy: Policy) -> None:
        """Go on under another policy: nobody who runs or waits is lost.

        Counters, buckets of rates with the same name, and what the limit has learned survive;
        a limit of another kind starts where the old one stood.

        Priority classes are matched by name; whoever waits in one that is gone goes on in the
        lowest.

        Raises:
            UsageError: Called from another loop.
            PolicyError: It has another shared store: that needs a restart.
        """
        await anyio.lowlevel.checkpoint()
        self.claim()
        self._follow_store(policy)
        old, self.policy = self.policy, policy
        remake_admission(self.admission, old, policy, self.clock())
        self.brakes.follow(policy.signals, self.clock())
        self._follow_policy()
        self.wake()

    def bypass(self, on: bool) -> None:
        """The kill switch: let everyone through, past rates, limit and signals; or stop that.

        Nobody waits any more; the limit goes on learning from what it sees. `Snapshot.bypassed`
        counts who was let through.
        """
        self._bypass = on
        self._follow_bypass()
        self.wake()

    async def drain(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109  # gives up, never cancels
        """Refuse every arrival, refuse whoever waits, and wait for those who run.

        Args:
            timeout: Seconds to wait at most; None waits for the last one.

        Returns:
            Whether nobody runs any more.
        """
        admission = self.admission
        admission.close(self.clock())
        self.wake()
        if admission.running():
            if self._drained is None or self._drained.is_set():
                self._drained = anyio.Event()
            with anyio.move_on_after(timeout):
                await self._drained.wait()
        return admission.running() == 0

    async def __aenter__(self) -> Self:
        if self._entered:
            raise UsageError("the controller is entered already")
        self._entered = True
        self.claim()
        self._left = False
        if self._drained is not None:
            self._drained.set()  # whoever waits for the end of a drain sees that it was called off
        self.admission.reopen(self.clock())
        if self.shared is not None:
            await self.shared.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._entered = False
        self.admission.close(self.clock())
        self.wake()
        self.watch.stop()
        self.turns.stop()
        if self.shared is not None:
            with anyio.CancelScope(shield=True):  # bounded; without it a task stays behind
                await self.shared.close()
        self._left = True

    # -- inside ------------------------------------------------------------------------

    def _unknown_priority(self, priority: str) -> UsageError:
        known = ", ".join(self.policy.priorities)
        return UsageError(f"priority {priority!r} is none of {known}")
