"""What does a strict decision cost beside the bare client and beside other limiters on Redis?

    python -m bench.redis [--server valkey-9.1] [--rounds 5]

Everything runs against the same private server in the same run, round by round in turn, so that
a busy machine slows all of them down alike. The best round counts: noise only ever adds.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from hashlib import sha1
from typing import Any, Final

import anyio
import coredis
import limits
import limits.aio.storage
import limits.aio.strategies
import msgspec
import sniffio
import throttled.asyncio
from coredis.retry import NoRetryPolicy

from loadgate import Policy, Rate
from loadgate.decisions import Refuse
from loadgate.integrations.redis import RedisStore
from loadgate.integrations.redis.ask import CHARGE_ONE, Ask
from loadgate.integrations.redis.coredis_transport import CoredisTransport
from loadgate.integrations.redis.link import Link
from loadgate.integrations.redis.transport import Connection, Script
from loadgate.integrations.redis.units import scale
from loadgate.integrations.redis.url import parse
from loadgate.shared import Charge, Store
from tests.redis.servers import DEFAULT, NAMES, Server

Decide = Callable[[str], Awaitable[Any]]

TASKS: Final = (1, 64, 512)

STRICT: Final = "loadgate, strict"
NOTHING: Final = "no-op script on the same link"
BARE: Final = "bare EVALSHA, same client"

# So fast that nobody is refused: what is measured is deciding.
RATE: Final = Rate("bench", "100000000/second", shared=True)

# Answers as `decide.lua` does, without looking at a key.
NOTHING_AT_ALL: Final = """
local clock = redis.call('TIME')
local answers = { clock[1] * 1000000 + clock[2] }
if #cmsgpack.unpack(ARGV[1]) > 1 then   -- a probe asks nothing
  for number = 2, 5 * #KEYS + 1 do answers[number] = 1 end
end
return cmsgpack.pack(answers)
"""


class Row(msgspec.Struct):
    """One contender at one number of tasks: seconds per decision, the best round of each."""

    seconds: float
    cpu: float
    p50: float
    p99: float

    def better(self, other: Row) -> Row:
        """The best of both, figure by figure."""
        return Row(
            min(self.seconds, other.seconds),
            min(self.cpu, other.cpu),
            min(self.p50, other.p50),
            min(self.p99, other.p99),
        )


async def measure(decide: Decide, tasks: int, decisions: int) -> Row:
    """Let `tasks` tasks decide one after the other, each for a client of its own."""
    waits: list[float] = []
    each = max(1, decisions // tasks)

    async def run(client: str) -> None:
        for _ in range(each):
            began = time.perf_counter()
            await decide(client)
            waits.append(time.perf_counter() - began)

    cpu, began = time.process_time(), time.perf_counter()
    async with anyio.create_task_group() as group:
        for number in range(tasks):
            group.start_soon(run, f"client-{number}")
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    waits.sort()
    done = each * tasks
    return Row(seconds / done, cpu / done, waits[done // 2], waits[done * 99 // 100])


class Nobody:
    """Watches a link and does nothing."""

    def lost(self, cause: str) -> None:
        """A bench without a store is over."""
        raise RuntimeError(cause)

    def found(self, seconds: float) -> None:
        """Never called."""

    async def beat(self, connection: Connection) -> float:
        """Nothing needs to be done for an hour."""
        del connection
        return 3600.0


async def contenders(server: Server, stack: AsyncExitStack) -> dict[str, Decide]:
    """Who is compared, ready to decide."""
    store = RedisStore(
        Policy(rates=[RATE], store=Store(url=server.url, secret="x" * 16, budget=1.0)),
        clock=time.monotonic,
        draw=random.random,
        name="bench",
    )
    await store.open()
    stack.push_async_callback(store.close)

    async def strict(client: str) -> None:
        answer = store.ask(client, 1.0, time.monotonic())
        if not isinstance(answer, Charge | Refuse):
            answer = await store.answer(answer)
        assert isinstance(answer, Charge)
        assert answer.source == "store"

    # The same link with a script that does nothing, asked the same questions.
    numbers = scale(RATE)
    item = (numbers.kind, 0, numbers.a, numbers.c, numbers.unit, numbers.units(1.0))
    nothing = Script(NOTHING_AT_ALL, sha1(NOTHING_AT_ALL.encode()).hexdigest())
    link = Link(
        CoredisTransport(parse(server.url)),
        nothing, (), b"bench:probe", time.monotonic, random.random, 1.0, Nobody(),
    )  # fmt: skip
    assert not await link.ready(5.0)
    stack.push_async_callback(link.close)

    async def batched(client: str) -> None:
        key = b"bench:v1:{%b}:b0" % client.encode()
        ask = Ask(CHARGE_ONE, (key,), (item,), time.monotonic() + 1.0)
        assert link.submit(ask)
        await ask.wait()
        assert ask.answer is not None

    # The same script, one call for each decision, by the client's own way.
    redis: Any = coredis.Redis("127.0.0.1", server.port, retry_policy=NoRetryPolicy())
    await stack.enter_async_context(redis)
    script = Script.read("decide.lua")
    await redis.script_load(script.text)
    encoder = msgspec.msgpack.Encoder()

    async def bare(client: str) -> None:
        message = encoder.encode([[item], CHARGE_ONE, 2**52, 1])
        key = b"bench:v1:{%b}:b1" % client.encode()
        reply = await redis.evalsha(script.sha, [key], [message])
        assert msgspec.msgpack.decode(reply)[1] == 1

    found: dict[str, Decide] = {STRICT: strict, NOTHING: batched, BARE: bare}
    if sniffio.current_async_library() == "trio":
        return found  # the others know nothing of it

    peer = limits.aio.strategies.SlidingWindowCounterRateLimiter(
        limits.aio.storage.RedisStorage(
            f"async+redis://127.0.0.1:{server.port}", implementation="redispy"
        )
    )
    per_second = limits.parse("100000000/second")

    async def by_limits(client: str) -> None:
        assert await peer.hit(per_second, client)

    other: Any = throttled.asyncio.Throttled(
        using="token_bucket",
        quota=throttled.asyncio.per_sec(100_000_000, burst=100_000_000),
        store=throttled.asyncio.RedisStore(server=server.url),
    )

    async def by_throttled(client: str) -> None:
        assert not (await other.limit(client)).limited

    return {**found, "limits (sliding counter)": by_limits, "throttled-py (bucket)": by_throttled}


async def compare(server: Server, rounds: int, decisions: int) -> dict[tuple[str, int], Row]:
    """The best of `rounds` rounds for everybody at every number of tasks."""
    best: dict[tuple[str, int], Row] = {}
    async with AsyncExitStack() as stack:
        everybody = await contenders(server, stack)
        for name, decide in everybody.items():
            for tasks in TASKS:
                best[name, tasks] = await measure(decide, tasks, tasks)
        for _ in range(rounds):
            for name, decide in everybody.items():
                for tasks in TASKS:
                    number = decisions if tasks > 1 else decisions // 8
                    row = await measure(decide, tasks, number)
                    best[name, tasks] = best[name, tasks].better(row)
    return best


def report(best: dict[tuple[str, int], Row]) -> list[str]:
    """The table, and the bounds."""
    lines = [f"{'':32}{'tasks':>6}{'decisions/s':>13}{'CPU us':>9}{'p50 us':>10}{'p99 us':>10}"]
    for (name, tasks), row in sorted(best.items(), key=lambda item: (item[0][1], item[1].seconds)):
        lines.append(
            f"{name:32}{tasks:>6}{1 / row.seconds:>13,.0f}{row.cpu * 1e6:>9.1f}"
            f"{row.p50 * 1e6:>10.0f}{row.p99 * 1e6:>10.0f}"
        )
    strict = best[STRICT, 64]
    bare, nothing = best[BARE, 64], best[NOTHING, 64]
    faster, slower = bare.seconds / strict.seconds, strict.seconds / nothing.seconds
    return [
        *lines,
        "",
        f"64 tasks, decisions beside one unbatched EVALSHA each: {faster:.1f} x"
        f" (at least 5 x: {'reached' if faster >= 5 else 'MISSED'}), client CPU"
        f" {bare.cpu / strict.cpu:.1f} x",
        f"64 tasks, time beside a no-op script on the same link: {slower:.2f} x"
        f" (at most 1.3 x: {'reached' if slower <= 1.3 else 'MISSED'}), client CPU"
        f" {strict.cpu / nothing.cpu:.2f} x",
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m bench.redis")
    parser.add_argument("--server", choices=NAMES, default=DEFAULT)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--decisions", type=int, default=8000)
    parser.add_argument("--backend", choices=("asyncio", "uvloop", "trio"), default="asyncio")
    options = parser.parse_args()
    backend = "trio" if options.backend == "trio" else "asyncio"
    extra = {"use_uvloop": options.backend == "uvloop"} if backend == "asyncio" else {}
    with Server(options.server) as server:
        best = anyio.run(
            compare, server, options.rounds, options.decisions,
            backend=backend, backend_options=extra,
        )  # fmt: skip
    print(f"{options.server} on loopback, {options.backend}, best of {options.rounds} rounds")
    print("\n".join(report(best)))


if __name__ == "__main__":
    main()
