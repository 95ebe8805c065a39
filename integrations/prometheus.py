"""What does Prometheus read? Every controller's snapshot, taken at the scrape and at no other time.

    from prometheus_client import REGISTRY
    REGISTRY.register(LoadgateCollector(controller))

The hot path only adds to plain integers; this module turns them into metric families. Every
label set exists from the first scrape on, because a counter that appears at 1 has lost its first
increment for ``rate()``. No label holds a client.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import anyio.lowlevel
from prometheus_client import REGISTRY
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from loadgate import __version__
from loadgate.controller import AdmissionController
from loadgate.decisions import Reason
from loadgate.telemetry import HistogramSnapshot, Snapshot

_BY = ["controller"]


class LoadgateCollector(Collector):
    """Exports what controllers know of themselves.

    Register one of these for all controllers of a registry; `add` takes further ones. Reading
    changes nothing in a controller. Two controllers of the same name would export the same
    series twice, which Prometheus rejects.

    Args:
        controllers: What to export.

    Raises:
        ValueError: Two controllers have the same name.
    """

    def __init__(self, *controllers: AdmissionController) -> None:
        self._controllers: list[AdmissionController] = []
        self.reloads: Reloads | None = None
        for controller in controllers:
            self.add(controller)

    def add(self, controller: AdmissionController) -> None:
        """Export `controller` too.

        Raises:
            ValueError: Another one of this name is exported already.
        """
        if any(other.name == controller.name for other in self._controllers):
            raise ValueError(
                f"two controllers are called {controller.name!r}: give each its own name="
            )
        self._controllers.append(controller)

    def describe(self) -> Iterable[Metric]:
        """The families, so that a registry notices names that are taken."""
        return _families([], self.reloads)

    def collect(self) -> Iterable[Metric]:
        """The families with their samples as they are now."""
        looks = [(controller, controller.snapshot()) for controller in self._controllers]
        return _families(looks, self.reloads)


class Reloads:
    """Whether the policy file in force is the one on disk."""

    def __init__(self) -> None:
        self.succeeded = True
        self.at = time.time()

    def note(self, *, succeeded: bool) -> None:
        """A reload was tried just now."""
        self.succeeded = succeeded
        if succeeded:
            self.at = time.time()


class MetricsPage:
    """The text of ``/metrics``, made so that no scrape holds the event loop up.

    One family is rendered at a time, with a turn of the event loop in between: a page of 300
    samples takes some milliseconds in all, and the requests that run must not wait for it.
    (A thread would not help: it holds the interpreter for as long.)

    Args:
        registry: What to render; everything that the process registers by default.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry

    async def render(self, accept: str) -> tuple[bytes, str]:
        """Body and content type for a client that sent this ``Accept`` header."""
        encode, kind = choose_encoder(accept)
        parts: list[bytes] = []
        for family in self._registry.collect():
            parts.append(encode(_Only(family)).removesuffix(b"# EOF\n"))
            await anyio.lowlevel.checkpoint()
        if kind.startswith("application/openmetrics-text"):
            parts.append(b"# EOF\n")
        return b"".join(parts), kind


class _Only(CollectorRegistry):
    """One family, in the shape that encoders take."""

    def __init__(self, family: Metric) -> None:
        super().__init__(auto_describe=False)
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


Look = tuple[AdmissionController, Snapshot]

# Metric, field of `Snapshot`, help. One number for each controller.
_GAUGES = (
    ("limit", "limit", "Requests that may run at once."),
    ("in_flight", "in_flight", "Requests that run."),
    ("in_flight_peak", "peak", "The most requests that ran at once in the last 1 to 2 minutes."),
    ("waiting", "waiting", "Requests in the queue."),
    ("max_queue", "max_queue", "Waiters up to which everyone may wait, now."),
    ("max_depth", "max_depth", "Waiters at which every arrival is refused, now."),
    (
        "drain_rate",
        "drain_rate",
        "Places that become free each second when all are taken; 0 before any is known.",
    ),
    (
        "event_loop_lag_seconds",
        "loop_lag",
        "Seconds by which the event loop's watch is late; 0 while nothing runs.",
    ),
    ("draining", "draining", "1 while the controller shuts down."),
)

# Metric (without _total), field of `Snapshot`, help.
_COUNTERS = (
    (
        "in_flight_seconds",
        "busy",
        "Integral of loadgate_in_flight over time; its rate() is the exact mean.",
    ),
    (
        "waiting_seconds",
        "queued",
        "Integral of loadgate_waiting over time; its rate() is the exact mean.",
    ),
    (
        "limit_seconds",
        "limit_seconds",
        "Integral of loadgate_limit over time; its rate() is the exact mean.",
    ),
    ("saturated_seconds", "saturated", "Seconds during which every place was taken."),
    ("held_seconds", "held", "Seconds that requests which have ended held their places."),
    (
        "wasted_seconds",
        "wasted",
        "Part of loadgate_held_seconds_total whose answer came after the client's timeout.",
    ),
    ("event_loop_stalls", "stalls", "Times the event loop stood still."),
    ("event_loop_stalled_seconds", "stalled", "Seconds the event loop stood still."),
)

_HISTOGRAMS = (
    (
        "latency_seconds",
        "latency",
        "Seconds from getting a place to the first message of the answer.",
    ),
    (
        "wait_seconds",
        "wait",
        "Seconds in the queue of requests that got a place after waiting.",
    ),
)


def _families(looks: list[Look], reloads: Reloads | None) -> Iterator[Metric]:
    yield from _requests(looks)
    for name, field, says in _GAUGES:
        gauge = GaugeMetricFamily(f"loadgate_{name}", says, labels=_BY)
        for _, look in looks:
            gauge.add_metric([look.name], float(getattr(look, field)))
        yield gauge
    for name, field, says in _COUNTERS:
        counter = CounterMetricFamily(f"loadgate_{name}", says, labels=_BY)
        for _, look in looks:
            counter.add_metric([look.name], getattr(look, field))
        yield counter
    for name, field, says in _HISTOGRAMS:
        histogram = HistogramMetricFamily(f"loadgate_{name}", says, labels=_BY)
        for _, look in looks:
            _add_histogram(histogram, look.name, getattr(look, field))
        yield histogram
    yield from _limits(looks)
    yield from _rates(looks)
    yield from _settings(looks, reloads)


def _requests(looks: list[Look]) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "loadgate_requests",
        "Requests by what was decided: admitted, rate_limited (429), overloaded (503), or left "
        "(the client went while it waited). Those who still wait are not counted.",
        labels=["controller", "decision", "reason"],
    )
    classes = CounterMetricFamily(
        "loadgate_class_requests",
        "Requests by priority class and decision.",
        labels=["controller", "priority", "decision"],
    )
    would = CounterMetricFamily(
        "loadgate_would_refuse",
        "Requests that a stage in observe mode would have refused, by reason. They ran.",
        labels=["controller", "reason"],
    )
    finished = CounterMetricFamily(
        "loadgate_finished",
        "Admitted requests that ended, by what they showed.",
        labels=["controller", "outcome"],
    )
    for _, look in looks:
        requests.add_metric([look.name, "admitted", "none"], look.admitted)
        for reason, count in look.refused.items():
            decision = "rate_limited" if reason == Reason.RATE else "overloaded"
            requests.add_metric([look.name, decision, reason], count)
        requests.add_metric([look.name, "left", "client_gone"], look.left)
        for priority, counts in look.classes.items():
            classes.add_metric([look.name, priority, "admitted"], counts.admitted)
            classes.add_metric([look.name, priority, "rate_limited"], counts.rate_limited)
            classes.add_metric([look.name, priority, "overloaded"], counts.overloaded)
        for reason, count in look.would_refuse.items():
            would.add_metric([look.name, reason], count)
        for outcome, count in look.finished.items():
            finished.add_metric([look.name, outcome], count)
    yield requests
    yield classes
    yield would
    yield finished


def _limits(looks: list[Look]) -> Iterator[Metric]:
    changes = CounterMetricFamily(
        "loadgate_limit_changes",
        "Times the limit has moved.",
        labels=["controller", "direction"],
    )
    low = GaugeMetricFamily("loadgate_limit_min", "The lowest the limit may go.", labels=_BY)
    high = GaugeMetricFamily("loadgate_limit_max", "The highest the limit may go.", labels=_BY)
    state = GaugeMetricFamily(
        "loadgate_limit_state",
        "The numbers on which the limit's algorithm rests, by their names in its explain().",
        labels=["controller", "name"],
    )
    for controller, look in looks:
        changes.add_metric([look.name, "up"], look.limit_rises)
        changes.add_metric([look.name, "down"], look.limit_falls)
        low.add_metric([look.name], controller.policy.concurrency.min)
        high.add_metric([look.name], controller.policy.concurrency.max)
        for name, value in look.limit_state.items():
            # The three have metrics of their own.
            if isinstance(value, int | float) and name not in {"limit", "min", "max"}:
                state.add_metric([look.name, name], value)
    yield changes
    yield low
    yield high
    yield state


def _rates(looks: list[Look]) -> Iterator[Metric]:
    by = ["controller", "rate"]
    decisions = CounterMetricFamily(
        "loadgate_rate_decisions",
        "What each rate decided: allowed, refused, or would_refuse (in observe mode).",
        labels=[*by, "decision"],
    )
    missing = CounterMetricFamily(
        "loadgate_rate_missing",
        "Requests that did not carry the key that the rate counts.",
        labels=by,
    )
    keys = GaugeMetricFamily("loadgate_rate_keys", "Keys that the rate remembers.", labels=by)
    size = GaugeMetricFamily(
        "loadgate_rate_size_bytes", "Memory for these keys and their state.", labels=by
    )
    dropped = CounterMetricFamily(
        "loadgate_rate_keys_dropped",
        "Keys no longer remembered: idle (as good as new anyway) or evicted (to make room).",
        labels=[*by, "why"],
    )
    overflowed = CounterMetricFamily(
        "loadgate_rate_overflowed",
        "Decisions about unknown keys that shared a bucket because the table was full.",
        labels=by,
    )
    for _, look in looks:
        for rate, stats in look.rates.items():
            where = [look.name, rate]
            decisions.add_metric([*where, "allowed"], stats.allowed)
            decisions.add_metric([*where, "refused"], stats.refused)
            decisions.add_metric([*where, "would_refuse"], stats.would_refuse)
            missing.add_metric(where, stats.missing)
            keys.add_metric(where, stats.keys)
            size.add_metric(where, stats.size_bytes)
            dropped.add_metric([*where, "idle"], stats.forgotten)
            dropped.add_metric([*where, "evicted"], stats.evicted)
            overflowed.add_metric(where, stats.overflowed)
    yield from (decisions, missing, keys, size, dropped, overflowed)


def _settings(looks: list[Look], reloads: Reloads | None) -> Iterator[Metric]:
    build = InfoMetricFamily("loadgate_build", "The version of loadgate.")
    build.add_metric([], {"version": __version__})
    yield build
    policy = InfoMetricFamily("loadgate_policy", "The policy in force.", labels=_BY)
    for controller, look in looks:
        policy.add_metric(
            [look.name],
            {
                "algorithm": look.algorithm,
                "mode": controller.policy.concurrency.mode,
                "discipline": controller.policy.queue.discipline,
            },
        )
    yield policy
    if reloads is not None:
        yield GaugeMetricFamily(
            "loadgate_policy_last_reload_success",
            "1 unless the last attempt to load the policy failed; the old one stays in force then.",
            value=reloads.succeeded,
        )
        yield GaugeMetricFamily(
            "loadgate_policy_last_reload_success_timestamp_seconds",
            "When the policy in force was loaded, in seconds since the epoch.",
            value=reloads.at,
        )


def _add_histogram(
    family: HistogramMetricFamily, controller: str, histogram: HistogramSnapshot
) -> None:
    below = 0
    buckets: list[tuple[str, float]] = []
    for edge, count in zip(histogram.edges, histogram.counts, strict=False):
        below += count
        buckets.append((repr(edge), below))
    buckets.append(("+Inf", histogram.count))
    family.add_metric([controller], buckets, histogram.sum)
