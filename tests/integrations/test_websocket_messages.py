"""How many messages a WebSocket client may send, and how it is told."""

from __future__ import annotations

from typing import Any

import pytest

from loadgate import AdmissionController, Concurrency, Overloaded, Policy, Queue, Rate, RateLimited
from loadgate.integrations.asgi import AdmissionMiddleware
from loadgate.integrations.decision_log import DecisionLog
from loadgate.integrations.websocket import close_message
from tests.integrations.asgi_client import Exchange, controller, idle, scope
from tests.integrations.every_server import SERVERS, every
from tests.integrations.serving import Http1, Service, until

FIELDS = scope(type="websocket", scheme="ws")


class Chat:
    """Answers each message, and notes what it was told in the end."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.ended: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await Service()(scope, receive, send)
            return
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                self.ended.append(message["code"])
                # Asked again it says the same, and what is sent now goes nowhere.
                again = await receive()
                self.ended.append(again["code"])
                await send({"type": "websocket.send", "text": "too late"})
                return
            self.heard.append(message["text"])
            await send({"type": "websocket.send", "text": message["text"]})


def said(exchange: Exchange, count: int) -> None:
    exchange.feed({"type": "websocket.connect"})
    for number in range(count):
        exchange.feed({"type": "websocket.receive", "text": str(number)})


@pytest.mark.anyio
async def test_a_connection_that_sends_too_much_is_closed_with_1008() -> None:
    gate, chat = controller(), Chat()
    layer = AdmissionMiddleware(chat, gate, message_rate="1/hour burst 3", log=DecisionLog())
    exchange = Exchange(layer, FIELDS)
    said(exchange, 5)
    await exchange()
    assert chat.heard == ["0", "1", "2"]
    assert chat.ended == [1008, 1008]
    assert exchange.sent[-1] == {"type": "websocket.close", "code": 1008, "reason": "rate"}
    assert sum(message["type"] == "websocket.send" for message in exchange.sent) == 3
    assert idle(gate)


@pytest.mark.anyio
async def test_another_connection_does_not_bring_another_share() -> None:
    layer = AdmissionMiddleware(
        Chat(), controller(), message_rate=Rate("messages", "1/hour burst 3")
    )
    first = Exchange(layer, {**FIELDS})
    said(first, 2)
    for _ in range(2):
        first.feed({"type": "websocket.disconnect", "code": 1000})
    await first()
    second = Exchange(layer, {**FIELDS, "client": ("203.0.113.7", 5)})
    said(second, 3)
    await second()
    assert sum(message["type"] == "websocket.send" for message in second.sent) == 1
    stranger = Exchange(layer, {**FIELDS, "client": ("203.0.113.8", 5)})
    said(stranger, 4)
    await stranger()
    assert sum(message["type"] == "websocket.send" for message in stranger.sent) == 3


@pytest.mark.anyio
async def test_messages_of_http_are_not_counted() -> None:
    gate = controller()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    layer = AdmissionMiddleware(app, gate, message_rate="1/hour")
    for _ in range(5):
        exchange = Exchange(layer, scope())
        exchange.body()
        await exchange()
        assert exchange.status == 200


def test_messages_can_only_be_counted_where_the_layer_looks() -> None:
    with pytest.raises(ValueError, match="message_rate"):
        AdmissionMiddleware(Chat(), controller(), websockets="off", message_rate="1/s")


@pytest.mark.anyio
async def test_the_close_code_says_whose_doing_it_was() -> None:
    gate = AdmissionController(
        Policy(
            rates=[Rate("per-client", "1/hour")],
            concurrency=Concurrency("fixed", initial=1),
            queue=Queue(max_wait=0.0),
        )
    )
    async with gate.admit(client="a"):
        with pytest.raises(Overloaded) as full:
            gate.try_admit(client="b").begin()
        with pytest.raises(RateLimited) as greedy:
            gate.try_admit(client="a").begin()
    assert close_message(full.value)["code"] == 1013
    assert close_message(greedy.value) == {
        "type": "websocket.close",
        "code": 1008,
        "reason": "rate",
    }


def frame(text: str) -> bytes:
    """A masked text frame, as clients send them."""
    return bytes([0x81, 0x80 | len(text)]) + b"\0\0\0\0" + text.encode()


@every
def test_every_server_tells_the_client_the_code(kind: str) -> None:
    gate, chat = controller(), Chat()
    layer = AdmissionMiddleware(chat, gate, message_rate="1/hour burst 2")
    with SERVERS[kind](layer) as server, Http1(server.port) as client:
        client.send(client.upgrade("/socket"))
        seen = b""
        while b"\r\n\r\n" not in seen:
            seen += client.socket.recv(1000)
        for text in ("one", "two", "three"):
            client.send(frame(text))
        while b"\x03\xf0" not in seen:
            data = client.socket.recv(1000)
            assert data, seen
            seen += data
        assert b"one" in seen
        assert b"two" in seen
        assert b"three" not in seen
        client.send(b"\x88\x82\0\0\0\0\x03\xf0")
        until(lambda: chat.ended == [1008, 1008])
        until(lambda: idle(gate))
