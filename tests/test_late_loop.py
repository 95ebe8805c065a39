"""A loop that is late lets requests begin a few at a time: with real loops, told that they are."""

from __future__ import annotations

import asyncio
import time
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from loadgate import (
    AdmissionController,
    Concurrency,
    Overloaded,
    Policy,
    Queue,
    Reason,
    Signals,
)
from loadgate.limits.fixed import FixedLimit
from loadgate.signals import LoopTurns
from tests.controllers import is_idle

# So long that nobody is refused because the machine itself stood still for a moment.
LAG = 60.0
LATE = 10.0


def controller(
    *, mode: str = "enforce", signals: Signals | None = None, queue: Queue | None = None
) -> AdmissionController:
    return AdmissionController(
        Policy(
            concurrency=Concurrency("fixed", initial=50, max=1000, mode=mode),  # type: ignore[arg-type]  # one of them
            queue=queue or Queue(30.0, max_queue=1000),
            signals=signals or Signals(max_lag=LAG),
        )
    )


def be_late(gate: AdmissionController) -> None:
    """What a tick of the watch says that comes so late."""
    gate.admission.ticked(gate.clock(), LATE)


def spin() -> None:
    """Compute for as long as a turn of a loop on time has room for."""
    until = time.perf_counter() + 0.01
    while time.perf_counter() < until:
        pass


class Deaf(LoopTurns):
    """Never hears that the loop has turned, as if it stood still."""

    def start(self, loop: AbstractEventLoop | None) -> None:
        pass


def hear_no_turns(gate: AdmissionController) -> None:
    gate.turns.stop()
    gate.turns = Deaf(lambda: False)


async def enter(gate: AdmissionController) -> None:
    async with gate.admit():
        pass


@asynccontextmanager
async def one_waits_for_the_loop(gate: AdmissionController) -> AsyncGenerator[None]:
    """One runs, and one waits although places are free; something must free it in the block."""
    be_late(gate)
    async with gate.admit(), anyio.create_task_group() as group:
        hear_no_turns(gate)
        group.start_soon(enter, gate)
        await anyio.wait_all_tasks_blocked()
        assert gate.snapshot().waiting == 1
        yield


@pytest.mark.anyio
async def test_whoever_arrives_while_one_computes_is_taken_in_before_the_next_begins() -> None:
    gate = controller()
    waited: list[int] = []

    async def request() -> None:
        async with gate.admit():
            waited.append(gate.snapshot().waiting)
            spin()

    async with gate:
        gate.admission.allow_lag(0.1, 0.0)
        be_late(gate)
        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(request)
    # The first found nobody; while each of the others ran all the rest were waiting.
    assert waited == [0, 4, 3, 2, 1, 0]
    assert is_idle(gate)


@pytest.mark.anyio
async def test_on_time_all_of_them_begin_at_once() -> None:
    gate = controller()
    together: list[int] = []

    async def request() -> None:
        async with gate.admit():
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            together.append(gate.snapshot().in_flight)

    async with gate, anyio.create_task_group() as group:
        for _ in range(6):
            group.start_soon(request)
    assert max(together) == 6


@pytest.mark.anyio
async def test_a_wait_for_the_loop_ends_in_time_and_says_what_is_full() -> None:
    gate = controller(queue=Queue(0.01, max_queue=1000))
    async with gate:
        be_late(gate)
        async with gate.admit():
            hear_no_turns(gate)
            with pytest.raises(Overloaded) as refused:
                async with gate.admit():
                    pass
    assert refused.value.reason is Reason.WAIT_TIMEOUT
    assert "the event loop" in refused.value.explain()


@pytest.mark.anyio
async def test_the_queue_in_front_of_a_late_loop_is_as_long_as_it_can_be_worked_off() -> None:
    gate = controller(queue=Queue(0.1))
    async with gate:
        be_late(gate)
        gate.admission.intake.cost = 0.02
        gate.admission.entrance.follow(50)
        async with gate.admit():
            assert gate.snapshot().max_queue == pytest.approx(2.5)
            assert gate.snapshot().max_depth == pytest.approx(5.0)


@pytest.mark.anyio
async def test_the_limit_learns_nothing_from_a_wait_for_the_loop() -> None:
    gate = controller()
    heard: list[str] = []

    class Listening(FixedLimit):
        def on_wait(self, now: float) -> None:
            heard.append("wait")

        def on_refuse(self, now: float) -> None:
            heard.append("refuse")

    gate.admission.limit = Listening(initial=50, min=1, max=1000)
    async with gate:
        be_late(gate)
        async with gate.admit(), anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(enter, gate)
    assert heard == []


@pytest.mark.anyio
async def test_whoever_may_not_wait_begins_in_a_late_loop() -> None:
    gate = controller()
    async with gate:
        be_late(gate)
        with gate.try_admit(), gate.try_admit(), gate.try_admit():
            assert gate.snapshot().in_flight == 3
    assert is_idle(gate)


@pytest.mark.anyio
async def test_whoever_may_not_wait_begins_past_those_who_wait_for_the_loop_alone() -> None:
    gate = controller()
    async with gate, one_waits_for_the_loop(gate):
        with gate.try_admit():
            assert gate.snapshot().in_flight == 2
            assert gate.snapshot().waiting == 1
        gate.bypass(True)
    assert is_idle(gate)


@pytest.mark.anyio
@pytest.mark.parametrize("queue", [Queue(0.0), Queue(mode="off")], ids=["no wait", "off"])
async def test_without_a_queue_a_late_loop_paces_nobody(queue: Queue) -> None:
    gate = controller(queue=queue)
    async with gate:
        be_late(gate)
        async with gate.admit(), gate.admit(), gate.admit():
            assert gate.snapshot().in_flight == 3


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("mode", "signals"),
    [
        ("enforce", Signals(max_lag=None)),
        ("enforce", Signals(max_lag=LAG, mode="observe")),
        ("enforce", Signals(max_lag=LAG, mode="off")),
        ("observe", Signals(max_lag=LAG)),
    ],
    ids=["no lag", "signals observe", "signals off", "limit observes"],
)
async def test_who_does_not_enforce_the_lag_paces_nobody(mode: str, signals: Signals) -> None:
    gate = controller(mode=mode, signals=signals)
    async with gate:
        be_late(gate)
        async with gate.admit(), gate.admit(), gate.admit():
            assert gate.snapshot().in_flight == 3
            assert not gate.snapshot().paced


@pytest.mark.anyio
async def test_other_signals_free_those_who_wait_for_a_late_loop() -> None:
    gate = controller()
    async with gate, one_waits_for_the_loop(gate):
        await gate.apply(Policy(concurrency=gate.policy.concurrency, signals=Signals(max_lag=None)))
    assert is_idle(gate)


@pytest.mark.anyio
async def test_the_kill_switch_frees_those_who_wait_for_a_late_loop() -> None:
    gate = controller()
    async with gate, one_waits_for_the_loop(gate):
        gate.bypass(True)
    assert is_idle(gate)


@pytest.mark.anyio
async def test_a_wait_for_a_late_loop_may_be_cancelled() -> None:
    gate = controller()
    async with gate:
        be_late(gate)
        async with gate.admit():
            hear_no_turns(gate)
            with anyio.move_on_after(0.01):
                await enter(gate)
            assert gate.snapshot().waiting == 0
            assert gate.snapshot().left == 1
        await enter(gate)
    assert is_idle(gate)


@pytest.mark.anyio
async def test_a_controller_that_was_left_while_it_counted_turns_counts_them_again() -> None:
    gate = controller()
    async with gate:
        be_late(gate)
        async with gate.admit():
            pass
    async with gate:
        for _ in range(3):
            await enter(gate)
        assert gate.snapshot().paced
    assert is_idle(gate)


@pytest.mark.anyio
async def test_it_is_told_as_long_as_requests_are_paced() -> None:
    gate = controller()
    async with gate:
        assert not gate.snapshot().paced
        be_late(gate)
        assert gate.snapshot().paced
        gate.admission.ticked(gate.clock() + 1.0, 0.0)
        assert not gate.snapshot().paced


@pytest.mark.anyio
async def test_pacing_ends_also_when_nobody_comes_any_more() -> None:
    gate = controller()
    async with gate:
        gate.admission.ticked(gate.clock() - 0.95, LATE)
        await enter(gate)
        assert gate.snapshot().paced
        for _ in range(2000):
            await anyio.sleep(0.005)
            if not gate.watch.running:
                break
        assert not gate.snapshot().paced
        assert not gate.watch.running


def test_turns_are_told_of_although_one_of_them_raised() -> None:
    told: list[int] = []

    def on_turn() -> bool:
        told.append(len(told))
        if len(told) == 1:
            raise ArithmeticError
        return len(told) < 3

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        turns = LoopTurns(on_turn)
        turns.start(asyncio.get_running_loop())
        for _ in range(10):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert told == [0, 1, 2]


def test_a_watch_whose_tick_raised_is_started_by_the_next_request() -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        gate = controller()
        raised = asyncio.Event()

        class Broken(FixedLimit):
            def on_stall(self, now: float, duration: float) -> None:
                raised.set()
                raise ArithmeticError

        gate.admission.limit = Broken(initial=50, min=1, max=1000)
        async with gate:
            async with gate.admit():
                gate.watch.last -= 1.0
                await raised.wait()
                await asyncio.sleep(0)
                assert not gate.watch.running
            await enter(gate)
            assert gate.watch.running

    asyncio.run(main())
