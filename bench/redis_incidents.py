"""How long does a request wait when the store dies, hangs, forgets or moves?

    python -m bench.redis_incidents [--budget 0.01] [--seconds 1.5]

Decisions are asked for without a break while the incident happens. Beside the longest wait stands
how late the event loop itself was at most: a wait is bounded by the budget and one turn of the
loop, and on a busy machine it is the turn that is long.
"""

from __future__ import annotations

import argparse
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Final

import anyio

from loadgate import Policy, Rate
from loadgate.decisions import Refuse
from loadgate.integrations.redis import RedisStore
from loadgate.shared import Charge, Store
from tests.redis.servers import DEFAULT, NAMES, Replicated, Server

TASKS: Final = 16

Act = Callable[[], Awaitable[None]]


class Seen:
    """What the load met."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.lag = 0.0
        self.sources: dict[str, int] = {}
        self.last_emergency = 0.0


async def ask(store: RedisStore, client: str, seen: Seen) -> None:
    """One decision."""
    began = time.perf_counter()
    answer = store.ask(client, 1.0, time.monotonic())
    if not isinstance(answer, Charge | Refuse):
        answer = await store.answer(answer)
    seen.waits.append(time.perf_counter() - began)
    source = answer.source if isinstance(answer, Charge) else "429"
    seen.sources[source] = seen.sources.get(source, 0) + 1
    if source == "emergency":
        seen.last_emergency = time.monotonic()


async def incident(url: str, budget: float, name: str, act: Act, patience: float) -> None:
    """Play one incident under load and print its row."""
    policy = Policy(
        rates=[Rate("all", "1000000/second", shared=True)],
        store=Store(url=url, secret="x" * 16, budget=budget),
    )
    store = RedisStore(policy, clock=time.monotonic, draw=random.random, name="bench")
    await store.open()
    seen = Seen()
    began = time.monotonic()

    async def load(number: int) -> None:
        while True:
            await ask(store, f"client-{number}", seen)
            await anyio.sleep(0.002)

    async def lag() -> None:
        while True:
            began = time.perf_counter()
            await anyio.sleep(0.001)
            seen.lag = max(seen.lag, time.perf_counter() - began - 0.001)

    async with anyio.create_task_group() as group:
        group.start_soon(lag)
        for number in range(TASKS):
            group.start_soon(load, number)
        await anyio.sleep(0.5)
        began = time.monotonic()
        await act()
        with anyio.move_on_after(patience):
            while True:
                await anyio.sleep(0.25)
                quiet = time.monotonic() - max(began, seen.last_emergency)
                if store.stats().state == "closed" and quiet > 0.5:
                    break
        group.cancel_scope.cancel()
    stats = store.stats()
    await store.close()
    waits = sorted(seen.waits)
    back = max(0.0, seen.last_emergency - began)
    emergency = seen.sources.get("emergency", 0)
    print(
        f"{name:34}{len(waits):>8,}{waits[len(waits) // 2] * 1e3:>8.1f}"
        f"{waits[len(waits) * 99 // 100] * 1e3:>8.1f}{waits[-1] * 1e3:>8.1f}{seen.lag * 1e3:>8.1f}"
        f"{emergency:>11,}{back:>9.2f}{stats.connections:>7}",
        flush=True,
    )


async def play(name: str, budget: float, seconds: float) -> None:
    """Every incident in turn, each with servers of its own."""
    with Server(name) as server:

        async def wait() -> None:
            await anyio.sleep(seconds)

        await incident(server.url, budget, "nothing happens", wait, 15.0)
    with Server(name) as server:

        async def kill() -> None:
            server.kill()
            await anyio.sleep(seconds)
            server.start()

        await incident(server.url, budget, "kill -9, restarted later", kill, 15.0)
    with Server(name) as server:

        async def pause() -> None:
            server.pause()
            await anyio.sleep(seconds)
            server.resume()

        await incident(server.url, budget, "SIGSTOP, resumed later", pause, 15.0)
    for title, words in (
        ("FLUSHALL", ("FLUSHALL",)),
        ("SCRIPT FLUSH", ("SCRIPT", "FLUSH")),
        ("every connection killed", ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")),
    ):
        with Server(name) as server:

            async def say(server: Server = server, words: tuple[str, ...] = words) -> None:
                with server.wire() as wire:
                    for _ in range(3):
                        wire(*words)
                        await anyio.sleep(0.1)

            await incident(server.url, budget, title, say, 15.0)
    with Server(name) as server:

        async def fill() -> None:
            with ExitStack() as stack:
                first = stack.enter_context(server.wire())
                first("CONFIG", "SET", "maxclients", 1)
                first("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                await anyio.sleep(seconds)
                first("CONFIG", "SET", "maxclients", 1000)

        await incident(server.url, budget, "no room for connections", fill, 15.0)
    with Replicated(name) as servers:
        url = f"redis+sentinel://127.0.0.1:{servers.sentinel.port}/main"

        async def freeze() -> None:
            servers.primary.pause()

        await incident(url, budget, "failover, primary frozen", freeze, 20.0)
        servers.primary.resume()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m bench.redis_incidents")
    parser.add_argument("--server", choices=NAMES, default=DEFAULT)
    parser.add_argument("--budget", type=float, default=0.01)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio")
    options = parser.parse_args()
    logging.getLogger("loadgate").setLevel(logging.CRITICAL)
    print(f"{options.server}, {options.backend}, budget {options.budget * 1e3:g} ms; times in ms")
    print(
        f"{'incident':34}{'asked':>8}{'p50':>8}{'p99':>8}{'max':>8}{'loop':>8}{'emergency':>11}"
        f"{'back s':>9}{'conns':>7}"
    )
    anyio.run(play, options.server, options.budget, options.seconds, backend=options.backend)


if __name__ == "__main__":
    main()
