"""Is the process itself too full for this request? Asked when the last tick of its loop is old."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from loadgate.decisions import Reason

if TYPE_CHECKING:
    from loadgate.permit import Permit

# How much later the loop may be for the highest of several classes: while the others are turned
# away it works off what it has, so twice the bound is seldom reached.
_FIRST_CLASS: Final = 2.0


def look_around(permit: Permit, now: float) -> None:
    """The last tick is old, because the loop is late or nobody watched; or memory is full.

    Raises:
        Overloaded: The loop is too late, or the memory full.
    """
    controller = permit.controller
    watch, brakes = controller.watch, controller.brakes
    loop = controller.owner.loop
    if not watch.running:
        watch.start(loop, now)
    elif (lag := watch.lag(now)) > controller.max_lag and not watch.started_here(loop):
        bound = controller.max_lag
        if permit.level == 0 and len(controller.policy.priorities) > 1:
            bound *= _FIRST_CLASS  # the highest of several classes is refused last
        if lag > bound:
            _refuse(permit, Reason.LOOP_LAG, lag, bound, now)
    if brakes.memory_full:
        _refuse(permit, Reason.MEMORY, brakes.memory_used, brakes.memory_bound, now)


def _refuse(permit: Permit, reason: Reason, value: float, bound: float, now: float) -> None:
    controller = permit.controller
    if not controller.brakes.enforced:
        controller.telemetry.would_refuse[reason] += 1
        return
    refusal = controller.admission.refuse_for(permit, now, reason, value, bound)
    if refusal is not None:
        raise permit.refused_with(refusal, now)
