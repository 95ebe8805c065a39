from __future__ import annotations

from typing import Any

import anyio
import pytest

from loadgate import AdmissionController, Outcome, Overloaded, RateLimited, Rejected
from loadgate.integrations.asgi import PERMIT, AdmissionMiddleware
from loadgate.integrations.http import Contract
from loadgate.integrations.identity import Caller
from tests.integrations.asgi_client import Exchange, Gate, call, controller, idle, policy, scope

START: Any = {"type": "http.response.start", "status": 200, "headers": []}
END: Any = {"type": "http.response.body", "body": b"ok"}
EVENTS = (b"Content-Type", b"text/event-stream; charset=utf-8")
UNFINISHED: Any = [[], [START], [START, {**END, "more_body": True}]]


class Scripted:
    """An application that sends given messages, and remembers what it was given."""

    def __init__(self, *messages: dict[str, Any], raises: BaseException | None = None) -> None:
        self.messages = messages
        self.raises = raises
        self.in_flight: list[int] = []
        self.scope: Any = None
        self.gate = controller()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = scope
        for message in self.messages:
            await send(message)
            self.in_flight.append(self.gate.snapshot().in_flight)
        if self.raises is not None:
            raise self.raises

    @property
    def layer(self) -> AdmissionMiddleware:
        return AdmissionMiddleware(self, self.gate)

    def outcomes(self) -> dict[str, int]:
        assert idle(self.gate)
        return {label: n for label, n in self.gate.snapshot().finished.items() if n}


@pytest.mark.anyio
async def test_messages_and_scope_pass_untouched() -> None:
    hint = {"type": "http.response.early_hint", "links": [b"<a>"]}
    push: Any = {"type": "http.response.push", "path": "/b", "headers": []}
    debug: Any = {"type": "http.response.debug", "info": {}}
    app = Scripted(debug, hint, push, START, END)
    given = scope(state={"a": 1})
    seen = await call(app.layer, given)
    assert app.scope is given
    assert all(one is other for one, other in zip(seen.sent, app.messages, strict=True))
    assert app.outcomes() == {"success": 1}


@pytest.mark.anyio
async def test_the_application_finds_its_permit_and_may_say_what_it_showed() -> None:
    gate = controller()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope[PERMIT].outcome = Outcome.OVERLOAD
        await send(START)
        await send(END)

    await call(AdmissionMiddleware(app, gate))
    assert gate.snapshot().finished["overload"] == 1


LENGTHS: Any = [
    ([START, END], [1, 0]),
    ([START, {**END, "more_body": True}, {**END, "more_body": True}, END], [1, 1, 1, 0]),
    ([START, {**END, "more_body": True}, {"type": "http.response.body"}], [1, 1, 0]),
    (
        [
            {**START, "trailers": True},
            END,
            {"type": "http.response.trailers", "headers": [], "more_trailers": True},
            {"type": "http.response.trailers", "headers": []},
        ],
        [1, 1, 1, 0],
    ),
    ([START, {"type": "http.response.pathsend", "path": "/f"}], [1, 0]),
    (
        [
            START,
            {"type": "http.response.zerocopysend", "file": 3, "more_body": True},
            {"type": "http.response.zerocopysend", "file": 3},
        ],
        [1, 1, 0],
    ),
]


@pytest.mark.parametrize(("messages", "in_flight"), LENGTHS)
@pytest.mark.anyio
async def test_the_place_is_held_to_the_last_message(messages: Any, in_flight: Any) -> None:
    app = Scripted(*messages)
    await call(app.layer)
    assert app.in_flight == in_flight
    assert app.outcomes() == {"success": 1}


@pytest.mark.anyio
async def test_the_place_is_free_before_a_slow_client_has_taken_the_last_message() -> None:
    app = Scripted(START, END)
    exchange = Exchange(app.layer, scope())
    async with anyio.create_task_group() as group:
        group.start_soon(exchange)
        exchange.blocked_send = anyio.Event()
        await exchange.until_sent(1)
        exchange.blocked_send.set()
        exchange.blocked_send = anyio.Event()
        await exchange.until_sent(2)
        assert not exchange.finished
        assert idle(app.gate)
        exchange.blocked_send.set()


@pytest.mark.anyio
async def test_latency_ends_at_the_first_message_and_the_place_at_the_last() -> None:
    now = [0.0]
    gate = AdmissionController(policy(), clock=lambda: now[0])

    async def app(scope: Any, receive: Any, send: Any) -> None:
        now[0] = 2.0
        await send(START)
        now[0] = 7.0
        await send({**END, "more_body": True})
        now[0] = 10.0
        await send(END)
        now[0] = 60.0  # background work

    await call(AdmissionMiddleware(app, gate))
    snapshot = gate.snapshot()
    assert snapshot.latency.sum == 2.0
    assert snapshot.held == 10.0


@pytest.mark.anyio
async def test_background_work_can_be_held_as_well() -> None:
    app = Scripted(START, END)
    await call(AdmissionMiddleware(app, app.gate, hold_background=True))
    assert app.in_flight == [1, 1]
    assert app.outcomes() == {"success": 1}


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(200, "success"), (404, "success"), (429, "success"), (500, "error"), (503, "overload")],
)
@pytest.mark.anyio
async def test_the_status_tells_the_outcome(status: int, outcome: str) -> None:
    app = Scripted({**START, "status": status}, END)
    await call(app.layer)
    assert app.outcomes() == {outcome: 1}


@pytest.mark.anyio
async def test_server_sent_events_teach_nothing() -> None:
    app = Scripted({**START, "headers": [EVENTS]}, {**END, "more_body": True}, END)
    await call(app.layer)
    assert app.outcomes() == {"ignored": 1}


@pytest.mark.anyio
async def test_a_stream_of_events_may_give_its_place_back_when_it_begins() -> None:
    more = {**END, "more_body": True}
    app = Scripted({**START, "headers": [EVENTS]}, more, END)
    layer = AdmissionMiddleware(app, app.gate, streams="release")
    await call(layer)
    assert app.in_flight == [0, 0, 0]
    assert app.outcomes() == {"ignored": 1}
    app.in_flight.clear()
    app.messages = START, more, END
    await call(layer)
    assert app.in_flight == [1, 1, 0]
    assert app.outcomes() == {"ignored": 1, "success": 1}
    with pytest.raises(ValueError, match="streams"):
        AdmissionMiddleware(app, app.gate, streams="drop")  # type: ignore[arg-type]  # the test


@pytest.mark.parametrize("messages", UNFINISHED)
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError("of the app"), "error"),
        (TimeoutError(), "overload"),
        (ExceptionGroup("its own", [ValueError()]), "error"),
        (KeyboardInterrupt(), "cancelled"),
    ],
)
@pytest.mark.anyio
async def test_an_exception_is_raised_again_as_the_same_object(
    messages: Any, error: BaseException, outcome: str
) -> None:
    app = Scripted(*messages, raises=error)
    with pytest.raises(type(error)) as raised:
        await call(app.layer)
    assert raised.value is error
    assert app.outcomes() == {outcome: 1}


@pytest.mark.anyio
async def test_an_exception_after_the_last_message_changes_nothing() -> None:
    app = Scripted(START, END, raises=ValueError())
    with pytest.raises(ValueError):  # noqa: PT011  # raised by the test itself
        await call(app.layer)
    assert app.outcomes() == {"success": 1}


@pytest.mark.parametrize("messages", UNFINISHED)
@pytest.mark.anyio
async def test_no_response_or_half_of_one_is_an_error(messages: Any) -> None:
    app = Scripted(*messages)
    await call(app.layer)
    assert app.outcomes() == {"error": 1}


@pytest.mark.anyio
async def test_messages_sent_twice_reach_the_server_and_count_once() -> None:
    app = Scripted(START, START, END, END)
    seen = await call(app.layer)
    assert len(seen.sent) == 4
    assert app.outcomes() == {"success": 1}


@pytest.mark.anyio
async def test_a_client_that_leaves_while_its_request_runs_is_a_cancellation() -> None:
    gate = controller()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    exchange = Exchange(AdmissionMiddleware(app, gate), scope())
    exchange.body()
    exchange.leave()
    await exchange()
    assert gate.snapshot().finished["cancelled"] == 1
    assert idle(gate)


@pytest.mark.parametrize("backend_raises", [True, False])
@pytest.mark.anyio
async def test_an_app_that_gives_up_or_answers_after_the_client_left_counts_as_cancelled(
    backend_raises: bool,
) -> None:
    gate = controller()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if backend_raises:
            raise ConnectionError("client disconnected")
        await send(START)
        await send(END)

    exchange = Exchange(AdmissionMiddleware(app, gate), scope())
    exchange.leave()
    if backend_raises:
        with pytest.raises(ConnectionError):
            await exchange()
    else:
        await exchange()
    assert gate.snapshot().finished["cancelled"] == 1


@pytest.mark.anyio
async def test_a_cancelled_request_gives_its_place_back() -> None:
    gate = controller()
    app = Gate()
    exchange = Exchange(AdmissionMiddleware(app, gate), scope())
    async with anyio.create_task_group() as group:
        group.start_soon(exchange)
        await exchange.until(lambda: app.calls == 1)
        group.cancel_scope.cancel()
    assert idle(gate)
    assert gate.snapshot().finished["cancelled"] == 1


@pytest.mark.anyio
async def test_refusals_raised_inside_the_application_are_the_applications() -> None:
    gate = controller()
    inner = controller()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        with inner.try_admit(), inner.try_admit():
            pass

    with pytest.raises(Rejected) as raised:
        await call(AdmissionMiddleware(app, gate))
    assert type(raised.value) in (Overloaded, RateLimited)
    assert gate.snapshot().finished["overload"] == 1
    assert idle(inner)


# --- what passes by ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lifespan", "webtransport"])
@pytest.mark.anyio
async def test_other_scopes_pass_with_the_servers_own_functions(kind: str) -> None:
    seen: list[Any] = []

    async def app(*args: Any) -> None:
        seen.append(args)

    given, receive, send = {"type": kind}, object(), object()
    layer: Any = AdmissionMiddleware(app, controller())
    await layer(given, receive, send)
    assert seen == [(given, receive, send)]
    assert given == {"type": kind}


def is_static(scope: Any) -> bool:
    return bool(scope["path"].startswith("/static/"))


@pytest.mark.parametrize(
    ("exempt", "fields", "passes"),
    [
        (None, {"path": "/healthz"}, True),
        (None, {"path": "/metrics", "method": "HEAD"}, True),
        (None, {"path": "/metrics", "method": "POST"}, False),
        (None, {"path": "/healthz/x"}, False),
        (None, {"path": "/"}, False),
        (None, {"path": "*", "method": "OPTIONS"}, False),
        (None, {"path": "/api/healthz", "root_path": "/api"}, True),
        (None, {"path": "/healthz", "root_path": "/api"}, True),
        (None, {"path": "/apihealthz", "root_path": "/api"}, False),
        (["/up"], {"path": "/healthz"}, False),
        (["/up"], {"path": "/up"}, True),
        (["post /hook"], {"path": "/hook", "method": "POST"}, True),
        (["post /hook"], {"path": "/hook"}, False),
        (["* /any"], {"path": "/any", "method": "PATCH"}, True),
        ([], {"path": "/healthz"}, False),
        (is_static, {"path": "/static/x"}, True),
        (is_static, {"path": "/healthz"}, False),
    ],
)
@pytest.mark.anyio
async def test_exempt_requests_pass_a_full_service(exempt: Any, fields: Any, passes: bool) -> None:
    gate = controller(max_queue=0)
    app = Scripted(START, END)
    layer = AdmissionMiddleware(app, gate, exempt=exempt)
    with gate.try_admit():
        seen = await call(layer, scope(**fields))
    assert seen.status == (200 if passes else 503)
    assert gate.snapshot().arrived == (1 if passes else 2)


@pytest.mark.parametrize("exempt", ["/up", ["up"], ["GET"], ["GET up"], [" /up"]])
def test_malformed_exemptions_are_refused(exempt: Any) -> None:
    with pytest.raises(ValueError, match="exempt"):
        AdmissionMiddleware(Gate(), controller(), exempt=exempt)


PREFLIGHT = {
    "method": "OPTIONS",
    "headers": [(b"origin", b"https://a"), (b"access-control-request-method", b"PUT")],
}


@pytest.mark.anyio
async def test_cors_preflights_pass_up_to_a_bound_of_their_own() -> None:
    gate = controller(max_queue=0)
    app = Gate()
    layer = AdmissionMiddleware(app, gate, preflights=2)
    with gate.try_admit():
        async with anyio.create_task_group() as group:
            exchanges = [Exchange(layer, scope(**PREFLIGHT)) for _ in range(2)]
            for exchange in exchanges:
                exchange.body()
                group.start_soon(exchange)
            await exchanges[0].until(lambda: app.calls == 2)
            assert (await call(layer, scope(**PREFLIGHT))).status == 503
            app.open.set()
        assert (await call(layer, scope(**PREFLIGHT))).status == 200
        assert (await call(layer, scope(method="OPTIONS"))).status == 503


# --- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"websockets": "always"},
        {"preflights": -1},
        {"max_buffer": -1},
        {"max_drain_time": float("inf")},
        {"max_drain": float("nan")},
        {"cost": 0.0},
        {"timeout": float("nan")},
    ],
)
def test_wrong_settings_are_refused_at_construction(settings: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        AdmissionMiddleware(Gate(), controller(), **settings)


@pytest.mark.parametrize("status", [418, 503])
@pytest.mark.anyio
async def test_the_contract_is_configurable(status: int) -> None:
    gate = controller(max_queue=0)
    layer = AdmissionMiddleware(Gate(), gate, contract=Contract(overload_status=status))
    with gate.try_admit():
        assert (await call(layer)).status == status


@pytest.mark.anyio
async def test_a_policy_gives_each_event_loop_a_controller() -> None:
    layer = AdmissionMiddleware(Scripted(START, END), policy())
    assert layer.controller is layer.controller
    assert (await call(layer)).status == 200
    assert layer.controller.snapshot().admitted == 1


def test_one_layer_serves_several_event_loops_one_after_the_other() -> None:
    layer = AdmissionMiddleware(Scripted(START, END), policy())
    seen: list[int] = []

    async def once() -> None:
        await call(layer)
        seen.append(layer.controller.snapshot().admitted)

    for backend in ("asyncio", "trio", "asyncio"):
        anyio.run(once, backend=backend)
    assert seen == [1, 1, 1]


@pytest.mark.anyio
async def test_cost_priority_and_timeout_may_depend_on_the_request() -> None:
    gate = controller()
    asked: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        permit = scope[PERMIT]
        asked.append((permit.client, permit.cost, permit.level, permit.timeout))
        await send(START)
        await send(END)

    layer = AdmissionMiddleware(
        app,
        gate,
        cost=lambda scope: 2.0,
        priority=lambda scope: "critical" if scope["path"] == "/pay" else "background",
        timeout=lambda scope: 9.0,
    )
    await call(layer, scope(path="/pay"))
    await call(layer, scope(path="/report"))
    layer = AdmissionMiddleware(
        app, gate, identify=lambda scope: Caller({"account": "42"}, cost=3.0, timeout=5.0)
    )
    await call(layer)
    assert asked == [
        ("203.0.113.7", 2.0, 0, 9.0),
        ("203.0.113.7", 2.0, 2, 9.0),
        ({"account": "42"}, 3.0, 1, 5.0),
    ]


@pytest.mark.anyio
async def test_a_failing_identity_function_is_visible_and_takes_no_place() -> None:
    gate = controller()

    def identify(scope: Any) -> str:
        raise LookupError("a bug")

    with pytest.raises(LookupError):
        await call(AdmissionMiddleware(Gate(), gate, identify=identify))
    assert idle(gate)


def test_hypercorn_takes_the_layer_for_asgi() -> None:
    from hypercorn.utils import is_asgi

    assert is_asgi(AdmissionMiddleware(Gate(), policy()))
