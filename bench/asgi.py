"""What does the layer add to a request, in process? `python -m bench.asgi`.

Every variant handles the same request, over and over, with a server that does nothing; variants
take turns in short rounds, so that a busy machine slows all of them. What counts is the ratio of
what they add to the bare application. Times are CPU time: on a busy machine the clock counts the
others' work, and more so the longer a round is.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import import_module
from statistics import median
from typing import Any

from loadgate import AdmissionController, Concurrency, Policy, Queue, Rate, Signals
from loadgate.integrations.asgi import AdmissionMiddleware
from loadgate.integrations.http import Contract
from loadgate.integrations.identity import Address, KeyHasher

App = Callable[[Any, Any, Any], Awaitable[None]]

START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/plain"), (b"content-length", b"2")],
}
BODY = {"type": "http.response.body", "body": b"ok"}
SCOPE: dict[str, Any] = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.3"},
    "http_version": "1.1",
    "method": "GET",
    "scheme": "http",
    "path": "/items/42",
    "raw_path": b"/items/42",
    "query_string": b"",
    "root_path": "",
    "headers": [
        (b"host", b"example.test"),
        (b"user-agent", b"bench"),
        (b"accept", b"*/*"),
        (b"accept-encoding", b"gzip, br"),
        (b"cookie", b"a=b"),
    ],
    "client": ("203.0.113.7", 4711),
    "server": ("127.0.0.1", 80),
    "state": {},
    "extensions": {},
}


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """The application: one answer, no framework."""
    await send(START)
    await send(BODY)


def minimal(app: App, places: int = 1000, *, per_client: bool) -> App:
    """What one would write by hand: count, refuse above the limit, time the request.

    With `per_client` also a token bucket for each address, in a dictionary that only grows.
    """
    running = 0
    rate, burst = 1e9, 1e9
    buckets: dict[str, tuple[float, float]] = {}
    latencies: dict[str, float] = {"sum": 0.0, "count": 0}

    async def wrapper(scope: Any, receive: Any, send: Any) -> None:
        nonlocal running
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        if running >= places:
            await send({"type": "http.response.start", "status": 503, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        started = time.perf_counter()
        if per_client:
            key = scope["client"][0]
            tokens, at = buckets.get(key, (burst, started))
            tokens = min(burst, tokens + (started - at) * rate)
            if tokens < 1.0:
                await send({"type": "http.response.start", "status": 429, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
            buckets[key] = (tokens - 1.0, started)
        running += 1

        async def timed_send(message: Any) -> None:
            if message["type"] == "http.response.start":
                latencies["sum"] += time.perf_counter() - started
                latencies["count"] += 1
            await send(message)

        try:
            await app(scope, receive, timed_send)
        finally:
            running -= 1

    return wrapper


def layer(*rates: Rate, **settings: Any) -> App:
    """The layer with an adaptive limit that does not bind."""
    policy = Policy(
        rates=rates,
        concurrency=Concurrency("adaptive", initial=100, min=100),
        queue=Queue(max_wait=0.1),
        signals=Signals(max_lag=None),
    )
    return AdmissionMiddleware(bare, AdmissionController(policy), **settings)


def refusing() -> App:
    """The layer in front of a service that is full."""
    policy = Policy(
        concurrency=Concurrency("fixed", initial=1),
        queue=Queue(max_queue=0),
        signals=Signals(max_lag=None),
    )
    controller = AdmissionController(policy)
    # Taken in the running loop, at the first request, and never given back.
    holder = controller.try_admit()
    inner = AdmissionMiddleware(bare, controller)

    async def wrapper(scope: Any, receive: Any, send: Any) -> None:
        if not holder.started:
            holder.begin()
        await inner(scope, receive, send)

    return wrapper


def limited() -> App:
    """The layer with a rate that has nothing left."""
    return layer(Rate("per-client", limit=1e-6, per=1.0, burst=1))


def variants() -> dict[str, App]:
    """Name to application; the first three are what the others are measured by."""
    rate = Rate("per-client", limit=1e9, per=1.0, burst=1e9)
    found = {
        "bare": bare,
        "minimal wrapper": minimal(bare, per_client=False),
        "minimal wrapper, one bucket": minimal(bare, per_client=True),
        "loadgate, no rate": layer(),
        "loadgate, one token bucket": layer(rate),
        "loadgate, bucket + RateLimit headers": layer(rate, contract=Contract(on_admitted=True)),
        "loadgate, refuses with 503": refusing(),
        "loadgate, refuses with 429": limited(),
    }
    with suppress(ImportError):
        found["BaseHTTPMiddleware that does nothing"] = _starlette()
    with suppress(ImportError):
        found["asgi-ratelimit, in memory"] = _asgi_ratelimit()
    with suppress(ImportError):
        found["slowapi, ASGI"] = _slowapi("SlowAPIASGIMiddleware")
        found["slowapi, as documented"] = _slowapi("SlowAPIMiddleware")
    return found


def _starlette() -> App:
    """What a middleware costs that is written as most are."""
    from starlette.middleware.base import BaseHTTPMiddleware

    async def pass_on(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    return BaseHTTPMiddleware(bare, dispatch=pass_on)


def _asgi_ratelimit() -> App:
    """One window for each address that is never full."""
    # Imported by name, like slowapi.
    ratelimit: Any = import_module("ratelimit")
    backends: Any = import_module("ratelimit.backends.simple")

    async def who(scope: Any) -> tuple[str, str]:
        return scope["client"][0], "default"

    app: App = ratelimit.RateLimitMiddleware(
        bare, who, backends.MemoryBackend(), {r"^/items": [ratelimit.Rule(second=10**9)]}
    )
    return app


def _slowapi(kind: str) -> App:
    from starlette.applications import Starlette
    from starlette.routing import Route

    # Imported by name: it is an optional peer, and has no types.
    slowapi: Any = import_module("slowapi")
    middleware: Any = import_module("slowapi.middleware")

    def key(request: Any) -> str:
        return "k"

    limiter = slowapi.Limiter(key_func=key, default_limits=["1000000000/second"])

    async def endpoint(request: Any) -> None:
        raise AssertionError

    app = Starlette(routes=[Route("/items/42", endpoint)])
    app.state.limiter = limiter
    peer = getattr(middleware, kind)(bare)

    async def wrapper(scope: Any, receive: Any, send: Any) -> None:
        await peer({**scope, "app": app}, receive, send)

    return wrapper


async def _send(message: Any) -> None:
    pass


async def _receive() -> Any:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _round(app: App, requests: int) -> float:
    started = time.thread_time()
    for _ in range(requests):
        await app(dict(SCOPE), _receive, _send)
    return (time.thread_time() - started) / requests


async def measure(rounds: int, requests: int) -> dict[str, list[float]]:
    """Seconds per request of each variant, one number per round."""
    apps = variants()
    times: dict[str, list[float]] = {name: [] for name in apps}
    for app in apps.values():
        await _round(app, requests)
    gc.collect()
    for _ in range(rounds):
        for name, app in apps.items():
            times[name].append(await _round(app, requests))
            await asyncio.sleep(0)
    return times


def report(times: dict[str, list[float]]) -> str:
    """The table, with the bounds that the layer must keep."""
    base = times["bare"]
    hands = ("minimal wrapper", "minimal wrapper, one bucket")
    lines = [f"{'variant':38} {'µs':>7} {'adds µs':>8} {'x minimal':>10} {'x with bucket':>14}"]
    added = {
        name: [value - zero for value, zero in zip(values, base, strict=True)]
        for name, values in times.items()
    }
    ratios: dict[str, list[float]] = {}
    for name, adds in added.items():
        ratios[name] = [
            median(add / one for add, one in zip(adds, added[hand], strict=True)) for hand in hands
        ]
        lines.append(
            f"{name:38} {median(times[name]) * 1e6:7.2f} {median(adds) * 1e6:8.2f} "
            f"{ratios[name][0]:10.2f} {ratios[name][1]:14.2f}"
        )
    ours = "loadgate, one token bucket"
    lines += [
        "",
        "adds, beside a wrapper written by hand (must <= 4, aim 2.5):",
        f"  that does the same (bucket, count, time): {ratios[ours][1]:.2f} x",
        f"  that only counts and times: {ratios[ours][0]:.2f} x; "
        f"loadgate without a rate: {ratios['loadgate, no rate'][0]:.2f} x",
    ]
    peers = [name for name in times if name.startswith("slowapi")]
    for peer in peers:
        share = median(added[ours]) / median(added[peer])
        lines.append(f"adds, beside {peer}: {share:.3f} x (must <= 0.08)")
    for other in ("BaseHTTPMiddleware that does nothing", "asgi-ratelimit, in memory"):
        if other in times:
            share = median(added[ours]) / median(added[other])
            lines.append(f"adds, beside {other}: {share:.2f} x")
    if not peers:
        lines.append("slowapi is not installed: not compared (must <= 0.08)")
    return "\n".join(lines)


def identities(count: int = 20_000) -> str:
    """What it costs to know the client."""
    proxied = {**SCOPE, "headers": [*SCOPE["headers"], (b"x-forwarded-for", b"198.51.100.9")]}
    peer, proxy = Address(), Address(trusted=["203.0.113.0/24"], header="x-forwarded-for")
    strangers = [{"client": (f"2001:db8:{n:x}::1", 1)} for n in range(count)]
    hasher = KeyHasher()
    cases: dict[str, Callable[[int], object]] = {
        "the peer, seen before": lambda n: peer(SCOPE),
        "an IPv6 peer, never seen before": lambda n: peer(strangers[n]),
        "X-Forwarded-For, seen before": lambda n: proxy(proxied),
        "a keyed hash": lambda n: hasher("203.0.113.7"),
    }
    lines = ["who is asking, µs:"]
    for name, case in cases.items():
        started = time.thread_time()
        for n in range(count):
            case(n)
        lines.append(f"  {name:36} {(time.thread_time() - started) / count * 1e6:7.2f}")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--requests", type=int, default=3000, help="per round and variant")
    parser.add_argument("--uvloop", action="store_true")
    options = parser.parse_args()
    factory = None
    if options.uvloop:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        print(report(runner.run(measure(options.rounds, options.requests))))
    print()
    print(identities())


if __name__ == "__main__":
    main()
