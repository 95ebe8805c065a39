"""What do metrics say of the door? What became of requests before HTTP began."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from loadgate.integrations.door import Door
from loadgate.integrations.families_histogram import add_histogram


def door_families(door: Door, *, names_only: bool = False) -> Iterator[Metric]:
    """The families of one door.

    Args:
        door: What to look at.
        names_only: Without samples, as registries ask for.
    """
    requests = CounterMetricFamily(
        "loadgate_door_requests",
        "Requests at the door by what was decided: passed, exempt, answered (with a refusal; also "
        "in loadgate_requests as loop_lag), dropped (HTTP/2, or by choice; likewise), expired (no "
        "whole head came), or late (passed, and refused on reaching the application; likewise).",
        labels=["controller", "decision"],
    )
    closed = GaugeMetricFamily(
        "loadgate_door_closed",
        "1 while the door narrows arrivals: the loop is late and most of them are refused.",
        labels=["controller"],
    )
    durations = HistogramMetricFamily(
        "loadgate_door_decision_duration_seconds",
        "Seconds that deciding took at the door, of one request in many.",
        labels=["controller"],
    )
    if not names_only:
        counts = door.counts()
        for decision in ("passed", "exempt", "answered", "dropped", "expired", "late"):
            requests.add_metric([door.name, decision], getattr(counts, decision))
        closed.add_metric([door.name], counts.closed)
        add_histogram(durations, door.name, door.durations())
    yield requests
    yield closed
    yield durations
