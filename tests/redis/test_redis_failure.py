"""The store dies, hangs, forgets, moves: the chosen policy decides, and nobody waits for it."""

from __future__ import annotations

import logging
import struct
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from loadgate import AdmissionController, Overloaded, Policy, Rate, RateLimited, Reason
from loadgate.errors import PolicyError
from loadgate.rates.spec import ALGORITHMS
from tests.programs import free_port
from tests.redis.servers import Replicated, Server, cluster
from tests.redis.shared_policy import ask, shared, until

pytestmark = pytest.mark.anyio

# Seconds: long enough for a busy machine to answer, short enough to notice its absence.
BUDGET = 0.1


async def asked(controller: AdmissionController, times: int, client: str = "a") -> Counter[str]:
    return Counter([await ask(controller, client) for _ in range(times)])


async def working(controller: AdmissionController, client: str = "probe") -> None:
    """Wait until the store decides again."""
    with anyio.fail_after(30):
        while await ask(controller, client) != "store":  # noqa: ASYNC110  # another process
            await anyio.sleep(0.01)


@asynccontextmanager
async def load(controller: AdmissionController, tasks: int = 8) -> AsyncGenerator[Counter[str]]:
    """Requests without a break, one after the other in each task."""
    seen: Counter[str] = Counter()

    async def run(number: int) -> None:
        while True:
            seen[await ask(controller, f"load-{number}")] += 1
            await anyio.sleep(0.001)

    async with anyio.create_task_group() as group:
        for number in range(tasks):
            group.start_soon(run, number)
        yield seen
        group.cancel_scope.cancel()


def busy(url: str) -> Policy:
    return shared(url, "1000000/second", budget=BUDGET)


async def test_a_frozen_store_holds_up_nobody_and_the_policy_decides() -> None:
    with Server() as server:
        policy = shared(
            server.url,
            Rate("kept", "4/hour", shared=True),
            budget=BUDGET,
            share=0.5,
        )
        async with AdmissionController(policy) as controller:
            assert await ask(controller) == "store"
            server.pause()
            try:
                # All of this ends while the server stands still.
                seen = await asked(controller, 10, "b")
                assert seen == {"emergency": 2, "429": 8}
                store = controller.snapshot().store
                assert store.state != "closed"
                assert store.incidents == 1
                assert store.troubles["timeout"] + store.troubles["lost"] >= 1
                await anyio.sleep(2 * BUDGET)  # the deadline of the last question passes
            finally:
                server.resume()
            await working(controller)
            # Nothing of what was given up was executed after all.
            assert (await asked(controller, 6, "b"))["store"] == 4


async def test_open_lets_everybody_pass_and_closed_answers_503() -> None:
    with Server() as server:
        policy = shared(
            server.url,
            Rate("soft", "2/hour", shared=True, key="soft"),
            Rate("hard", "2/hour", shared=True, key="hard", on_missing="skip"),
            budget=BUDGET,
            on_failure="open",
            overrides={"hard": "closed"},
        )
        async with AdmissionController(policy) as controller:
            server.kill()
            for _ in range(5):
                async with controller.admit(client={"soft": "a"}) as permit:
                    assert permit.quotas == ()
                with pytest.raises(Overloaded) as caught:
                    async with controller.admit(client={"soft": "a", "hard": "b"}):
                        pass
                assert caught.value.reason is Reason.STORE_UNAVAILABLE
                assert caught.value.refusal.subject == "hard"
                assert 1.0 <= caught.value.retry_after <= 2.0
            snapshot = controller.snapshot()
            assert snapshot.refused[Reason.STORE_UNAVAILABLE] == 5
            assert snapshot.store.decisions["open"] == 5
            assert snapshot.store.decisions["closed"] == 5


async def test_the_emergency_does_not_begin_with_a_fresh_burst() -> None:
    with Server() as server:
        async with AdmissionController(shared(server.url, "3/hour", budget=BUDGET)) as controller:
            assert await asked(controller, 3) == {"store": 3}
            server.kill()
            assert await asked(controller, 3) == {"429": 3}


async def test_killed_and_restarted_under_load_it_recovers_by_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "loadgate.store")
    with Server() as server:
        async with AdmissionController(busy(server.url)) as controller, load(controller) as seen:
            await until("decisions", lambda: seen["store"] > 20)
            server.kill()
            await until("the emergency", lambda: seen["emergency"] > 20)
            server.start()
            before = seen["store"]
            await until("the recovery", lambda: seen["store"] > before + 20)
            assert set(seen) <= {"store", "emergency"}
            store = controller.snapshot().store
            assert store.incidents >= 1
            assert store.away > 0.0
    lines = [record for record in caplog.records if record.name == "loadgate.store"]
    assert [record.levelname for record in lines] == ["WARNING", "INFO"]
    assert "emergency" in lines[0].getMessage()
    assert f"127.0.0.1:{server.port}" in lines[0].getMessage()


async def test_frozen_under_load_nothing_is_executed_late_or_twice() -> None:
    with Server() as server:
        log = Rate("log", "10000/day", algorithm="sliding-window-log", shared=True)
        policy = shared(server.url, log, budget=BUDGET)
        async with AdmissionController(policy) as controller:
            async with load(controller) as seen:
                await until("decisions", lambda: seen["store"] > 20)
                server.pause()
                await until("the emergency", lambda: seen["emergency"] > 50)
                server.resume()
                before = seen["store"]
                await until("the recovery", lambda: seen["store"] > before + 20)
            assert set(seen) <= {"store", "emergency"}
            # The logs hold what the store admitted, and at most what was cut off at the end.
            admitted = seen["store"]
            await until("the last questions", lambda: not controller.snapshot().store.waiting)
            await working(controller)
            used = 0.0
            for number in range(8):
                async with controller.admit(client=f"load-{number}") as permit:
                    used += 10_000 - permit.quotas[0].remaining - 1
            assert admitted <= used <= admitted + 8


async def test_a_server_without_room_for_a_connection_is_a_store_that_is_away() -> None:
    with Server() as server:
        with server.wire() as wire:
            wire("CONFIG", "SET", "maxclients", 1)
            controller = AdmissionController(busy(server.url))
            assert (await asked(controller, 20))["emergency"] == 20
            wire("CONFIG", "SET", "maxclients", 100)
            await working(controller)
        async with controller:
            pass


async def test_a_crowd_at_once_uses_one_connection_and_a_bounded_queue() -> None:
    with Server() as server:
        policy = shared(server.url, "1000000/second", budget=1.0)
        async with AdmissionController(policy) as controller:
            seen: Counter[str] = Counter()

            async def one(number: int) -> None:
                seen[await ask(controller, str(number))] += 1

            async with anyio.create_task_group() as group:
                for number in range(6000):
                    group.start_soon(one, number)
            assert sum(seen.values()) == 6000
            store = controller.snapshot().store
            assert store.troubles["saturated"] == 6000 - 4096
            assert store.connections == 1
            with server.wire() as wire:
                clients = wire("CLIENT", "LIST").decode().splitlines()
            assert len(clients) == 2  # it and us


async def test_where_nobody_listens_the_policy_decides_from_the_start() -> None:
    async with AdmissionController(
        shared(f"redis://127.0.0.1:{free_port()}", "2/hour", budget=BUDGET)
    ) as controller:
        assert await asked(controller, 4) == {"emergency": 2, "429": 2}


@pytest.mark.parametrize(
    ("options", "url", "words"),
    [
        (("--requirepass", "right"), "redis://:wrong@127.0.0.1:{}", "WRONGPASS"),
        (("--requirepass", "right"), "redis://127.0.0.1:{}", "NOAUTH"),
        (("--rename-command", "EVALSHA", ""), "redis://127.0.0.1:{}", "6.2 or newer"),
        (("--rename-command", "HELLO", ""), "redis://127.0.0.1:{}", "6.2 or newer"),
    ],
)
async def test_a_store_that_cannot_be_used_is_an_error_at_the_start(
    options: tuple[str, ...], url: str, words: str
) -> None:
    with Server("redis-7.0", *options) as server:
        controller = AdmissionController(shared(url.format(server.port), "1/hour"))
        with pytest.raises(PolicyError, match=words) as caught:
            async with controller:
                pass
        assert "wrong@" not in str(caught.value)


async def test_a_key_that_holds_something_else_is_left_alone_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Server() as server:
        async with AdmissionController(shared(server.url, "2/hour")) as controller:
            assert await ask(controller) == "store"
            with server.wire() as wire:
                (key,) = wire("KEYS", "*v1:{*")
                wire("DEL", key)
                wire("LPUSH", key, "not ours")
                assert (await asked(controller, 5))["429"] == 4  # the emergency knew of one
                assert await ask(controller, "another") == "store"
                assert wire("TYPE", key) == "list"
            store = controller.snapshot().store
            assert store.troubles["wrong_type"] == 5
            assert store.incidents == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]


OURS = b"\xb1"
NO_NUMBER, ENDLESS = float("nan"), float("inf")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("mode", ["strict", "local"])
async def test_whatever_lies_under_a_key_hurts_nobody_else(
    server: Server, algorithm: str, mode: str
) -> None:
    rate = Rate("r", "3/hour", algorithm=algorithm, shared=True)
    foreign: list[tuple[str | bytes | float, ...]] = [
        ("SET", "garbage"),
        ("SET", OURS * 25),
        ("SET", OURS * 33),
        ("SET", OURS + struct.pack("<ddd", NO_NUMBER, 1, 1)),
        ("SET", OURS + struct.pack("<ddd", ENDLESS, 1, 1)),
        ("SET", OURS + struct.pack("<ddd", 1, 0, -1e300)),
        ("SET", OURS + struct.pack("<dddd", 1, 1, 1, NO_NUMBER)),
        ("SADD", "member"),
        ("HSET", "field", "value"),
        ("HSET", "s", "value"),
        ("ZADD", "inf", "member"),
        ("XADD", "*", "field", "value"),
    ]
    policy = shared(server.url, rate, mode=mode)
    assert policy.store is not None
    async with AdmissionController(policy) as controller:
        for number, (command, *words) in enumerate(foreign):
            who = f"client {number}"
            await ask(controller, who)
            with server.wire() as wire:
                known = set(wire("KEYS", f"{policy.store.prefix}:v1:{{*"))
                await ask(controller, f"victim {number}")
                (key,) = set(wire("KEYS", f"{policy.store.prefix}:v1:{{*")) - known
                wire("DEL", key)
                wire(command, key, *words)
                seen = await asked(controller, 5, f"victim {number}")
                assert "429" in seen  # never a free pass
                assert await ask(controller, f"other {number}") in {"store", "lease"}
                wire("DEL", key)
        store = controller.snapshot().store
        assert store is not None
        assert store.troubles["wrong_type"] > 0
        assert store.troubles["failed"] == 0
        assert store.incidents == 0


async def test_in_local_mode_the_emergency_knows_what_was_spent() -> None:
    with Server() as server:
        policy = shared(server.url, "100/hour", mode="local", lease=0.2)
        async with AdmissionController(policy) as controller:
            admitted = 0
            for _ in range(20):
                seen = await asked(controller, 5)
                admitted += 5 - seen["429"]
                await anyio.sleep(0.01)
            assert admitted > 80
            server.kill()
            await until("the incident", lambda: controller.snapshot().store.state == "open")
            await anyio.sleep(0.25)  # what is leased is void
            seen = await asked(controller, 100)
            assert seen["emergency"] < 50


async def test_cancelled_crowds_are_charged_for_what_was_admitted_exactly(server: Server) -> None:
    policy = shared(server.url, "1/hour burst 100000")
    assert policy.store is not None
    admitted = 0

    async def one(number: int) -> None:
        nonlocal admitted
        with anyio.move_on_after((number % 50) * 0.0001):
            async with controller.admit(client=f"client {number % 7}"):
                admitted += 1

    async with AdmissionController(policy) as controller:
        for _ in range(5):
            async with anyio.create_task_group() as group:
                for number in range(100):
                    group.start_soon(one, number)
        await ask(controller, "the last")  # what was given back before travels with it or before
        assert controller.snapshot().in_flight == 0
        assert controller.snapshot().store.forgotten == 0
    with server.wire() as wire:
        used = 0.0
        for key in wire("KEYS", f"{policy.store.prefix}:v1:{{*"):
            _, units, unit, _ = struct.unpack("<Bddd", wire("GET", key))
            used += units / unit
    assert used == pytest.approx(admitted + 1, abs=0.1)


async def test_a_store_that_is_full_is_a_store_that_is_away() -> None:
    with Server() as server:
        async with AdmissionController(busy(server.url)) as controller:
            assert await ask(controller) == "store"
            with server.wire() as wire:
                wire("CONFIG", "SET", "maxmemory", 1)
                seen = await asked(controller, 20)
                assert seen["emergency"] == 20
                wire("CONFIG", "SET", "maxmemory", 0)
            await working(controller)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])  # it takes 8 s each
async def test_a_sentinel_leads_to_the_new_primary() -> None:
    with Replicated() as servers:
        url = f"redis+sentinel://127.0.0.1:{servers.sentinel.port}/main"
        async with AdmissionController(busy(url)) as controller, load(controller) as seen:
            await until("decisions", lambda: seen["store"] > 20)
            servers.primary.pause()  # frozen, not dead: no connection breaks
            before = seen["store"]
            await until("the failover", lambda: seen["store"] > before + 50)
            assert set(seen) <= {"store", "emergency"}
            with servers.replica.wire() as wire:
                assert b"role:master" in wire("INFO", "replication")
            servers.primary.resume()


async def test_a_silent_sentinel_leads_on_to_the_next(silent: int, server: Server) -> None:
    watch = f"sentinel monitor main 127.0.0.1 {server.port} 1\n"
    with Server(sentinel=watch) as sentinel:
        places = f"127.0.0.1:{silent},127.0.0.1:{sentinel.port}"
        async with AdmissionController(busy(f"redis+sentinel://{places}/main")) as controller:
            await working(controller)


async def test_a_cluster_decides_under_load_and_survives_the_loss_of_a_node() -> None:
    with cluster() as nodes:
        url = f"redis+cluster://127.0.0.1:{nodes[0].port},127.0.0.1:{nodes[1].port}"
        policy = shared(
            url,
            Rate("account", "3/hour", key="account", shared=True),
            Rate("address", "5/hour", key="address", shared=True),
            budget=1.0,
        )
        async with AdmissionController(policy) as controller:
            admitted: Counter[int] = Counter()

            async def client(number: int) -> None:
                who = {"account": str(number), "address": f"address of {number}"}
                for _ in range(6):
                    try:
                        async with controller.admit(client=who) as permit:
                            admitted[number] += permit.charge is not None
                    except RateLimited:
                        pass

            async with anyio.create_task_group() as group:
                for number in range(40):
                    group.start_soon(client, number)
            assert controller.snapshot().store.decisions["emergency"] == 0
            assert admitted == dict.fromkeys(range(40), 3)
            # What one part charged although the other refused has been given back.
            address = {"account": "another", "address": "address of 1"}
            async with controller.admit(client=address) as permit:
                assert permit.quotas[1].remaining == pytest.approx(1.0, abs=0.1)
            nodes[2].kill()
            seen: Counter[str] = Counter()
            for number in range(40):
                who = {"account": f"new {number}", "address": f"new {number}"}
                async with controller.admit(client=who) as permit:
                    assert permit.charge is not None
                    seen[permit.charge.source] += 1
            assert seen["emergency"] > 0
            assert set(seen) <= {"store", "emergency"}
