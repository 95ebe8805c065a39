"""What does a server use? Processor time and memory of all processes of a session (Linux)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

# Seconds between two looks: a tenth of the shortest step that is measured.
_EVERY = 0.1


class Usage:
    """Notes the processor time of a session, again and again.

    Args:
        session: The session; a server started as its leader and everything that it starts.
    """

    def __init__(self, session: int) -> None:
        self._session = session
        self._samples: list[tuple[float, float]] = []

    async def watch(self) -> None:
        """Look until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            used = sum(used for used, _ in processes(self._session))
            self._samples.append((loop.time(), used))
            await asyncio.sleep(_EVERY)

    def between(self, start: float, end: float) -> float:
        """Processor seconds used between two times of the event loop, from the nearest looks."""
        return self._at(end) - self._at(start)

    def _at(self, time: float) -> float:
        return min(self._samples, key=lambda sample: abs(sample[0] - time))[1]


def peak(session: int) -> float:
    """Peak memory of the largest process of a session in MB; 0.0 where nothing is known."""
    return max((rss for _, rss in processes(session)), default=0.0)


def processes(session: int) -> Iterator[tuple[float, float]]:
    """Processor seconds and peak MB of each process of a session (Linux; empty elsewhere)."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The name may hold spaces and brackets: the fields begin after the last one.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            status = (entry / "status").read_text()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[3]) == session:
            peak = status.partition("VmHWM:")[2].split()
            ticks = os.sysconf("SC_CLK_TCK")
            yield (int(fields[11]) + int(fields[12])) / ticks, int(peak[0]) / 1e3 if peak else 0.0
