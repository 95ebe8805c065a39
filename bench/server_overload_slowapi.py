"""The services of `server_overload` behind slowapi; imported by their servers only."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from bench.server_overload_apps import RATE_VARIABLE, Work, in_pool, on_cpu


def _slowapi(work: Work) -> Any:
    """A Starlette app behind slowapi, which counts all requests together: the best it can do."""
    # Imported by name: it is an optional peer, and has no types.
    slowapi: Any = import_module("slowapi")
    middleware: Any = import_module("slowapi.middleware")

    def everybody(request: Any) -> str:
        return "all"

    async def ready(request: Request) -> PlainTextResponse:
        return PlainTextResponse("0")

    async def endpoint(request: Request) -> PlainTextResponse:
        await work()
        return PlainTextResponse("0")

    limiter = slowapi.Limiter(
        key_func=everybody, default_limits=[f"{os.environ[RATE_VARIABLE]}/second"]
    )
    app = Starlette(
        routes=[Route("/ready", limiter.exempt(ready)), Route("/{path:path}", endpoint)]
    )
    app.state.limiter = limiter
    app.add_exception_handler(
        slowapi.errors.RateLimitExceeded, slowapi._rate_limit_exceeded_handler
    )
    app.add_middleware(middleware.SlowAPIASGIMiddleware)
    return app


pool = _slowapi(in_pool)
cpu = _slowapi(on_cpu)
