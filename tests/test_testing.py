from __future__ import annotations

import pytest

from loadgate import AdmissionController, Concurrency, Policy, Queue, Rate, RateLimited
from loadgate.testing import Draws, ScriptedService, VirtualClock


@pytest.mark.anyio
async def test_a_user_can_test_a_refill_and_a_latency_without_sleeping() -> None:
    clock = VirtualClock()
    controller = AdmissionController(
        Policy(rates=[Rate("per-client", "1/minute")], concurrency=Concurrency("fixed")),
        clock=clock,
        draw=Draws(0.5),
    )
    service = ScriptedService(clock, [0.05, ConnectionError()])
    async with controller.admit(client="a"):
        await service()
    with pytest.raises(RateLimited) as refused:
        async with controller.admit(client="a"):
            raise AssertionError("it must not run")
    clock.advance(refused.value.retry_after)
    with pytest.raises(ConnectionError):
        async with controller.admit(client="a"):
            await service()
    seen = controller.snapshot()
    assert (seen.finished["success"], seen.finished["error"], service.calls) == (1, 1, 2)
    assert seen.held == pytest.approx(0.05)


@pytest.mark.anyio
async def test_loaded_dice_decide_who_survives() -> None:
    draws = Draws(0.0, 0.99)
    assert [draws(), draws(), draws()] == [0.0, 0.99, 0.0]
    controller = AdmissionController(
        Policy(concurrency=Concurrency("fixed", max=1), queue=Queue(1.0, max_queue=1, max_depth=9)),
        draw=Draws(0.9),
    )
    held, waiting, shed = (controller.admit() for _ in range(3))
    assert held.begin()
    assert not waiting.begin()
    assert not controller.admit().begin()  # one waiter is not above max_queue
    with pytest.raises(Exception, match="max_queue"):
        shed.begin()


def test_nonsense_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        VirtualClock().advance(-1.0)
    with pytest.raises(ValueError, match=r"\[0, 1\)"):
        Draws(1.0)
    with pytest.raises(ValueError, match="at least one"):
        ScriptedService(VirtualClock(), [])
    assert VirtualClock(5.0).step(-2.0) == 3.0
