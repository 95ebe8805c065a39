from __future__ import annotations

import hashlib
import json
from typing import Any

import anyio
import pytest

from loadgate import Overloaded, Permit
from loadgate.integrations.asgi import AdmissionMiddleware
from tests.integrations.asgi_client import Exchange, Gate, call, controller, idle, scope, upload

HTTP2 = {"http_version": "2"}


class Busy:
    """A service with one place, which is taken, and a layer in front of it."""

    def __init__(self, queue: dict[str, Any] | None = None, **settings: Any) -> None:
        self.gate = controller(**(queue or {}))
        self.app = Gate()
        self.app.open.set()
        self.layer = AdmissionMiddleware(self.app, self.gate, **settings)
        self.holder = self.gate.try_admit()
        self.holder.begin()

    def exchange(self, fields: dict[str, Any], **how: Any) -> Exchange:
        return Exchange(self.layer, fields, **how)

    async def until_waiting(self, exchange: Exchange, count: int = 1) -> None:
        await exchange.until(lambda: self.gate.snapshot().waiting == count)


@pytest.mark.anyio
async def test_a_queued_upload_reaches_the_application_byte_for_byte() -> None:
    busy = Busy()
    exchange = busy.exchange(upload(None))
    chunks = [bytes([n % 256]) * (1 + 997 * n % 4096) for n in range(60)]
    async with anyio.create_task_group() as group:
        group.start_soon(exchange)
        for chunk in chunks[:30]:
            exchange.body(chunk, more=True)
        await busy.until_waiting(exchange)
        await exchange.until(lambda: exchange.received == 30)
        assert busy.app.calls == 0
        busy.holder.release()
        await exchange.until(lambda: busy.app.calls == 1)
        for chunk in chunks[30:]:
            exchange.body(chunk, more=True)
        exchange.body(b"end")
    whole = b"".join(chunks) + b"end"
    assert hashlib.sha256(busy.app.bodies[0]).digest() == hashlib.sha256(whole).digest()
    assert exchange.status == 200
    assert exchange.lost == 0
    assert idle(busy.gate)


@pytest.mark.parametrize("fields", [scope(), upload(10), upload(10, **HTTP2)])
@pytest.mark.anyio
async def test_a_client_that_leaves_the_queue_is_removed_at_once(fields: Any) -> None:
    busy = Busy()
    exchange = busy.exchange(fields)
    async with anyio.create_task_group() as group:
        group.start_soon(exchange)
        exchange.body(b"0123456789")
        await busy.until_waiting(exchange)
        exchange.leave()
        await exchange.until(lambda: exchange.finished)
    snapshot = busy.gate.snapshot()
    assert snapshot.waiting == 0
    assert snapshot.left == 1
    assert busy.app.calls == 0
    assert exchange.sent == []
    busy.holder.release()
    assert idle(busy.gate)


@pytest.mark.anyio
async def test_a_client_that_leaves_when_its_turn_comes_passes_the_place_on() -> None:
    busy = Busy()
    first, second = busy.exchange(scope()), busy.exchange(scope())
    async with anyio.create_task_group() as group:
        group.start_soon(first)
        await busy.until_waiting(first)
        group.start_soon(second)
        await busy.until_waiting(first, 2)
        second.body()
        first.leave()
        busy.holder.release()
    assert second.status == 200
    assert idle(busy.gate)


@pytest.mark.anyio
async def test_the_application_sees_body_then_waits_then_disconnect_again_and_again() -> None:
    busy = Busy()
    kinds: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while len(kinds) < 4:
            kinds.append((await receive())["type"])

    exchange = Exchange(AdmissionMiddleware(app, busy.gate), upload(4))
    async with anyio.create_task_group() as group:
        group.start_soon(exchange)
        exchange.body(b"ab", more=True)
        exchange.body(b"cd")
        await busy.until_waiting(exchange)
        busy.holder.release()
        await exchange.until(lambda: len(kinds) == 2)
        exchange.leave()
    assert kinds == ["http.request", "http.request", "http.disconnect", "http.disconnect"]
    assert busy.gate.snapshot().finished["cancelled"] == 1


@pytest.mark.anyio
async def test_asking_inside_a_cancelled_scope_answers_without_a_checkpoint() -> None:
    """Starlette's is_disconnected asks like this."""
    busy = Busy()
    answers: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def is_disconnected() -> bool:
            with anyio.CancelScope() as cancelled:
                cancelled.cancel()
                return bool((await receive())["type"] == "http.disconnect")
            return False

        await receive()
        answers.append(await is_disconnected())
        exchange.leave()
        await exchange.until(lambda: exchange.received == 2)
        answers.append(await is_disconnected())

    exchange = Exchange(AdmissionMiddleware(app, busy.gate), scope())
    async with anyio.create_task_group() as group:
        group.start_soon(exchange)
        exchange.body()
        await busy.until_waiting(exchange)
        busy.holder.release()
    assert answers == [False, True]
    assert exchange.lost == 0


@pytest.mark.anyio
async def test_cancelled_reads_of_the_application_lose_nothing() -> None:
    busy = Busy()
    body = bytearray()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while True:
            with anyio.move_on_after(0.0005):
                message = await receive()
                body.extend(message["body"])
                if not message["more_body"]:
                    return

    exchange = Exchange(AdmissionMiddleware(app, busy.gate), upload(None))
    async with anyio.create_task_group() as group:
        group.start_soon(exchange)
        await busy.until_waiting(exchange)
        busy.holder.release()
        for n in range(30):
            exchange.body(b"%03d" % n, more=True)
            await anyio.sleep(0.0003)
        exchange.body(b"end")
    assert bytes(body) == b"".join(b"%03d" % n for n in range(30)) + b"end"
    assert exchange.lost == 0


@pytest.mark.anyio
async def test_a_long_http1_upload_pauses_in_the_queue_and_arrives_whole() -> None:
    busy = Busy(max_buffer=10_000)
    exchange = busy.exchange(upload(None))
    async with anyio.create_task_group() as group:
        group.start_soon(exchange)
        for _ in range(40):
            exchange.body(b"x" * 1000, more=True)
        exchange.body(b"end")
        await busy.until_waiting(exchange)
        await anyio.wait_all_tasks_blocked()
        assert exchange.received < 10
        busy.holder.release()
    assert busy.app.bodies == [b"x" * 40_000 + b"end"]
    assert exchange.status == 200


@pytest.mark.anyio
async def test_one_byte_chunks_cannot_fill_the_memory() -> None:
    busy = Busy(max_buffer=10_000)
    exchange = busy.exchange(upload(None))
    async with anyio.create_task_group() as group:
        group.start_soon(exchange)
        for _ in range(200):
            exchange.body(b"x", more=True)
        exchange.body(b"")
        await busy.until_waiting(exchange)
        await anyio.wait_all_tasks_blocked()
        assert exchange.received < 25
        busy.holder.release()
    assert busy.app.bodies == [b"x" * 200]


@pytest.mark.anyio
async def test_all_waiting_uploads_together_have_a_bound_and_still_progress() -> None:
    busy = Busy(max_buffers=5_000)
    exchanges = [busy.exchange(upload(None)) for _ in range(10)]
    async with anyio.create_task_group() as group:
        for exchange in exchanges:
            group.start_soon(exchange)
            for _ in range(10):
                exchange.body(b"x" * 1000, more=True)
            exchange.body(b"")
        await busy.until_waiting(exchanges[0], 10)
        await anyio.wait_all_tasks_blocked()
        assert sum(exchange.received for exchange in exchanges) < 20
        busy.holder.release()
    assert busy.app.bodies == [b"x" * 10_000] * 10
    assert busy.layer._buffers.used == 0  # pyright: ignore[reportPrivateUsage]  # nothing else shows a leak


@pytest.mark.anyio
async def test_a_long_http2_upload_ends_its_wait_because_it_blocks_its_neighbours() -> None:
    busy = Busy(max_buffer=10_000)
    exchange = busy.exchange(upload(None, **HTTP2))
    async with anyio.create_task_group() as group:
        group.start_soon(exchange)
        await busy.until_waiting(exchange)
        for _ in range(40):
            exchange.body(b"x" * 1000, more=True)
        await exchange.until_sent(2)
        assert exchange.status == 503
        assert not exchange.complete
        await exchange.until(lambda: exchange.received == 40)
        assert not exchange.complete
        exchange.body(b"end")
    assert exchange.complete
    assert busy.gate.snapshot().refused["wait_timeout"] == 1
    busy.holder.release()
    assert idle(busy.gate)


@pytest.mark.parametrize("fields", [upload(10), upload(10, **HTTP2), scope(), scope(**HTTP2)])
@pytest.mark.anyio
async def test_a_wait_that_was_in_vain_ends_in_a_complete_503(fields: Any) -> None:
    busy = Busy({"max_wait": 0.01})
    exchange = busy.exchange(fields)
    exchange.body(b"0123456789")
    await exchange()
    assert exchange.status == 503
    assert json.loads(exchange.content)["reason"] == "wait_timeout"
    assert exchange.complete
    assert int(exchange.headers[b"content-length"]) == len(exchange.content)
    busy.holder.release()
    assert idle(busy.gate)


@pytest.mark.anyio
async def test_nothing_is_read_before_a_client_that_asks_first_is_admitted() -> None:
    busy = Busy()
    fields = upload(10)
    fields["headers"].append((b"expect", b"100-Continue"))
    exchange = busy.exchange(fields)
    exchange.body(b"0123456789")
    async with anyio.create_task_group() as group:
        group.start_soon(exchange)
        await busy.until_waiting(exchange)
        await anyio.wait_all_tasks_blocked()
        assert exchange.received == 0
        busy.holder.release()
    assert busy.app.bodies == [b"0123456789"]


@pytest.mark.anyio
async def test_a_client_that_asks_first_and_waits_in_vain_is_answered_at_once() -> None:
    busy = Busy({"max_wait": 0.01})
    fields = upload(10)
    fields["headers"].append((b"expect", b"100-continue"))
    exchange = busy.exchange(fields)
    await exchange()
    assert exchange.status == 503
    assert exchange.complete


@pytest.mark.anyio
async def test_cancelling_a_queued_request_leaves_the_queue() -> None:
    busy = Busy()
    exchange = busy.exchange(scope())
    async with anyio.create_task_group() as group:
        group.start_soon(exchange)
        await busy.until_waiting(exchange)
        group.cancel_scope.cancel()
    assert busy.gate.snapshot().waiting == 0
    busy.holder.release()
    assert idle(busy.gate)


@pytest.mark.anyio
async def test_an_exception_after_waiting_is_the_same_object() -> None:
    busy = Busy()
    error = ValueError("of the app")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise error

    raised: list[BaseException] = []
    exchange = Exchange(AdmissionMiddleware(app, busy.gate), scope())

    async def run() -> None:
        try:
            await exchange()
        except BaseException as caught:
            raised.append(caught)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await busy.until_waiting(exchange)
        busy.holder.release()
    assert raised == [error]
    assert raised[0] is error
    assert idle(busy.gate)


@pytest.mark.anyio
async def test_a_server_whose_receive_fails_gets_its_own_exception_back() -> None:
    busy = Busy()

    async def receive() -> Any:
        raise OSError("of the server")

    async def send(message: Any) -> None:
        raise AssertionError("nothing to send")

    with pytest.raises(OSError, match="of the server"):
        await busy.layer(scope(), receive, send)
    assert busy.gate.snapshot().waiting == 0


@pytest.mark.anyio
async def test_draining_refuses_those_who_wait() -> None:
    busy = Busy()
    exchange = busy.exchange(scope())
    async with anyio.create_task_group() as group:
        group.start_soon(exchange)
        exchange.body()
        await busy.until_waiting(exchange)
        busy.holder.release()
        assert await busy.gate.drain(5) or True
    assert exchange.status in (200, 503)
    assert idle(busy.gate)


@pytest.mark.parametrize("trailers", [False, True])
@pytest.mark.anyio
async def test_an_early_answer_ends_after_the_upload_but_its_place_is_free_at_once(
    trailers: bool,
) -> None:
    gate = controller()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "trailers": trailers})
        await send({"type": "http.response.body", "body": b"no"})
        if trailers:
            await send({"type": "http.response.trailers", "headers": []})

    layer = AdmissionMiddleware(app, gate, finish_uploads=True)
    exchange = Exchange(layer, upload(10, **HTTP2))
    async with anyio.create_task_group() as group:
        group.start_soon(exchange)
        await exchange.until_sent(2)
        await exchange.until(lambda: idle(gate))
        exchange.body(b"12345", more=True)
        await exchange.until(lambda: exchange.received == 1)
        assert len(exchange.sent) == 2
        assert not exchange.finished
        exchange.body(b"67890")
    assert len(exchange.sent) == 3
    assert exchange.content == b"no"
    assert exchange.complete
    whole = await call(layer, upload(10), b"1234567890")
    assert len(whole.sent) == (3 if trailers else 2)


@pytest.mark.anyio
async def test_an_application_that_fails_early_fails_after_the_upload() -> None:
    gate = controller()
    error = ValueError("early")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/raise":
            raise error

    layer = AdmissionMiddleware(app, gate, finish_uploads=True)
    with pytest.raises(ValueError, match="early") as raised:
        await call(layer, upload(4, path="/raise", **HTTP2), b"ab", b"cd")
    assert raised.value is error
    exchange = await call(layer, upload(4, **HTTP2), b"ab", b"cd")
    assert exchange.received == 2
    exchange = Exchange(layer, upload(4, **HTTP2))
    exchange.leave()
    await exchange()
    assert idle(gate)


@pytest.mark.anyio
async def test_a_waiting_permit_can_be_hurried_or_abandoned_from_outside() -> None:
    busy = Busy()
    ended: list[str] = []

    async def wait(permit: Permit) -> None:
        try:
            await permit.settle()
        except Overloaded as refusal:
            ended.append(refusal.reason)
        else:
            ended.append("left")

    hurried, abandoned = busy.gate.admit(), busy.gate.admit()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for permit in (hurried, abandoned):
                assert not permit.begin()
                group.start_soon(wait, permit)
            await anyio.wait_all_tasks_blocked()
            hurried.hurry()
            abandoned.abandon()
    assert sorted(ended) == ["left", "wait_timeout"]
    hurried.hurry()  # harmless by now
    busy.holder.hurry()
    busy.holder.release()
    assert idle(busy.gate)
    snapshot = busy.gate.snapshot()
    assert (snapshot.left, snapshot.refused["wait_timeout"]) == (1, 1)
