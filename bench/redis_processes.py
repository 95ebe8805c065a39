"""Do many processes that hammer one key admit exactly what one limiter would?

    python -m bench.redis_processes [--seconds 10] [--processes 1 4 16]

Each process has a store link of its own and asks as fast as it can. Strictly, the sum must be
what one bucket gives: the burst and what refills between the first and the last admission, up to
the request that fell into the last moment. In local mode it must stay within the bound that
docs/redis-local-mode.md derives.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from typing import Any

import anyio
import anyio.to_thread

from loadgate import Policy, Rate
from loadgate.decisions import Refuse
from loadgate.integrations.redis import RedisStore
from loadgate.shared import Charge, Store
from tests.redis.servers import DEFAULT, NAMES, Server

LIMIT = 200.0
BURST = 100.0


def policy(url: str, mode: Any, prefix: str, overdraft: float) -> Policy:
    """One rate that everybody counts on one key."""
    return Policy(
        rates=[Rate("hammer", limit=LIMIT, burst=BURST, shared=True)],
        store=Store(
            url=url, secret="x" * 16, mode=mode, prefix=prefix, budget=1.0, overdraft=overdraft
        ),
    )


async def hammer(url: str, mode: str, prefix: str, overdraft: float) -> None:
    """One process: ask until the time on the input is up, print what was admitted and when."""
    store = RedisStore(
        policy(url, mode, prefix, overdraft),
        clock=time.monotonic,
        draw=random.random,
        name="hammer",
    )
    await store.open()
    print("ready", flush=True)
    until = float(await anyio.to_thread.run_sync(input))
    admitted = asked = 0
    first = last = 0.0
    while (now := time.time()) < until:
        answer = store.ask("one key", 1.0, time.monotonic())
        if not isinstance(answer, Charge | Refuse):
            answer = await store.answer(answer)
        asked += 1
        if isinstance(answer, Charge):
            # When it may have been decided: between the question and the answer.
            first = first or now
            last = time.time()
            admitted += 1
        else:
            await anyio.sleep(0.001)
    decisions = store.stats().decisions
    print(
        json.dumps(
            {
                "admitted": admitted,
                "asked": asked,
                "first": first,
                "last": last,
                "strangers": sum(decisions[name] for name in ("emergency", "open", "closed")),
            }
        )
    )
    await store.close()


def run(server: Server, mode: str, processes: int, seconds: float, overdraft: float) -> bool:
    """One row of the table; whether it is within its bound."""
    prefix = f"{mode}{processes}-{overdraft:g}"
    command = [sys.executable, "-m", "bench.redis_processes", "--child"]
    children = [
        subprocess.Popen(
            [*command, server.url, mode, prefix, str(overdraft)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    until = f"{time.time() + seconds}\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write(until)
        child.stdin.flush()
    told = [json.loads(child.communicate(timeout=seconds + 60)[0]) for child in children]
    admitted = sum(one["admitted"] for one in told)
    begins = [one["first"] for one in told if one["first"]]
    span = max(one["last"] for one in told) - min(begins)
    ideal = BURST + LIMIT * span
    bound = ideal + overdraft * processes
    strangers = sum(one["strangers"] for one in told)
    good = admitted <= bound + 1 and not strangers
    asked = sum(one["asked"] for one in told)
    name = f"{mode}, overdraft {overdraft:g}" if overdraft else mode
    print(
        f"{name:22}{processes:>10}{asked:>10,}{admitted:>10,}{ideal:>10,.0f}{bound:>10,.0f}"
        f"{admitted / ideal:>9.1%}  {'within' if good else 'ABOVE'}",
        flush=True,
    )
    return good


def main() -> None:
    """Measure and print; the exit status says whether every row is within its bound."""
    if sys.argv[1:2] == ["--child"]:
        url, mode, prefix, more = sys.argv[2:]
        anyio.run(hammer, url, mode, prefix, float(more))
        return
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m bench.redis_processes")
    parser.add_argument("--server", choices=NAMES, default=DEFAULT)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4, 16])
    options = parser.parse_args()
    print(f"one key, {LIMIT:g}/second burst {BURST:g}, {options.server}")
    print(
        f"{'':22}{'processes':>10}{'asked':>10}{'admitted':>10}{'one would':>10}{'bound':>10}"
        f"{'share':>9}"
    )
    good = True
    with Server(options.server) as server:
        for mode, overdraft in (("strict", 0.0), ("local", 0.0), ("local", 5.0)):
            for processes in options.processes:
                good &= run(server, mode, processes, options.seconds, overdraft)
    sys.exit(not good)


if __name__ == "__main__":
    main()
