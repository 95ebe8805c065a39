"""What the link does with questions, told by a store that only writes down what it is asked."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import ClassVar

import anyio
import anyio.lowlevel
import pytest
import sniffio

from loadgate.integrations.redis.ask import CHARGE_ONE, DONE, Ask
from loadgate.integrations.redis.link import BATCH, LEAST_HALF, Link
from loadgate.integrations.redis.transport import Connection, Reply, Script
from loadgate.integrations.redis.wire import NOTHING
from tests.redis.made_up import MadeUp, reply

pytestmark = pytest.mark.anyio

SCRIPT = Script("the script", "its name")
SETTING = (1, 0, 1, 1, 1, 1)


class Notebook(MadeUp):
    """A store that answers yes, and the turn of the loop in which each call came."""

    parallel: ClassVar[int] = 2
    split: ClassVar[bool] = False
    endpoint = "notebook"

    def __init__(self) -> None:
        self.calls: list[list[bytes]] = []
        self.turns: list[int] = []
        self.turn = 0
        self.answering = anyio.Event()

    async def call(self, script: Script, keys: Sequence[bytes], argument: bytes) -> Reply:
        if argument != NOTHING:
            self.calls.append(list(keys))
            self.turns.append(self.turn)
            await self.answering.wait()
        answers = [] if argument == NOTHING else [DONE, 1, 0, 0, 0] * len(keys)
        return reply(answers)

    # -- a watcher too

    def lost(self, cause: str) -> None:
        raise AssertionError(cause)

    def found(self, seconds: float) -> None: ...

    async def beat(self, connection: Connection) -> float:
        return 3600.0


async def asked_at_once(number: int) -> Notebook:
    """What became of so many questions of one moment."""
    store = Notebook()
    link = Link(store, SCRIPT, (), b"probe", time.monotonic, random.random, 10.0, store)
    assert not await link.ready(5.0)
    await anyio.lowlevel.checkpoint()
    asks = [
        Ask(CHARGE_ONE, (b"%d" % place,), (SETTING,), time.monotonic() + 10.0)
        for place in range(number)
    ]
    for ask in asks:
        assert link.submit(ask)
    for store.turn in range(20):  # the store writes it down
        await anyio.lowlevel.checkpoint()
    store.answering.set()
    for ask in asks:
        if not ask.over:
            await ask.wait()
    assert all(ask.answer == [DONE, 1, 0, 0, 0] for ask in asks)
    await link.close()
    assert [key for keys in store.calls for key in keys] == [ask.keys[0] for ask in asks]
    return store


async def test_of_many_questions_the_server_decides_one_half_while_the_other_is_read() -> None:
    store = await asked_at_once(64)
    assert [len(keys) for keys in store.calls] == [32, 32]
    # Written in one go both would be answered in one go. Trio shuffles the tasks of a turn, the
    # one that counts among them.
    least = 0 if sniffio.current_async_library() == "trio" else 1
    assert store.turns[1] - store.turns[0] >= least


async def test_a_few_questions_are_one_call() -> None:
    store = await asked_at_once(2 * LEAST_HALF - 1)
    assert len(store.calls) == 1


async def test_a_crowd_travels_in_calls_of_a_bounded_size() -> None:
    store = await asked_at_once(5 * BATCH)
    assert [len(keys) for keys in store.calls][:4] == [BATCH] * 4
