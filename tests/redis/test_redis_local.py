"""Local mode on a real store: decisions in memory, one bound for all processes."""

from __future__ import annotations

import contextlib

import anyio
import msgspec
import pytest

from loadgate import (
    AdmissionController,
    Concurrency,
    Overloaded,
    Policy,
    Queue,
    Rate,
    RateLimited,
)
from loadgate.integrations.redis import RedisStore
from tests.redis.servers import Server
from tests.redis.shared_policy import PATIENT, admitted, admitted_together, several, shared, until

pytestmark = pytest.mark.anyio


async def test_processes_together_let_through_one_burst(server: Server) -> None:
    policy = shared(server.url, "100/hour", mode="local")
    async with several(policy, 4) as controllers:
        number = await admitted_together(controllers, "greedy", 60)
        assert 90 <= number <= 100  # what is leased and not spent comes back later
        assert await admitted(controllers[0], "another") == 1


async def test_most_decisions_ask_nobody(server: Server) -> None:
    policy = shared(server.url, "1000000/second", mode="local")
    async with AdmissionController(policy) as controller:
        seen = await admitted(controller, "a", 20)
        store = controller.snapshot().store
        await anyio.sleep(0.01)
        for _ in range(30):
            seen += await admitted(controller, "a", 20)
            await anyio.sleep(0.001)
        assert seen == 620
        store = controller.snapshot().store
        assert store.decisions["lease"] == 620
        assert store.calls < 60


async def test_a_crowd_of_one_client_is_served_with_few_questions(server: Server) -> None:
    policy = shared(server.url, "200/hour", mode="local")
    async with AdmissionController(policy) as controller:
        numbers: list[int] = []

        async def one() -> None:
            numbers.append(await admitted(controller, "a"))

        async with anyio.create_task_group() as group:
            for _ in range(150):
                group.start_soon(one)
        assert sum(numbers) == 150
        assert controller.snapshot().store.asked <= 20


async def test_the_refusal_says_when_to_return(server: Server) -> None:
    policy = shared(server.url, Rate("quota", "3/hour", shared=True), mode="local")
    async with AdmissionController(policy) as controller:
        assert await admitted(controller, "a", 3) == 3
        for _ in range(2):
            with pytest.raises(RateLimited, match="quota") as caught:
                async with controller.admit(client="a"):
                    pass
            assert caught.value.retry_after == pytest.approx(1200, abs=60)
        with pytest.raises(RateLimited) as caught:
            async with controller.admit(client="b", cost=4):
                pass
        assert caught.value.retry_after == float("inf")


async def test_buckets_are_leased_and_windows_asked_for_all_or_none(server: Server) -> None:
    policy = shared(
        server.url,
        Rate("bucket", "10/hour", shared=True),
        Rate("window", "3/hour", algorithm="sliding-window-log", key="address", shared=True),
        mode="local",
    )
    async with AdmissionController(policy) as controller:
        assert await admitted(controller, {"client": "a", "address": "1"}, 6) == 3
        assert await admitted(controller, {"client": "a", "address": "2"}, 3) == 3
        assert await admitted(controller, {"client": "a", "address": "3"}, 3) == 3
        assert await admitted(controller, {"client": "a", "address": "4"}, 3) == 1


async def test_a_503_gives_back_what_was_leased(server: Server) -> None:
    policy = shared(
        server.url,
        "3/hour",
        mode="local",
        concurrency=Concurrency(algorithm="fixed", initial=1),
        queue=Queue(max_wait=0.005, max_queue=10, max_depth=10),
    )
    async with AdmissionController(policy) as controller:
        async with controller.admit(client="holder"):
            for _ in range(8):
                with pytest.raises(Overloaded):
                    async with controller.admit(client="a"):
                        pass
        assert await admitted(controller, "a", 5) == 3


async def test_whoever_leaves_returns_what_it_did_not_spend(server: Server) -> None:
    policy = shared(server.url, "1000/hour", mode="local", lease=60.0)
    async with AdmissionController(policy) as stays:
        async with AdmissionController(policy) as leaves:
            for _ in range(20):  # the more it uses the more it leases
                assert await admitted(leaves, "a", 20) == 20
                await anyio.sleep(0.002)
        rest = 0
        with anyio.fail_after(20):
            while rest < 590:
                rest += await admitted(stays, "a", 50)
                await anyio.sleep(0.02)
        assert rest <= 601


async def test_idle_processes_give_back(server: Server) -> None:
    policy = shared(server.url, "100/hour", mode="local", lease=0.5)
    async with several(policy, 2) as (idle, busy):
        async with idle.admit(client="a"):
            pass
        total = 1
        with anyio.fail_after(20):
            while total < 100:
                total += await admitted(busy, "a", 20)
                await anyio.sleep(0.02)
        assert total == 100


async def test_a_store_that_dies_ends_the_leases_and_the_policy_takes_over() -> None:
    with Server() as server:
        policy = shared(
            server.url, "100/hour", mode="local", lease=0.3, budget=0.1, on_failure="closed"
        )
        async with AdmissionController(policy) as controller:
            assert await admitted(controller, "a", 5) == 5
            server.kill()
            seen: set[str] = set()

            async def closed() -> bool:
                try:
                    async with controller.admit(client="a") as permit:
                        assert permit.charge is not None
                        seen.add(permit.charge.source)
                except Overloaded as error:
                    seen.add(error.reason)
                return "store_unavailable" in seen

            with anyio.fail_after(20):
                while not await closed():  # noqa: ASYNC110  # another process
                    await anyio.sleep(0.01)
            assert seen <= {"lease", "store_unavailable"}
            server.start()
            await until("the recovery", lambda: controller.snapshot().store.connected)
            assert await admitted(controller, "b", 3) == 3


async def test_a_request_that_cannot_wait_spends_what_is_leased(server: Server) -> None:
    async with AdmissionController(shared(server.url, "5/hour", mode="local")) as controller:
        with (
            pytest.raises(RateLimited) as caught,
            controller.try_admit(client="a"),  # nothing is leased yet
        ):
            pass
        assert caught.value.retry_after == pytest.approx(PATIENT)
        store = controller.shared
        assert isinstance(store, RedisStore)
        await until("the lease", lambda: store.stats().asked > 0 and not store.stats().waiting)
        admitted = 0
        for _ in range(20):
            try:
                with controller.try_admit(client="a"):
                    admitted += 1
            except RateLimited:
                await anyio.sleep(0.01)
        async with AdmissionController(controller.policy) as other:
            for _ in range(6):
                with contextlib.suppress(RateLimited):
                    async with other.admit(client="a"):
                        admitted += 1
        assert admitted == 5  # all together, exactly


async def test_an_overdraft_lets_the_first_request_through_at_once(server: Server) -> None:
    policy = shared(server.url, "100/second", mode="local", overdraft=1.0)
    async with AdmissionController(policy) as controller:
        with controller.try_admit(client="a") as permit:
            assert permit.charge is not None
            assert permit.charge.source == "lease"


async def test_a_new_policy_turns_leasing_on_and_off(server: Server) -> None:
    strict = shared(server.url, "5/hour")
    assert strict.store is not None
    leased = msgspec.structs.replace(
        strict, store=msgspec.structs.replace(strict.store, mode="local")
    )
    async with AdmissionController(strict) as controller:
        assert await admitted(controller, "a", 2) == 2
        await controller.apply(leased)
        # Another key in the store: what was used strictly is not known there.
        assert await admitted(controller, "a", 9) == 5
        assert controller.snapshot().store.decisions["lease"] > 0
        await controller.apply(strict)
        assert await admitted(controller, "a", 9) == 3
        await controller.apply(leased)
        await controller.apply(Policy())
        assert await admitted(controller, "a", 50) == 50
