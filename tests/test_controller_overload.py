"""What operators and handlers ask of a controller that is too busy."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from loadgate import (
    AdmissionController,
    Concurrency,
    Overloaded,
    Policy,
    Queue,
    Rate,
    RateLimited,
    Reason,
    Rejected,
    Signals,
)
from loadgate.brakes import Brakes
from loadgate.memory import Memory
from loadgate.shedding.brake import PERIOD
from loadgate.testing import VirtualClock

pytestmark = pytest.mark.anyio


def controller(limit: int = 1, **settings: Any) -> AdmissionController:
    queue: dict[str, Any] = {"max_wait": 30.0, "max_queue": 1000.0, **settings.pop("queue", {})}
    places: dict[str, Any] = {"algorithm": "fixed", "initial": limit}
    places |= settings.pop("concurrency", {})
    return AdmissionController(
        Policy(concurrency=Concurrency(**places), queue=Queue(**queue), **settings)
    )


def is_idle(gate: AdmissionController) -> bool:
    seen = gate.snapshot()
    return (
        seen.in_flight == seen.waiting == 0
        and seen.arrived == seen.admitted + sum(seen.refused.values()) + seen.left
        and seen.admitted == sum(seen.finished.values())
    )


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop tick until something shows."""
    with anyio.fail_after(10):
        while not condition():  # noqa: ASYNC110  # the ticks that it waits for set no event
            await anyio.sleep(0.01)


# -- places and timeouts -----------------------------------------------------------------------


async def test_a_request_may_occupy_several_places() -> None:
    gate = controller(limit=3)
    async with gate.admit(places=2) as permit:
        assert permit.places == 2
        assert gate.snapshot().in_flight == 2
        with gate.try_admit(), pytest.raises(Overloaded), gate.try_admit(places=1):
            raise AssertionError("it must not run")
    assert is_idle(gate)


@pytest.mark.parametrize("places", [0, -1, 1.5, "2", float("nan")])
async def test_places_that_mean_nothing_are_a_clear_error(places: Any) -> None:
    with pytest.raises(ValueError, match="places must be"):
        controller().admit(places=places)


async def test_a_request_is_cancelled_when_its_timeout_is_over_if_it_asks_for_that() -> None:
    gate = controller()
    with pytest.raises(TimeoutError, match=r"not answered within 0\.01 s"):
        async with gate.admit(timeout=0.01, cancel=True):
            await anyio.sleep_forever()
    seen = gate.snapshot()
    assert seen.finished["overload"] == 1
    assert seen.wasted > 0.0
    assert is_idle(gate)


async def test_the_policy_can_ask_for_cancellation_and_a_request_can_decline() -> None:
    gate = controller(cancel=True)
    with pytest.raises(TimeoutError):
        async with gate.admit(timeout=0.01):
            await anyio.sleep_forever()
    async with gate.admit(timeout=0.01, cancel=False):
        await anyio.sleep(0.03)
    assert gate.snapshot().finished["overload"] == 2
    assert is_idle(gate)


async def test_cancelling_from_outside_is_not_taken_for_a_timeout() -> None:
    gate = controller(cancel=True)
    with anyio.move_on_after(0.01) as scope:
        async with gate.admit(timeout=30.0):
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert gate.snapshot().finished["cancelled"] == 1
    assert is_idle(gate)


async def test_an_error_in_a_block_that_can_be_cancelled_travels_on() -> None:
    gate = controller(cancel=True)
    with pytest.raises(KeyError):
        async with gate.admit(timeout=30.0):
            raise KeyError("mine")
    assert gate.snapshot().finished["error"] == 1
    assert is_idle(gate)


async def test_guard_passes_places_and_cancel_on() -> None:
    gate = controller(limit=5)

    def weight(size: int) -> int:
        return size

    @gate.guard(places=weight, timeout=0.01, cancel=True)
    async def handler(size: int) -> int:
        assert gate.snapshot().in_flight == size
        await anyio.sleep_forever()
        return 0

    with pytest.raises(TimeoutError):
        await handler(3)
    assert is_idle(gate)


# -- the kill switch, modes, readiness ---------------------------------------------------------


async def test_the_kill_switch_lets_everyone_through_and_counts_them() -> None:
    gate = controller(rates=[Rate("per-client", "1/hour")])
    async with gate.admit(client="a"):
        gate.bypass(True)
        for _ in range(10):
            async with gate.admit(client="a"):
                assert gate.snapshot().bypassing
        gate.bypass(False)
        assert gate.snapshot().bypassed == 10
    with pytest.raises(RateLimited):
        async with gate.admit(client="a"):
            raise AssertionError("it must not run")
    async with gate.admit(client="b"):
        assert gate.snapshot().bypassed == 10
    assert is_idle(gate)


async def test_the_kill_switch_wakes_those_who_wait() -> None:
    gate = controller()
    ran: list[int] = []

    async def request(number: int) -> None:
        async with gate.admit():
            ran.append(number)

    async with anyio.create_task_group() as tasks, gate.admit():
        for number in range(5):
            tasks.start_soon(request, number)
        await anyio.wait_all_tasks_blocked()
        gate.bypass(True)
        await anyio.wait_all_tasks_blocked()
        assert sorted(ran) == [0, 1, 2, 3, 4]
    assert is_idle(gate)


async def test_a_policy_can_switch_everything_off_and_on_again() -> None:
    gate = controller()
    on = gate.policy
    await gate.apply(Policy(concurrency=on.concurrency, queue=on.queue, enabled=False))
    async with gate.admit(), gate.admit(), gate.admit():
        assert gate.snapshot().in_flight == 3
    await gate.apply(on)
    async with gate.admit():
        with pytest.raises(Overloaded), gate.try_admit():
            raise AssertionError("it must not run")
    assert gate.snapshot().bypassed == 3
    assert is_idle(gate)


async def test_an_instance_that_refuses_most_of_its_requests_is_not_ready_for_a_while() -> None:
    clock = VirtualClock()
    policy = Policy(concurrency=Concurrency("fixed", initial=1), queue=Queue(mode="off"))
    gate = AdmissionController(policy, clock=clock)
    assert gate.ready()
    async with gate.admit():
        for _ in range(10):
            clock.advance(1.0)
            for _ in range(5):
                with pytest.raises(Overloaded):
                    async with gate.admit():
                        raise AssertionError("it must not run")
            gate.ready()
        assert not gate.ready()
    for _ in range(10):
        clock.advance(1.0)
        gate.ready()
    assert gate.ready()
    await gate.drain()
    assert not gate.ready()


# -- signals -----------------------------------------------------------------------------------


async def test_a_blocked_loop_brakes_explains_itself_and_teaches_the_limit_nothing() -> None:
    policy = Policy(
        concurrency=Concurrency("adaptive", initial=40), queue=Queue(max_wait=5.0, max_queue=1000)
    )
    gate = AdmissionController(policy)

    refusals: list[Overloaded] = []
    seen = gate.snapshot()

    async def handler() -> None:
        try:
            async with gate.admit():
                time.sleep(0.2)  # noqa: ASYNC251  # blocking the loop is what this is about
                await anyio.lowlevel.checkpoint()
        except Overloaded as refused:
            refusals.append(refused)

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(handler)
            await anyio.sleep(0.01)
            seen = gate.snapshot()
    assert all(refused.reason is Reason.LOOP_LAG for refused in refusals)
    assert all("event loop" in str(refused) for refused in refusals)
    assert gate.snapshot().stalls > 0
    assert seen.signals["loop_lag"].factor < 1.0
    assert seen.limit < 40
    assert seen.limit_state["limit"] >= 40  # nothing was learned: the stall was the evidence
    assert "of the limit are left" in seen.signals["loop_lag"].explanation
    assert is_idle(gate)


async def test_a_gauge_brakes_and_a_broken_one_is_ignored_and_counted() -> None:
    pressure = 1.0

    def broken() -> float:
        raise RuntimeError("no connection")

    gate = AdmissionController(
        Policy(concurrency=Concurrency("fixed", initial=100, max=100)),
        gauges={"pool": lambda: pressure, "broken": broken},
    )
    async with gate.admit():
        await until(lambda: gate.snapshot().limit <= 85)
        seen = gate.snapshot()
        assert seen.brake < 1.0
        assert seen.signals["pool"].factor == seen.brake
        assert seen.signals["broken"].factor == 1.0
        assert seen.signals["broken"].broken > 0
        pressure = 0.0
        await until(lambda: gate.snapshot().limit == 100)
    assert is_idle(gate)


async def test_observed_signals_brake_nothing_and_count() -> None:
    gate = AdmissionController(
        Policy(
            concurrency=Concurrency("fixed", initial=10, max=10),
            signals=Signals(max_memory=1_000_000, mode="observe"),
        ),
    )
    async with gate.admit():
        await until(lambda: gate.snapshot().memory_used > 0)
        async with gate.admit():
            seen = gate.snapshot()
            assert seen.limit == 10
            assert seen.would_refuse["memory"] == 1
    assert is_idle(gate)


async def test_full_memory_refuses_and_says_so() -> None:
    gate = AdmissionController(Policy(signals=Signals(max_memory=1_000_000)))
    async with gate.admit():
        await until(lambda: gate.snapshot().memory_used > 0)
        with pytest.raises(Overloaded) as refused:
            async with gate.admit():
                raise AssertionError("it must not run")
    assert refused.value.reason is Reason.MEMORY
    assert "signals.max_memory" in str(refused.value)
    assert refused.value.refusal.observed > refused.value.refusal.bound == 1_000_000
    assert is_idle(gate)


async def test_signals_that_are_off_are_not_looked_at() -> None:
    def forbidden() -> float:
        raise AssertionError("it must not be asked")

    gate = AdmissionController(Policy(signals=Signals(mode="off")), gauges={"pool": forbidden})
    async with gate.admit():
        await anyio.sleep(0.03)
        assert gate.snapshot().signals == {}
    assert is_idle(gate)


# -- changing under load -----------------------------------------------------------------------


async def test_priorities_change_while_people_wait() -> None:
    gate = controller(queue={"discipline": "fifo"})
    order: list[str] = []

    async def request(priority: str) -> None:
        async with gate.admit(priority=priority):
            order.append(priority)

    async with anyio.create_task_group() as tasks, gate.admit():
        for priority in ("critical", "default", "background"):
            tasks.start_soon(request, priority)
            await anyio.wait_all_tasks_blocked()
        policy = Policy(
            concurrency=gate.policy.concurrency,
            queue=gate.policy.queue,
            priorities=("background", "vip", "default"),
        )
        await gate.apply(policy)
        assert gate.snapshot().waiting == 3
    assert order == ["background", "critical", "default"]
    assert gate.snapshot().admitted == 4
    assert is_idle(gate)


async def test_whatever_changes_under_load_nobody_is_stranded_or_admitted_twice() -> None:
    """Requests of every kind, cancelled at random, under policies that change all the time."""
    dice = random.Random(5)
    gate = controller(limit=3, queue={"max_queue": 20.0, "max_wait": 0.5})
    running: set[int] = set()
    ends = {"served": 0, "refused": 0, "left": 0}

    async def request(number: int) -> None:
        with anyio.CancelScope() as scope:
            if dice.random() < 0.3:
                scope.deadline = anyio.current_time() + dice.random() * 0.02
            try:
                async with gate.admit(
                    client=dice.choice([None, "a", "b"]),
                    priority=dice.choice(["critical", "default", "background"])
                    if "critical" in gate.policy.priorities
                    else "default",
                    timeout=dice.choice([None, 0.01, 5.0]),
                    places=dice.choice([1, 1, 1, 2]),
                    cancel=dice.random() < 0.5,
                ):
                    assert number not in running
                    running.add(number)
                    try:
                        for _ in range(dice.randrange(4)):
                            await anyio.sleep(dice.random() * 0.003)
                    finally:
                        running.discard(number)
                ends["served"] += 1
            except Rejected:
                ends["refused"] += 1
            except TimeoutError:
                ends["left"] += 1
        if scope.cancelled_caught:
            ends["left"] += 1

    policies = [
        Policy(
            rates=[Rate("r", limit=100_000)] if n % 2 else [],
            concurrency=Concurrency("fixed", initial=1 + n % 5, max_share=[None, 0.7][n % 2]),
            queue=Queue(
                max_wait=[0.001, 0.5][n % 2],
                max_queue=[None, 0.0, 5.0][n % 3],
                discipline=dice.choice(["default", "fifo", "fair"]),
                rule=dice.choice(["survival", "ramp", "budget"]),
                mode=dice.choice(["enforce", "observe", "off"]),
            ),
            priorities=dice.choice(
                [("critical", "default", "background"), ("background", "default", "critical")]
            ),
            reserve=dice.choice([{}, {"background": 0.3}]),
            enabled=n % 7 != 0,
        )
        for n in range(30)
    ]
    async with anyio.create_task_group() as tasks:
        for number in range(600):
            tasks.start_soon(request, number)
            if number % 20 == 19:
                await gate.apply(policies[number // 20])
            if number % 5 == 0:
                await anyio.sleep(0.001)
        gate.bypass(True)
        gate.bypass(False)
    assert not running
    assert sum(ends.values()) == 600
    assert is_idle(gate)
    assert gate.snapshot().arrived == 600


# -- the shell of the brakes -------------------------------------------------------------------


def test_memory_of_a_container_is_what_its_group_uses_beside_its_bound(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 150\n")
    memory = Memory("container", tmp_path)
    assert (memory.bound, memory.used()) == (1000, 750)
    (tmp_path / "memory.current").unlink()
    assert memory.used() is None


def test_a_container_of_the_older_kind_has_a_bound_too(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("1000\n")
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("400\n")
    memory = Memory("container", tmp_path)
    assert (memory.bound, memory.used()) == (1000, 400)


@pytest.mark.parametrize("bound", ["max", str(2**63 - 4096), "", "nonsense"])
def test_a_container_without_a_bound_has_none(tmp_path: Path, bound: str) -> None:
    (tmp_path / "memory.max").write_text(bound)
    assert Memory("container", tmp_path).bound is None


def test_the_resident_memory_of_this_process_is_known_here() -> None:
    used = Memory(10**12).used()
    assert used is not None
    assert 10**6 < used < 10**12


def test_brakes_keep_their_factor_when_the_policy_changes_something_else() -> None:
    told: list[float] = []
    brakes = Brakes(Signals(), {}, lambda factor, _now: told.append(factor))
    brakes.tick(0.0, 10.0)
    assert told == [0.5]
    brakes.follow(Signals(gauge_target=0.5))
    assert brakes.factor == 0.5
    brakes.follow(Signals(max_lag=1.0), now=PERIOD)
    assert brakes.factor == 1.0
    assert told == [0.5, 1.0]


async def test_the_places_gathered_for_one_that_leaves_go_to_the_next_at_once() -> None:
    gate = controller(2, signals=Signals(max_lag=None))
    began = anyio.Event()

    async def large(scope: anyio.CancelScope) -> None:
        with scope:
            async with gate.admit(places=2):
                pytest.fail("it had left")

    async def next_one() -> None:
        async with gate.admit():
            began.set()

    leaves = anyio.CancelScope()
    async with gate, gate.admit(), anyio.create_task_group() as group:
        group.start_soon(large, leaves)
        await until(lambda: gate.snapshot().waiting == 1)
        group.start_soon(next_one)
        await until(lambda: gate.snapshot().waiting == 2)
        leaves.cancel()
        with anyio.fail_after(10):
            await began.wait()
    assert is_idle(gate)
