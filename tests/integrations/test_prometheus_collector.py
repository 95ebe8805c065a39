"""What Prometheus reads equals what the controller knows."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

import anyio
import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics import parser
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from loadgate import (
    AdmissionController,
    Concurrency,
    Outcome,
    Policy,
    Queue,
    Rate,
    Reason,
    Rejected,
    Signals,
)
from loadgate.integrations.prometheus import LoadgateCollector, MetricsPage, Reloads

POLICY = Policy(
    rates=[Rate("per-client", limit=4, per=3600.0), Rate("writes", limit=100, mode="observe")],
    concurrency=Concurrency(algorithm="fixed", initial=2, max=50, latency_target=None),
    queue=Queue(max_wait=0.3, max_queue=10),
    signals=Signals(max_lag=None),  # the clock of these tests jumps
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def controller(clock: Clock) -> AdmissionController:
    return AdmissionController(POLICY, clock=clock, draw=lambda: 0.0)


@pytest.fixture
def registry(controller: AdmissionController) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(LoadgateCollector(controller))
    return registry


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    found = registry.get_sample_value(f"loadgate_{name}", {"controller": "default", **labels})
    assert found is not None, (name, labels)
    return found


def in_class(registry: CollectorRegistry, priority: str, decision: str) -> float:
    return value(registry, "class_requests_total", priority=priority, decision=decision)


def samples(registry: CollectorRegistry) -> list[Any]:
    return [sample for family in registry.collect() for sample in family.samples]


@pytest.mark.anyio
async def test_every_number_is_what_happened(
    clock: Clock, controller: AdmissionController, registry: CollectorRegistry
) -> None:
    async with controller:
        first = controller.admit("a", priority="critical")
        assert first.begin()
        clock.now += 2.0
        second = controller.admit("a")
        assert second.begin()
        clock.now += 1.0  # both places taken from here on
        waiter = controller.admit("a")
        assert not waiter.begin()
        clock.now += 0.25
        first.release(Outcome.ERROR)
        await waiter.settle()
        assert value(registry, "in_flight") == 2
        assert value(registry, "in_flight_peak") == 2
        assert value(registry, "wait_seconds_count") == 1
        assert value(registry, "wait_seconds_bucket", le="0.15") == 0
        assert value(registry, "wait_seconds_bucket", le="0.3") == 1
        waiter.release()
        second.release()
        clock.now += 10.0

        async with controller.admit("a"):
            pass
        with pytest.raises(Rejected):
            await controller.admit("a").__aenter__()
        await controller.drain()
        with pytest.raises(Rejected):
            await controller.admit("b").__aenter__()

        assert value(registry, "requests_total", decision="admitted", reason="none") == 4
        assert value(registry, "requests_total", decision="rate_limited", reason="rate") == 1
        assert value(registry, "requests_total", decision="overloaded", reason="draining") == 1
        assert (
            value(registry, "class_requests_total", priority="critical", decision="admitted") == 1
        )
        assert in_class(registry, "default", "admitted") == 3
        assert in_class(registry, "default", "rate_limited") == 1
        assert in_class(registry, "default", "overloaded") == 1
        assert value(registry, "finished_total", outcome="error") == 1
        assert value(registry, "finished_total", outcome="success") == 3
        # The rate let b through; that its charge was given back is no decision of the rate.
        assert value(registry, "rate_decisions_total", rate="per-client", decision="allowed") == 5
        assert value(registry, "rate_decisions_total", rate="per-client", decision="refused") == 1
        assert value(registry, "rate_keys", rate="per-client") >= 1
        # The first ran for 3.25 s, the second for 1.25 s, the others for none.
        assert value(registry, "in_flight_seconds_total") == pytest.approx(4.5)
        assert value(registry, "held_seconds_total") == pytest.approx(4.5)
        assert value(registry, "waiting_seconds_total") == pytest.approx(0.25)
        assert value(registry, "saturated_seconds_total") == pytest.approx(1.25)
        assert value(registry, "limit_seconds_total") == pytest.approx(2 * 13.25)
        assert value(registry, "latency_seconds_sum") == pytest.approx(4.5)
        assert value(registry, "latency_seconds_count") == 4
        assert value(registry, "draining") == 1


def test_every_label_set_exists_before_anything_has_happened(registry: CollectorRegistry) -> None:
    for reason in Reason:
        decision = "rate_limited" if reason is Reason.RATE else "overloaded"
        assert value(registry, "requests_total", decision=decision, reason=reason) == 0
        assert value(registry, "would_refuse_total", reason=reason) == 0
    for outcome in Outcome:
        assert value(registry, "finished_total", outcome=outcome) == 0
    for priority in POLICY.priorities:
        for decision in ("admitted", "rate_limited", "overloaded"):
            assert in_class(registry, priority, decision) == 0
    for rate in ("per-client", "writes"):
        for decision in ("allowed", "refused", "would_refuse"):
            assert value(registry, "rate_decisions_total", rate=rate, decision=decision) == 0


@pytest.mark.anyio
async def test_no_traffic_adds_a_series_and_no_label_holds_a_client(
    controller: AdmissionController, registry: CollectorRegistry
) -> None:
    def series() -> set[tuple[str, frozenset[tuple[str, str]]]]:
        return {(sample.name, frozenset(sample.labels.items())) for sample in samples(registry)}

    before = series()
    async with controller:
        for number in range(50):
            async with controller.admit(f"secret-{number}", priority="background"):
                pass
        for _ in range(10):
            try:
                async with controller.admit("secret-0"):
                    pass
            except Rejected:
                pass
        assert series() == before
    assert len(before) <= 250
    assert "secret" not in str(before)


def test_the_bounds_that_matter_are_bucket_edges() -> None:
    policy = Policy(
        concurrency=Concurrency(algorithm="adaptive", latency_target=0.33),
        queue=Queue(max_wait=0.7),
    )
    registry = CollectorRegistry()
    registry.register(LoadgateCollector(AdmissionController(policy)))
    assert value(registry, "latency_seconds_bucket", le="0.33") == 0
    assert value(registry, "wait_seconds_bucket", le="0.7") == 0
    assert value(registry, "wait_seconds_bucket", le="0.35") == 0


def test_reading_changes_nothing(clock: Clock, controller: AdmissionController) -> None:
    collector = LoadgateCollector(controller)
    first = [(s.name, s.labels, s.value) for family in collector.collect() for s in family.samples]
    again = [(s.name, s.labels, s.value) for family in collector.collect() for s in family.samples]
    assert first == again


def test_several_controllers_share_families_and_need_names_of_their_own() -> None:
    one, two = AdmissionController(name="one"), AdmissionController(name="two")
    collector = LoadgateCollector(one)
    collector.add(two)
    registry = CollectorRegistry()
    registry.register(collector)
    for name in ("one", "two"):
        assert registry.get_sample_value("loadgate_limit", {"controller": name}) == 20
    with pytest.raises(ValueError, match="two controllers are called 'one'"):
        collector.add(AdmissionController(name="one"))


def test_a_registry_notices_a_second_collector() -> None:
    registry = CollectorRegistry()
    registry.register(LoadgateCollector(AdmissionController(name="one")))
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(LoadgateCollector(AdmissionController(name="two")))


def test_a_reload_that_failed_stays_visible_until_one_succeeds() -> None:
    collector = LoadgateCollector(AdmissionController())
    collector.reloads = reloads = Reloads()
    registry = CollectorRegistry()
    registry.register(collector)
    success = "loadgate_policy_last_reload_success"
    assert registry.get_sample_value(success) == 1
    loaded_at = registry.get_sample_value(f"{success}_timestamp_seconds")
    reloads.note(succeeded=False)
    assert registry.get_sample_value(success) == 0
    assert registry.get_sample_value(f"{success}_timestamp_seconds") == loaded_at
    reloads.note(succeeded=True)
    assert registry.get_sample_value(success) == 1


PARSERS: dict[str, Any] = {  # the second has no types
    "text/plain": text_string_to_metric_families,
    "application/openmetrics-text": vars(parser)["text_string_to_metric_families"],
}


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "text/plain"),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text"),
    ],
)
@pytest.mark.anyio
async def test_the_page_is_valid_in_the_format_asked_for(
    registry: CollectorRegistry, accept: str, kind: str
) -> None:
    Counter("theirs", "A metric of the app's own.", registry=registry).inc()
    body, content_type = await MetricsPage(registry).render(accept)
    assert content_type.startswith(kind)
    assert body.count(b"# EOF") == (1 if kind.endswith("openmetrics-text") else 0)
    families = {family.name: family for family in PARSERS[kind](body.decode())}
    assert "theirs" in families
    read = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families.values()
        for sample in family.samples
    }
    for sample in samples(registry):
        if not sample.name.endswith(("_created", "_timestamp_seconds")):
            assert read[sample.name, frozenset(sample.labels.items())] == sample.value


@pytest.mark.anyio
async def test_a_scrape_from_another_thread_sees_no_counter_jump() -> None:
    controller = AdmissionController(Policy(signals=Signals(max_lag=None)))
    seen: list[float] = []
    done = threading.Event()

    def scrape() -> None:
        while not done.is_set():
            seen.append(controller.snapshot().busy)

    began = time.monotonic()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # as often as can be: between most of the reader's steps
    thread = threading.Thread(target=scrape)
    try:
        async with controller:
            thread.start()
            for _ in range(20_000):
                async with controller.admit():
                    pass
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)
    # At most one ran at a time. A jump is a moment of the monotonic clock, hours as a rule.
    assert max(seen) <= time.monotonic() - began


@pytest.mark.anyio
async def test_the_loop_turns_between_two_families() -> None:
    turns = 0
    turns_at: list[int] = []

    class Many(Collector):
        def collect(self) -> Iterable[Metric]:
            for number in range(5):
                turns_at.append(turns)
                yield GaugeMetricFamily(f"number_{number}", "One of many.", value=number)

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Many())
    turns_at.clear()
    async with anyio.create_task_group() as group:
        group.start_soon(turn)
        await MetricsPage(registry).render("")
        group.cancel_scope.cancel()
    assert len(turns_at) == 5
    assert turns_at[-1] > turns_at[1]
