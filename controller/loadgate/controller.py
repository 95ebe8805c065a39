"""How does one async request go through? The shell around the rules."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar, cast, overload

import anyio
import anyio.lowlevel

from loadgate.admission import Admission, Ticket
from loadgate.decisions import Outcome, Reason, Refuse
from loadgate.errors import UsageError
from loadgate.guard import guarded
from loadgate.limits.fixed import FixedLimit
from loadgate.permit import Permit, check_request
from loadgate.policy import Concurrency, Policy, Queue
from loadgate.rates.group import Client, RateSet
from loadgate.shared import SharedRates, connect
from loadgate.shedding.depth import DepthRule
from loadgate.signals import LoopWatch
from loadgate.telemetry import (
    EDGES,
    WAIT_EDGES,
    ClassCounts,
    Snapshot,
    Telemetry,
    integral,
    with_edges,
)
from loadgate.waiting import WaitingRoom

P = ParamSpec("P")
R = TypeVar("R")

_UNCLAIMED: Final = object()

# `off`: no event loop holds this many requests, so the limit never binds.
_UNLIMITED: Final = 1_000_000


class AdmissionController:
    """Decides for one event loop who runs, who waits and who is refused.

    Used as it is, its watch over the event loop starts with the first request and stops when
    nothing runs or waits. ``async with controller`` bounds its life instead: leaving the
    block refuses whoever still waits, and frees the controller for another loop.

    Args:
        policy: What to enforce; the default has no rates and an adaptive limit.
        clock: Monotonic seconds. Change it only in tests.
        draw: Numbers in [0, 1). Change it only in tests.
        name: How metrics and logs call this controller.

    Raises:
        PolicyError: The policy is wrong (already when it is made).
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
        name: str = "default",
    ) -> None:
        self.policy: Policy = policy if policy is not None else Policy()
        self.name = name
        self.clock = clock
        self.draw = draw
        self.loop: Any = _UNCLAIMED
        self._trio_token: Any = None
        queue = self.policy.queue
        self.telemetry = Telemetry(
            with_edges(EDGES, self.policy.concurrency.latency_target),
            with_edges(WAIT_EDGES, queue.max_wait, queue.max_wait / 2),
        )
        self.telemetry.begin(clock())
        self.admission = Admission(
            _limit(self.policy.concurrency),
            _depth(self.policy.queue),
            WaitingRoom[Ticket](len(self.policy.priorities), self.policy.queue.discipline),
            self.telemetry,
            observe=self.policy.concurrency.mode == "observe",
        )
        self.rates: RateSet | None = None
        self.shared: SharedRates | None = None
        self._follow_store(self.policy)
        self.settles = False
        self._classes = self.policy.priorities
        self._follow_policy()
        self.watch = LoopWatch(clock, self._busy, self.admission.stalled)
        self._drained: anyio.Event | None = None
        self._entered = False

    # -- asking ------------------------------------------------------------------------

    def admit(
        self,
        client: Client = None,
        cost: float = 1.0,
        priority: str = "default",
        timeout: float | None = None,
    ) -> Permit:
        """Ask for a place: ``async with controller.admit(client="acct-42") as permit``.

        Args:
            client: Who asks: a string or bytes, or a mapping of key name to string when
                rates count several keys; None shares one anonymous bucket.
            cost: What this request takes from each rate, above 0.
            priority: One of the policy's classes.
            timeout: Seconds from now until the answer is worthless; None means never.

        Raises:
            RateLimited: On entering: the client asks for more than its share.
            Overloaded: On entering: the service is full.
            UsageError: The priority is unknown.
            ValueError: Cost or timeout mean nothing.
        """
        if cost != 1.0 or timeout is not None:
            check_request(cost, timeout)
        try:
            level = self._levels[priority]
        except KeyError:
            raise self._unknown_priority(priority) from None
        return Permit(controller=self, client=client, cost=cost, level=level, timeout=timeout)

    def try_admit(
        self,
        client: Client = None,
        cost: float = 1.0,
        priority: str = "default",
        timeout: float | None = None,
    ) -> Permit:
        """Ask for a place but never wait: ``with controller.try_admit(...) as permit``.

        Takes and raises what `admit` does; a service that is full refuses at once.
        """
        if self.shared is not None:
            raise UsageError("try_admit never waits, and a shared rate may have to: use admit")
        permit = self.admit(client, cost, priority, timeout)
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

        Raises:
            TypeError: The function is neither.
        """

        def permit_for(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Permit:
            return self.admit(
                client(*args, **kwargs) if callable(client) else client,
                cost(*args, **kwargs) if callable(cost) else cost,
                priority(*args, **kwargs) if callable(priority) else priority,
                timeout,
            )

        def wrap(function: Any) -> Any:
            return guarded(function, permit_for)

        return wrap if function is None else wrap(function)

    # -- looking -----------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Everything there is to know, at this moment."""
        admission = self.admission
        telemetry = self.telemetry
        # A scrape may come from another thread. Whatever a request changes together is read
        # together, with no call in between at which the interpreter could switch threads; and
        # after the clock, because a counter that says too much falls back the next time.
        now = self.clock()
        in_flight, held, started = admission.in_flight, telemetry.held, telemetry.started
        waiting = admission.room.depth
        limit = admission.limit.limit
        admitted, refused = sum(telemetry.admitted), sum(telemetry.refused.values())
        max_queue, max_depth = admission.thresholds()
        store = self.shared.stats() if self.shared is not None else None
        return Snapshot(
            name=self.name,
            at=now,
            limit=limit,
            in_flight=in_flight,
            waiting=waiting,
            arrived=admitted + refused + telemetry.left + waiting,
            admitted=admitted,
            finished={outcome.value: n for outcome, n in telemetry.finished.items()},
            refused={reason.value: n for reason, n in telemetry.refused.items()},
            would_refuse={reason.value: n for reason, n in telemetry.would_refuse.items()},
            left=telemetry.left,
            classes={
                name: ClassCounts(admitted, rate_limited, overloaded)
                for name, admitted, rate_limited, overloaded in zip(
                    self.policy.priorities,
                    telemetry.admitted,
                    telemetry.rate_limited,
                    telemetry.overloaded,
                    strict=False,
                )
            },
            peak=telemetry.peak_lately(in_flight, now),
            busy=integral(held, started, in_flight, now),
            queued=telemetry.queued + waiting * max(0.0, now - telemetry.queued_at),
            limit_seconds=telemetry.limit_seconds + limit * max(0.0, now - telemetry.limit_at),
            saturated=telemetry.full(now),
            limit_rises=telemetry.limit_rises,
            limit_falls=telemetry.limit_falls,
            held=held,
            wasted=telemetry.wasted,
            latency=telemetry.latency.freeze(),
            wait=telemetry.wait.freeze(),
            drain_rate=admission.drain.rate(limit),
            max_queue=max_queue,
            max_depth=max_depth,
            loop_lag=self.watch.lag(now),
            stalls=telemetry.stalls,
            stalled=telemetry.stalled,
            draining=admission.draining,
            algorithm=self.policy.concurrency.algorithm,
            limit_state=admission.limit.explain(),
            rates={
                **(self.rates.stats() if self.rates is not None else {}),
                **(store.rates if store is not None else {}),
            },
            store=store,
        )

    # -- changing ----------------------------------------------------------------------

    async def apply(self, policy: Policy) -> None:
        """Go on under another policy: nobody who runs or waits is lost.

        Counters, buckets of rates with the same name, and what the limit has learned survive;
        a limit of another kind starts where the old one stood.

        Raises:
            UsageError: Called from another loop, or with other priority classes while
                requests wait in the old ones.
            PolicyError: It has another shared store: that needs a restart.
        """
        await anyio.lowlevel.checkpoint()
        loop = _running_loop()
        if loop is not self.loop or loop is None:
            self.claim(loop)
        old = self.policy
        admission = self.admission
        if tuple(policy.priorities) != tuple(old.priorities) and admission.room.depth:
            raise UsageError("priorities cannot change while requests wait; try again later")
        self._follow_store(policy)
        self.policy = policy
        limit = admission.limit
        if policy.concurrency != old.concurrency:
            # A fixed limit is what is written down, and `off` has learned nothing.
            fresh = policy.concurrency.algorithm == "fixed" or old.concurrency.mode == "off"
            limit = _limit(policy.concurrency, initial=None if fresh else admission.limit.limit)
        if not admission.room.depth:
            admission.room = WaitingRoom[Ticket](len(policy.priorities))
        admission.room.discipline = policy.queue.discipline
        self._follow_policy()
        admission.change(
            self.clock(),
            limit,
            _depth(policy.queue),
            observe=policy.concurrency.mode == "observe",
        )
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
        if admission.in_flight:
            if self._drained is None:
                self._drained = anyio.Event()
            with anyio.move_on_after(timeout):
                await self._drained.wait()
        return admission.in_flight == 0

    async def __aenter__(self) -> Self:
        if self._entered:
            raise UsageError("the controller is entered already")
        self._entered = True
        self.claim(_running_loop())
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
        if self.shared is not None:
            with anyio.CancelScope(shield=True):  # bounded; without it a task stays behind
                await self.shared.close()
        if not self.admission.in_flight:
            self.loop = _UNCLAIMED
            self._trio_token = None

    # -- for Permit --------------------------------------------------------------------

    def claim(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Make sure that `loop` (None: the running trio) is the one that owns this controller.

        Raises:
            UsageError: Another loop owns it, or none is running.
        """
        token = _trio_token() if loop is None else None
        if loop is None and token is None:
            raise UsageError("an AdmissionController works inside a running event loop")
        if self.loop is _UNCLAIMED:
            self.loop = loop
            self._trio_token = token
        elif self.loop is not loop or self._trio_token is not token:
            raise UsageError(
                f"AdmissionController {self.name!r} belongs to another event loop or thread; "
                "make one controller for each event loop, or leave `async with controller` "
                "in the first before using it in a second"
            )

    def wake(self) -> None:
        """Tell those whose wait has ended."""
        ended = self.admission.ended_waits
        if ended:
            self.admission.ended_waits = []
            for ticket in ended:
                event = cast(Permit, ticket).event
                if event is not None:
                    event.set()

    def count_rate_refusal(self, permit: Permit, refusal: Refuse) -> None:
        """A rate has refused: the limit and the queue never hear of this request."""
        permit.refuse_now(refusal)
        self.telemetry.refused[refusal.reason] += 1
        if refusal.reason is Reason.RATE:
            self.telemetry.rate_limited[permit.level] += 1
        else:
            self.telemetry.overloaded[permit.level] += 1

    def after_release(self, permit: Permit, now: float, outcome: Outcome) -> None:
        """Do what few need: charge rates that count outcomes, notice that nobody runs any more."""
        if self.rates is not None and self.settles:
            self.rates.settle(permit.quotas, now, outcome, permit.status)
        if self.shared is not None and self.settles and permit.charge is not None:
            self.shared.settle(permit.charge, outcome, permit.status)
        if self._drained is not None and not self.admission.in_flight:
            self._drained.set()

    # -- inside ------------------------------------------------------------------------

    def _busy(self) -> bool:
        return self.admission.in_flight > 0 or self.admission.room.depth > 0

    def _follow_store(self, policy: Policy) -> None:
        if self.shared is not None:
            self.shared.follow(policy, self.clock())
        else:
            self.shared = connect(policy, clock=self.clock, draw=self.draw, name=self.name)

    def _follow_policy(self) -> None:
        policy = self.policy
        self.telemetry.classes_changed(self._classes, policy.priorities)
        self._classes = policy.priorities
        local = [rate for rate in policy.rates if not rate.shared]
        if self.rates is not None:
            self.rates.update(local, self.clock())
        elif local:
            self.rates = RateSet(local)
        self.settles = any(rate.charge != "arrival" for rate in policy.rates)
        self._levels = {name: level for level, name in enumerate(policy.priorities)}
        # Whoever names no class where "default" is none of them is served last.
        self._levels.setdefault("default", len(policy.priorities) - 1)
        max_lag = policy.signals.max_lag
        # A clock that is turned by hand jumps when the loop does not.
        watched = max_lag is not None and not getattr(self.clock, "virtual", False)
        self.stale = max_lag if watched and max_lag is not None else float("inf")

    def _unknown_priority(self, priority: str) -> UsageError:
        known = ", ".join(self.policy.priorities)
        return UsageError(f"priority {priority!r} is none of {known}")


def _limit(concurrency: Concurrency, initial: int | None = None) -> Any:
    if concurrency.mode == "off":
        return FixedLimit(initial=_UNLIMITED, min=_UNLIMITED, max=_UNLIMITED)
    return concurrency.create(initial)


def _depth(queue: Queue) -> DepthRule:
    return DepthRule(queue.max_wait, queue.max_queue, queue.max_depth)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _trio_token() -> Any:
    """The token of the running trio, None if trio does not run in this thread."""
    try:
        import trio

        return trio.lowlevel.current_trio_token()
    except (ImportError, RuntimeError):
        return None
