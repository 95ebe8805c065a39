"""Which route is this request for? Asked before the app is called, with the app's own routes.

The layer stands outside of the router, so it decides before anything was matched. `ByRoute` asks
the routes of a Starlette or FastAPI app the same question that its router will ask, in the same
order, mounts and `root_path` included, and gives each route template its own cost, class and
timeout, and its own key: `/users/{id}` is one key, not one for each user.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.websockets import WebSocket

from loadgate.asked import check_request
from loadgate.controller import AdmissionController
from loadgate.decisions import Reason
from loadgate.errors import Rejected
from loadgate.integrations.http import Answer, Contract, Pressure, refusal_answer
from loadgate.integrations.identity import Address, Caller, Identify, Scope

log = logging.getLogger("loadgate.routes")

REFUSED_BY: Final = "loadgate.refused_by"
"""The scope key under which a dependency leaves the controller that refused."""

NO_ROUTE: Final = "none"
"""The route key of requests that no route is for: all 404s are one route."""


class On(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a request for one route.

    Attributes:
        cost: What it costs, in units of the rates; None means the layer's own.
        priority: One of the policy's classes; None means the layer's own.
        timeout: Seconds until its answer is worthless; None means the layer's own.

    Raises:
        ValueError: `cost` is not a finite number above 0, or `timeout` is NaN.
    """

    cost: float | None = None
    priority: str | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        check_request(1.0 if self.cost is None else self.cost, self.timeout)


class ByRoute:
    """An identity function that knows the route.

    ``AdmissionMiddleware(app, policy, identify=ByRoute(app, {"/reports/{id}": On(cost=10)}))``.
    Routes added to an included FastAPI router after the first request are not seen.

    The client's keys get one more, ``route``, so that a rate can count by it (``key="route"``) or
    hold for one route only (``match={"route": "/reports/{id}"}``). It costs as much as the router
    itself, a microsecond or so for each route that is tried.

    Args:
        app: A Starlette or FastAPI app, or its routes.
        settings: By route template as `template` returns it, or ``"METHOD /template"``.
        otherwise: For all other routes.
        identify: Who asks; default the address, as the key ``client``.

    Raises:
        ValueError: A key of `settings` is no template.
    """

    def __init__(
        self,
        app: Starlette | Iterable[BaseRoute],
        settings: Mapping[str, On] | None = None,
        *,
        otherwise: On | None = None,
        identify: Identify | None = None,
    ) -> None:
        self._app = app
        self._settings: dict[tuple[str, str], On] = {}
        for name, on in (settings or {}).items():
            method, space, template = name.rpartition(" ")
            if not template.startswith("/") or (space and not method.strip()):
                raise ValueError(f'{name!r} is neither "/template" nor "METHOD /template"')
            self._settings[method.strip().upper(), template] = on
        self._otherwise = On() if otherwise is None else otherwise
        self._identify: Identify = Address() if identify is None else identify
        self._checked = False
        # By identity, as FastAPI's are not hashable; the route is kept, so that it stays its own.
        self._included: dict[int, tuple[BaseRoute, list[BaseRoute]]] = {}

    def __call__(self, scope: Scope) -> Caller:
        """Return who asks, for which route, and what is asked of it."""
        if not self._checked:
            # Not at construction: apps get their routes afterwards, too.
            self._checked = True
            self._check()
        template = self.template(scope) or NO_ROUTE
        settings = self._settings
        on = (
            settings.get((scope.get("method", "GET"), template))
            or settings.get(("", template))
            or self._otherwise
        )
        who = self._identify(scope)
        caller = who if isinstance(who, Caller) else None
        client = who if caller is None else caller.client
        keys: dict[str, str] = {}
        if isinstance(client, Mapping):
            keys.update(client)
        elif client is not None:
            keys["client"] = client  # type: ignore[assignment]  # a Caller was unpacked above
        keys["route"] = template
        cost, priority, timeout = on.cost, on.priority, on.timeout
        if caller is not None:
            cost = caller.cost if caller.cost is not None else cost
            priority = caller.priority if caller.priority is not None else priority
            timeout = caller.timeout if caller.timeout is not None else timeout
        return Caller(keys, cost=cost, priority=priority, timeout=timeout)

    def template(self, scope: Scope) -> str | None:
        """The template of the route that will serve this request; None if there is none.

        A mount contributes its prefix; an app without routes of its own is ``/prefix/{path}``.
        """
        if scope["type"] not in ("http", "websocket"):
            return None
        return _find(self._routes(), dict(scope))

    def _routes(self) -> Iterable[BaseRoute]:
        routes = self._app.routes if isinstance(self._app, Starlette) else self._app
        flat: list[BaseRoute] = []
        for route in routes:
            contexts: Any = getattr(route, "effective_route_contexts", None)
            if contexts is None:
                flat.append(route)
                continue
            # FastAPI keeps included routers whole and matches them in its own way. What they
            # serve is the same as if their routes stood here.
            known = self._included.get(id(route))
            if known is None:
                known = self._included[id(route)] = route, [_plain(one) for one in contexts()]
            flat += known[1]
        return flat

    def _check(self) -> None:
        known = set(_templates(self._routes()))
        for _, template in self._settings:
            if template not in known:
                near = get_close_matches(template, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                log.warning(
                    "no route is called %r, so its settings have no effect%s", template, hint
                )


def _plain(context: Any) -> BaseRoute:
    """A route of an included router, as a route of its own."""
    route: BaseRoute | None = context.starlette_route
    if route is None:
        route = Route(context.path, context.endpoint, methods=context.methods)
    return route


def _find(routes: Iterable[BaseRoute], scope: dict[str, Any]) -> str | None:
    """Do what Starlette's router does: the first full match, else the first partial one."""
    partial: tuple[BaseRoute, Any] | None = None
    for route in routes:
        match, child = route.matches(scope)
        if match is Match.FULL:
            return _name(route, child, scope)
        if match is Match.PARTIAL and partial is None:
            partial = route, child
    return None if partial is None else _name(*partial, scope)


def _name(route: BaseRoute, child: Any, scope: dict[str, Any]) -> str | None:
    path: str = getattr(route, "path", "")
    inner: Any = getattr(route, "routes", None)
    if inner is None:
        return path or None
    if not inner:
        return f"{path}/{{path}}"
    found = _find(inner, {**scope, **child})
    return None if found is None else path + found


def _templates(routes: Iterable[BaseRoute], prefix: str = "") -> Iterable[str]:
    for route in routes:
        path: str = prefix + getattr(route, "path", "")
        inner: Any = getattr(route, "routes", None)
        if inner is None:
            yield path
        elif inner:
            yield from _templates(inner, path)
        else:
            yield f"{path}/{{path}}"


class RejectedHandler:
    """Turns a `Rejected` that leaves a route into the answer that the layer would have given.

    ``Starlette(exception_handlers={Rejected: RejectedHandler()})``; for a FastAPI app `install`
    of `loadgate.integrations.fastapi` does it.

    Args:
        contract: How refusals are told.
    """

    def __init__(self, contract: Contract | None = None) -> None:
        self._contract = Contract() if contract is None else contract
        self._pressure = Pressure()

    async def __call__(self, connection: HTTPConnection, error: Exception) -> Any:
        """Return the response to one request or handshake; None when there can be none."""
        assert isinstance(error, Rejected)
        answer = self.answer(connection, error)
        response = Response(answer.body, answer.status)
        response.raw_headers = list(answer.headers)
        extensions = connection.scope.get("extensions") or ()
        if isinstance(connection, WebSocket) and "websocket.http.response" not in extensions:
            # Servers turn it into a plain 403.
            await connection.close(1013, "busy")
            return None
        return response

    def answer(self, connection: HTTPConnection, error: Rejected) -> Answer:
        """Say a refusal in HTTP."""
        refusal = error.refusal
        controller: AdmissionController | None = connection.scope.get(REFUSED_BY)
        rate, pressure, draw = None, 0.0, 0.5
        if controller is not None:
            draw = controller.draw()
            if refusal.reason is Reason.RATE:
                rates = controller.policy.rates
                rate = next((rate for rate in rates if rate.name == refusal.subject), None)
            else:
                admitted = controller.telemetry.admitted
                pressure = self._pressure.refused(controller.clock(), lambda: sum(admitted))
        return refusal_answer(
            refusal, self._contract, pressure=pressure, draw=draw, epoch=time.time(), rate=rate
        )
