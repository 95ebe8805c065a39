"""Whatever is cancelled, and wherever: every place is given back once, and nobody waits in vain."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from loadgate import AdmissionController, Concurrency, Overloaded, Permit, Policy, Queue, UsageError
from tests.controllers import controller, is_idle

# No admission here is suspended so often: the last of these never cancels.
SUSPENSIONS = range(1, 9)


@types.coroutine
def counted(
    inner: Coroutine[Any, Any, None], at: int, cancel: Callable[[], object]
) -> Generator[Any, Any, int]:
    """Run `inner`; call `cancel` when it is suspended for the `at`-th time.

    Returns:
        How often it was suspended.
    """
    count, value, error = 0, None, None
    while True:
        try:
            trap = inner.send(value) if error is None else inner.throw(error)
        except StopIteration:
            return count
        count, value, error = count + 1, None, None
        if count == at:
            cancel()
        try:
            value = yield trap
        except BaseException as thrown:
            error = thrown


async def uses(gate: AdmissionController, running: list[int], **asks: Any) -> None:
    """One request that looks whether it is alone."""
    async with gate.admit(**asks) as permit:
        running.append(1)
        try:
            assert sum(running) == gate.snapshot().limit == 1
            await anyio.lowlevel.checkpoint()
            permit.answered()
            await anyio.lowlevel.checkpoint()
        finally:
            running.pop()


async def turns(number: int) -> None:
    for _ in range(number):
        await anyio.lowlevel.checkpoint()


def by_scope(scope: anyio.CancelScope) -> None:
    scope.cancel()


def from_outside(scope: anyio.CancelScope) -> None:
    """Cancel as other code does that knows nothing of anyio."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    if task is None:
        scope.cancel()  # trio has no other way
    else:
        task.cancel()


@pytest.mark.anyio
@pytest.mark.parametrize("how", [by_scope, from_outside])
@pytest.mark.parametrize("asks", [{}, {"timeout": 60.0}, {"timeout": 60.0, "cancel": True}])
@pytest.mark.parametrize("freed_after", range(5))
@pytest.mark.parametrize("at", SUSPENSIONS)
async def test_a_request_may_be_cancelled_wherever_it_is_suspended(
    at: int, freed_after: int, asks: dict[str, Any], how: Callable[[anyio.CancelScope], None]
) -> None:
    gate = controller(1)
    holder = gate.admit()
    assert holder.begin()
    running: list[int] = []
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:

            async def victim() -> None:
                # A task that ends as cancelled would end its group, too.
                with suppress(asyncio.CancelledError), anyio.CancelScope() as scope:
                    await counted(uses(gate, running, **asks), at, lambda: how(scope))

            group.start_soon(victim)
            group.start_soon(uses, gate, running)  # it must get its turn whatever happens
            await turns(freed_after)
            holder.release()
    assert is_idle(gate)
    assert not running


@pytest.mark.anyio
@pytest.mark.parametrize("freed_after", range(3))
@pytest.mark.parametrize("at", SUSPENSIONS)
async def test_a_stream_may_be_cancelled_wherever_it_is_suspended(
    at: int, freed_after: int
) -> None:
    gate = controller(1)
    ended: list[int] = []

    @gate.guard
    async def items() -> Any:
        try:
            for number in range(3):
                await anyio.lowlevel.checkpoint()
                yield number
        finally:
            ended.append(1)

    async def consumes() -> None:
        stream: Any = items()
        try:
            async for _ in stream:
                await anyio.lowlevel.checkpoint()
        finally:
            with anyio.CancelScope(shield=True):
                await stream.aclose()

    holder = gate.admit()
    assert holder.begin()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:

            async def victim() -> None:
                with anyio.CancelScope() as scope:
                    await counted(consumes(), at, scope.cancel)

            group.start_soon(victim)
            group.start_soon(uses, gate, list[int]())
            await turns(freed_after)
            holder.release()
    assert is_idle(gate)
    assert len(ended) <= 1


@pytest.mark.anyio
async def test_every_suspension_of_an_admission_was_tried() -> None:
    gate = controller(1)
    holder = gate.admit()
    assert holder.begin()
    seen: list[int] = []
    async with anyio.create_task_group() as group:

        async def counts() -> None:
            seen.append(await counted(uses(gate, list[int]()), 0, lambda: None))

        group.start_soon(counts)
        await turns(3)
        holder.release()
    assert 3 <= seen[0] < max(SUSPENSIONS)


def hurry(permit: Permit) -> None:
    permit.hurry()


def abandon(permit: Permit) -> None:
    permit.abandon()


def release(permit: Permit) -> None:
    permit.release()


@pytest.mark.anyio
@pytest.mark.parametrize("end", [hurry, abandon, release])
@pytest.mark.parametrize("granted_first", [True, False])
async def test_the_end_of_a_wait_races_its_grant(
    end: Callable[[Permit], None], granted_first: bool
) -> None:
    gate = controller(1)
    holder, waiter = gate.admit(), gate.admit()
    assert holder.begin()
    refused: list[Overloaded] = []
    ran: list[int] = []
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:

            async def waits() -> None:
                try:
                    async with waiter:
                        ran.append(1)
                except Overloaded as error:
                    refused.append(error)
                except UsageError:
                    assert end is not hurry

            group.start_soon(waits)
            await anyio.wait_all_tasks_blocked()
            steps: list[Callable[[], None]] = [holder.release, lambda: end(waiter)]
            for step in steps if granted_first else steps[::-1]:
                step()  # nothing else happens in between
    assert is_idle(gate)
    if end is hurry:
        assert (len(ran), len(refused)) == ((1, 0) if granted_first else (0, 1))
    else:
        assert not ran


@pytest.mark.anyio
async def test_timeouts_race_grants_and_every_place_is_given_back_once() -> None:
    """All moments fall together: waits end while places become free."""
    moment = 0.002
    policy = Policy(
        concurrency=Concurrency("fixed", initial=2, max=2),
        queue=Queue(moment, max_queue=100, max_depth=100),
    )
    gate = AdmissionController(policy)
    most: list[int] = []

    async def one(number: int) -> None:
        try:
            async with gate.admit(timeout=moment if number % 3 else None, cancel=number % 2 == 0):
                most.append(gate.snapshot().in_flight)
                await anyio.sleep(moment)
        except (Overloaded, TimeoutError):
            pass

    with anyio.fail_after(30):
        for _ in range(20):
            async with anyio.create_task_group() as group:
                for number in range(12):
                    group.start_soon(one, number)
    assert is_idle(gate)
    assert max(most) <= 2


@pytest.mark.anyio
async def test_a_permit_is_not_ended_from_another_thread() -> None:
    gate = controller(1)
    async with gate.admit() as permit:
        with pytest.raises(UsageError):
            await anyio.to_thread.run_sync(permit.release)
        with pytest.raises(UsageError):
            await anyio.to_thread.run_sync(permit.abandon)
        assert gate.snapshot().in_flight == 1
    assert is_idle(gate)
