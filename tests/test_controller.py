from __future__ import annotations

import inspect
import random
from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel
import pytest

from loadgate import (
    AdmissionController,
    Concurrency,
    Outcome,
    Overloaded,
    Policy,
    Queue,
    Rate,
    RateLimited,
    Reason,
    Rejected,
    UsageError,
)
from tests.controllers import controller, hold, is_idle

pytestmark = pytest.mark.anyio


async def test_a_request_holds_its_place_until_it_ends() -> None:
    gate = controller()
    async with gate.admit(client="a") as permit:
        assert gate.snapshot().in_flight == 1
        assert permit.wait == 0.0
    assert is_idle(gate)
    assert gate.snapshot().finished["success"] == 1


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError(), Outcome.ERROR),
        (TimeoutError(), Outcome.OVERLOAD),
        (KeyboardInterrupt(), Outcome.CANCELLED),
    ],
)
async def test_an_exception_ends_the_permit_and_travels_on(
    error: BaseException, outcome: Outcome
) -> None:
    gate = controller()
    with pytest.raises(type(error)) as caught:
        async with gate.admit():
            raise error
    assert caught.value is error
    assert gate.snapshot().finished[outcome] == 1
    assert is_idle(gate)


async def test_the_handler_may_say_what_the_request_showed() -> None:
    gate = controller()
    async with gate.admit() as permit:
        permit.outcome = Outcome.OVERLOAD
    assert gate.snapshot().finished["overload"] == 1


async def test_an_outcome_that_does_not_exist_is_an_error_and_the_place_is_free() -> None:
    gate = controller()
    with pytest.raises(ValueError, match="splendid"):
        async with gate.admit() as permit:
            permit.outcome = "splendid"  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]  # what an untyped caller may do
    assert is_idle(gate)


async def test_an_answer_after_its_timeout_counts_as_overload() -> None:
    gate = controller()
    async with gate.admit(timeout=0.001):
        await anyio.sleep(0.01)
    assert gate.snapshot().finished["overload"] == 1
    assert gate.snapshot().wasted > 0.0


async def test_a_full_service_makes_the_next_one_wait_for_the_place() -> None:
    gate = controller()
    order: list[str] = []

    async def second() -> None:
        async with gate.admit() as permit:
            order.append("second runs")
            assert permit.wait > 0.0

    async with anyio.create_task_group() as tasks, gate.admit():
        tasks.start_soon(second)
        await anyio.wait_all_tasks_blocked()
        assert gate.snapshot().waiting == 1
        order.append("first ends")
    assert order == ["first ends", "second runs"]
    assert is_idle(gate)


async def test_a_wait_is_bounded_and_says_so() -> None:
    gate = controller(max_wait=0.01)
    async with gate.admit():
        with pytest.raises(Overloaded) as refused:
            async with gate.admit():
                raise AssertionError("it must not run")
    assert refused.value.reason is Reason.WAIT_TIMEOUT
    assert refused.value.status == 503
    assert "queue.max_wait" in str(refused.value)
    assert is_idle(gate)


async def test_try_admit_never_waits() -> None:
    gate = controller()
    with gate.try_admit():
        with pytest.raises(Overloaded), gate.try_admit():
            raise AssertionError("it must not run")
        assert gate.snapshot().waiting == 0
    assert is_idle(gate)


async def test_a_permit_that_may_wait_cannot_be_used_without_async() -> None:
    gate = controller()
    with pytest.raises(UsageError, match="async with"), gate.admit():
        raise AssertionError("it must not run")
    assert is_idle(gate)


async def test_a_permit_is_used_once() -> None:
    gate = controller()
    permit = gate.admit()
    async with permit:
        pass
    with pytest.raises(UsageError, match="once"):
        async with permit:
            raise AssertionError("it must not run")
    permit.release()
    permit.release()
    assert is_idle(gate)


async def test_releasing_early_frees_the_place_and_the_end_is_harmless() -> None:
    gate = controller()
    async with gate.admit() as permit:
        permit.release()
        assert gate.snapshot().in_flight == 0
        async with gate.admit():
            assert gate.snapshot().in_flight == 1
    assert is_idle(gate)


async def test_a_cancelled_waiter_gives_its_wait_back() -> None:
    gate = controller()
    async with gate.admit():
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(hold, gate)
            await anyio.wait_all_tasks_blocked()
            assert gate.snapshot().waiting == 5
            tasks.cancel_scope.cancel()
        assert gate.snapshot().waiting == 0
    assert gate.snapshot().left == 5
    assert is_idle(gate)


async def test_a_place_granted_to_someone_who_is_cancelled_goes_to_the_next() -> None:
    gate = controller()
    ran: list[str] = []

    async def third() -> None:
        async with gate.admit():
            ran.append("third")

    async with anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()

        async def second() -> None:
            with scope:
                async with gate.admit():
                    ran.append("second")

        async with gate.admit():
            tasks.start_soon(second)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(third)
            await anyio.wait_all_tasks_blocked()
        # The place is granted to the second by now, who has not run since: cancel it.
        scope.cancel()
    assert "third" in ran
    assert is_idle(gate)


async def test_a_cancelled_request_frees_its_place_and_teaches_nothing() -> None:
    gate = controller()
    async with anyio.create_task_group() as tasks:
        await tasks.start(hold, gate)
        assert gate.snapshot().in_flight == 1
        tasks.cancel_scope.cancel()
    assert gate.snapshot().finished["cancelled"] == 1
    assert is_idle(gate)


async def test_a_rate_refuses_the_greedy_client_and_nobody_else() -> None:
    gate = controller(limit=10, rates=[Rate("per-client", "2/minute")])
    for _ in range(2):
        async with gate.admit(client="greedy"):
            pass
    with pytest.raises(RateLimited) as refused:
        async with gate.admit(client="greedy"):
            raise AssertionError("it must not run")
    assert refused.value.status == 429
    assert 29.0 < refused.value.retry_after <= 30.0
    assert refused.value.refusal.subject == "per-client"
    async with gate.admit(client="polite"):
        pass
    assert gate.snapshot().refused["rate"] == 1
    assert is_idle(gate)


async def test_a_503_costs_the_client_nothing() -> None:
    gate = controller(rates=[Rate("per-client", "2/hour")], max_queue=0, max_depth=0)
    async with gate.admit(client="other"):
        for _ in range(10):
            with pytest.raises(Overloaded):
                async with gate.admit(client="patient"):
                    raise AssertionError("it must not run")
    for _ in range(2):
        async with gate.admit(client="patient"):
            pass


async def test_a_waiter_that_leaves_or_is_refused_is_charged_nothing() -> None:
    gate = controller(rates=[Rate("per-client", "1/hour")], max_wait=0.01)
    async with gate.admit(client="other"):
        with anyio.move_on_after(0.001):
            async with gate.admit(client="patient"):
                raise AssertionError("it must not run")
        with pytest.raises(Overloaded):
            async with gate.admit(client="patient"):
                raise AssertionError("it must not run")
    async with gate.admit(client="patient"):
        pass


async def test_a_rate_that_counts_failures_is_charged_by_what_happened() -> None:
    gate = controller(limit=5, rates=[Rate("logins", "2/hour", charge="error 401")])
    for _ in range(5):
        async with gate.admit(client="careful"):
            pass
    with pytest.raises(ValueError, match="wrong password"):
        async with gate.admit(client="guessing"):
            raise ValueError("wrong password")
    async with gate.admit(client="guessing") as permit:
        permit.status = 401
    with pytest.raises(RateLimited):
        async with gate.admit(client="guessing"):
            raise AssertionError("it must not run")


@pytest.mark.parametrize("cost", [0, -1.0, float("nan"), float("inf")])
async def test_a_cost_that_means_nothing_is_a_clear_error(cost: float) -> None:
    with pytest.raises(ValueError, match="cost must be"):
        controller().admit(cost=cost)


async def test_a_timeout_that_means_nothing_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="timeout"):
        controller().admit(timeout=float("nan"))


async def test_an_unknown_priority_is_a_clear_error() -> None:
    with pytest.raises(UsageError, match="'urgent' is none of critical, default, background"):
        controller().admit(priority="urgent")


async def test_a_timeout_of_zero_is_refused_on_arrival() -> None:
    gate = controller()
    with pytest.raises(Overloaded) as refused:
        async with gate.admit(timeout=0.0):
            raise AssertionError("it must not run")
    assert refused.value.reason is Reason.DEADLINE
    assert is_idle(gate)


async def test_guard_keeps_name_docs_and_signature_and_reads_the_client_from_the_call() -> None:
    gate = controller(limit=10, rates=[Rate("per-user", "1/hour")])

    def who(user_id: str, *_: int) -> str:
        return user_id

    @gate.guard(client=who, cost=1.0)
    async def handler(user_id: str, size: int = 3) -> str:
        """Answer."""
        return user_id * size

    assert handler.__name__ == "handler"
    assert handler.__doc__ == "Answer."
    assert list(inspect.signature(handler).parameters) == ["user_id", "size"]
    assert inspect.iscoroutinefunction(handler)
    assert await handler("a", 2) == "aa"
    with pytest.raises(RateLimited):
        await handler("a")
    assert await handler("b") == "bbb"
    assert is_idle(gate)


async def test_guard_works_on_methods_and_without_arguments() -> None:
    gate = controller()

    class Service:
        @gate.guard
        async def answer(self, question: str) -> str:
            assert gate.snapshot().in_flight == 1
            return question.upper()

    assert await Service().answer("why") == "WHY"
    assert is_idle(gate)


async def test_guard_holds_the_place_of_a_stream_until_it_is_closed() -> None:
    gate = controller()

    @gate.guard()
    async def numbers() -> AsyncIterator[int]:
        for number in range(10):
            yield number

    stream = numbers()
    assert await anext(stream) == 0
    assert gate.snapshot().in_flight == 1
    await stream.aclose()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # an async generator, typed as its iterator
    assert is_idle(gate)


async def test_guard_on_a_plain_function_is_a_clear_error() -> None:
    with pytest.raises(TypeError, match="plain function"):

        @controller().guard()
        def handler() -> None: ...


async def test_an_anonymous_client_and_keys_of_every_kind_have_buckets_of_their_own() -> None:
    gate = controller(limit=5, rates=[Rate("per-client", "1/hour")])
    for client in ("a", b"a", "", b"", None, "\ud800", "\x00", "a" * 10_000, {"client": "m"}):
        async with gate.admit(client=client):
            pass
        with pytest.raises(RateLimited):
            async with gate.admit(client=client):
                raise AssertionError("it must not run")
    with pytest.raises(TypeError):
        async with gate.admit(client=42):  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # what an untyped caller may do
            raise AssertionError("it must not run")
    assert gate.snapshot().in_flight == 0


async def test_a_hundred_thousand_troubled_admissions_leave_nothing_behind() -> None:
    dice = random.Random(1)
    gate = AdmissionController(
        Policy(
            rates=[Rate("per-client", "1000/second burst 100")],
            concurrency=Concurrency("adaptive", initial=20, max=50),
            queue=Queue(0.02, max_queue=30, max_depth=60),
        ),
        draw=dice.random,
    )
    left = [100_000]

    async def trouble() -> None:
        while left[0] > 0:
            left[0] -= 1
            kind = dice.random()
            try:
                with anyio.CancelScope() as scope:
                    if kind < 0.2:
                        scope.deadline = anyio.current_time() + dice.random() * 0.01
                    async with gate.admit(
                        client=str(dice.randrange(200)),
                        priority=dice.choice(["critical", "default", "background"]),
                        timeout=dice.choice([None, 0.0, 0.001, 0.01, 1.0]),
                    ) as permit:
                        if kind < 0.1:
                            scope.cancel()
                        if kind > 0.9:
                            raise ValueError
                        if kind > 0.8:
                            permit.answered()
                        if kind > 0.7:
                            permit.release()
                        if kind < 0.5:
                            await anyio.lowlevel.checkpoint()
            except (Rejected, ValueError):
                if kind < 0.05:
                    await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        for _ in range(120):
            tasks.start_soon(trouble)
    assert is_idle(gate)
    seen = gate.snapshot()
    assert seen.arrived == 100_000
    assert min(seen.refused["wait_timeout"], seen.refused["deadline"], seen.left) >= 0
    assert 1 <= seen.limit <= 50
    async with gate.admit(client="afterwards"):
        assert gate.snapshot().in_flight == 1
    assert is_idle(gate)


async def test_a_permit_released_while_it_waits_leaves_the_queue() -> None:
    gate = controller()
    first, second = gate.admit(), gate.admit()
    assert first.begin()
    assert not second.begin()
    second.release()
    first.release()
    assert gate.snapshot().left == 1
    assert is_idle(gate)


async def test_a_permit_abandoned_by_another_task_never_enters_its_block() -> None:
    gate = controller()
    waiting = gate.admit()

    async def ask() -> None:
        with pytest.raises(UsageError, match="abandoned"):
            async with waiting:
                raise AssertionError("it must not run")

    async with gate.admit(), anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        waiting.abandon()
    assert is_idle(gate)


async def test_an_outcome_may_be_given_by_its_label() -> None:
    gate = controller(limit=5, rates=[Rate("failures", "1/hour", charge="overload")])
    async with gate.admit(client="a") as permit:
        permit.outcome = "overload"  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]  # what an untyped caller may do
    with pytest.raises(RateLimited):
        async with gate.admit(client="a"):
            raise AssertionError("it must not run")
    assert is_idle(gate)


async def test_guard_never_cancels_between_two_items_of_a_generator() -> None:
    gate = AdmissionController(Policy(cancel=True))

    @gate.guard(timeout=0.005)
    async def rows() -> AsyncIterator[int]:
        for number in range(3):
            yield number

    seen: list[int] = []
    async for row in rows():
        await anyio.sleep(0.01)
        seen.append(row)
    assert seen == [0, 1, 2]
    assert is_idle(gate)
    with pytest.raises(TypeError, match="generator"):
        gate.guard(cancel=True)(rows)
