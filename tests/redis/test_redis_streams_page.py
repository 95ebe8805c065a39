"""The consumer of docs/handlers.md empties a real stream, on asyncio and trio, whoever dies."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.redis.servers import Server, Wire

PAGE = Path(__file__).parents[2] / "docs" / "handlers.md"
JOBS = 200
PATIENCE = 30.0


def example(backend: str) -> str:
    (block,) = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    text: str = block
    return text.replace("anyio.run(main, *sys.argv[1:])",
                        f"anyio.run(main, *sys.argv[1:], backend={backend!r})")  # fmt: skip


def started(script: Path, server: Server, name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "error", str(script), server.url, name]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def pending(wire: Wire) -> tuple[int, int]:
    """Messages taken and not acknowledged, and those that nobody has read."""
    try:
        (group,) = wire("XINFO", "GROUPS", "jobs")
    except Exception:
        return 0, JOBS  # the group is not there yet
    seen: dict[Any, Any] = dict(zip(group[::2], group[1::2], strict=True))
    return int(seen[b"pending"]), int(seen[b"lag"] or 0) if b"lag" in seen else 0


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_every_message_is_done_although_a_consumer_dies(
    server: Server, backend: str, tmp_path: Path
) -> None:
    script = tmp_path / "worker.py"
    script.write_text(example(backend))
    with Wire(server.port) as wire:
        wire("DEL", "jobs")
        for number in range(JOBS):
            wire("XADD", "jobs", "*", "job", number)
        # One that took its share and died: it left everything it had unacknowledged.
        wire("XGROUP", "CREATE", "jobs", "workers", "0")
        wire("XREADGROUP", "GROUP", "workers", "dead", "COUNT", 20, "STREAMS", "jobs", ">")
        assert pending(wire) == (20, JOBS - 20)
        workers = [started(script, server, f"consumer-{number}") for number in (1, 2)]
        try:
            end = time.monotonic() + PATIENCE
            while pending(wire) != (0, 0):
                assert time.monotonic() < end, pending(wire)
                for worker in workers:
                    assert worker.poll() is None, worker.communicate()[1].decode()
                time.sleep(0.02)
        finally:
            for worker in workers:
                worker.kill()
                worker.communicate()
