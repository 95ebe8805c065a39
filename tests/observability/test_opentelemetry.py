"""OpenTelemetry reads the numbers that Prometheus reads, and spans say what was decided."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from loadgate import AdmissionController, Concurrency, Policy, Queue, Rate, RateLimited
from loadgate.decisions import Reason, Refuse, Stage
from loadgate.integrations.asgi import AdmissionMiddleware
from loadgate.integrations.opentelemetry import TracedApp, TracedLog, instrument
from loadgate.integrations.prometheus import LoadgateCollector
from loadgate.testing import VirtualClock

POLICY = Policy(
    rates=[Rate("per-client", limit=2, per=3600.0)],
    concurrency=Concurrency(algorithm="adaptive", initial=2, latency_target=0.5),
    queue=Queue(max_wait=0.2),
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # nothing here depends on the loop


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def provider(reader: InMemoryMetricReader) -> Iterator[MeterProvider]:
    provider = MeterProvider(metric_readers=[reader])
    yield provider
    provider.shutdown()


def read(reader: InMemoryMetricReader) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    data = reader.get_metrics_data()
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    assert data is not None
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            assert scope.scope.name == "loadgate"
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    labels: Any = point.attributes or {}
                    value: Any = getattr(point, "value", None)
                    found[metric.name, frozenset(labels.items())] = value
    return found


@pytest.mark.anyio
async def test_both_readers_get_the_same_numbers(
    reader: InMemoryMetricReader, provider: MeterProvider
) -> None:
    clock = VirtualClock()
    controller = AdmissionController(POLICY, clock=clock, name="checkout")
    instrument(controller, provider=provider)
    registry = CollectorRegistry()
    registry.register(LoadgateCollector(controller))
    async with controller:
        async with controller.admit("a"):
            clock.advance(0.3)
        async with controller.admit("a"):
            pass
        with pytest.raises(RateLimited):
            await controller.admit("a").__aenter__()
        at = {"controller": "checkout"}
        seen = read(reader)

    def both(otel: str, prometheus: str, **labels: str) -> float:
        value = seen[otel, frozenset((at | labels).items())]
        assert value == registry.get_sample_value(prometheus, at | labels), otel
        return value

    assert both("loadgate.requests", "loadgate_requests_total",
                decision="admitted", reason="none") == 2  # fmt: skip
    assert both("loadgate.requests", "loadgate_requests_total",
                decision="rate_limited", reason="rate") == 1  # fmt: skip
    assert both("loadgate.limit", "loadgate_limit") == 2
    assert both("loadgate.in_flight", "loadgate_in_flight") == 0
    assert both("loadgate.in_flight.time", "loadgate_in_flight_seconds_total") > 0.29
    assert both("loadgate.latency.count", "loadgate_latency_seconds_count") == 2
    assert both("loadgate.latency.sum", "loadgate_latency_seconds_sum") > 0.29
    assert both("loadgate.latency.bucket", "loadgate_latency_seconds_bucket", le="0.5") == 2
    assert both("loadgate.latency.bucket", "loadgate_latency_seconds_bucket", le="0.25") == 1
    # Every series that Prometheus gets is there: none has been forgotten, none is counted twice.
    exported = [sample for family in registry.collect() for sample in family.samples]
    assert len(seen) == len(exported)


def test_what_to_observe_is_said_once(provider: MeterProvider) -> None:
    controller = AdmissionController(POLICY)
    with pytest.raises(ValueError, match="either controllers or a collector"):
        instrument(provider=provider)
    with pytest.raises(ValueError, match="either controllers or a collector"):
        instrument(controller, collector=LoadgateCollector(controller), provider=provider)


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.mark.anyio
async def test_spans_say_what_was_decided_and_why(spans: InMemorySpanExporter) -> None:
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    tracer = tracing.get_tracer("tests")
    log = TracedLog(logs=False, slow=0.0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    controller = AdmissionController(POLICY)
    protected = AdmissionMiddleware(TracedApp(app, log), controller, log=log)
    transport = httpx.ASGITransport(protected)
    async with controller, httpx.AsyncClient(transport=transport, base_url="http://a") as client:
        for _ in range(3):
            with tracer.start_as_current_span("GET /"):
                await client.get("/")
        await client.get("/")  # without a span nothing is written anywhere
    admitted, _, refused = spans.get_finished_spans()
    assert _attributes(admitted) == {
        "loadgate.decision": "admitted", "loadgate.wait": 0.0, "loadgate.in_flight": 1,
    }  # fmt: skip
    assert _attributes(refused) == {
        "loadgate.decision": "rate_limited", "loadgate.reason": "rate", "loadgate.stage": "rate",
    }  # fmt: skip
    (event,) = refused.events
    assert event.name == "loadgate.refused"
    told = dict(event.attributes or {})
    assert told["loadgate.rate"] == "per-client"
    assert "has nothing left for this client" in str(told["loadgate.explanation"])
    context = refused.get_span_context()
    assert context is not None
    assert log.refused_examples[Reason.RATE].trace_id == f"{context.trace_id:032x}"
    assert log.slow_examples, "a slow request is an exemplar"


@pytest.mark.anyio
async def test_without_a_layer_a_watched_controller_tells_the_span(
    spans: InMemorySpanExporter,
) -> None:
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    tracer = tracing.get_tracer("tests")
    log = TracedLog(logs=False, slow=0.0)
    controller = AdmissionController(POLICY)
    log.watch(controller)
    async with controller:
        for _ in range(3):
            with tracer.start_as_current_span("job"), suppress(RateLimited):
                async with controller.admit("a"):
                    pass
    _, second, refused = spans.get_finished_spans()
    assert _attributes(refused)["loadgate.decision"] == "rate_limited"
    assert "loadgate.refused" in {event.name for event in refused.events}
    context = second.get_span_context()
    assert context is not None
    (slow,) = log.slow_examples.values()
    assert slow.trace_id == f"{context.trace_id:032x}"


def _attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_503_is_told_from_a_429_and_infinity_stays_out(spans: InMemorySpanExporter) -> None:
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    log = TracedLog(logs=False)
    with tracing.get_tracer("tests").start_as_current_span("GET /"):
        log.refused(Refuse(Stage.LIMIT, Reason.QUEUE_FULL, float("inf"), 9.0, 8.0), "a", 503, 0.0)
    (span,) = spans.get_finished_spans()
    assert _attributes(span)["loadgate.decision"] == "overloaded"
    assert "loadgate.retry_after" not in dict(span.events[0].attributes or {})
