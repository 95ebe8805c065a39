"""A served process, a real load and a real Prometheus: all three count the same."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from loadgate.integrations.cli.watch import LookError, address_of, look
from loadgate.integrations.console.status import FORMAT, Status
from loadgate.integrations.identity import KeyHasher
from tests.integrations.served import Served, living
from tests.observability.prometheus import Prometheus, running
from tests.programs import PATIENCE, ROOT

APP = living(
    """
import anyio

async def app(scope, receive, send):
    await anyio.sleep(0.05)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})
"""
)
POLICY = """
[[rates]]
name = "per-client"
rate = "1/second burst 10"

[concurrency]
algorithm = "fixed"
initial = 2

[queue]
max_wait = 0.05
max_queue = 4
"""
SECRET = "a secret of the tests only"
# Far more than may pass, from so many at once that two places and a short queue never suffice:
# a slow machine sees the same three kinds of answers as a fast one.
WANTED = 300


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "policy.toml").write_text(POLICY)
    options = ("--policy", "policy.toml", "--door", "off", "--top-clients", "3")
    with Served(folder, *options, "--client-secret", SECRET, app=APP) as served:
        yield served


@pytest.fixture(scope="module")
def statuses(served: Served) -> dict[int, int]:
    """What a load generator saw: answers by status. Everything has ended when it returns."""
    seen: dict[int, int] = {}

    with httpx.Client(timeout=PATIENCE) as client, ThreadPoolExecutor(12) as pool:
        for answer in pool.map(client.get, [f"{served.url}/"] * WANTED):
            seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
    return seen


@pytest.fixture(scope="module")
def prometheus(
    served: Served, statuses: dict[int, int], tmp_path_factory: pytest.TempPathFactory
) -> Generator[Prometheus]:
    address = served.ops.removeprefix("http://")
    config = f"""
global: {{ scrape_interval: 1s, evaluation_interval: 1s }}
rule_files: [{ROOT / "dashboards/prometheus/loadgate-alerts.yml"},
             {ROOT / "dashboards/prometheus/loadgate-recording.yml"}]
scrape_configs:
  - job_name: live
    static_configs: [{{ targets: ["{address}"] }}]
"""
    with running(tmp_path_factory.mktemp("live"), config) as server:
        ends = time.monotonic() + PATIENCE
        while not server.instant("loadgate_build_info", time.time()):
            assert time.monotonic() < ends, server.targets()
            time.sleep(0.1)
        yield server


def by(found: list[Any], *labels: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(one["metric"][label] for label in labels): float(one["value"][1]) for one in found
    }


def test_prometheus_counts_what_the_clients_saw(
    prometheus: Prometheus, statuses: dict[int, int]
) -> None:
    assert set(statuses) == {200, 429, 503}, "the load must meet all three"
    decided = by(
        prometheus.instant("sum by (decision) (loadgate_requests_total)", time.time()), "decision"
    )
    assert decided == {
        ("admitted",): statuses[200],
        ("rate_limited",): statuses[429],
        ("overloaded",): statuses[503],
        ("left",): 0,
    }
    ended = prometheus.instant("sum by (outcome) (loadgate_finished_total)", time.time())
    assert by(ended, "outcome")["success",] == statuses[200]
    (counted,) = prometheus.instant("loadgate_latency_seconds_count", time.time())
    assert float(counted["value"][1]) == statuses[200]
    (held,) = prometheus.instant(
        "loadgate_in_flight_seconds_total / loadgate_latency_seconds_count", time.time()
    )
    assert float(held["value"][1]) >= 0.05, "each request slept for as long as that"


def test_the_live_view_counts_the_same_and_explains(
    served: Served, statuses: dict[int, int]
) -> None:
    status = msgspec.json.decode(httpx.get(f"{served.ops}/live.json").content, type=Status)
    assert status.requests["admitted"] == statuses[200]
    assert status.requests["rate_limited"] == statuses[429]
    assert status.requests["overloaded"] == statuses[503]
    reasons = {one.reason for one in status.sightings}
    assert "rate" in reasons
    assert len(reasons) >= 2
    assert all(len(one.explanation) > 40 for one in status.sightings)
    assert status.top_share == 1.0  # there is only one client


def test_the_greedy_client_is_named_by_a_hash_that_its_operator_can_compute(
    prometheus: Prometheus, served: Served, statuses: dict[int, int]
) -> None:
    name = KeyHasher(SECRET.encode())("127.0.0.1")[:12]
    found = by(prometheus.instant("loadgate_top_refused", time.time()), "client")
    assert found == {(name,): statuses[429] + statuses[503], ("other",): 0}
    status = msgspec.json.decode(httpx.get(f"{served.ops}/live.json").content, type=Status)
    assert {one.client for one in status.sightings} == {name}
    assert f"client=client:{name}" in served.log()


def test_prometheus_is_content_with_the_target_and_the_rules(prometheus: Prometheus) -> None:
    (target,) = prometheus.targets()
    assert target["health"] == "up", target
    assert target["lastError"] == ""
    # Every rule is evaluated once a second; the first time has come when all have.
    ends = time.monotonic() + PATIENCE
    while any(rule["health"] == "unknown" for rule in prometheus.rules()):
        assert time.monotonic() < ends
        time.sleep(0.1)
    assert [rule for rule in prometheus.rules() if rule["health"] != "ok"] == []


def test_decisions_are_timed(served: Served, statuses: dict[int, int]) -> None:
    assert served.metric("loadgate_decision_duration_seconds_count") == sum(statuses.values()) // 64


def test_the_page_comes_with_a_policy_that_fits_it(served: Served) -> None:
    page = httpx.get(f"{served.ops}/live")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "sha256-" in page.headers["content-security-policy"]
    assert httpx.get(f"{served.ops}/live.json", headers={"host": "evil.example"}).status_code == 403


WATCH = [sys.executable, "-m", "loadgate.integrations.cli", "watch"]


def watch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*WATCH, *arguments],
        cwd=ROOT / "controller",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_loadgate_watch_draws_it(served: Served, statuses: dict[int, int]) -> None:
    terminal, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [*WATCH, served.ops, "--every", "0.2", "--looks", "3"],
            cwd=ROOT / "controller", stdout=theirs, env=os.environ | {"TERM": "xterm"},
        ) as process:  # fmt: skip
            os.close(theirs)
            drawn = _all_of(terminal)
            assert process.wait(PATIENCE) == 0
    finally:
        os.close(terminal)
    assert "loadgate default" in drawn
    assert "asked each second" in drawn
    assert "last refusals" in drawn


def _all_of(terminal: int) -> str:
    """What a terminal gets until whoever writes has gone."""
    found = b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # that is how Linux says it
            data = b""
        if not data:
            return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", found.decode())
        found += data


def test_loadgate_watch_writes_lines_into_a_pipe(served: Served, statuses: dict[int, int]) -> None:
    done = watch(served.ops, "--every", "0.2", "--looks", "3")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("time=2") and " name=default limit=2 " in line for line in lines)
    assert all(" asked=" in line for line in lines[1:])


def test_loadgate_watch_ends_when_nobody_reads_its_lines(served: Served) -> None:
    with subprocess.Popen(
        [*WATCH, served.ops, "--every", "0.1"],
        cwd=ROOT / "controller", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("time=")
        process.stdout.close()
        assert process.wait(PATIENCE) == 0
        assert process.stderr.read() == ""


def test_loadgate_watch_takes_an_address_as_bind_does(served: Served) -> None:
    done = watch(served.ops.removeprefix("http://"), "--looks", "1")
    assert done.returncode == 0, done.stderr
    assert address_of(":9464") == address_of("http://127.0.0.1:9464/live")


def test_the_port_of_the_app_is_told_from_that_of_operators(served: Served) -> None:
    done = watch(served.url, "--looks", "1")
    assert done.returncode == 1
    assert "that is the app's port; watch the metrics port" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_process_of_a_later_format_is_not_misread(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = address_of(served.ops)
    assert look(address).format == FORMAT
    monkeypatch.setattr("loadgate.integrations.cli.watch.FORMAT", FORMAT + 1)
    with pytest.raises(LookError, match=f"not of format {FORMAT + 1}"):
        look(address)


def test_a_process_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = watch("http://127.0.0.1:9", "--looks", "1")
    assert done.returncode == 1
    assert done.stderr == (
        "loadgate: http://127.0.0.1:9 shows nothing: nothing answers at 127.0.0.1:9\n"
    )
