"""How does OpenTelemetry get to know? The numbers when it asks, and decisions on the spans.

    instrument(controller)                     # the same numbers as /metrics, under the same names
    app = AdmissionMiddleware(TracedApp(app), controller, log=TracedLog())

Numbers are read by callbacks when a reader collects: recording each request through the SDK
costs about 8 µs, more than the whole decision. There are no observable histograms, so a
histogram becomes three observable counters: its count, its sum, and its buckets with the
attribute ``le``, as Prometheus has them.

Names follow Prometheus' with dots (``loadgate.in_flight``). Beside ASP.NET Core's convention for
rate limiting: ``active_request_leases`` = ``in_flight``, ``queued_requests`` = ``waiting``,
``request.time_in_queue`` = ``wait``, ``request_lease.duration`` = ``latency``, ``requests`` by
``result`` = ``requests`` by ``decision``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from math import isfinite
from threading import Lock
from time import monotonic
from typing import Any, Final

from loadgate.integrations.extras import missing

try:
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
    from prometheus_client.core import Metric
except ModuleNotFoundError as error:
    raise missing(__name__, error, "otel") from None

from loadgate import __version__
from loadgate.controller import AdmissionController
from loadgate.decisions import Reason, Refuse
from loadgate.explain import explain
from loadgate.integrations.asgi import PERMIT
from loadgate.integrations.decision_log import Client
from loadgate.integrations.prometheus import LoadgateCollector
from loadgate.integrations.witness import Witness
from loadgate.permit import Permit

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

SCOPE: Final = "loadgate"
# Seconds for which one look at the controllers serves all instruments: a reader calls their
# callbacks one after the other, and they should tell of the same moment.
_FRESH: Final = 0.1

_UNITS: Final = {"seconds": "s", "bytes": "By", "ratio": "1"}
# What a number without a unit in its name counts.
_COUNTS: Final = {
    "requests": "{request}",
    "class_requests": "{request}",
    "in_flight": "{request}",
    "long_lived": "{request}",
    "waiting": "{request}",
    "limit": "{request}",
}


def instrument(
    *controllers: AdmissionController,
    collector: LoadgateCollector | None = None,
    provider: MeterProvider | None = None,
) -> None:
    """Register an observable instrument for each metric.

    Args:
        controllers: What to observe.
        collector: Observe what this one exports instead (with a witness and timed decisions).
        provider: Where to; default the global provider.

    Raises:
        ValueError: Both or neither of controllers and collector are given.
    """
    if (collector is None) == (not controllers):
        raise ValueError("give either controllers or a collector")
    source = _Source(collector if collector is not None else LoadgateCollector(*controllers))
    meter = (provider or metrics.get_meter_provider()).get_meter(SCOPE, __version__)
    for family in source.families.values():
        _register(meter, source, family)


class _Source:
    """The families, looked at once for all instruments."""

    def __init__(self, collector: LoadgateCollector) -> None:
        self._collector = collector
        self._lock = Lock()
        self._at = float("-inf")
        # Names only: what was looked at before the first reader asks would be old by then.
        self.families = {family.name: family for family in collector.describe()}

    def look(self) -> dict[str, Metric]:
        # Readers collect from threads of their own.
        with self._lock:
            now = monotonic()
            if now - self._at > _FRESH:
                self.families = {family.name: family for family in self._collector.collect()}
                self._at = now
            return self.families


def _register(meter: Meter, source: _Source, family: Metric) -> None:
    plain = family.name.removeprefix("loadgate_")
    unit = _UNITS.get(plain.rpartition("_")[2], _COUNTS.get(plain, "1"))
    name = f"{SCOPE}.{plain.removesuffix('_seconds') if unit == 's' else plain}"

    def observe(suffix: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        wanted = family.name + suffix

        def callback(_: CallbackOptions) -> Iterable[Observation]:
            for sample in source.look()[family.name].samples:
                if sample.name == wanted:
                    yield Observation(sample.value, dict(sample.labels))

        return callback

    match family.type:
        case "counter":
            # Not `x` but `x.time` for integrals, so that it is not the gauge of the same name.
            if unit == "s":
                name += ".time"
            meter.create_observable_counter(name, [observe("_total")], unit, family.documentation)
        case "histogram":
            says = family.documentation
            for part, what in (("count", "1"), ("sum", unit), ("bucket", "1")):
                meter.create_observable_counter(f"{name}.{part}", [observe(f"_{part}")], what, says)
        case "info":
            meter.create_observable_gauge(name, [observe("_info")], "1", family.documentation)
        case _:
            meter.create_observable_gauge(name, [observe("")], unit, family.documentation)


class TracedLog(Witness):
    """A witness that also writes each refusal on the span that runs.

    The span gets the attributes ``loadgate.decision``, ``loadgate.reason`` and
    ``loadgate.stage``, and an event ``loadgate.refused`` with the numbers that were compared and
    the explanation. The client is not named.
    """

    def refused(
        self,
        refusal: Refuse,
        client: Client,
        status: int,
        now: float,
        *,
        algorithm: str = "",
        store_time: float | None = None,
    ) -> None:
        """Remember, log, and tell the span."""
        super().refused(refusal, client, status, now, algorithm=algorithm, store_time=store_time)
        span = trace.get_current_span()
        if not span.is_recording():
            return
        span.set_attributes(
            {
                "loadgate.decision": "rate_limited"
                if refusal.reason is Reason.RATE
                else "overloaded",
                "loadgate.reason": refusal.reason.value,
                "loadgate.stage": refusal.stage.value,
            }
        )
        compared: dict[str, str | float] = {
            "loadgate.observed": refusal.observed,
            "loadgate.bound": refusal.bound,
            "loadgate.explanation": explain(refusal),
        }
        if isfinite(refusal.retry_after):  # else no attempt can ever pass
            compared["loadgate.retry_after"] = refusal.retry_after
        if refusal.subject:
            compared["loadgate.rate"] = refusal.subject
        span.add_event("loadgate.refused", compared)


class TracedApp:
    """The application behind admission, with what admission did on the span that runs.

    Put it *inside* `AdmissionMiddleware`. The span gets ``loadgate.decision = admitted``,
    ``loadgate.wait`` (seconds in the queue) and ``loadgate.in_flight`` (how many ran, this one
    included); slow requests become exemplars of the latency.

    Args:
        app: The application.
        witness: Keeps the slow ones, None for nobody.
    """

    def __init__(self, app: App, witness: Witness | None = None) -> None:
        self._app = app
        self._witness = witness

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection."""
        permit: Permit | None = scope.get(PERMIT)
        span = trace.get_current_span()
        if permit is None or not span.is_recording():
            await self._app(scope, receive, send)
            return
        span.set_attributes(
            {
                "loadgate.decision": "admitted",
                "loadgate.wait": permit.wait,
                "loadgate.in_flight": permit.crowd,
            }
        )
        try:
            await self._app(scope, receive, send)
        finally:
            if self._witness is not None:
                until = permit.answered_at or permit.controller.clock()
                self._witness.answered(max(0.0, until - permit.started))
