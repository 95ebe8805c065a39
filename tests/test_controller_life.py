from __future__ import annotations

import asyncio
import threading

import anyio
import anyio.lowlevel
import pytest
import trio

from loadgate import (
    AdmissionController,
    Concurrency,
    Overloaded,
    Policy,
    Queue,
    Rate,
    RateLimited,
    Reason,
    UsageError,
)
from tests.controllers import controller, hold, is_idle

pytestmark = pytest.mark.anyio


async def test_applying_a_policy_under_load_keeps_those_who_run_and_admits_those_who_wait() -> None:
    gate = controller(limit=1)
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(hold, gate)
        await anyio.wait_all_tasks_blocked()
        assert (gate.snapshot().in_flight, gate.snapshot().waiting) == (1, 3)
        await gate.apply(
            Policy(concurrency=Concurrency("aimd", initial=3), queue=Queue(30, max_queue=10))
        )
        # A limit that learns goes on from where the old one stood, within its bounds.
        assert gate.snapshot().limit == 1
        await gate.apply(
            Policy(concurrency=Concurrency("fixed", initial=3), queue=Queue(30, max_queue=10))
        )
        assert (gate.snapshot().in_flight, gate.snapshot().waiting) == (3, 1)
        tasks.cancel_scope.cancel()
    assert is_idle(gate)


async def test_buckets_survive_a_new_policy() -> None:
    gate = controller(limit=5, rates=[Rate("per-client", "1/hour")])
    async with gate.admit(client="a"):
        pass
    await gate.apply(Policy(rates=[Rate("per-client", "1/hour"), Rate("all", "100/s", key="all")]))
    with pytest.raises(RateLimited):
        async with gate.admit(client="a"):
            raise AssertionError("it must not run")


async def test_draining_refuses_arrivals_and_waiters_and_waits_for_those_who_run() -> None:
    gate = controller()
    refused: list[Reason] = []

    async def ask() -> None:
        try:
            async with gate.admit():
                raise AssertionError("it must not run")
        except Overloaded as error:
            refused.append(error.reason)

    async with anyio.create_task_group() as tasks:
        permit = gate.admit()
        async with permit:
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            assert not await gate.drain(timeout=0.001)
            await ask()

            async def drained() -> None:
                assert await gate.drain()
                refused.append(Reason.DRAINING)

            tasks.start_soon(drained)
            await anyio.wait_all_tasks_blocked()
    assert refused == [Reason.DRAINING] * 3
    assert is_idle(gate)


async def test_leaving_the_controller_refuses_whoever_waits_and_frees_it_for_another_loop() -> None:
    gate = controller()

    async def ask() -> None:
        with pytest.raises(Overloaded) as refused:
            async with gate.admit():
                raise AssertionError("it must not run")
        assert refused.value.reason is Reason.DRAINING

    async with anyio.create_task_group() as tasks:
        permit = gate.admit()
        async with gate:
            assert permit.begin()
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
        permit.release()
    assert is_idle(gate)
    assert not gate.watch.running


async def test_the_watch_over_the_loop_runs_only_while_something_runs_or_waits() -> None:
    gate = controller()
    assert not gate.watch.running
    async with gate.admit():
        assert gate.watch.running
        await anyio.sleep(0.02)
        assert gate.watch.running
    await anyio.sleep(0.02)
    assert not gate.watch.running


async def test_a_loop_that_stands_still_refuses_whoever_comes_then() -> None:
    now = [100.0]
    gate = AdmissionController(
        Policy(concurrency=Concurrency("fixed", initial=10)), clock=lambda: now[0]
    )
    refused: list[str] = []

    async def another() -> None:
        # Whether the tick or this task comes first after the stall is the loop's affair.
        try:
            async with gate.admit():
                refused.append("")
        except Overloaded as error:
            refused.append(str(error))

    async with gate.admit(), anyio.create_task_group() as tasks:
        for _ in range(50):
            now[0] += 0.2  # nothing else ran for 200 ms
            tasks.start_soon(another)
            await anyio.lowlevel.checkpoint()
        await anyio.sleep(0.02)  # the tick comes, and with it the stall's end
    seen = gate.snapshot()
    assert seen.refused["loop_lag"] == sum(bool(text) for text in refused) > 25
    assert any("signals.max_lag" in text for text in refused)
    assert seen.stalls >= 1
    async with gate.admit():
        pass
    assert is_idle(gate)


async def test_a_task_that_admits_in_a_row_without_awaiting_is_not_refused_for_the_lag() -> None:
    now = [100.0]
    gate = AdmissionController(
        Policy(concurrency=Concurrency("fixed", initial=10)), clock=lambda: now[0]
    )
    for _ in range(5):
        async with gate.admit():
            now[0] += 0.2
    assert gate.snapshot().admitted == 5


def test_use_from_a_second_loop_or_thread_is_a_clear_error() -> None:
    gate = controller(limit=5)

    async def use() -> None:
        async with gate.admit():
            pass

    asyncio.run(use())
    with pytest.raises(UsageError, match="another event loop"):
        asyncio.run(use())
    with pytest.raises(UsageError, match="another event loop"):
        trio.run(use)
    caught: list[BaseException] = []

    def elsewhere() -> None:
        try:
            asyncio.run(use())
        except UsageError as error:
            caught.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(caught) == 1
    with pytest.raises(UsageError, match="running event loop"), gate.try_admit():
        raise AssertionError("it must not run")


def test_a_controller_that_was_left_may_be_used_in_another_loop() -> None:
    gate = controller(limit=5)

    async def use() -> None:
        async with gate, gate.admit():
            pass

    asyncio.run(use())
    asyncio.run(use())
    trio.run(use)
    assert gate.snapshot().admitted == 3


async def test_a_second_drain_waits_for_those_who_run_then() -> None:
    gate = controller(limit=2)
    async with gate, anyio.create_task_group() as tasks, gate.admit():
        tasks.start_soon(gate.drain)
        await anyio.wait_all_tasks_blocked()
    async with gate, gate.admit():
        with anyio.move_on_after(0.02) as scope:
            await gate.drain()
        assert scope.cancelled_caught
    assert is_idle(gate)


async def test_a_drain_that_is_called_off_ends() -> None:
    gate = controller()
    ended: list[bool] = []

    async def drain() -> None:
        ended.append(await gate.drain())

    async with anyio.create_task_group() as tasks, gate.admit():
        tasks.start_soon(drain)
        await anyio.wait_all_tasks_blocked()
        async with gate:
            await anyio.wait_all_tasks_blocked()
            assert ended == [False]
    assert is_idle(gate)


async def test_a_permit_whose_class_has_gone_waits_in_the_lowest() -> None:
    gate = controller()
    late = gate.admit(priority="background")
    async with gate.admit():
        await gate.apply(
            Policy(
                concurrency=Concurrency("fixed", initial=1),
                queue=Queue(30, max_queue=9),
                priorities=("default",),
            )
        )
        assert not late.begin()
    assert late.runs()
    late.release()
    assert is_idle(gate)


def test_a_controller_left_while_something_ran_is_free_once_that_has_ended() -> None:
    gate = controller(limit=5)

    async def leave() -> None:
        async with gate:
            permit = gate.admit()
            permit.begin()
        permit.release()

    asyncio.run(leave())
    asyncio.run(leave())
    trio.run(leave)
    assert is_idle(gate)
