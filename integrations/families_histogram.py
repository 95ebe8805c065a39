"""How does a histogram become a metric? Its counts are summed up, and traces put where they fit."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.samples import Exemplar

from loadgate.integrations.witness import Example
from loadgate.telemetry import HistogramSnapshot


def add_histogram(
    family: HistogramMetricFamily,
    controller: str,
    histogram: HistogramSnapshot,
    examples: Mapping[int, Example] | None = None,
) -> None:
    """Add what one controller has counted to a family.

    Args:
        family: The family, whose only label is the controller.
        controller: Its name.
        histogram: What it has counted.
        examples: Requests that belong to a trace; each goes to the bucket of its value.
    """
    seen = tuple((examples or {}).values())
    by_edge = {_edge_above(histogram.edges, one.value): one for one in seen}
    below = 0
    buckets: list[tuple[str, float, Exemplar | None]] = []
    for edge, count in zip(histogram.edges, histogram.counts, strict=False):
        below += count
        buckets.append((repr(edge), below, exemplar(by_edge.get(edge))))
    buckets.append(("+Inf", histogram.count, exemplar(by_edge.get(float("inf")))))
    family.add_metric([controller], buckets, histogram.sum)  # type: ignore[arg-type]  # None is what it stores where there is none


def exemplar(example: Example | None) -> Exemplar | None:
    """What only OpenMetrics carries: a trace that belongs to a number."""
    if example is None:
        return None
    return Exemplar({"trace_id": example.trace_id}, example.value, example.at)


def _edge_above(edges: tuple[float, ...], value: float) -> float:
    return next((edge for edge in edges if value <= edge), float("inf"))
