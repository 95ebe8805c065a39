"""A served process, a store that is killed, a real Prometheus: the dashboard tells what was."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest

from loadgate.dashboards.source.alerts import ALERTS
from tests.dashboards.files import boards, targets
from tests.integrations.served import Served, living
from tests.observability.prometheus import Prometheus, running
from tests.programs import PATIENCE, until
from tests.redis.servers import Server

APP: Final = living(
    """
import anyio

def identify(scope):
    if scope["path"] == "/guarded":
        return {"client": "modest", "guarded": "anybody"}
    return {"client": "greedy"}

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})
"""
)
# One client asks for more than the first rate allows, one for less than both.
# Nothing but the rates refuses here, however busy the machine is.
POLICY: Final = """
[[rates]]
name = "soft"
rate = "20/second burst 5"
shared = true

[[rates]]
name = "hard"
rate = "100000/second"
key = "guarded"
on_missing = "skip"
shared = true

[concurrency]
algorithm = "fixed"
initial = 1000

[signals]
mode = "off"

[store]
url = "{url}"
secret = "a secret of the tests only"
budget = 0.1
overrides = {{ hard = "closed" }}
"""
# Seconds that a rate looks back: some scrapes of half a second each.
WINDOW: Final = 4
TARGETS: Final = targets(boards()["loadgate-store"])

# (panel, letter): what it must show while the store works, while it is away, and when it is back;
# None where there is nothing to show then.
Range = tuple[float, float] | None
SOME: Final = (0.001, float("inf"))
EXPECTED: Final[dict[tuple[str, str], tuple[Range, Range, Range]]] = {
    ("Decided without the store", "A"): ((0, 0), (1, 1), (0, 0)),
    ("p99 of asking", "A"): ((1e-5, 0.2), None, (1e-5, 0.2)),
    ("Refused because it is away (503)", "A"): ((0, 0), SOME, (0, 0)),
    ("Processes that share it", "A"): ((1, 1), (1, 1), (1, 2)),
    ("In which state is the circuit breaker?", "A"): ((0, 0), (2, 2), (0, 0)),
    ("How long do requests wait for it?", "A"): ((1e-5, 0.2), None, (1e-5, 0.2)),
    ("How long do requests wait for it?", "B"): ((1e-5, 0.2), None, (1e-5, 0.2)),
    ("How long do requests wait for it?", "C"): ((0, 0.2), (0, 0.2), (0, 0.2)),
    ("Is it connected?", "A"): ((0, 0), (1, 1), (0, 0)),
    ("Is it connected?", "B"): ((0, 0), (0, 0), (0, 5)),
    ("Is it connected?", "C"): ((0, 0), (0, 0), (0, 0)),
    ("Is it connected?", "D"): ((0, 0), (0.5, 1.5), (0, 0)),
    ("How many questions share a call?", "A"): ((0.5, 20), None, (0.5, 20)),
    ("How many questions share a call?", "B"): ((0, 20), (0, 0), (0, 20)),
}
# In the panel "Who decides?", by the name of the line.
DECIDERS: Final[dict[str, tuple[Range, Range, Range]]] = {
    "store": (SOME, (0, 0), SOME),
    "emergency": ((0, 0), SOME, (0, 0)),
    "closed": ((0, 0), SOME, (0, 0)),
    "open": ((0, 0), (0, 0), (0, 0)),
    "lease": ((0, 0), (0, 0), (0, 0)),
}
WORKS, AWAY, BACK = range(3)


class Load:
    """Two clients that ask without a break, and note what they are answered."""

    def __init__(self, url: str) -> None:
        self._over = threading.Event()
        # (path, status, when it was sent)
        self.seen: list[tuple[str, int, float]] = []
        self._threads = [
            threading.Thread(target=self._ask, args=(url, path, pause))
            for path, pause in (("/", 0.02), ("/guarded", 0.1))
        ]
        for thread in self._threads:
            thread.start()

    def _ask(self, url: str, path: str, pause: float) -> None:
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            while not self._over.wait(pause):
                sent = time.monotonic()
                self.seen.append((path, client.get(path).status_code, sent))

    def stop(self) -> None:
        """Stop asking; every answer is there when this returns."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def count(self, status: int, path: str | None = None) -> int:
        """Answers of that status."""
        return sum(one[1] == status and path in {None, one[0]} for one in self.seen)

    def between(self, path: str, start: float, end: float) -> int:
        """Requests for that path sent between two moments."""
        return sum(one[0] == path and start <= one[2] <= end for one in self.seen)


class Story(NamedTuple):
    """What happened, and when.

    Attributes:
        prometheus: Has seen it all.
        load: What the clients saw.
        moments: A moment in each of the three parts, seconds since the epoch, and at the end.
        away: Monotonic seconds between which the store was away for certain.
        gone: Monotonic seconds outside of which it was not.
    """

    prometheus: Prometheus
    load: Load
    moments: tuple[float, float, float, float]
    away: tuple[float, float]
    gone: tuple[float, float]


@contextmanager
def scraped(served: Served, folder: Path) -> Generator[Prometheus]:
    address = served.ops.removeprefix("http://")
    config = f"""
global: {{ scrape_interval: 500ms }}
scrape_configs:
  - job_name: live
    static_configs: [{{ targets: ["{address}"] }}]
"""
    with running(folder, config) as server:
        yield server


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Generator[Story]:
    folder = tmp_path_factory.mktemp("store")
    with Server() as store:
        (folder / "policy.toml").write_text(POLICY.format(url=store.url))
        options = ("--policy", "policy.toml", "--door", "off", "--identify", "served_app:identify")
        with (
            Served(folder, *options, app=APP) as served,
            scraped(served, folder / "prometheus") as prometheus,
        ):
            yield _played(store, served, prometheus)


def _played(store: Server, served: Served, prometheus: Prometheus) -> Story:
    def always(state: str) -> Callable[[], bool]:
        """Whether every scrape of a whole window saw the breaker in that state."""
        state_of = f'loadgate_store_state{{state="{state}"}}'
        expr = (
            f"min_over_time({state_of}[{WINDOW}s]) == 1 "
            f"and count_over_time({state_of}[{WINDOW}s]) >= {WINDOW}"
        )
        return lambda: bool(prometheus.instant(expr, time.time()))

    def turned(act: Callable[[], object], state: str) -> tuple[float, float, float]:
        """Act until the breaker stays in that state.

        Returns:
            Monotonic seconds before, and when it was in that state first; the time in the end.
        """
        began = time.monotonic()
        act()
        until(lambda: served.metric("loadgate_store_state", state=state) == 1.0, f"it is {state}")
        there = time.monotonic()
        until(always(state), f"it stays {state}")
        return began, there, time.time()

    load = Load(served.url)
    try:
        until(always("closed"), "the store works")
        working = time.time()
        killed, away, gone = turned(store.kill, "open")
        started, recovered, back = turned(store.start, "closed")
    finally:
        load.stop()
    asked = len(load.seen)
    until(
        lambda: total(prometheus, "sum(loadgate_requests_total)", time.time()) == asked,
        f"Prometheus hears of {asked} requests",
    )
    return Story(
        prometheus, load, (working, gone, back, time.time()), (away, started), (killed, recovered)
    )


def shown(story: Story, expr: str, at: float) -> list[Any]:
    """What a panel's query says, with a window that fits the short story."""
    return story.prometheus.instant(expr.replace("[1m]", f"[{WINDOW}s]"), at)


def total(prometheus: Prometheus, expr: str, at: float) -> float:
    return sum(float(one["value"][1]) for one in prometheus.instant(expr, at))


def wrong(found: list[float], expected: Range) -> bool:
    # A quantile of nothing is NaN, a ratio of nothing is left out.
    real = [value for value in found if value == value]
    if expected is None:
        return bool(real)
    low, high = expected
    return not real or not all(low <= value <= high for value in real)


@pytest.mark.parametrize("part", [WORKS, AWAY, BACK], ids=["works", "away", "back"])
def test_every_panel_shows_what_becomes_of_the_store(story: Story, part: int) -> None:
    at = story.moments[part]
    problems: list[str] = []
    for target in TARGETS:
        found = shown(story, target.expr, at)
        values = [float(one["value"][1]) for one in found]
        if (target.panel, target.ref) in EXPECTED:
            expected = EXPECTED[target.panel, target.ref][part]
            if wrong(values, expected):
                problems.append(f"{target.name}: {values}, not {expected}")
        elif target.panel == "Who decides?":
            by = {one["metric"]["by"]: float(one["value"][1]) for one in found}
            problems += [
                f"{who}: {by.get(who)}, not {ranges[part]}"
                for who, ranges in DECIDERS.items()
                if wrong([by[who]] if who in by else [], ranges[part])
            ]
        elif target.panel == "Why is there no answer?":
            away = sum(value for value in values)
            if (away > 0.0) != (part == AWAY):
                problems.append(f"{target.name}: {away}")
        elif not values or min(values) < 0.0:
            problems.append(f"{target.name}: {values}")
    assert problems == []


def test_every_query_of_the_dashboard_has_data(story: Story) -> None:
    dead = [
        target.name
        for target in TARGETS
        if not any(shown(story, target.expr, at) for at in story.moments[:3])
    ]
    assert dead == []


def test_prometheus_counts_what_the_clients_saw(story: Story) -> None:
    load, at = story.load, story.moments[3]

    def count(of: str) -> float:
        return total(story.prometheus, of, at)

    assert {status for _, status, _ in load.seen} == {200, 429, 503}
    assert count('loadgate_requests_total{decision="admitted"}') == load.count(200)
    assert count('loadgate_requests_total{decision="rate_limited"}') == load.count(429)
    assert count('loadgate_requests_total{reason="store_unavailable"}') == load.count(503)
    assert load.count(503, "/") == 0
    assert count('loadgate_rate_decisions_total{rate="soft",decision="refused"}') == load.count(429)


def test_each_request_is_decided_once_and_by_the_right_one(story: Story) -> None:
    load, at = story.load, story.moments[3]
    decided = {
        one["metric"]["by"]: float(one["value"][1])
        for one in story.prometheus.instant("loadgate_store_decisions_total", at)
    }
    assert sum(decided.values()) == len(load.seen)
    assert decided["closed"] == load.count(503)
    assert decided["open"] == decided["lease"] == decided["none"] == 0
    for by, path in (("emergency", "/"), ("closed", "/guarded")):
        # All while it was away for certain, and none but while it may have been.
        assert load.between(path, *story.away) <= decided[by] <= load.between(path, *story.gone) + 1
    (incidents,) = story.prometheus.instant("loadgate_store_incidents_total", at)
    assert float(incidents["value"][1]) == 1
    (away,) = story.prometheus.instant("loadgate_store_away_seconds_total", at)
    assert story.away[1] - story.away[0] <= float(away["value"][1]) + 0.5
    assert float(away["value"][1]) <= story.gone[1] - story.gone[0] + 0.5


def test_the_alert_for_a_store_that_is_away_tells_when_it_is(story: Story) -> None:
    alerts = {alert.name: alert.expr.replace("[5m]", f"[{WINDOW}s]") for alert in ALERTS}
    for name in ("LoadgateStoreAway", "LoadgateStoreUnavailable"):
        told = [bool(story.prometheus.instant(alerts[name], at)) for at in story.moments[:3]]
        assert told == [False, True, False], name
