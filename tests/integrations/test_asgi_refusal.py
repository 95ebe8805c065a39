from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from loadgate import AdmissionController, Policy, Rate
from loadgate.integrations.asgi import AdmissionMiddleware
from loadgate.integrations.http import Contract
from tests.integrations.asgi_client import Exchange, Gate, call, controller, idle, scope, upload

HTTP2 = {"http_version": "2"}


def full(**settings: Any) -> AdmissionMiddleware:
    """A layer in front of a service that refuses everything with 503."""
    gate = controller(max_queue=0)
    gate.try_admit().begin()
    return AdmissionMiddleware(Gate(), gate, **settings)


@pytest.mark.anyio
async def test_a_503_is_a_small_problem_document_that_is_never_cached() -> None:
    seen = await call(full())
    assert seen.status == 503
    assert seen.headers[b"content-type"] == b"application/problem+json"
    assert seen.headers[b"cache-control"] == b"no-store"
    assert 1 <= int(seen.headers[b"retry-after"]) <= 30
    assert int(seen.headers[b"content-length"]) == len(seen.content) <= 300
    assert json.loads(seen.content)["reason"] == "queue_full"


@pytest.mark.anyio
async def test_without_a_body_the_answer_is_two_messages_and_nothing_is_read() -> None:
    exchange = Exchange(full(), scope())
    await exchange()
    assert [message["type"] for message in exchange.sent] == [
        "http.response.start",
        "http.response.body",
    ]
    assert exchange.received == 0


@pytest.mark.parametrize("length", [b"0", b" 0 "])
@pytest.mark.anyio
async def test_a_content_length_of_zero_is_no_body(length: bytes) -> None:
    exchange = Exchange(full(), scope(method="POST", headers=[(b"content-length", length)]))
    await exchange()
    assert exchange.received == 0
    assert exchange.complete


@pytest.mark.parametrize("fields", [upload(30), upload(None), upload(30, **HTTP2), scope(**HTTP2)])
@pytest.mark.anyio
async def test_the_document_comes_at_once_and_its_end_after_the_upload(fields: Any) -> None:
    exchange = Exchange(full(max_drain_time=60.0), fields)
    async with anyio.create_task_group() as group:
        group.start_soon(exchange)
        await exchange.until_sent(2)
        assert json.loads(exchange.content)["status"] == 503
        assert not exchange.complete
        exchange.body(b"x" * 10, more=True)
        exchange.body(b"x" * 10, more=True)
        await exchange.until(lambda: exchange.received == 2)
        assert not exchange.complete
        exchange.body(b"x" * 10)
    assert exchange.complete
    assert exchange.received == 3


@pytest.mark.parametrize("fields", [upload(30), upload(30, **HTTP2)])
@pytest.mark.anyio
async def test_a_client_that_leaves_its_upload_ends_the_exchange(fields: Any) -> None:
    exchange = Exchange(full(max_drain_time=60.0), fields)
    exchange.body(b"x", more=True)
    exchange.leave()
    await exchange()
    assert exchange.complete


@pytest.mark.anyio
async def test_an_http1_upload_beyond_the_bytes_is_not_read_to_its_end() -> None:
    exchange = Exchange(full(max_drain=5000, max_drain_time=60.0), upload(None))
    for _ in range(100):
        exchange.body(b"x" * 1000, more=True)
    await exchange()
    assert exchange.complete
    assert 5 <= exchange.received < 30


@pytest.mark.anyio
async def test_an_http1_upload_beyond_the_time_is_not_waited_for() -> None:
    exchange = Exchange(full(max_drain_time=0.01), upload(1000))
    exchange.body(b"x", more=True)
    await exchange()
    assert exchange.complete


@pytest.mark.anyio
async def test_the_end_is_sent_while_the_upload_is_still_being_read() -> None:
    """A server whose queue is full cannot take the end before somebody reads (Hypercorn)."""
    exchange = Exchange(full(max_drain=1), upload(None))
    send = exchange.send

    async def needs_a_reader(message: Any) -> None:
        await send(message)
        if not message.get("more_body", True):
            before = exchange.received
            await exchange.until(lambda: exchange.received > before + 5)

    exchange.send = needs_a_reader  # type: ignore[method-assign]  # a server of this test's own
    for _ in range(50):
        exchange.body(b"x", more=True)
    await exchange()
    assert exchange.complete


@pytest.mark.anyio
async def test_an_http2_upload_is_read_to_its_end_whatever_it_takes() -> None:
    exchange = Exchange(full(max_drain=1, max_drain_time=0.0), upload(None, **HTTP2))
    async with anyio.create_task_group() as group:
        group.start_soon(exchange)
        for _ in range(50):
            exchange.body(b"x" * 1000, more=True)
        await exchange.until(lambda: exchange.received == 50)
        assert not exchange.complete
        exchange.body(b"")
    assert exchange.complete


@pytest.mark.anyio
async def test_a_client_that_asks_first_is_refused_without_reading() -> None:
    fields = upload(1000)
    fields["headers"].append((b"expect", b"100-continue"))
    exchange = Exchange(full(), fields)
    await exchange()
    assert exchange.received == 0
    assert exchange.complete


@pytest.mark.anyio
async def test_requests_without_headers_or_version_are_refused_too() -> None:
    bare: dict[str, Any] = {"type": "http", "method": "GET", "path": "/"}
    exchange = Exchange(full(), bare)
    await exchange()
    assert exchange.status == 503


# --- 429 --------------------------------------------------------------------------------------


def limited(**settings: Any) -> tuple[AdmissionController, AdmissionMiddleware, Gate]:
    now = [100.0]
    gate = AdmissionController(
        Policy(rates=[Rate("per-client", "6/minute burst 2"), Rate("hourly", "1000/hour")]),
        clock=lambda: now[0],
        draw=lambda: 0.0,
    )
    app = Gate()
    app.open.set()
    return gate, AdmissionMiddleware(app, gate, **settings), app


@pytest.mark.anyio
async def test_a_429_tells_the_exact_time_and_the_policy() -> None:
    gate, layer, app = limited()
    for _ in range(2):
        assert (await call(layer)).status == 200
    seen = await call(layer)
    assert seen.status == 429
    assert seen.headers[b"retry-after"] == b"10"
    assert seen.headers[b"ratelimit"] == b'"per-client";r=0;t=10'
    assert seen.headers[b"ratelimit-policy"] == b'"per-client";q=2;w=20'
    assert json.loads(seen.content)["violated-policies"] == ["per-client"]
    assert (await call(layer, scope(client=("198.51.100.1", 1)))).status == 200
    assert app.calls == 3
    assert idle(gate)


@pytest.mark.anyio
async def test_a_429_over_http2_lets_the_upload_end() -> None:
    _, layer, _ = limited()
    for _ in range(2):
        await call(layer)
    exchange = Exchange(layer, upload(10, **HTTP2))
    exchange.body(b"12345", more=True)
    exchange.body(b"67890")
    await exchange()
    assert exchange.status == 429
    assert exchange.received == 2


@pytest.mark.anyio
async def test_admitted_answers_tell_what_is_left_if_asked() -> None:
    _, layer, _ = limited(contract=Contract(on_admitted=True, x_ratelimit="delta"))
    seen = await call(layer)
    assert seen.status == 200
    assert seen.headers[b"ratelimit"] == b'"per-client";r=1;t=10, "hourly";r=999;t=4'
    assert seen.headers[b"x-ratelimit-remaining"] == b"1"


@pytest.mark.anyio
async def test_headers_of_the_application_are_kept_and_its_list_is_not_changed() -> None:
    own = [(b"set-cookie", b"a"), (b"set-cookie", b"b")]
    start = {"type": "http.response.start", "status": 200, "headers": own}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start)
        await send({"type": "http.response.body"})

    gate, _, _ = limited()
    seen = await call(AdmissionMiddleware(app, gate, contract=Contract(on_admitted=True)))
    assert own == [(b"set-cookie", b"a"), (b"set-cookie", b"b")]
    assert start["headers"] is own
    assert seen.sent[0]["headers"][:2] == own
    assert len(seen.sent[0]["headers"]) == 4


@pytest.mark.anyio
async def test_failed_logins_are_counted_by_their_status() -> None:
    gate = AdmissionController(
        Policy(rates=[Rate("logins", "3/minute", charge="401")]), clock=lambda: 100.0
    )
    app = Gate(status=200)
    app.open.set()
    layer = AdmissionMiddleware(app, gate)
    for status in (200, 401, 200, 401, 401):
        app.status = status
        assert (await call(layer)).status == status
    assert (await call(layer)).status == 429


# --- WebSocket --------------------------------------------------------------------------------


def websocket(**fields: Any) -> dict[str, Any]:
    kept = scope(type="websocket", scheme="ws", **fields)
    del kept["method"]
    return kept


@pytest.mark.anyio
async def test_a_websocket_is_denied_with_the_answer_where_the_server_can() -> None:
    exchange = Exchange(full(), websocket(extensions={"websocket.http.response": {}}))
    await exchange()
    assert [message["type"] for message in exchange.sent] == [
        "websocket.http.response.start",
        "websocket.http.response.body",
    ]
    assert exchange.status == 503
    assert b"retry-after" in exchange.headers


@pytest.mark.parametrize("extensions", [{}, None])
@pytest.mark.anyio
async def test_a_websocket_is_closed_where_the_server_cannot_do_better(extensions: Any) -> None:
    exchange = Exchange(full(), websocket(extensions=extensions))
    await exchange()
    assert exchange.sent == [{"type": "websocket.close", "code": 1013, "reason": "busy"}]


class Socket:
    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = messages
        self.in_flight: list[int] = []
        self.gate = controller()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        for message in self.messages:
            await send(message)
            self.in_flight.append(self.gate.snapshot().in_flight)

    async def run(self, websockets: Any) -> None:
        layer = AdmissionMiddleware(self, self.gate, websockets=websockets)
        exchange = Exchange(layer, websocket())
        exchange.feed({"type": "websocket.connect"})
        await exchange()
        assert idle(self.gate)


ACCEPT, SEND = {"type": "websocket.accept"}, {"type": "websocket.send", "text": "a"}
CLOSE = {"type": "websocket.close"}
DENIAL: Any = [
    {"type": "websocket.http.response.start", "status": 403, "headers": []},
    {"type": "websocket.http.response.body", "body": b"", "more_body": True},
    {"type": "websocket.http.response.body"},
]


@pytest.mark.parametrize(
    ("websockets", "messages", "in_flight", "finished"),
    [
        ("handshake", [ACCEPT, SEND, CLOSE], [0, 0, 0], "ignored"),
        ("handshake", [CLOSE], [0], "ignored"),
        ("handshake", DENIAL, [1, 1, 0], "ignored"),
        ("handshake", [], [], "error"),
        ("connection", [ACCEPT, SEND, CLOSE], [1, 1, 0], "ignored"),
        ("connection", [ACCEPT, SEND], [1, 1], "ignored"),
        ("off", [ACCEPT, SEND, CLOSE], [0, 0, 0], None),
    ],
)
@pytest.mark.anyio
async def test_a_permit_covers_the_handshake_or_the_connection(
    websockets: str, messages: Any, in_flight: Any, finished: str | None
) -> None:
    app = Socket(*messages)
    await app.run(websockets)
    assert app.in_flight == in_flight
    counts = {label: n for label, n in app.gate.snapshot().finished.items() if n}
    assert counts == ({finished: 1} if finished else {})


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.anyio
async def test_a_queued_handshake_keeps_its_messages_or_leaves(leaves: bool) -> None:
    gate = controller()
    holder = gate.try_admit()
    holder.begin()
    kinds: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        kinds.extend([(await receive())["type"], (await receive())["type"]])
        await send(ACCEPT)

    exchange = Exchange(AdmissionMiddleware(app, gate), websocket())
    async with anyio.create_task_group() as group:
        group.start_soon(exchange)
        exchange.feed({"type": "websocket.connect"})
        exchange.feed({"type": "websocket.receive", "text": "early"})
        await exchange.until(lambda: gate.snapshot().waiting == 1)
        if leaves:
            exchange.leave()
            await exchange.until(lambda: exchange.finished)
        holder.release()
    assert kinds == ([] if leaves else ["websocket.connect", "websocket.receive"])
    assert idle(gate)


@pytest.mark.anyio
async def test_a_websocket_app_that_fails_or_loses_its_client_before_the_answer() -> None:
    gate = controller()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if (await receive())["type"] == "websocket.connect":
            raise RuntimeError("broken")

    exchange = Exchange(AdmissionMiddleware(app, gate), websocket())
    exchange.feed({"type": "websocket.connect"})
    with pytest.raises(RuntimeError, match="broken"):
        await exchange()
    exchange = Exchange(AdmissionMiddleware(app, gate), websocket())
    exchange.leave()
    await exchange()
    finished = gate.snapshot().finished
    assert finished["error"] == finished["cancelled"] == 1
