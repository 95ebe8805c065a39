"""Each worker shows its own numbers on a port of its own, and a dead one takes its own along."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Final

import httpx

from tests.integrations.served import Served, living
from tests.observability.prometheus import Prometheus, running
from tests.programs import free_port, until

APP: Final = living(
    """
import os

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(os.getpid()).encode()})
"""
)
# Nothing but the workers differs, however busy the machine is.
POLICY: Final = '[concurrency]\nalgorithm = "fixed"\ninitial = 100\n[signals]\nmode = "off"\n'


def two_ports() -> int:
    """A port that is free, as is the next one."""
    while True:
        port = free_port()
        try:
            httpx.get(f"http://127.0.0.1:{port + 1}", timeout=1.0)
        except httpx.ConnectError:
            return port


def ask(served: Served, times: int) -> Counter[int]:
    """Answers by the process that gave them."""
    return Counter(int(served.get("/").text) for _ in range(times))


def seen(prometheus: Prometheus) -> list[int]:
    """Admissions of each process that answers its scrapes, as Prometheus knows them."""
    found = prometheus.instant(
        'loadgate_requests_total{decision="admitted"} and on (instance) up == 1', time.time()
    )
    return sorted(int(float(one["value"][1])) for one in found)


def started(prometheus: Prometheus) -> set[tuple[str, float]]:
    """When the processes that answer began."""
    found = prometheus.instant("process_start_time_seconds and on (instance) up == 1", time.time())
    return {(one["metric"]["instance"], float(one["value"][1])) for one in found}


def test_a_worker_that_is_killed_takes_its_numbers_along(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    port = two_ports()
    options = ("--workers", "2", "--policy", "policy.toml", "--door", "off")
    config = f"""
global: {{ scrape_interval: 200ms }}
scrape_configs:
  - job_name: shop
    static_configs: [{{ targets: ["127.0.0.1:{port}", "127.0.0.1:{port + 1}"] }}]
"""
    with (
        Served(tmp_path, *options, "--metrics-bind", f"127.0.0.1:{port}", app=APP) as served,
        running(tmp_path / "prometheus", config) as prometheus,
    ):
        served.line(r"serving served_app:app on (http://\S+)")
        counts = ask(served, 60)

        def counted() -> list[int]:
            return sorted([*counts.values(), *[0] * (2 - len(counts))])

        until(lambda: seen(prometheus) == counted(), f"{seen(prometheus)}, not {counted()}")
        before = started(prometheus)
        assert len(before) == 2

        victim = next(iter(counts))
        os.kill(victim, signal.SIGKILL)
        served.line(r"serving served_app:app on (http://\S+)")
        del counts[victim]
        counts += ask(served, 60)
        assert victim not in counts

        # The one that lives goes on counting, the new one began at nothing, on the same port.
        until(lambda: seen(prometheus) == counted(), f"{seen(prometheus)}, not {counted()}")
        assert len(started(prometheus) & before) == 1
        (asked,) = prometheus.instant("sum(loadgate_requests_total)", time.time())
        assert float(asked["value"][1]) == sum(counts.values())
        (increase,) = prometheus.instant(
            "sum(increase(loadgate_requests_total[5m])) > 0", time.time()
        )
        assert float(increase["value"][1]) >= 60
