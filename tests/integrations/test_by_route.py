"""Templates, mounts, root paths, overlaps and 404s; refusals of a route's own admission."""

import json
import logging
from collections.abc import AsyncIterator
from typing import Annotated, Any

import anyio
import httpx
import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, HTTPException, WebSocket
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route, Router, WebSocketRoute
from starlette.staticfiles import StaticFiles

from loadgate import AdmissionController, Concurrency, Outcome, Permit, Policy, Queue, Rate
from loadgate.errors import Rejected, UsageError
from loadgate.integrations.asgi import AdmissionMiddleware
from loadgate.integrations.fastapi import admit, install
from loadgate.integrations.identity import Address, Caller
from loadgate.integrations.starlette import ByRoute, On, RejectedHandler
from tests.integrations.asgi_client import controller, scope


async def page(request: Any) -> PlainTextResponse:
    return PlainTextResponse("page")


async def socket(websocket: WebSocket) -> None:
    await websocket.accept()


ROUTES = [
    Route("/", page),
    Route("/users/me", page),
    Route("/users/{id:int}", page),
    Route("/users/{id:int}", page, methods=["DELETE"]),
    Route("/form", page, methods=["POST"]),
    WebSocketRoute("/socket", socket),
    Mount(
        "/shop",
        routes=[Route("/items/{item}", page), Mount("/deep", routes=[Route("/x", page)])],
    ),
    Mount("/static", app=StaticFiles(directory="/", check_dir=False)),
    Host("api.test", app=Router([Route("/only-there", page)])),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "template"),
    [
        ({"path": "/"}, "/"),
        ({"path": "/users/me"}, "/users/me"),
        ({"path": "/users/7"}, "/users/{id:int}"),
        ({"path": "/users/8"}, "/users/{id:int}"),
        ({"path": "/users/ada"}, None),
        ({"path": "/form"}, "/form"),  # 405 is that route's answer
        ({"path": "/shop/items/9"}, "/shop/items/{item}"),
        ({"path": "/shop/deep/x"}, "/shop/deep/x"),
        ({"path": "/shop/nothing"}, None),
        ({"path": "/static/a/b.css"}, "/static/{path}"),
        ({"path": "/nowhere"}, None),
        ({"path": "*", "method": "OPTIONS"}, None),
        ({"path": "/v1/users/7", "root_path": "/v1"}, "/users/{id:int}"),
        ({"path": "/users/7", "root_path": "/v1"}, "/users/{id:int}"),
        ({"path": "/socket", "type": "websocket"}, "/socket"),
        ({"path": "/socket"}, None),
        ({"path": "/only-there", "headers": [(b"host", b"api.test")]}, "/only-there"),
        ({"path": "/only-there"}, None),
        ({"type": "lifespan"}, None),
    ],
)
def test_the_template_is_the_one_that_the_router_will_serve(
    fields: dict[str, Any], template: str | None
) -> None:
    assert ByRoute(Starlette(routes=ROUTES)).template(scope(**fields)) == template
    assert ByRoute(ROUTES).template(scope(**fields)) == template


def test_routers_that_fastapi_includes_and_mounts_are_found() -> None:
    items, inner, app = APIRouter(prefix="/items"), FastAPI(), FastAPI()

    @items.get("/{item}")
    async def item(item: int) -> int:
        return item

    inner.get("/{x}")(item)
    app.include_router(items, prefix="/v2")
    app.mount("/inner", inner)
    routes = ByRoute(app)
    assert routes.template(scope(path="/v2/items/3")) == "/v2/items/{item}"
    assert routes.template(scope(path="/inner/3")) == "/inner/{x}"
    assert routes.template(scope(path="/docs")) == "/docs"


def test_settings_go_by_method_then_template_then_the_rest() -> None:
    routes = ByRoute(
        ROUTES,
        {
            "/users/{id:int}": On(cost=2, priority="background"),
            "delete /users/{id:int}": On(cost=9, timeout=1.0),
        },
        otherwise=On(priority="critical"),
        identify=Address(keys={"address": (32, 64), "network": (24, 48)}),
    )
    assert routes(scope(path="/users/1")) == Caller(
        {"address": "203.0.113.7", "network": "203.0.113.0/24", "route": "/users/{id:int}"},
        cost=2, priority="background",
    )  # fmt: skip
    assert routes(scope(path="/users/1", method="DELETE")).cost == 9
    missing = routes(scope(path="/nothing"))
    assert (missing.priority, missing.client["route"]) == ("critical", "none")  # type: ignore[index]  # a mapping


def test_what_the_users_function_says_goes_first() -> None:
    def identify(scope: Any) -> Caller:
        return Caller("ada", cost=5.0)

    routes = ByRoute(ROUTES, {"/": On(cost=2, priority="critical")}, identify=identify)
    caller = Caller({"client": "ada", "route": "/"}, cost=5.0, priority="critical")
    assert routes(scope(path="/")) == caller
    assert ByRoute(ROUTES, identify=lambda scope: None)(scope()).client == {"route": "/"}


def test_settings_for_no_route_are_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    routes = ByRoute(ROUTES, {"/user/me": On(), "/shop/items/{item}": On()})
    with caplog.at_level(logging.WARNING, "loadgate.routes"):
        routes(scope())
        routes(scope())
    (record,) = caplog.records
    assert "did you mean '/users/me'" in record.getMessage()


@pytest.mark.parametrize("name", ["users", " /x", "GET", ""])
def test_what_is_no_template_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="template"):
        ByRoute(ROUTES, {name: On()})
    with pytest.raises(ValueError, match="cost"):
        On(cost=0.0)


@pytest.mark.anyio
async def test_a_rate_of_one_route_leaves_the_others_alone() -> None:
    policy = Policy(
        rates=[
            Rate("user", "1/hour", match={"route": "/users/{id:int}"}),
            Rate("nothing", "2/hour", key="route", match={"route": "none"}),
        ]
    )
    app = Starlette(routes=ROUTES)
    layer = AdmissionMiddleware(app, policy, identify=ByRoute(app))
    paths = ["/users/1", "/users/2", "/", "/", "/a", "/b", "/c", "/users/me"]
    async with client_of(layer) as client:
        found = [(await client.get(path)).status_code for path in paths]
    assert found == [200, 429, 200, 200, 404, 404, 429, 200]


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


# -- a route's own admission ---------------------------------------------------------------


@pytest.mark.anyio
async def test_a_dependency_refuses_as_the_layer_does() -> None:
    gate = AdmissionController(
        Policy(
            rates=[Rate("reports", "2/hour")],
            concurrency=Concurrency("fixed", initial=1),
            queue=Queue(max_wait=0.0),
        )
    )
    app = FastAPI()
    install(app)
    entered, leave = anyio.Event(), anyio.Event()

    @app.get(
        "/{name}",
        dependencies=[Depends(admit(gate, identify=lambda request: request.path_params["name"]))],
    )
    async def report(name: str) -> str:  # pyright: ignore[reportUnusedFunction]  # the router has it
        entered.set()
        await leave.wait()
        return name

    async with client_of(app) as client, anyio.create_task_group() as group:
        group.start_soon(client.get, "/a")
        await entered.wait()
        full = await client.get("/b")
        assert full.status_code == 503
        assert full.json()["reason"] == "queue_full"
        assert full.headers["content-type"] == "application/problem+json"
        assert int(full.headers["retry-after"]) >= 1
        leave.set()
        await until(lambda: gate.snapshot().in_flight == 0)
        assert (await client.get("/a")).status_code == 200
        limited = await client.get("/a")
        assert limited.status_code == 429
        assert limited.headers["ratelimit-policy"].startswith('"reports";q=2')
        assert 1790 <= int(limited.headers["retry-after"]) <= 1800
        assert (await client.get("/b")).status_code == 200  # its refusal cost nothing
    assert gate.snapshot().finished["success"] == 3


async def until(condition: Any) -> None:
    with anyio.fail_after(20):
        while not condition():  # noqa: ASYNC110  # any condition, not one event
            await anyio.sleep(0.001)


@pytest.mark.anyio
async def test_the_outcome_is_what_the_route_showed() -> None:
    gate = controller(10)
    app = FastAPI()
    install(app)
    order: list[str] = []

    def note() -> None:
        order.append(f"background with {gate.snapshot().in_flight} running")

    @app.get("/{kind}")
    async def route(  # pyright: ignore[reportUnusedFunction]  # the router has it
        kind: str, tasks: BackgroundTasks, permit: Annotated[Permit, Depends(admit(gate))]
    ) -> str:
        tasks.add_task(note)
        if kind.isdigit():
            raise HTTPException(int(kind))
        if kind == "broken":
            raise KeyError
        if kind == "says":
            permit.outcome = Outcome.OVERLOAD
        return kind

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for kind in ("fine", "404", "500", "503", "broken", "says"):
            await client.get(f"/{kind}")
    finished = gate.snapshot().finished
    assert (finished["success"], finished["error"], finished["overload"]) == (2, 2, 2)
    assert order[0] == "background with 1 running"
    assert gate.snapshot().in_flight == 0


@pytest.mark.anyio
async def test_the_layers_own_controller_is_not_asked_twice() -> None:
    gate = controller(10)
    app = FastAPI()

    @app.get("/", dependencies=[Depends(admit(gate))])
    async def route() -> None:  # pyright: ignore[reportUnusedFunction]  # the router has it
        pass

    with pytest.raises(UsageError, match="one of its own"):
        async with client_of(AdmissionMiddleware(app, gate)) as client:
            await client.get("/")
    assert gate.snapshot().in_flight == 0


@pytest.mark.anyio
@pytest.mark.parametrize("can_answer", [True, False])
async def test_a_websocket_route_is_denied(can_answer: bool) -> None:
    gate = controller(1, max_queue=0)
    app = Starlette(exception_handlers={Rejected: RejectedHandler()}, routes=ROUTES)
    fast = FastAPI(exception_handlers={Rejected: RejectedHandler()}, routes=app.routes)

    @fast.websocket("/guarded")
    async def guarded(  # pyright: ignore[reportUnusedFunction]  # the router has it
        websocket: WebSocket, permit: Annotated[Permit, Depends(admit(gate))]
    ) -> None:
        raise AssertionError("it was refused")

    sent: list[Any] = []
    incoming = iter([{"type": "websocket.connect"}])

    async def receive() -> Any:
        return next(incoming)

    async def send(message: Any) -> None:
        sent.append(message)

    extensions: dict[str, dict[str, str]] = {"websocket.http.response": {}} if can_answer else {}
    async with gate.admit():
        await fast(
            scope(type="websocket", path="/guarded", extensions=extensions, subprotocols=[]),
            receive, send,
        )  # fmt: skip
    if can_answer:
        assert sent[0]["type"] == "websocket.http.response.start"
        assert sent[0]["status"] == 503
        assert len(sent) == 2
        assert json.loads(sent[1]["body"])["reason"] == "queue_full"
    else:
        assert sent == [{"type": "websocket.close", "code": 1013, "reason": "busy"}]


@pytest.mark.anyio
async def test_any_dependency_may_ask_by_itself() -> None:
    gate = AdmissionController(Policy(rates=[Rate("user", "1/hour")]))
    app = FastAPI()
    install(app)

    async def limited() -> AsyncIterator[Permit]:
        async with gate.admit(client="ada") as permit:
            yield permit

    @app.get("/", dependencies=[Depends(limited)])
    async def route() -> None:  # pyright: ignore[reportUnusedFunction]  # the router has it
        pass

    async with client_of(app) as client:
        assert (await client.get("/")).status_code == 200
        refused = await client.get("/")
    assert refused.status_code == 429
    assert refused.json()["violated-policies"] == ["user"]
