"""Shared rates, strictly: what one limiter would decide, whoever asks."""

from __future__ import annotations

from collections.abc import Mapping

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
)
from loadgate.errors import PolicyError, UsageError
from tests.redis.servers import Server
from tests.redis.shared_policy import SECRET, admitted, admitted_together, several, shared, until

pytestmark = pytest.mark.anyio

ODD_NAMES = ["", " ", "a b", "{a}", "}{", "a\r\nSET x y", "é" * 300, "\x00", "*", "\ud800"]


async def test_a_client_cannot_multiply_its_share_by_the_number_of_processes(
    server: Server,
) -> None:
    policy = shared(server.url, "20/hour")
    async with several(policy, 4) as controllers:
        number = await admitted_together(controllers, "greedy", 10)
        assert number == 20
        assert await admitted(controllers[0], "another") == 1


async def test_the_refusal_names_the_rate_and_the_moment(server: Server) -> None:
    policy = shared(server.url, Rate("quota", "2/hour", shared=True))
    async with AdmissionController(policy) as controller:
        async with controller.admit(client="a") as permit:
            assert [quota.rate for quota in permit.quotas] == ["quota"]
            assert permit.quotas[0].remaining == pytest.approx(1.0, abs=0.01)
        assert await admitted(controller, "a") == 1
        with pytest.raises(RateLimited, match="quota") as caught:
            async with controller.admit(client="a"):
                pass
        assert caught.value.retry_after == pytest.approx(1800, abs=60)
        # The second refusal comes from memory, and says the same.
        with pytest.raises(RateLimited) as again:
            async with controller.admit(client="a"):
                pass
        assert again.value.retry_after <= caught.value.retry_after
        store = controller.snapshot().store
        assert store.decisions["cache"] == 1
        assert controller.snapshot().rates["quota"].refused == 2


async def test_several_rates_are_charged_all_or_none(server: Server) -> None:
    policy = shared(
        server.url,
        Rate("account", "10/hour", key="account", shared=True),
        Rate("address", "3/hour", key="address", shared=True, algorithm="sliding-window-log"),
    )
    client: Mapping[str, str] = {"account": "1", "address": "x"}
    async with AdmissionController(policy) as controller:
        assert await admitted(controller, client, 5) == 3
        # Seven are left for the account elsewhere: the refused ones have cost it nothing.
        assert await admitted(controller, {"account": "1", "address": "y"}, 3) == 3
        assert await admitted(controller, {"account": "1", "address": "z"}, 3) == 3
        assert await admitted(controller, {"account": "1", "address": "q"}, 3) == 1


async def test_a_local_rate_that_allowed_is_given_back_when_the_shared_one_refuses(
    server: Server,
) -> None:
    policy = shared(server.url, Rate("local", "5/hour"), Rate("global", "1/hour", shared=True))
    async with AdmissionController(policy) as controller:
        assert await admitted(controller, "a", 8) == 1
        assert controller.rates is not None
        left = controller.rates.stats()["local"]
        assert left.refused == 0


async def test_requests_of_the_same_moment_share_round_trips(server: Server) -> None:
    policy = shared(server.url, "1000000/second")
    async with AdmissionController(policy) as controller:

        async def one(number: int) -> None:
            async with controller.admit(client=str(number)):
                pass

        async with anyio.create_task_group() as group:
            for number in range(200):
                group.start_soon(one, number)
        store = controller.snapshot().store
        assert store.asked == 200
        assert store.calls <= 20
        assert store.decisions["store"] == 200


async def test_a_503_after_a_shared_charge_costs_the_client_nothing(server: Server) -> None:
    policy = shared(
        server.url,
        "3/hour",
        concurrency=Concurrency(algorithm="fixed", initial=1),
        queue=Queue(max_wait=0.01, max_queue=10, max_depth=10),
    )
    async with AdmissionController(policy) as controller:
        async with controller.admit(client="holder"):
            for _ in range(5):
                with pytest.raises(Overloaded) as caught:
                    async with controller.admit(client="a"):
                        pass
                assert caught.value.reason is Reason.WAIT_TIMEOUT
                given = controller.snapshot().store.given_back
                await until("the refund", lambda given=given: given > 0)
        assert await admitted(controller, "a", 5) == 3


async def test_a_full_queue_refuses_before_the_store_is_asked(server: Server) -> None:
    policy = shared(
        server.url,
        "100/hour",
        concurrency=Concurrency(algorithm="fixed", initial=1),
        queue=Queue(max_wait=1.0, max_queue=0),
    )
    async with AdmissionController(policy) as controller, controller.admit(client="holder"):
        asked = controller.snapshot().store.asked
        for _ in range(5):
            with pytest.raises(Overloaded) as caught:
                async with controller.admit(client="a"):
                    pass
            assert caught.value.reason is Reason.QUEUE_FULL
        assert controller.snapshot().store.asked == asked


async def test_whoever_leaves_while_the_store_is_asked_gets_the_charge_back(
    server: Server,
) -> None:
    policy = shared(server.url, "3/hour")
    async with AdmissionController(policy) as controller:
        for _ in range(20):
            with anyio.CancelScope() as scope:
                permit = controller.admit(client="a")
                assert not permit.begin()
                scope.cancel()
                await permit.settle()
        await until("the end of all questions", lambda: controller.snapshot().store.waiting == 0)
        assert controller.snapshot().left == 20
        await admitted(controller, "somebody else")  # whatever was given back came before
        assert await admitted(controller, "a", 5) == 3


async def test_abandoned_from_outside_while_the_store_is_asked_it_never_runs(
    server: Server,
) -> None:
    for mode in ("strict", "local"):
        async with AdmissionController(shared(server.url, "3/hour", mode=mode)) as controller:
            for number in range(10):
                # What was leased in vain is there for the client's next request.
                permit = controller.admit(client="a" if mode == "strict" else f"a{number}")
                assert not permit.begin()
                async with anyio.create_task_group() as group:
                    group.start_soon(permit.settle)
                    await anyio.lowlevel.checkpoint()
                    permit.abandon()
                permit.release()
            assert controller.snapshot().in_flight == 0
            assert controller.snapshot().admitted == 0
            await until("the end", lambda c=controller: not c.snapshot().store.waiting)
            await admitted(controller, "somebody else")
            assert await admitted(controller, "a", 5) == 3


async def test_rates_that_count_failures_are_shared(server: Server) -> None:
    policy = shared(
        server.url,
        Rate("failures", "2/hour", charge="401", shared=True, algorithm="fixed-window"),
        on_failure="closed",
    )
    async with several(policy, 2) as (one, other):

        async def login(controller: AdmissionController, status: int) -> None:
            async with controller.admit(client="a") as permit:
                permit.status = status
            calls = controller.snapshot().store.calls
            async with controller.admit(client="after"):  # the charge has been sent before
                assert controller.snapshot().store.calls > calls

        for _ in range(5):
            await login(one, 200)
        await login(one, 401)
        await login(other, 401)
        for controller in (one, other):
            with pytest.raises(RateLimited):
                await login(controller, 200)


async def test_observed_rates_count_and_let_through(server: Server) -> None:
    policy = shared(server.url, Rate("look", "1/hour", mode="observe", shared=True))
    async with AdmissionController(policy) as controller:
        assert await admitted(controller, "a", 4) == 4
        assert controller.snapshot().rates["look"].would_refuse == 3


async def test_nothing_that_a_client_says_is_readable_in_the_store(server: Server) -> None:
    policy = shared(server.url, "2/hour")
    async with AdmissionController(policy) as controller:
        for name in ODD_NAMES:
            assert await admitted(controller, name, 3) == 2, name
        assert await admitted(controller, None, 3) == 2
        assert await admitted(controller, b"a b", 3) == 2
    assert policy.store is not None
    prefix = policy.store.prefix
    with server.wire() as wire:
        keys = [key for key in wire("KEYS", f"{prefix}:*") if not key.endswith(b":nodes")]
        assert len(keys) == len(ODD_NAMES) + 2
        for key in keys:
            head, _, rest = key.partition(b":v1:{")
            assert head == prefix.encode()
            assert len(rest) == len(keys[0]) - len(head) - 5
            assert wire("PTTL", key) > 1000
        assert wire("PTTL", f"{prefix}:v1:nodes") > 0


async def test_every_algorithm_expires_when_it_is_as_good_as_new(server: Server) -> None:
    rates = [
        Rate(algorithm, limit=10, per=5.0, algorithm=algorithm, shared=True)
        for algorithm in (
            "token-bucket", "fixed-window", "sliding-window-counter", "sliding-window-log"
        )
    ]  # fmt: skip
    policy = shared(server.url, *rates, Rate("fast", "1000/second burst 1", shared=True))
    async with AdmissionController(policy) as controller:
        assert await admitted(controller, "a") == 1
    assert policy.store is not None
    with server.wire() as wire:
        keys = wire("KEYS", f"{policy.store.prefix}:v1:{{*")
        assert len(keys) == 5
        for key in keys:
            assert 1 <= wire("PTTL", key) <= 11_000


async def test_a_cost_above_the_burst_is_refused_for_ever(server: Server) -> None:
    async with AdmissionController(shared(server.url, "5/hour")) as controller:
        with pytest.raises(RateLimited) as caught:
            async with controller.admit(client="a", cost=6):
                pass
        assert caught.value.retry_after == float("inf")
        assert await admitted(controller, "a", 7) == 5


async def test_a_cost_that_a_log_cannot_count_is_an_error_and_charges_nothing(
    server: Server,
) -> None:
    policy = shared(
        server.url,
        Rate("local", "2/hour"),
        Rate("log", "5/hour", algorithm="sliding-window-log", shared=True),
    )
    async with AdmissionController(policy) as controller:
        for _ in range(4):
            with pytest.raises(ValueError, match="whole costs"):
                async with controller.admit(client="a", cost=0.5):
                    pass
        assert await admitted(controller, "a", 3) == 2


async def test_scripts_that_the_server_forgets_are_loaded_again(server: Server) -> None:
    policy = shared(server.url, "100/hour")
    async with several(policy, 2) as controllers:
        numbers: list[int] = []

        async def hammer(controller: AdmissionController) -> None:
            numbers.extend([await admitted(controller, "a", 5) for _ in range(20)])

        async def forget() -> None:
            with server.wire() as wire:
                for _ in range(20):
                    wire("SCRIPT", "FLUSH")
                    await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            for controller in controllers:
                group.start_soon(hammer, controller)
            group.start_soon(forget)
        assert sum(numbers) == 100
        for controller in controllers:
            store = controller.snapshot().store
            assert store.incidents == 0
            assert store.decisions["emergency"] == 0


async def test_an_emptied_store_starts_anew_and_nothing_breaks(server: Server) -> None:
    async with AdmissionController(shared(server.url, "3/hour")) as controller:
        assert await admitted(controller, "a", 3) == 3
        with server.wire() as wire:
            wire("FLUSHALL")
        assert await admitted(controller, "a", 4) == 3
        assert controller.snapshot().store.incidents == 0


async def test_a_new_policy_changes_shared_rates_and_keeps_what_was_used(server: Server) -> None:
    policy = shared(server.url, Rate("r", "10/hour", shared=True))
    async with AdmissionController(policy) as controller:
        assert await admitted(controller, "a", 6) == 6
        await controller.apply(
            Policy(rates=[Rate("r", "1000/day burst 8", shared=True)], store=policy.store)
        )
        assert await admitted(controller, "a", 6) == 2
        with pytest.raises(PolicyError, match="restart"):
            await controller.apply(shared(server.url, "1/hour"))
        await controller.apply(Policy())
        assert await admitted(controller, "a", 50) == 50


async def test_a_request_that_cannot_wait_is_told_so(server: Server) -> None:
    async with AdmissionController(shared(server.url, "3/hour")) as controller:
        with pytest.raises(UsageError, match="try_admit"):
            controller.try_admit(client="a")


async def test_without_an_event_loop_block_the_link_starts_by_itself(server: Server) -> None:
    controller = AdmissionController(shared(server.url, "3/hour"))
    numbers = [await admitted(controller, "a", 3), await admitted(controller, "a", 3)]
    assert sum(numbers) == 3
    assert controller.snapshot().store.decisions["store"] > 0
    async with controller:
        pass


def test_the_settings_show_neither_password_nor_secret(server: Server) -> None:
    policy = shared("redis://me:hunter2@127.0.0.1:1", "1/hour")
    controller = AdmissionController(policy)
    shown = f"{policy!r} {policy.store!r} {controller.snapshot()!r} {controller.shared!r}"
    assert "hunter2" not in shown
    assert SECRET not in shown
