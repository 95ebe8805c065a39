"""An application is cancelled at its timeout, where the policy asks for it."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from loadgate import AdmissionController, Concurrency, Policy, Queue, Signals
from loadgate.integrations.asgi import AdmissionMiddleware
from loadgate.integrations.decision_timer import DecisionTimer
from loadgate.integrations.identity import Caller
from tests.integrations.asgi_client import Exchange, call, idle, scope, upload

pytestmark = pytest.mark.anyio

# Short: these tests wait for it.
SHORT = 0.02


def gate(*, cancel: bool = True, places: int = 1) -> AdmissionController:
    return AdmissionController(
        Policy(
            concurrency=Concurrency("fixed", initial=places),
            queue=Queue(max_wait=30.0, max_queue=100, max_depth=200),
            signals=Signals(max_lag=None),
            cancel=cancel,
        )
    )


class Slow:
    """Takes its time before or after it begins to answer."""

    def __init__(self, before: float = 60.0, after: float = 0.0) -> None:
        self.before = before
        self.after = after
        self.ended = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await anyio.sleep(self.before)
            if scope["type"] == "websocket":
                await send({"type": "websocket.accept"})
            else:
                await send({"type": "http.response.start", "status": 200, "headers": []})
            await anyio.sleep(self.after)
            if scope["type"] == "http":
                await send({"type": "http.response.body", "body": b"done"})
        except BaseException:
            self.ended = "cancelled"
            raise
        self.ended = "returned"


def outcomes(controller: AdmissionController) -> dict[str, int]:
    assert idle(controller)
    return {label: count for label, count in controller.snapshot().finished.items() if count}


async def test_it_is_cancelled_and_its_client_told_that_there_is_no_answer() -> None:
    controller, app = gate(), Slow()
    exchange = await call(AdmissionMiddleware(app, controller, timeout=SHORT))
    assert app.ended == "cancelled"
    assert exchange.status == 503
    assert exchange.complete
    assert json.loads(exchange.content)["reason"] == "deadline"
    assert int(exchange.headers[b"retry-after"]) >= 1
    assert outcomes(controller) == {"overload": 1}


async def test_a_caller_may_bring_the_timeout() -> None:
    controller, app = gate(), Slow()
    layer = AdmissionMiddleware(app, controller, identify=lambda scope: Caller(timeout=SHORT))
    assert (await call(layer)).status == 503
    assert app.ended == "cancelled"


async def test_an_answer_that_has_begun_in_time_is_not_cut() -> None:
    controller, app = gate(), Slow(before=0.0, after=3 * SHORT)
    exchange = await call(AdmissionMiddleware(app, controller, timeout=SHORT))
    assert app.ended == "returned"
    assert exchange.content == b"done"
    assert outcomes(controller) == {"overload": 1}  # it took too long, all the same


async def test_without_cancel_it_runs_to_its_end() -> None:
    controller, app = gate(cancel=False), Slow(before=2 * SHORT)
    exchange = await call(AdmissionMiddleware(app, controller, timeout=SHORT))
    assert app.ended == "returned"
    assert exchange.status == 200
    assert outcomes(controller) == {"overload": 1}


async def test_in_time_nothing_is_noticed() -> None:
    controller, app = gate(), Slow(before=0.0)
    exchange = await call(AdmissionMiddleware(app, controller, timeout=30.0))
    assert exchange.content == b"done"
    assert outcomes(controller) == {"success": 1}


async def test_the_place_of_one_that_is_cancelled_goes_to_the_next() -> None:
    controller = gate()
    first, second = Slow(), Slow(before=0.0)
    one = Exchange(AdmissionMiddleware(first, controller, timeout=5 * SHORT), scope())
    two = Exchange(AdmissionMiddleware(second, controller, timeout=30.0), scope())
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
            await one.until(lambda: controller.snapshot().in_flight == 1)
            two.body()
            tasks.start_soon(two)
    assert (one.status, two.status) == (503, 200)
    assert (first.ended, second.ended) == ("cancelled", "returned")
    assert outcomes(controller) == {"overload": 1, "success": 1}


@pytest.mark.parametrize("version", ["1.1", "2"])
async def test_an_upload_that_nobody_read_is_drained_before_the_answer_ends(version: str) -> None:
    controller, app = gate(), Slow()
    layer = AdmissionMiddleware(app, controller, timeout=SHORT, finish_uploads=True)
    exchange = Exchange(layer, upload(http_version=version))
    exchange.body(b"a" * 10, more=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(exchange)
        await exchange.until_sent(2)
        assert not exchange.complete
        exchange.body(b"b")
    assert exchange.status == 503
    assert exchange.complete
    assert outcomes(controller) == {"overload": 1}


async def test_a_handshake_is_denied_in_time_and_a_socket_that_is_open_stays() -> None:
    fields = scope(type="websocket", extensions={"websocket.http.response": {}})
    controller, app = gate(), Slow()
    exchange = Exchange(AdmissionMiddleware(app, controller, timeout=SHORT), fields)
    exchange.feed({"type": "websocket.connect"})
    await exchange()
    assert exchange.status == 503
    assert app.ended == "cancelled"

    app = Slow(before=0.0, after=3 * SHORT)
    exchange = Exchange(AdmissionMiddleware(app, controller, timeout=SHORT), scope(**fields))
    await exchange()
    assert app.ended == "returned"
    assert idle(controller)


async def test_a_cancellation_from_outside_stays_one() -> None:
    controller, app = gate(), Slow()
    exchange = Exchange(AdmissionMiddleware(app, controller, timeout=30.0), scope())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(exchange)
        await exchange.until(lambda: controller.snapshot().in_flight == 1)
        tasks.cancel_scope.cancel()
    assert exchange.sent == []
    assert outcomes(controller) == {"cancelled": 1}


async def test_an_application_that_fails_because_it_was_cancelled_has_failed() -> None:
    async def stubborn(scope: Any, receive: Any, send: Any) -> None:
        try:
            await anyio.sleep(60)
        except anyio.get_cancelled_exc_class():
            raise ValueError("I will not") from None

    controller = gate()
    with pytest.raises(ValueError, match="I will not"):
        await call(AdmissionMiddleware(stubborn, controller, timeout=SHORT))
    assert idle(controller)


async def test_timing_decisions_does_not_get_in_the_way() -> None:
    controller = gate()
    timer = DecisionTimer(controller, every=1)
    exchange = await call(AdmissionMiddleware(Slow(), controller, timeout=SHORT))
    assert exchange.status == 503
    assert timer.freeze().count == 0
    assert (await call(AdmissionMiddleware(Slow(before=0.0), controller))).status == 200
    assert timer.freeze().count == 1
