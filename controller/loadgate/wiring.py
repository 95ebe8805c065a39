"""How do the parts of a controller hear of each other, and of its policy?"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol, cast

import anyio

from loadgate.admission import Admission
from loadgate.brakes import Brakes, Gauge
from loadgate.decisions import Outcome, Reason, Refuse
from loadgate.making import make_admission
from loadgate.owner import Owner
from loadgate.permit import Permit
from loadgate.policy import Policy
from loadgate.rates.group import RateSet
from loadgate.shared import SharedRates, connect
from loadgate.shedding.readiness import Readiness
from loadgate.signals import LoopTurns, LoopWatch
from loadgate.steady import steady
from loadgate.telemetry import EDGES, WAIT_EDGES, Telemetry, with_edges

_NEVER: Final = float("inf")

# Seconds without a tick after which the watch is started for memory and gauges alone; with a
# bound on the lag it is started sooner anyway.
_LOOK_AFTER: Final = 1.0


class Observer(Protocol):
    """Hears of refusals and ends, in the task of the request; it must not block or raise."""

    def on_refused(self, permit: Permit, refusal: Refuse, now: float) -> None:
        """`permit` was refused; what it had taken from rates is given back already."""
        ...

    def on_ended(self, permit: Permit, now: float) -> None:
        """The request of `permit`, which was admitted, has ended."""
        ...


class Wiring:
    """What is inside an `AdmissionController`; it says what the arguments are."""

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
        name: str = "default",
        gauges: Mapping[str, Gauge] | None = None,
    ) -> None:
        self.policy: Policy = policy if policy is not None else Policy()
        if not isinstance(self.policy, Policy):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
            raise TypeError(
                f"policy must be a Policy, not {policy!r:.100}; Policy.from_toml(path) reads a "
                "file, Policy.from_mapping(mapping) takes plain data"
            )
        self.name = name
        self.clock = steady(clock)
        # A clock that is turned by hand jumps when the loop does not.
        self._virtual = bool(getattr(clock, "virtual", False))
        self.draw = draw
        self.owner = Owner(name)
        queue = self.policy.queue
        self.telemetry = Telemetry(
            with_edges(EDGES, self.policy.concurrency.latency_target),
            with_edges(WAIT_EDGES, queue.max_wait, queue.max_wait / 2),
        )
        self.telemetry.begin(self.clock())
        self.admission: Admission = make_admission(self.policy, self.telemetry, draw=draw())
        self.brakes = Brakes(self.policy.signals, gauges or {}, self._braked)
        self.all_rates: RateSet | None = None
        self.rates: RateSet | None = None
        self.shared: SharedRates | None = None
        self._follow_store(self.policy)
        self.observers: tuple[Observer, ...] = ()
        self.settles = False
        self._classes = self.policy.priorities
        self._bypass = False
        self._bypassed = 0
        self._bypassed_from = 0
        self._readiness = Readiness()
        self._follow_policy()
        self.watch = LoopWatch(self.clock, self._busy, self._stalled, self._ticked)
        self.turns = LoopTurns(self._turned)
        self._drained: anyio.Event | None = None
        self._entered = False
        self._left = False

    # -- for Permit --------------------------------------------------------------------

    def claim(self) -> None:
        """Make sure that the running loop is the one that owns this controller.

        Raises:
            UsageError: Another loop owns it, or none is running.
        """
        if self._left and not self.admission.running():
            self.owner.free()  # it was left, and the last request of that time has ended
        self.owner.claim()

    def wake(self) -> None:
        """Tell those whose wait has ended, and count turns if somebody began in a late loop."""
        if self.admission.intake.turning:
            self.turns.start(self.owner.loop)
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
        if self.observers:
            self.tell_refused(permit, refusal, self.clock())

    def tell_refused(self, permit: Permit, refusal: Refuse, now: float) -> None:
        """Let the observers hear of a refusal."""
        for observer in self.observers:
            observer.on_refused(permit, refusal, now)

    def after_release(self, permit: Permit, now: float, outcome: Outcome) -> None:
        """Do what few need: charge rates that count outcomes, notice that nobody runs any more."""
        for observer in self.observers:
            observer.on_ended(permit, now)
        if self.rates is not None and self.settles:
            self.rates.settle(permit.quotas, now, outcome, permit.status)
        if self.shared is not None and self.settles and permit.charge is not None:
            self.shared.settle(permit.charge, outcome, permit.status)
        if self._drained is not None and not self.admission.running():
            self._drained.set()

    def bypassed(self) -> int:
        """Requests let through by the kill switch so far."""
        if not self.admission.bypassed:
            return self._bypassed
        return self._bypassed + sum(self.telemetry.admitted) - self._bypassed_from

    # -- inside ------------------------------------------------------------------------

    def _busy(self) -> bool:
        admission = self.admission
        # Until pacing has ended, so that nobody is told that it goes on when nothing does.
        return admission.running() > 0 or admission.room.depth > 0 or admission.intake.paced

    def _ticked(self, now: float, lag: float) -> None:
        """The event loop has turned: signals are read, and whoever is long-lived by now moves."""
        self.brakes.tick(now, lag)
        admission = self.admission
        admission.ticked(now, lag)
        if now >= admission.long_lived.due:
            admission.look(now)
        self.wake()

    def _turned(self) -> bool:
        """The event loop has turned; answers whether to be told of the next turn as well."""
        if not self.admission.turned(self.clock()):
            return True
        self.wake()
        return self.admission.intake.turning

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
        if self.all_rates is not None:
            self.all_rates.update(local, self.clock())
        elif local:
            self.all_rates = RateSet(local)
        self._follow_ends()
        self._levels = {name: level for level, name in enumerate(policy.priorities)}
        # Whoever names no class where "default" is none of them is served last.
        self._levels.setdefault("default", len(policy.priorities) - 1)
        self._follow_bypass()

    def _follow_ends(self) -> None:
        """Does anybody want to hear how requests end?"""
        charged = any(rate.charge != "arrival" for rate in self.policy.rates)
        self.settles = charged or bool(self.observers)

    def _follow_bypass(self) -> None:
        """Rates, limit and signals hold, unless the kill switch or the policy says otherwise."""
        on = self._bypass or not self.policy.enabled
        admission = self.admission
        if on != admission.bypassed:
            self._bypassed = self.bypassed()
            self._bypassed_from = sum(self.telemetry.admitted)
            admission.bypass(on, self.clock())
        self.rates = None if on else self.all_rates
        signals = self.policy.signals
        watched = signals.mode != "off" and not on and not self._virtual
        self.max_lag = signals.max_lag if watched and signals.max_lag is not None else _NEVER
        paces = signals.mode == "enforce" and self.policy.concurrency.mode != "observe"
        admission.allow_lag(self.max_lag if paces else _NEVER, self.clock())
        self._more_to_see = watched and (signals.max_memory is not None or self.brakes.gauged)
        self._set_look_after()

    def _set_look_after(self) -> None:
        """How old the last tick may be before a request looks around; at once if memory is full."""
        self.look_after = min(self.max_lag, _LOOK_AFTER) if self._more_to_see else self.max_lag
        if self._more_to_see and self.brakes.memory_full:
            self.look_after = -_NEVER

    def _braked(self, factor: float, now: float) -> None:
        """Signals have changed what they leave of the limit."""
        self.admission.brake_to(factor, now)
        self._set_look_after()
        self.wake()

    def _stalled(self, now: float, duration: float) -> None:
        self.admission.stalled(now, duration)
        self.wake()
