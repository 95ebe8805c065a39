"""The door in front of a real Hypercorn, on asyncio and uvloop; a scripted rule says when."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyio
import h2.config
import h2.connection
import pytest
from prometheus_client import CollectorRegistry

from loadgate import AdmissionController, Concurrency, Permit, Policy, Signals
from loadgate.decisions import Refuse
from loadgate.integrations.asgi import AdmissionMiddleware
from loadgate.integrations.classes import PathClasses
from loadgate.integrations.decision_timer import EVERY
from loadgate.integrations.door import Door
from loadgate.integrations.door_head import (
    MAX_BODY,
    MAX_HEAD,
    begins_with_request,
    head_end,
    read_head,
)
from loadgate.integrations.http import Answer, Contract
from loadgate.integrations.hypercorn import BoundConfig, StartupError, run
from loadgate.integrations.prometheus import LoadgateCollector
from tests.integrations.asgi_client import controller
from tests.integrations.scripted_door import REFUSAL, Script
from tests.integrations.serving import PATIENCE, Http1, Http2, Service, told, until


class Place:
    """A server with a door, a layer and a service, in a thread of its own."""

    def __init__(self, uvloop: bool, patience: float, app: Any, **settings: Any) -> None:
        # The door is without effect where nobody cares for the lag of the loop.
        self.gate = AdmissionController(
            Policy(concurrency=Concurrency("fixed", initial=100), signals=Signals(max_lag=60.0))
        )
        self.service = Service()
        self.service.may_answer.set()
        self.door = Door(self.gate, **settings)
        self.rule: Script = Script()
        self.door.rule = self.rule
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self._app = app or AdmissionMiddleware(self.service, self.gate)
        self._uvloop = uvloop
        self._patience = patience
        self._ready = threading.Event()
        self._stop: Callable[[], object] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.config = BoundConfig(self.listener, self._ready.set)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            anyio.run(self._serve, backend_options={"use_uvloop": self._uvloop})
        except BaseException as error:
            self.error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        self._stop = lambda: loop.call_soon_threadsafe(stop.set)
        self.loop = loop
        self.config.keep_alive_timeout = self._patience
        self.config.graceful_timeout = PATIENCE
        await run(self._app, self.config, stop.wait, self.door)

    def stop(self) -> None:
        if self._stop is not None and self.thread.is_alive():
            self._stop()

    def do(self, work: Callable[[], object]) -> None:
        """Do something in the server's loop."""

        async def done() -> None:
            work()

        assert self.loop is not None
        asyncio.run_coroutine_threadsafe(done(), self.loop).result(PATIENCE)

    def hold(self, gate: AdmissionController) -> Permit:
        """Take the only place."""
        permit = gate.admit()
        self.do(permit.begin)
        return permit

    def has_asked(self, times: int) -> bool:
        return self.rule.asked == times

    def wait_until_ready(self) -> None:
        assert self._ready.wait(PATIENCE)


@contextmanager
def place(
    uvloop: bool, *, patience: float = 60.0, app: Any = None, **settings: Any
) -> Generator[Place]:
    here = Place(uvloop, patience, app, **settings)
    here.thread.start()
    here.wait_until_ready()
    try:
        yield here
    finally:
        here.stop()
        here.thread.join(PATIENCE)
        assert not here.thread.is_alive(), "the server does not stop"
    assert here.error is None
    assert here.rule.in_transit == 0
    assert here.gate.admission.in_flight == 0


loops = pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])


@loops
def test_an_open_door_is_not_noticed(uvloop: bool) -> None:
    with place(uvloop) as here, Http1(here.port) as client:
        for body in (b"", b"abc", b"x" * 300_000):
            assert client.post("/echo", body)[2] == told(body)
        assert client.get("/echo")[0] == 200
        client.send(client.head("GET", "/a", None) + client.head("GET", "/b", None))
        assert [client.read()[0], client.read()[0]] == [200, 200]
        assert here.service.calls[-2:] == ["/a", "/b"]


@loops
@pytest.mark.parametrize("upgrade", [b"Upgrade: h2c", b"UPGRADE:  H2C ", b"upgrade:\r\n h2c"])
def test_an_upgrade_to_cleartext_http2_is_ignored(uvloop: bool, upgrade: bytes) -> None:
    # Hypercorn 0.18 never closes the descriptor of a connection that it has upgraded.
    asks = b"connection: upgrade, http2-settings\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
    with place(uvloop) as here, Http1(here.port) as client:
        client.send(b"GET /echo HTTP/1.1\r\nhost: a\r\n" + upgrade + b"\r\n" + asks + b"\r\n")
        assert client.read()[0] == 200
        assert client.get("/echo")[0] == 200


@loops
def test_an_http2_client_who_leaves_before_its_answer_leaves_nothing_behind(uvloop: bool) -> None:
    # Hypercorn 0.18 by itself waits for ever to send the answer, and keeps the descriptor.
    with place(uvloop, patience=0.5) as here, Http2(here.port) as client:
        here.service.may_answer.clear()
        client.request("GET", "/hold")
        until(lambda: here.service.calls == ["/hold"])
        client.socket.shutdown(socket.SHUT_WR)
        time.sleep(0.05)  # the answer shall come after the end was seen; before it, all is well
        here.service.may_answer.set()
        while client.socket.recv(65536):
            pass


@loops
def test_a_new_connection_is_answered_and_closed_without_the_application(uvloop: bool) -> None:
    with place(uvloop) as here:
        here.rule.shut()
        for request in (
            b"GET /work HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET /work HTTP/1.0\n\n",
            b"POST /work HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello",
            b"POST /work HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        ):
            with Http1(here.port) as client:
                client.send(request)
                status, headers, body = client.read()
                assert status == 503
                assert headers["connection"] == "close"
                assert headers["cache-control"] == "no-store"
                assert headers["content-type"] == "application/problem+json"
                assert int(headers["retry-after"]) >= 1
                assert b'"reason":"loop_lag"' in body
                with pytest.raises(EOFError):
                    client.read()
        assert here.service.calls == []
        assert here.door.counts().answered == 4
        assert here.gate.snapshot().refused["loop_lag"] == 4
        here.rule.shut(False)
        with Http1(here.port) as client:
            assert client.get("/work")[0] == 200


@loops
def test_who_is_late_on_reaching_the_application_is_answered_in_its_place(uvloop: bool) -> None:
    with place(uvloop, priority=PathClasses({"/vital": "critical"})) as here:
        here.rule.late = True
        with Http1(here.port) as client:
            status, headers, body = client.get("/first")
            assert status == 503
            assert headers["content-type"] == "application/problem+json"
            assert int(headers["retry-after"]) >= 1
            assert b'"reason":"loop_lag"' in body
            assert client.post("/vital", b"x" * 3000)[0] == 503
            client.send(client.head("HEAD", "/third", None))
            assert client.read(body=False)[0] == 503
            here.rule.late = False
            assert client.post("/fourth", b"abc")[2] == told(b"abc")
        here.rule.late = True
        with Http1(here.port) as client:
            assert client.post("/fifth", b"x" * 1_000_000)[0] == 503
        with Http1(here.port) as client:
            client.send(client.upgrade("/socket"))
            assert client.read(body=False)[0] == 503
        assert here.service.calls == ["/fourth"]
        counts = here.door.counts()
        assert (counts.passed, counts.late, counts.answered) == (6, 5, 0)
        look = here.gate.snapshot()
        assert look.refused["loop_lag"] == 5
        assert look.classes["critical"].overloaded == 1
        collector = LoadgateCollector(here.gate)
        collector.door = here.door
        registry = CollectorRegistry()
        registry.register(collector)
        labels = {"controller": "default", "decision": "late"}
        assert registry.get_sample_value("loadgate_door_requests_total", labels) == 5


class AtOnce(Http2):
    """Sends its first request together with the preface."""

    def flush(self) -> None:
        if self.h2.streams:
            super().flush()


@loops
def test_an_http2_connection_is_followed_if_it_begins_with_a_request(uvloop: bool) -> None:
    with place(uvloop) as here:
        here.rule.late = True
        with Http2(here.port) as client:
            # It may ask for something now or much later: that does not say how late the loop is.
            until(lambda: here.rule.asked == 1 and here.rule.in_transit == 0)
            client.finish(stream := client.request("GET", "/echo"))
            assert client.status[stream] == 200
        for body in (b"", b"x" * 100_000):
            with AtOnce(here.port) as client:
                client.finish(stream := client.request("POST", "/echo", body))
                assert client.status[stream] == 503
                client.finish(stream := client.request("POST", "/echo", body))
                assert client.status[stream] == 200
        assert here.door.counts().late == 2


def test_only_a_whole_request_at_the_start_of_http2_counts() -> None:
    client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    client.initiate_connection()
    preface = client.data_to_send()
    head = [(":method", "GET"), (":path", "/"), (":scheme", "http"), (":authority", "a")]
    client.send_headers(1, head)
    request = client.data_to_send()
    assert begins_with_request(preface + request)
    assert not begins_with_request(preface)
    assert not any(begins_with_request((preface + request)[:-n]) for n in range(1, len(request)))
    unfinished = request[:4] + bytes([request[4] & ~0x4]) + request[5:]
    assert not begins_with_request(preface + unfinished)


@loops
def test_a_kept_connection_is_answered_and_kept(uvloop: bool) -> None:
    with place(uvloop) as here, Http1(here.port) as client:
        assert client.get("/first")[0] == 200
        here.rule.shut()
        for _ in range(3):
            status, headers, _ = client.get("/second")
            assert status == 503
            assert "connection" not in headers
            assert client.post("/second", b"x" * 3000)[0] == 503
        client.send(client.head("HEAD", "/second", None))
        assert client.read(body=False)[0] == 503
        client.send(client.head("GET", "/a", None) + client.head("GET", "/b", None))
        assert [client.read()[0], client.read()[0]] == [503, 503]
        here.rule.shut(False)
        assert client.post("/third", b"abc")[2] == told(b"abc")
        assert here.service.calls == ["/first", "/third"]


@loops
@pytest.mark.parametrize(
    "headers",
    ["connection: close", f"content-length: {MAX_BODY + 1}", "transfer-encoding: chunked",
     "expect: 100-continue", "content-length: 1\r\ncontent-length: 2", "content-length: -1"],
)  # fmt: skip
def test_a_kept_connection_is_closed_when_the_next_request_could_not_be_found(
    uvloop: bool, headers: str
) -> None:
    with place(uvloop) as here, Http1(here.port) as client:
        assert client.get("/first")[0] == 200
        here.rule.shut()
        client.send(client.head("POST", "/second", None, headers))
        assert client.read()[1]["connection"] == "close"
        with pytest.raises(EOFError):
            client.read()


@loops
def test_exempt_paths_get_in(uvloop: bool) -> None:
    with place(uvloop, exempt=["/healthz", "/a-b", "POST /hook"]) as here:
        here.rule.shut()
        for path in ("/healthz", "/healthz?deep=1", "/a%2Db"):
            with Http1(here.port) as client:
                assert client.get(path)[0] == 200
                assert client.get("/work")[0] == 503
                assert client.get(path)[0] == 200
        with Http1(here.port) as client:
            assert client.post("/hook", b"abc")[2] == told(b"abc")
            assert client.post("/healthz", b"abc")[0] == 503
        assert here.door.counts().exempt == 7


@loops
def test_a_head_may_come_in_pieces(uvloop: bool) -> None:
    with place(uvloop) as here, Http1(here.port) as client:
        for _ in range(2):
            for shut in (False, True):
                asked = here.rule.asked + 1
                client.send(b"POST /pieces HTTP/1.1\r\nhost:")
                client.send(b" a\r\ncontent-le")
                client.send(b"ngth: 3\r\n\r")
                client.send(b"\na")
                until(partial(here.has_asked, asked))
                client.send(b"bc")
                assert client.read()[0] == (503 if here.rule.closed else 200)
                here.rule.shut(not shut)


@loops
def test_whoever_sends_no_whole_head_is_dropped_in_time(uvloop: bool) -> None:
    with place(uvloop, patience=0.05) as here:
        with Http1(here.port) as silent, Http1(here.port) as slow:
            slow.send(b"GET / HTTP/1.1\r\n")
            for client in (silent, slow):
                with pytest.raises((EOFError, ConnectionError)):
                    client.read()
        assert here.door.counts().expired == 2


@loops
def test_a_head_that_is_too_long_is_the_servers_to_complain_about(uvloop: bool) -> None:
    with place(uvloop) as here:
        long = b"GET / HTTP/1.1\r\nx: " + b"y" * (MAX_HEAD + 10)
        for shut, status in ((False, 431), (True, 503)):
            here.rule.shut(shut)
            with Http1(here.port) as client:
                client.send(long)
                assert client.read()[0] == status


@loops
def test_what_is_no_http_leaves_nothing_behind(uvloop: bool) -> None:
    with place(uvloop) as here:
        for junk in (b"\r\n\r\n", b"\0\0\0\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\n\n"):
            for shut in (False, True):
                here.rule.shut(shut)
                with Http1(here.port) as client:
                    client.send(junk)
                    assert client.read()[0] in (400, 503)
        until(lambda: here.rule.in_transit == 0)


@loops
def test_http2_is_told_to_go_away_before_it_begins_and_left_alone_afterwards(uvloop: bool) -> None:
    with place(uvloop) as here:
        with Http2(here.port) as client:
            streams = [client.request("POST", "/echo", b"x" * 30_000) for _ in range(5)]
            client.finish(*streams)
            here.rule.shut()
            more = [client.request("GET", "/echo") for _ in range(5)]
            client.finish(*more)
            assert set(client.status.values()) == {200}
        with pytest.raises(EOFError), Http2(here.port) as refused:
            refused.finish(refused.request("GET", "/echo"))
        assert here.door.counts().dropped == 1


@loops
@pytest.mark.parametrize("before", [b"", b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n"])
def test_nobody_is_connected_through(uvloop: bool, before: bytes) -> None:
    # Hypercorn 0.18 by itself never ends the task of such a connection.
    with place(uvloop) as here, Http1(here.port) as client:
        client.send(before + b"CONNECT a:80 HTTP/1.1\r\nhost: a\r\n\r\nmore")
        if before:
            assert client.read()[0] == 200
        assert client.read()[0] == 501
        with pytest.raises((EOFError, ConnectionError)):
            client.read()
        assert here.service.calls == ["/a"] * bool(before)
        here.stop()
        here.thread.join(PATIENCE / 2)
        assert not here.thread.is_alive()


@loops
def test_a_websocket_goes_through(uvloop: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "websocket"
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "hello"})
        while (await receive())["type"] != "websocket.disconnect":
            pass

    async def whole(scope: Any, receive: Any, send: Any) -> None:
        await (Service() if scope["type"] == "lifespan" else app)(scope, receive, send)

    with place(uvloop, app=whole) as here, Http1(here.port) as client:
        client.send(client.upgrade("/socket"))
        seen = b""
        while not seen.endswith(b"hello"):
            seen += client.socket.recv(1000)
        assert seen.startswith(b"HTTP/1.1 101")
        here.rule.shut()
        client.send(b"\x81\x85\0\0\0\0again" + b"\x88\x80\0\0\0\0")  # a text, and a close
        seen = client.socket.recv(1000)
        assert seen.startswith(b"\x88")


class Listener:
    """A WebSocket that is accepted when it may be, and hears one message or the end."""

    def __init__(self, gate: AdmissionController) -> None:
        self.heard: list[Any] = []
        self.layer = AdmissionMiddleware(self.hear, gate)

    async def hear(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        self.heard.append(await receive())
        if self.heard[-1]["type"] == "websocket.receive":
            await send({"type": "websocket.close"})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        app = Service() if scope["type"] == "lifespan" else self.layer
        await app(scope, receive, send)


@loops
def test_what_a_websocket_client_says_before_it_is_accepted_is_kept(uvloop: bool) -> None:
    # Hypercorn 0.18 by itself answers 400 and keeps the connection for ever.
    gate = controller()
    app = Listener(gate)
    with place(uvloop, app=app) as here, Http1(here.port) as client:
        holder = here.hold(gate)
        client.send(client.upgrade("/socket") + b"\x81\x85\0\0\0\0early")
        until(lambda: gate.admission.room.depth == 1)
        here.do(holder.release)
        until(lambda: bool(app.heard))
        assert app.heard[0]["text"] == "early"
        assert client.socket.recv(1000).startswith(b"HTTP/1.1 101")


@loops
def test_a_websocket_client_who_says_too_much_before_it_is_accepted_is_left(uvloop: bool) -> None:
    gate = controller()
    app = Listener(gate)
    with place(uvloop, app=app) as here, Http1(here.port) as client:
        holder = here.hold(gate)
        client.send(client.upgrade("/socket") + b"\x81" * (MAX_HEAD + 1))
        with pytest.raises((EOFError, ConnectionError)):
            client.read()
        until(lambda: gate.admission.room.depth == 0)
        here.do(holder.release)
    assert app.heard == []


@loops
def test_a_websocket_that_was_refused_hears_nothing_more(uvloop: bool) -> None:
    gate = controller(max_queue=0)
    app = Listener(gate)
    with place(uvloop, app=app) as here, Http1(here.port) as client:
        holder = here.hold(gate)
        client.send(client.upgrade("/socket") + b"\x81\x85\0\0\0\0early")
        assert client.read()[0] == 503
        with pytest.raises((EOFError, ConnectionError)):
            client.read()
        here.do(holder.release)
    assert app.heard == []


@loops
def test_connections_can_be_dropped_instead(uvloop: bool) -> None:
    with place(uvloop, mode="drop") as here:
        kept = Http1(here.port)
        assert kept.get("/work")[0] == 200
        here.rule.shut()
        with Http1(here.port) as fresh:
            for client in (kept, fresh):
                with pytest.raises((EOFError, ConnectionError)):
                    client.get("/work")
        kept.socket.close()
        assert here.door.counts().dropped == 2
        assert here.gate.snapshot().refused["loop_lag"] == 2


@loops
def test_those_inside_finish_and_those_at_the_door_are_closed_at_shutdown(uvloop: bool) -> None:
    with place(uvloop) as here:
        idle, running, silent = Http1(here.port), Http1(here.port), Http1(here.port)
        assert idle.get("/work")[0] == 200
        here.service.may_answer.clear()
        running.send(running.head("GET", "/hold", None))
        until(lambda: here.gate.admission.in_flight == 1)
        here.stop()
        for client in (idle, silent):
            with pytest.raises((EOFError, ConnectionError)):
                client.read()
        here.service.may_answer.set()
        assert running.read()[0] == 200
        for client in (idle, running, silent):
            client.socket.close()


@loops
def test_a_client_that_leaves_on_its_way_is_not_counted_for_ever(uvloop: bool) -> None:
    with place(uvloop) as here:
        for _ in range(20):
            with Http1(here.port) as client:
                client.send(client.head("GET", "/work", None))
        until(lambda: here.rule.in_transit == 0)


def test_a_startup_that_fails_is_an_error_behind_a_door_too() -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    gate = controller()

    async def serve() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            await run(failing, BoundConfig(listener), anyio.sleep_forever, Door(gate))

    with pytest.raises(StartupError, match=r"^no database$"):
        anyio.run(serve)


def test_the_door_says_what_the_contract_says() -> None:
    gate = controller()

    def plain(refusal: Refuse, answer: Answer) -> Answer:
        return Answer(599, ((b"x-odd", b"1"), (b"content-length", b"2")), b"no")

    head = b"GET / HTTP/1.1\r\n\r\n"
    contract = Contract(overload_status=429, headers=[(b"x-more", b"yes")])
    text = Door(gate, contract=contract).answer(REFUSAL, head, close=False)
    assert text.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
    assert b"\r\nx-more: yes\r\n" in text
    dated = Door(gate, contract=Contract(retry_after="date")).answer(REFUSAL, head, close=True)
    assert b" GMT\r\n" in dated
    odd = Door(gate, contract=Contract(render=plain)).answer(REFUSAL, head, close=True)
    assert odd == (b"HTTP/1.1 599 \r\nx-odd: 1\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno")


def test_a_policy_that_only_observes_or_ignores_lag_opens_the_door() -> None:
    head = b"GET / HTTP/1.1\r\n\r\n"
    for policy, enforced in (
        (Policy(), True),
        (Policy(signals=Signals(max_lag=None)), False),
        (Policy(signals=Signals(mode="observe")), False),
        (Policy(concurrency=Concurrency(mode="observe")), False),
    ):
        door = Door(AdmissionController(policy))
        door.ask(head)
        door.rule.closed = door.rule.thinned = True
        door.rule.in_transit = 5
        answers = [door.ask(head) for _ in range(3)]
        assert any(isinstance(answer, Refuse) for answer in answers) is enforced


def test_one_decision_in_many_is_timed() -> None:
    door = Door(controller())
    for _ in range(3 * EVERY):
        door.ask(b"GET / HTTP/1.1\r\n\r\n")
    look = door.durations()
    assert look.count == 3
    registry = CollectorRegistry()
    collector = LoadgateCollector()
    collector.door = door
    registry.register(collector)
    name = "loadgate_door_decision_duration_seconds"
    told = {"controller": "default"}
    assert registry.get_sample_value(f"{name}_count", told) == 3
    assert registry.get_sample_value(f"{name}_sum", told) == pytest.approx(look.sum)
    assert registry.get_sample_value(f"{name}_bucket", {**told, "le": "+Inf"}) == 3


def test_what_means_nothing_at_the_door_is_an_error() -> None:
    with pytest.raises(ValueError, match="exempt"):
        Door(controller(), exempt=lambda scope: True)  # type: ignore[arg-type]  # the test
    with pytest.raises(ValueError, match="mode"):
        Door(controller(), mode="shout")  # type: ignore[arg-type]  # the test


@pytest.mark.parametrize(
    ("head", "body", "keep"),
    [
        (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", 0, True),
        (b"GET / HTTP/1.0\r\nhost: a\r\n\r\n", 0, False),
        (b"GET /http/1.1 HTTP/1.0\r\n\r\n", 0, False),
        (b"POST / HTTP/1.1\r\nContent-Length:  12 \r\n\r\n", 12, True),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999\r\n\r\n", -1, True),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\ncontent-length: 3\r\n\r\n", -1, True),
        (b"GET / HTTP/1.1\nconnection: Keep-Alive, Close\n\n", 0, False),
    ],
)
def test_the_framing_of_a_head_is_read(head: bytes, body: int, keep: bool) -> None:
    assert head_end(head) == len(head)
    assert head_end(head[:-1]) == 0
    found = read_head(head)
    assert (found.body, found.keep) == (body, keep)
