"""What do the rates say about this request that several processes share?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from loadgate.decisions import Reason, Refuse
from loadgate.errors import Overloaded, RateLimited
from loadgate.shared import Charge
from loadgate.ticket import ENDED, NEW

if TYPE_CHECKING:
    from loadgate.permit import Permit

ASKING: Final = -1
"""Beside the states that admission knows: the shared store is being asked."""

_RATE: Final = Reason.RATE


def ask_the_store(permit: Permit, now: float) -> bool:
    """Local rates allow `permit`; go on as the shared ones say, if they can say so at once.

    Returns:
        Whether it runs; else it is ASKING, or waits for a place.

    Raises:
        RateLimited: The client has nothing left of a shared rate.
        Overloaded: The service is full, or the store is away and its rates are closed.
    """
    controller = permit.controller
    shared = controller.shared
    assert shared is not None
    refusal = controller.admission.refuse_early(permit, now)
    if refusal is not None:
        raise permit.refused_with(refusal, now)
    try:
        answer = shared.ask(permit.client, permit.cost, now)
    except BaseException:
        permit.refund(now)
        raise
    if not permit.patient and not isinstance(answer, Charge | Refuse):
        answer = shared.hurry(answer)
    if isinstance(answer, Charge | Refuse):
        return _go_on(permit, answer, now)
    permit.asked = answer
    permit.state = ASKING
    return False


async def hear_the_store(permit: Permit) -> None:
    """Wait for the answer, and go on as it says.

    Raises:
        RateLimited: The client has nothing left of a shared rate.
        Overloaded: The service is full, or the store is away and its rates are closed.
    """
    controller = permit.controller
    shared = controller.shared
    assert shared is not None
    try:
        answer = await shared.answer(permit.asked)
    except BaseException:
        permit.abandon()
        raise
    permit.asked = None
    if permit.state != ASKING:
        return  # abandoned from outside meanwhile
    permit.state = NEW
    _go_on(permit, answer, controller.clock())


def leave_the_store(permit: Permit, now: float) -> None:
    """Wait for its answer no longer: what it charges is given back."""
    controller = permit.controller
    permit.state = ENDED
    if controller.shared is not None:
        controller.shared.abandon(permit.asked)
    controller.telemetry.left += 1
    permit.refund(now)


def _go_on(permit: Permit, answer: Charge | Refuse, now: float) -> bool:
    """The shared rates have answered: take a place, or wait for one."""
    if isinstance(answer, Refuse):
        permit.refund(now)
        permit.controller.count_rate_refusal(permit, answer)
        raise RateLimited(answer) if answer.reason is _RATE else Overloaded(answer)
    permit.charge = answer
    permit.quotas += answer.quotas
    if permit.deadline > now and permit.controller.admission.start(permit, now):
        return True
    return permit.queue(now)
