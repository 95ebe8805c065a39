"""How does the demo run? Both halves, one after the other, each with its processes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

from loadgate.integrations.demo.record import Half, Sample
from loadgate.integrations.demo.servers import Server, bare, guarded, serving
from loadgate.integrations.demo.story import plan
from loadgate.integrations.loadgen import Progress, run_elsewhere

TITLES: Final = ("without loadgate", "with loadgate")
LOOK_EVERY: Final = 0.2

# Whatever happens, a demo ends. One half lasts 21 s and its startup a second.
LONGEST_HALF: Final = 60.0

Watch = Callable[[int, Progress, Sample | None], None]


async def run_half(number: int, seed: int, watch: Watch) -> Half:
    """Run one half: 0 without loadgate, 1 with it.

    Raises:
        ServerError: The service did not start.
        GeneratorError: The load did not run.
        TimeoutError: Something did not end.
    """
    launch = guarded() if number else bare()
    async with asyncio.timeout(LONGEST_HALF), serving(launch) as server:
        observer = _Observer(server)
        look = asyncio.create_task(observer.look())
        try:
            result = await run_elsewhere(
                plan(server.url, seed), lambda progress: observer.hear(number, progress, watch)
            )
        finally:
            look.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await look
        return Half(TITLES[number], result, observer.samples)


class _Observer:
    """Looks at the service from inside while the load runs."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._start: float | None = None  # of the load, on our clock
        self.samples: list[Sample] = []

    def hear(self, number: int, progress: Progress, watch: Watch) -> None:
        # A report takes some time to arrive: the earliest estimate of the start is the best.
        start = time.monotonic() - progress.at
        self._start = start if self._start is None else min(start, self._start)
        watch(number, progress, self.samples[-1] if self.samples else None)

    async def look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            if self._start is not None:
                at = time.monotonic() - self._start
                # A service that is too busy to answer is missing from the picture, no more.
                with contextlib.suppress(OSError):
                    self.samples.append(await self._server.look(at))
