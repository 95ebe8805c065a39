"""Slots of a cluster move while they are asked about: the right answer, or the chosen policy."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator

import anyio
import pytest

from loadgate import AdmissionController, Overloaded, Policy, Rate, Reason
from loadgate.integrations.redis.coredis_cluster import slot_of
from loadgate.integrations.redis.keys import Keys
from tests.redis.servers import Move, Server, cluster
from tests.redis.shared_policy import SECRET, ask, shared

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def nodes() -> Generator[list[Server]]:
    """Three with slots and one without; whatever moves moves back."""
    with cluster(idle=1) as started:
        yield started


def url_of(nodes: list[Server]) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes[:3])


def slot(policy: Policy, client: str) -> int:
    """Where the store keeps `client`."""
    assert policy.store is not None
    keys = Keys(policy.store.prefix, SECRET)
    rate = policy.rates[0]
    return slot_of(keys.key(keys.head(rate), client, keys.tail(rate)))


def neighbours(policy: Policy) -> tuple[str, str]:
    """Two clients that share a slot."""
    seen: dict[int, str] = {}
    for number in range(100_000):
        client = f"client {number}"
        other = seen.setdefault(slot(policy, client), client)
        if other != client:
            return other, client
    raise AssertionError


def owner(nodes: list[Server], slot: int) -> Server:
    """Whose it is, once all agree: some hear late that it has moved."""
    patience = time.monotonic() + 10.0
    while len(told := {_told(node, slot) for node in nodes}) > 1:
        assert time.monotonic() < patience, told
        time.sleep(0.02)
    return next(node for node in nodes if node.port in told)


def _told(node: Server, slot: int) -> int:
    with node.wire() as wire:
        for first, last, (_, port, *_), *_ in wire("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return int(port)
    raise AssertionError(slot)


async def together(controller: AdmissionController, *clients: str) -> dict[str, str]:
    """The same for several at one moment, which the link would put into one call."""
    answers: dict[str, str] = {}

    async def run(client: str) -> None:
        answers[client] = await ask(controller, client)

    async with anyio.create_task_group() as group:
        for client in clients:
            group.start_soon(run, client)
    return answers


@pytest.mark.parametrize("fresh", [False, True], ids=["to-a-known-node", "to-a-node-without-slots"])
async def test_while_its_slot_moves_a_client_is_decided_exactly(
    nodes: list[Server], fresh: bool
) -> None:
    policy = shared(url_of(nodes), "7/hour")
    old, new = neighbours(policy)
    source = owner(nodes, slot(policy, old))
    target = nodes[3] if fresh else nodes[(nodes.index(source) + 1) % 3]
    async with AdmissionController(policy) as controller:
        assert await ask(controller, old) == "store"
        move = Move(nodes, slot(policy, old), source, target)
        assert await ask(controller, old) == "store"  # it still lies where it lay
        assert await ask(controller, new) == "store"  # it begins where the slot goes
        both = {old: "store", new: "store"}
        assert await together(controller, old, new) == both  # one call would have neither
        assert move.keys() > 0
        assert await together(controller, old, new) == both
        move.end()
        assert await together(controller, old, new) == both
        assert await ask(controller, old) == "store"
        left = [await ask(controller, old) for _ in range(2)]
        assert left == ["store", "429"]
        left = [await ask(controller, new) for _ in range(4)]
        assert left == ["store", "store", "store", "429"]
        store = controller.snapshot().store
        assert store.troubles == dict.fromkeys(store.troubles, 0)
        assert store.incidents == 0
    Move(nodes, move.slot, target, source).end()


async def test_two_rates_of_a_client_that_nobody_can_decide_together_fall_to_the_policy(
    nodes: list[Server],
) -> None:
    rates = [Rate("second", "9/second", shared=True), Rate("hour", "9/hour", shared=True)]
    policy = shared(url_of(nodes), *rates, overrides={"hour": "closed"})
    source = owner(nodes, slot(policy, "new"))
    target = nodes[(nodes.index(source) + 1) % 3]
    async with AdmissionController(policy) as controller:
        move = Move(nodes, slot(policy, "new"), source, target)
        # Half moved, the slot has no server that may look at two keys that are not there.
        assert await ask(controller, "new") == "store_unavailable"
        move.end()
        assert await ask(controller, "new") == "store"
        store = controller.snapshot().store
        assert store.troubles["moving"] == 1
        assert store.incidents == 0  # the store is there, for all others
    Move(nodes, move.slot, target, source).end()


async def test_a_request_of_which_one_part_is_never_answered_costs_nothing(
    nodes: list[Server],
) -> None:
    rates = [Rate(name, "3/hour", key=name, shared=True) for name in ("account", "address")]
    policy = shared(url_of(nodes), *rates, on_failure="closed")
    keys = Keys(policy.store.prefix if policy.store else "", SECRET)

    def at(rate: Rate, name: str) -> Server:
        return owner(nodes, slot_of(keys.key(keys.head(rate), name, keys.tail(rate))))

    async with AdmissionController(policy) as controller:
        frozen = at(rates[1], "here")
        account = next(f"{n}" for n in range(100) if at(rates[0], f"{n}") is not frozen)
        who = {"account": account, "address": "here"}
        frozen.pause()
        try:
            with pytest.raises(Overloaded) as caught:
                async with controller.admit(client=who):
                    pass
            assert caught.value.reason == Reason.STORE_UNAVAILABLE
        finally:
            frozen.resume()
        with anyio.fail_after(30):
            while controller.snapshot().store.state != "closed":  # noqa: ASYNC110  # another process
                await anyio.sleep(0.01)
        async with controller.admit(client=who) as permit:
            assert [round(quota.remaining) for quota in permit.quotas] == [2, 2]
        assert controller.snapshot().store.troubles["timeout"] == 1


async def test_a_silent_node_leads_on_to_the_next(nodes: list[Server], silent: int) -> None:
    url = f"redis+cluster://127.0.0.1:{silent},127.0.0.1:{nodes[1].port}"
    async with AdmissionController(shared(url, "1000000/second")) as controller:
        with anyio.fail_after(30):
            while await ask(controller, "a") != "store":  # noqa: ASYNC110  # another process
                await anyio.sleep(0.01)


async def test_slots_that_move_under_load_refuse_nobody_and_admit_nobody_twice(
    nodes: list[Server],
) -> None:
    policy = shared(url_of(nodes), "300/hour")
    clients = [f"client {number}" for number in range(8)]
    seen: dict[str, Counter[str]] = {client: Counter() for client in clients}

    async def load(client: str) -> None:
        while seen[client]["429"] == 0:
            seen[client][await ask(controller, client)] += 1
            await anyio.sleep(0.001)

    moves: list[Move] = []
    async with AdmissionController(policy) as controller, anyio.create_task_group() as group:
        for client in clients:
            group.start_soon(load, client)
        for number, client in enumerate(clients):
            moving = slot(policy, client)
            source = owner(nodes, moving)
            target = nodes[3] if number % 2 else nodes[(nodes.index(source) + 1) % 3]
            move = await anyio.to_thread.run_sync(Move, nodes, moving, source, target)
            await anyio.to_thread.run_sync(move.keys)
            await anyio.to_thread.run_sync(move.end)
            moves.append(move)
    for client in clients:
        assert seen[client] == {"store": 300, "429": 1}
    store = controller.snapshot().store
    assert store.troubles == dict.fromkeys(store.troubles, 0)
    assert store.incidents == 0
    for move in moves:
        Move(nodes, move.slot, move.target, move.source).end()
