"""Which metrics tell of the shared store? They have no samples where there is none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from loadgate.integrations.families_histogram import add_histogram
from loadgate.shared import StoreStats
from loadgate.telemetry import Snapshot

_BY = ["controller"]
STATES = ("closed", "half-open", "open")

# Metric, field of `StoreStats`, help.
_GAUGES = (
    ("connected", "connected", "1 while a connection to the store stands."),
    ("waiting", "waiting", "Requests that wait for the store now."),
    ("oldest_call_seconds", "oldest", "Age of the oldest call without an answer."),
    ("nodes", "nodes", "Processes that use the store, as far as known."),
)
_COUNTERS = (
    ("incidents", "incidents", "Times the store went away."),
    ("away_seconds", "away", "Seconds it was away."),
    ("calls", "calls", "Calls made."),
    ("questions", "asked", "Questions in these calls."),
    ("stale", "stale", "Questions the store saw too late, so that it did nothing."),
    ("late", "late", "Answers that nobody waited for any more."),
    ("loop_stalls", "stalls", "Times our event loop was late and the store was not blamed."),
    ("connections", "connections", "Connections made."),
    ("given_back", "given_back", "Charges returned because the request was turned away."),
    ("forgotten", "forgotten", "Charges that should have been returned and could not be."),
)


def store_families(looks: Iterable[Snapshot]) -> Iterator[Metric]:
    """Every family, with the samples of those `looks` that have a store."""
    stores: list[tuple[str, StoreStats]] = [
        (look.name, look.store) for look in looks if look.store is not None
    ]
    state = GaugeMetricFamily(
        "loadgate_store_state",
        "1 for the state that the circuit breaker is in: closed works, open is away.",
        labels=["controller", "state"],
    )
    decisions = CounterMetricFamily(
        "loadgate_store_decisions",
        "Decisions about shared rates by who made them; emergency, open and closed stand in "
        "for a store that is away.",
        labels=["controller", "by"],
    )
    troubles = CounterMetricFamily(
        "loadgate_store_troubles", "Questions without an answer.", labels=["controller", "why"]
    )
    wait = HistogramMetricFamily(
        "loadgate_store_wait_seconds", "Seconds that requests waited for the store.", labels=_BY
    )
    for name, stats in stores:
        for one in STATES:
            state.add_metric([name, one], float(stats.state == one))
        for by, count in stats.decisions.items():
            decisions.add_metric([name, by], count)
        for why, count in stats.troubles.items():
            troubles.add_metric([name, why], count)
        add_histogram(wait, name, stats.wait)
    yield from (state, decisions, troubles, wait)
    for metric, field, says in _GAUGES:
        gauge = GaugeMetricFamily(f"loadgate_store_{metric}", says, labels=_BY)
        for name, stats in stores:
            gauge.add_metric([name], float(getattr(stats, field)))
        yield gauge
    for metric, field, says in _COUNTERS:
        counter = CounterMetricFamily(f"loadgate_store_{metric}", says, labels=_BY)
        for name, stats in stores:
            counter.add_metric([name], getattr(stats, field))
        yield counter
