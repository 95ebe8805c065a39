"""Faults that users of other limiters met where a limiter meets a task, a loop or a policy."""

from __future__ import annotations

from typing import Any, cast

import anyio
import pytest

from loadgate import AdmissionController, Concurrency, Policy, Rate, RateLimited
from loadgate.errors import PolicyError
from loadgate.testing import VirtualClock


@pytest.mark.parametrize("rates", ["1/second", ["1/second"], [("a", "1/second")]])
def test_rates_that_are_only_text_are_an_error_when_they_are_written_down(rates: Any) -> None:
    # A string was read character by character, and only the first request crashed.
    with pytest.raises(PolicyError) as caught:
        Policy(rates=cast("list[Rate]", rates))
    assert caught.value.path in ("rates", "rates[0]")


@pytest.mark.anyio
async def test_a_permit_may_end_in_another_task_than_the_one_it_began_in() -> None:
    # A limiter that remembers the borrowing task cannot serve a middleware.
    controller = AdmissionController(Policy(concurrency=Concurrency("fixed", initial=1)))
    permit = controller.admit(client="k")
    assert permit.begin()
    async with anyio.create_task_group() as group:

        async def end() -> None:
            permit.release()

        group.start_soon(end)
    assert controller.snapshot().in_flight == 0


@pytest.mark.anyio
async def test_one_task_may_hold_several_places() -> None:
    controller = AdmissionController(Policy(concurrency=Concurrency("fixed", initial=2)))
    async with controller.admit(client="k"), controller.admit(client="k"):
        assert controller.snapshot().in_flight == 2
    assert controller.snapshot().in_flight == 0


@pytest.mark.anyio
async def test_an_idle_key_is_answered_at_once_while_another_key_is_refused() -> None:
    # One lock for all keys made an idle one wait two seconds for a busy one.
    clock = VirtualClock()
    controller = AdmissionController(Policy(rates=[Rate("per-client", "1/hour")]), clock=clock)
    async with controller.admit(client="busy"):
        pass
    with pytest.raises(RateLimited):
        controller.admit(client="busy").begin()
    permit = controller.admit(client="idle")
    assert permit.begin()
    permit.release()
