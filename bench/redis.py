"""What does a strict decision cost beside the bare client and beside other limiters on Redis?

    python -m bench.redis [--server valkey-9.1] [--rounds 20]

Everything runs against the same private server in the same run, round by round in turn, so that
a busy machine slows all of them down alike. The best round counts, for noise only ever adds, and
rounds are short, so that some of them meet a quiet moment. On an idle machine `--apart` gives the
server a core for itself, as it has on a machine of its own.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha1
from typing import Any, ClassVar, Final

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
from loadgate.integrations.redis.transport import Connection, Reply, Script, Transport
from loadgate.integrations.redis.units import scale
from loadgate.integrations.redis.url import parse
from loadgate.rates.group import RateSet
from loadgate.shared import Charge, Store
from tests.redis.servers import DEFAULT, NAMES, Server

Decide = Callable[[str], Awaitable[Any]]

TASKS: Final = (1, 64, 512)

STRICT: Final = "loadgate, strict"
HOLLOW: Final = "no-op script, same store"
NOTHING: Final = "no-op script, bare link"
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


NOTHING_SCRIPT: Final = Script(NOTHING_AT_ALL, sha1(NOTHING_AT_ALL.encode()).hexdigest())
DECIDE: Final = Script.read("decide.lua")


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


class Hollow:
    """A way to the store on which every script does nothing."""

    def __init__(self, url: str) -> None:
        self._transport = CoredisTransport(parse(url))
        self.endpoint = self._transport.endpoint

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Connection]:
        """Connect; see `Transport`."""
        async with self._transport.connect() as connection:
            yield HollowConnection(connection)


class HollowConnection:
    """Passes everything on but the script that decides."""

    parallel: ClassVar[int] = 2
    split: ClassVar[bool] = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def probes(self, key: bytes) -> Sequence[bytes]:
        """See `Connection`."""
        return self._connection.probes(key)

    async def load(self, scripts: Sequence[Script]) -> None:
        """Make the server remember the script that does nothing."""
        await self._connection.load([NOTHING_SCRIPT, *scripts])

    async def call(self, script: Script, keys: Sequence[bytes], argument: bytes) -> Reply:
        """Decide nothing."""
        chosen = NOTHING_SCRIPT if script == DECIDE else script
        return await self._connection.call(chosen, keys, argument)

    def group(self, key: bytes) -> Hashable:
        """See `Connection`."""
        return self._connection.group(key)

    def server(self, key: bytes) -> Hashable:
        """See `Connection`."""
        return self._connection.server(key)


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


async def asking(
    server: Server, stack: AsyncExitStack, transport: Transport | None = None
) -> Decide:
    """A store as a controller uses it, in strict mode."""
    store = RedisStore(
        Policy(rates=[RATE], store=Store(url=server.url, secret="x" * 16, budget=1.0)),
        clock=time.monotonic,
        draw=random.random,
        name="bench",
        transport=transport,
    )
    await store.open()
    stack.push_async_callback(store.close)

    async def decide(client: str) -> None:
        answer = store.ask(client, 1.0, time.monotonic())
        if not isinstance(answer, Charge) and not isinstance(answer, Refuse):
            answer = await store.answer(answer)
        assert isinstance(answer, Charge)
        assert answer.source == "store"

    return decide


async def local(server: Server, rounds: int) -> tuple[float, float]:
    """Seconds of a decision in memory, and of one against a leased share; 64 clients in turn."""
    clients = [f"client-{number}" for number in range(64)]
    plain = RateSet([Rate(RATE.name, RATE.rate)])
    store = RedisStore(
        Policy(
            rates=[RATE], store=Store(url=server.url, secret="x" * 16, mode="local", prefix="local")
        ),
        clock=time.monotonic,
        draw=random.random,
        name="bench",
    )
    await store.open()
    best = [1.0, 1.0]
    try:
        for number in range(20 * rounds):
            for client in clients:  # everybody has a lease, and is used to asking for much
                answer = store.ask(client, 1.0, time.monotonic())
                if not isinstance(answer, Charge) and not isinstance(answer, Refuse):
                    await store.answer(answer)
            await anyio.sleep(0.01)
            began = time.perf_counter()
            for _ in range(10):
                for client in clients:
                    plain.charge(client, 1.0, time.monotonic())
            best[0] = min(best[0], (time.perf_counter() - began) / 640)
            began, leased = time.perf_counter(), store.stats().decisions["lease"]
            for _ in range(10):
                for client in clients:
                    store.ask(client, 1.0, time.monotonic())
            seconds = (time.perf_counter() - began) / 640
            if store.stats().decisions["lease"] == leased + 640 and number:
                best[1] = min(best[1], seconds)
    finally:
        await store.close()
    return best[0], best[1]


async def contenders(server: Server, stack: AsyncExitStack) -> dict[str, Decide]:
    """Who is compared, ready to decide."""
    strict = await asking(server, stack)
    hollow = await asking(server, stack, Hollow(server.url))

    # The same link with a script that does nothing, asked the same questions.
    numbers = scale(RATE)
    item = (numbers.kind, 0, numbers.a, numbers.c, numbers.unit, numbers.units(1.0))
    link = Link(
        CoredisTransport(parse(server.url)),
        NOTHING_SCRIPT, (), b"bench:probe", time.monotonic, random.random, 1.0, Nobody(),
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
    await redis.script_load(DECIDE.text)
    encoder = msgspec.msgpack.Encoder()

    async def bare(client: str) -> None:
        message = encoder.encode([[item], CHARGE_ONE, 2**52, 1])
        key = b"bench:v1:{%b}:b1" % client.encode()
        reply = await redis.evalsha(DECIDE.sha, [key], [message])
        assert msgspec.msgpack.decode(reply)[1] == 1

    found: dict[str, Decide] = {STRICT: strict, HOLLOW: hollow, NOTHING: batched, BARE: bare}
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


def report(best: dict[tuple[str, int], Row], memory: float, leased: float) -> list[str]:
    """The table, and the bounds."""
    lines = [f"{'':32}{'tasks':>6}{'decisions/s':>13}{'CPU us':>9}{'p50 us':>10}{'p99 us':>10}"]
    for (name, tasks), row in sorted(best.items(), key=lambda item: (item[0][1], item[1].seconds)):
        lines.append(
            f"{name:32}{tasks:>6}{1 / row.seconds:>13,.0f}{row.cpu * 1e6:>9.1f}"
            f"{row.p50 * 1e6:>10.0f}{row.p99 * 1e6:>10.0f}"
        )
    strict = best[STRICT, 64]
    bare, hollow, nothing = best[BARE, 64], best[HOLLOW, 64], best[NOTHING, 64]
    faster, slower = bare.seconds / strict.seconds, strict.seconds / hollow.seconds
    return [
        *lines,
        "",
        f"64 tasks, decisions beside one unbatched EVALSHA each: {faster:.1f} x"
        f" (at least 5 x: {'reached' if faster >= 5 else 'MISSED'}), client CPU"
        f" {bare.cpu / strict.cpu:.1f} x",
        f"64 tasks, time beside a no-op script asked by the same store: {slower:.2f} x"
        f" (at most 1.3 x: {'reached' if slower <= 1.3 else 'MISSED'}), client CPU"
        f" {strict.cpu / hollow.cpu:.2f} x",
        f"64 tasks, time beside a no-op script asked by the bare link, which counts nothing and"
        f" tells no quota: {strict.seconds / nothing.seconds:.2f} x (at most 1.3 x, read strictly:"
        f" {'reached' if strict.seconds <= 1.3 * nothing.seconds else 'MISSED'}), client CPU"
        f" {strict.cpu / nothing.cpu:.2f} x",
        f"a decision in local mode {leased * 1e6:.2f} us, in memory {memory * 1e6:.2f} us:"
        f" {leased / memory:.2f} x (at most 1.5 x:"
        f" {'reached' if leased <= 1.5 * memory else 'MISSED'})",
    ]


def apart(server: Server) -> str:
    """Give the server a core and this process another; says whether that worked."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2 or server.process is None:
        return "client and server share a core"
    for thread in os.listdir(f"/proc/{server.process.pid}/task"):
        os.sched_setaffinity(int(thread), cores[1:2])
    os.sched_setaffinity(0, cores[:1])
    return "client and server on a core each"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m bench.redis")
    parser.add_argument("--server", choices=NAMES, default=DEFAULT)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--decisions", type=int, default=2000)
    parser.add_argument("--backend", choices=("asyncio", "uvloop", "trio"), default="asyncio")
    parser.add_argument("--apart", action="store_true", help="client and server on a core each")
    options = parser.parse_args()
    backend = "trio" if options.backend == "trio" else "asyncio"
    extra = {"use_uvloop": options.backend == "uvloop"} if backend == "asyncio" else {}
    with Server(options.server) as server:
        where = apart(server) if options.apart else "client and server on any core"
        best = anyio.run(
            compare, server, options.rounds, options.decisions,
            backend=backend, backend_options=extra,
        )  # fmt: skip
        memory, leased = anyio.run(
            local, server, options.rounds, backend=backend, backend_options=extra
        )
    load = os.getloadavg()[0]
    print(
        f"{options.server} on loopback, {options.backend}, {where},"
        f" best of {options.rounds} rounds, load average {load:.1f}"
    )
    print("\n".join(report(best, memory, leased)))


if __name__ == "__main__":
    main()
