"""Whom is `server_overload` about? One command line for each server and limiter.

Every peer gets the setting that suits it best here: the number of requests that can be answered
within four fifths of the SLO (the most that leaves room for the server itself), or the rate that
the service can do. An operator has to know both; the adaptive limit finds its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from loadgate.integrations.demo.servers import Launch, bare, free_ports, guarded

APPS: Final = "bench.server_overload_apps"
SLOWAPI: Final = "bench.server_overload_slowapi"
LAYER: Final = "bench.server_overload_layer"

# Share of the SLO that a peer's queue may fill.
_FILL: Final = 0.8

# Both services can do two things at once at most. What a fixed limit of two loses, the limit
# algorithm has no part in: that is the price of HTTP.
KNOWN: Final = 2

# What is vital asks for a quarter of the capacity, whatever the others ask for.
VITAL: Final = "/vital"
_CLASSES: Final = ("--priority", f"{VITAL}=critical")


class Arm(msgspec.Struct, frozen=True):
    """One server with one limiter.

    Attributes:
        name: What tables call it.
        ours: Whether loadgate is in it.
        launch: Makes its command line; a new port each time.
    """

    name: str
    ours: bool
    launch: Callable[[], Launch]


def places_for(slo: float, capacity: float) -> int:
    """What a peer may have at once: so many are answered within most of the SLO."""
    return max(KNOWN, int(_FILL * slo * capacity))


def arms(
    service: str, places: int, fixed: Path, policies: list[Path], options: list[str]
) -> list[Arm]:
    """Everybody, for one service.

    Args:
        service: Name of the app in `server_overload_apps`.
        places: For those who bound what they do at once.
        fixed: A policy with the right fixed limit.
        policies: More policies, each an arm.
        options: More options for ``loadgate serve``.
    """
    app = f"{APPS}:{service}"
    ours = [*_CLASSES, *options]
    return [
        Arm("Hypercorn", False, lambda: bare(app, "/ready")),
        Arm("a semaphore in the app", False, lambda: bare(f"{app}_semaphore", "/ready")),
        Arm("slowapi", False, lambda: bare(f"{SLOWAPI}:{service}", "/ready")),
        Arm("Uvicorn --limit-concurrency", False, lambda: uvicorn(app, places)),
        Arm("Granian --backpressure", False, lambda: granian(app, places)),
        Arm("loadgate in the app", True, lambda: guarded(app, None, [*ours, "--door", "off"])),
        Arm("loadgate in Uvicorn", True, lambda: uvicorn(f"{LAYER}:{service}", None)),
        Arm("loadgate serve", True, lambda: guarded(app, None, ours)),
        Arm(f"loadgate serve, fixed {KNOWN}", True, lambda: guarded(app, fixed, ours)),
        *(
            Arm(f"loadgate serve, {path.stem}", True, partial(guarded, app, path, ours))
            for path in policies
        ),
    ]


def uvicorn(app: str, places: int | None) -> Launch:
    """Uvicorn with httptools on uvloop, and its own limit if there is a number."""
    port, _ = free_ports()
    limit = [] if places is None else ["--limit-concurrency", str(places)]
    command = [
        sys.executable, "-m", "uvicorn", "--loop", "uvloop", "--http", "httptools",
        "--host", "127.0.0.1", "--port", str(port), "--log-level", "critical", "--no-access-log",
        "--timeout-graceful-shutdown", "1", *limit, app,
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    return Launch(command, url, f"{url}/ready")


def granian(app: str, places: int) -> Launch:
    """Granian with one worker on uvloop and its own limit."""
    port, _ = free_ports()
    command = [
        sys.executable, "-m", "granian", "--interface", "asgi", "--loop", "uvloop", "--no-ws",
        "--host", "127.0.0.1", "--port", str(port), "--log-level", "critical",
        "--workers-kill-timeout", "1", "--backpressure", str(places), app,
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    return Launch(command, url, f"{url}/ready")
