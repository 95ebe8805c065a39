"""Does a real server behave as the simulator says? The same requests, in real time.

    python -m bench.limit_real                  # three scenarios, three minutes

One Hypercorn process under `loadgate serve` with the default policy, a service of known
capacity (`limit_real_app`), and the very requests that the simulator plays: each with its own
moment, its own seconds of waiting and its own seconds of work. Printed side by side: what was
answered in time, and the median of the limit in the second half of each phase, beside its
median on twenty other simulated seeds and their range.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Final

import numpy as np

from loadgate.integrations.demo.servers import ServerError, get, guarded, serving
from loadgate.simulation import results
from loadgate.simulation import scenario as scenarios
from loadgate.simulation.run import Record, policy_for, requests, simulate
from loadgate.simulation.scenario import Scenario
from loadgate.simulation.workload import Workload

FOLDER: Final = Path(__file__).parent / "scenarios" / "real"
GOODPUT: Final = 0.05
LIMIT: Final = 0.15
# A limit that feels its way takes another path on every run, real or simulated: the real one
# must lie within what the simulated ones do on this many other seeds, and LIMIT around it.
OTHERS: Final = 20

# Seconds that a client waits at most, and between two looks at the limit.
_PATIENCE: Final = 10.0
_LOOK: Final = 0.2


class Clients:
    """Open-loop clients of one server, on kept connections.

    Args:
        url: As in ``http://127.0.0.1:8000``.
    """

    def __init__(self, url: str) -> None:
        self._host, port = url.removeprefix("http://").split(":")
        self._port = int(port)
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, path: str) -> int:
        """The status of a GET.

        Raises:
            OSError: There was no answer.
        """
        connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = await asyncio.open_connection(self._host, self._port)
        reader, writer = connection
        kept = False
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nhost: {self._host}\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0] or 0)
            await reader.readexactly(length)
            kept = b"connection: close" not in head
            return int(head.split(b" ", 2)[1])
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("the connection ended before the answer") from error
        finally:
            if kept:
                self._idle.append(connection)
            else:
                writer.close()

    def close(self) -> None:
        """Close what is idle."""
        for _, writer in self._idle:
            writer.close()


async def play(scenario: Scenario, work: Workload) -> tuple[list[float], list[tuple[float, float]]]:
    """Play `work` against a real server.

    Returns:
        Seconds from the intended start to each 200, inf where there was none, and the limit at
        regular moments.

    Raises:
        ServerError: The server does not start.
    """
    loop = asyncio.get_running_loop()
    latency = [inf] * len(work)
    limits: list[tuple[float, float]] = []
    launch = guarded("bench.limit_real_app:app", None, ["--exempt", "/places"])
    async with serving(launch) as server:
        clients = Clients(server.url)
        begun = loop.time() + 0.5

        async def one(index: int, due: float) -> None:
            path = f"/work?{work.sizes[0][index]:.6f}&{work.sizes[1][index]:.6f}"
            try:
                async with asyncio.timeout(_PATIENCE):
                    status = await clients.ask(path)
            except (OSError, TimeoutError):
                return
            if status == 200:
                latency[index] = loop.time() - begun - due

        async def change() -> None:
            for stretch, phase in zip(results.phases(scenario), scenario.phases, strict=True):
                await asyncio.sleep(begun + stretch.start - loop.time())
                places = phase.change.get("places")
                count = scenario.stages[1].count
                if places is not None and places.count is not None:
                    count = places.count
                await get(f"{server.url}/places?{count}")

        async def watch() -> None:
            while loop.time() < begun + work.horizon:
                sample = await server.look(loop.time() - begun)
                limits.append((sample.at, sample.limit or 0.0))
                await asyncio.sleep(_LOOK)

        async with asyncio.TaskGroup() as group:
            group.create_task(change())
            group.create_task(watch())
            for index, due in enumerate(work.times.tolist()):
                if (ahead := begun + due - loop.time()) > 0.0:
                    await asyncio.sleep(ahead)
                group.create_task(one(index, due))
        clients.close()
    return latency, limits


def compare(scenario: Scenario, seed: int) -> bool:
    """Print real beside simulated; the answer is whether they agree."""
    policy = policy_for(scenario)
    work = requests(scenario, seed, policy)
    record = simulate(scenario, policy, seed, workload=work)
    latency, limits = asyncio.run(play(scenario, work))
    real_good = float((np.asarray(latency) <= scenario.slo).mean())
    good = float(record.good.mean())
    agree = abs(real_good - good) <= GOODPUT * good
    print(f"{scenario.title}: {len(work)} requests, {work.horizon:.0f} s")
    print(f"  in time        real {real_good:6.1%}   simulated {good:6.1%}   {_word(agree)}")
    others = [simulate(scenario, policy, each) for each in range(100, 100 + OTHERS)]
    table = np.asarray(limits)
    for stretch in results.phases(scenario):
        middle = 0.5 * (stretch.start + stretch.end)
        seen = table[(table[:, 0] >= middle) & (table[:, 0] < stretch.end), 1]
        medians = sorted(_median(each, middle, stretch.end) for each in (record, *others))
        low, typical, high = medians[0], medians[len(medians) // 2], medians[-1]
        real = float(np.median(seen))
        fits = (1.0 - LIMIT) * low - 0.5 <= real <= (1.0 + LIMIT) * high + 0.5
        agree = agree and fits
        print(
            f"  {stretch.name:14} real {real:6.1f}   simulated {typical:6.1f} "
            f"({low:g} to {high:g})   {_word(fits)}"
        )
    late = [b - a for (a, _), (b, _) in pairwise(limits)]
    if late and max(late) > 1.0:
        print(f"  (this machine was busy: a look at the limit was {max(late):.1f} s late)")
    return agree


def _median(record: Record, start: float, end: float) -> float:
    when = (record.gauges.times >= start) & (record.gauges.times < end)
    return float(np.median(record.gauges.limit[when]))


def _word(agree: bool) -> str:
    return "agrees" if agree else "DIFFERS"


def main(arguments: Sequence[str] | None = None) -> int:
    """Play every scenario; the exit code says whether all agree."""
    parser = argparse.ArgumentParser(prog="python -m bench.limit_real")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args(arguments)
    agreed = True
    for file in sorted(FOLDER.glob("*.toml")):
        if not options.only or file.stem in options.only:
            try:
                agreed = compare(scenarios.read(file), options.seed) and agreed
            except ServerError as error:
                print(f"the server did not start: {error}", file=sys.stderr)
                return 2
    return 0 if agreed else 1


if __name__ == "__main__":
    raise SystemExit(main())
