"""Which metrics tell of fairness, brakes and the kill switch? One family for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from loadgate.telemetry import Snapshot

_BY = ["controller"]

# Metric, field of `Snapshot`, help.
_GAUGES = (
    (
        "contended",
        "contended",
        "1 while a client with a name has waited or was refused in the last seconds.",
    ),
    (
        "fair_level_seconds",
        "fair_level",
        "Place-seconds that a typical client used lately; 0 while not contended.",
    ),
    ("brake_ratio", "brake", "What signals leave of the limit; 1 when none brakes."),
    ("bypassing", "bypassing", "1 while the kill switch lets everyone through."),
    ("memory_used_bytes", "memory_used", "Bytes in use; 0 if signals.max_memory is not set."),
    ("memory_bound_bytes", "memory_bound", "Bytes that may be in use; 0 for no bound."),
)
_COUNTERS = (
    ("evicted", "evicted", "Waiters that had to go for an arrival."),
    (
        "spared",
        "spared",
        "Requests let through because enough had been refused (queue.max_refused).",
    ),
    ("bypassed", "bypassed", "Requests that the kill switch has let through."),
)


def pressure_families(looks: Iterable[Snapshot]) -> Iterator[Metric]:
    """Every family, with the samples of `looks`."""
    looks = list(looks)
    for name, field, says in _GAUGES:
        gauge = GaugeMetricFamily(f"loadgate_{name}", says, labels=_BY)
        for look in looks:
            gauge.add_metric([look.name], float(getattr(look, field)))
        yield gauge
    for name, field, says in _COUNTERS:
        counter = CounterMetricFamily(f"loadgate_{name}", says, labels=_BY)
        for look in looks:
            counter.add_metric([look.name], getattr(look, field))
        yield counter
    signal = GaugeMetricFamily(
        "loadgate_signal_factor_ratio",
        "What each signal that may brake leaves of the limit; 1 when it does not.",
        labels=["controller", "signal"],
    )
    relative = GaugeMetricFamily(
        "loadgate_signal_value_ratio",
        "Each signal that may brake, over the value from which on it does.",
        labels=["controller", "signal"],
    )
    for look in looks:
        for name, state in look.signals.items():
            signal.add_metric([look.name, name], state.factor)
            if state.target > 0.0:
                relative.add_metric([look.name, name], state.value / state.target)
    yield signal
    yield relative
