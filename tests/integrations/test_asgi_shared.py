"""The layer while a store that several processes share is asked."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from loadgate import AdmissionController
from loadgate.decisions import Quota, Reason, Refuse, Stage
from loadgate.integrations.asgi import AdmissionMiddleware
from loadgate.shared import Charge
from tests.integrations.asgi_client import Exchange, Gate, controller, idle, scope, upload


class Store:
    """Answers when the test says so."""

    def __init__(self, verdict: Charge | Refuse) -> None:
        self.verdict = verdict
        self.may_answer = anyio.Event()
        self.given_back = 0

    def ask(self, client: Any, cost: float, now: float) -> object:
        return object()

    async def answer(self, asked: object) -> Charge | Refuse:
        await self.may_answer.wait()
        return self.verdict

    def abandon(self, asked: object) -> None:
        self.given_back += 1

    def refund(self, charge: Charge) -> None:
        self.given_back += 1

    def stats(self) -> None:
        return None

    def decided(self, charge: Charge) -> None:
        return None


def build(verdict: Charge | Refuse) -> tuple[AdmissionController, Store, Gate, AdmissionMiddleware]:
    gate, store, app = controller(), Store(verdict), Gate()
    shared: Any = store
    gate.shared = shared
    app.open.set()
    return gate, store, app, AdmissionMiddleware(app, gate)


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.anyio
async def test_an_upload_is_kept_while_the_store_is_asked_and_in_the_queue(taken: bool) -> None:
    gate, store, app, layer = build(Charge((), "store", None))
    exchange = Exchange(layer, upload(6))
    async with anyio.create_task_group() as group:
        group.start_soon(exchange)
        exchange.body(b"abc", more=True)
        await exchange.until(lambda: exchange.received == 1)
        assert app.calls == 0
        if taken:
            gate.admission.in_flight += 1
        store.may_answer.set()
        if taken:
            await exchange.until(lambda: gate.admission.room.depth == 1)
            gate.admission.in_flight -= 1
            gate.admission.change(
                gate.clock(), gate.admission.limit, gate.admission.depth, observe=False
            )
            gate.wake()
        exchange.body(b"def")
    assert app.bodies == [b"abcdef"]
    assert exchange.lost == 0
    assert idle(gate)


@pytest.mark.anyio
async def test_a_client_that_leaves_while_the_store_is_asked_takes_no_place() -> None:
    gate, store, app, layer = build(Charge((), "store", None))
    exchange = Exchange(layer, scope())
    async with anyio.create_task_group() as group:
        group.start_soon(exchange)
        await anyio.wait_all_tasks_blocked()
        exchange.leave()
        await exchange.until(lambda: exchange.finished)
    assert store.given_back == 1
    assert app.calls == 0
    assert exchange.sent == []
    assert idle(gate)
    assert gate.snapshot().left == 1


@pytest.mark.anyio
async def test_a_client_that_leaves_in_the_queue_behind_the_store_is_removed() -> None:
    gate, store, app, layer = build(Charge((), "store", None))
    exchange = Exchange(layer, scope())
    gate.admission.in_flight += 1
    store.may_answer.set()
    async with anyio.create_task_group() as group:
        group.start_soon(exchange)
        await exchange.until(lambda: gate.admission.room.depth == 1)
        exchange.leave()
        await exchange.until(lambda: exchange.finished)
    assert gate.admission.room.depth == 0
    assert store.given_back == 1
    assert app.calls == 0


@pytest.mark.anyio
async def test_a_refusal_of_the_store_is_a_429_that_lets_the_upload_end() -> None:
    quota = Quota(False, 10.0, 0.0, 9.0, 2.5, "client", 1.0, rate="shared")
    refusal = Refuse(Stage.RATE, Reason.RATE, 2.5, 1.0, 0.0, "shared", quota)
    gate, store, app, layer = build(refusal)
    exchange = Exchange(layer, upload(6, http_version="2"))
    store.may_answer.set()
    exchange.body(b"abc", more=True)
    exchange.body(b"def")
    await exchange()
    assert exchange.status == 429
    assert exchange.headers[b"retry-after"] == b"3"
    assert exchange.received == 2
    assert app.calls == 0
    assert idle(gate)
