"""A request whose keys lie on several nodes, one of which does not answer in time."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Literal

import anyio
import msgspec
import pytest

from loadgate.decisions import Reason, Refuse
from loadgate.integrations.redis import RedisStore
from loadgate.integrations.redis.ask import CHARGE, DONE, GIVE_BACK
from loadgate.integrations.redis.transport import Reply, Script
from loadgate.rates.spec import Rate
from loadgate.shared import Charge
from tests.redis.made_up import MadeUp, reply
from tests.redis.shared_policy import shared, until

pytestmark = pytest.mark.anyio

# Seconds: what the late node answers comes after it and before silence of twice as long.
BUDGET = 0.3

WHO = {"account": "an account", "address": "an address"}


class Nodes(MadeUp):
    """A cluster in which every key has a node of its own; it charges whatever it is asked.

    Attributes:
        late: Keys whose charge is answered only once `wake` is set.
        done: What was asked and answered: operation and key.
    """

    parallel: ClassVar[int] = 8
    split: ClassVar[bool] = True
    endpoint = "nodes"

    def __init__(self) -> None:
        self.late: list[bytes] = []
        self.done: list[tuple[int, bytes]] = []
        self.wake = anyio.Event()

    async def call(self, script: Script, keys: Sequence[bytes], argument: bytes) -> Reply:
        if "cmsgpack" not in script.text:
            return b"1", None  # the processes that are there
        flat: list[Any] = msgspec.msgpack.decode(argument)
        answer: list[int] = []
        if len(flat) > 1:
            (key,), operation = keys, flat[1]
            if operation == CHARGE and key in self.late:
                await self.wake.wait()
            answer = [DONE, 1, 0, 0, 0] if operation == CHARGE else [DONE]
            self.done.append((operation, key))
        return reply(answer)

    def group(self, key: bytes) -> Hashable:
        return key


@asynccontextmanager
async def one_part_late(
    on_failure: Literal["open", "closed"],
) -> AsyncGenerator[tuple[Nodes, RedisStore, bytes, bytes, Charge | Refuse]]:
    """The nodes, the store, the key in time, the late one, and the decision."""
    nodes = Nodes()
    policy = shared(
        "redis+cluster://nowhere",
        Rate("account", "3/hour", key="account", shared=True),
        Rate("address", "5/hour", key="address", shared=True),
        budget=BUDGET,
        on_failure=on_failure,
    )
    store = RedisStore(
        policy, clock=time.monotonic, draw=random.random, name="test", transport=nodes
    )
    await store.open()
    try:
        first = store.ask(WHO, 1.0, time.monotonic())
        assert not isinstance(first, Charge | Refuse)
        assert isinstance(await store.answer(first), Charge)
        (_, account), (_, address) = nodes.done
        nodes.done.clear()
        nodes.late.append(address)
        second = store.ask(WHO, 1.0, time.monotonic())
        assert not isinstance(second, Charge | Refuse)
        yield nodes, store, account, address, await store.answer(second)
    finally:
        await store.close()


async def test_refused_by_policy_gets_back_what_any_part_charged_the_late_one_too() -> None:
    async with one_part_late("closed") as (nodes, store, account, address, decision):
        assert isinstance(decision, Refuse)
        assert decision.reason == Reason.STORE_UNAVAILABLE
        await until("giving back", lambda: (GIVE_BACK, account) in nodes.done)
        assert nodes.done == [(CHARGE, account), (GIVE_BACK, account)]
        nodes.wake.set()
        await until("the late charge goes back", lambda: (GIVE_BACK, address) in nodes.done)
        assert nodes.done[2:] == [(CHARGE, address), (GIVE_BACK, address)]
        stats = store.stats()
        assert stats.decisions["closed"] == stats.troubles["timeout"] == stats.late == 1
        assert (stats.given_back, stats.forgotten, stats.incidents) == (2, 0, 0)


async def test_let_through_by_policy_it_keeps_what_any_part_charged() -> None:
    async with one_part_late("open") as (nodes, store, account, address, decision):
        assert isinstance(decision, Charge)
        assert decision.source == "open"
        nodes.wake.set()
        await until("the late answer", lambda: store.stats().late == 1)
        assert nodes.done == [(CHARGE, account), (CHARGE, address)]
        store.refund(decision)  # until it turns out that there is no place for the request
        await until("giving back", lambda: len(nodes.done) == 4)
        assert sorted(nodes.done[2:]) == sorted([(GIVE_BACK, account), (GIVE_BACK, address)])
