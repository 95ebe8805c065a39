"""What is computed once for all alerts? Shares and quantiles, named level:metric:operation.

Dashboards ask for raw metrics, so that they work without these.
"""

from __future__ import annotations

from typing import Final

from loadgate.dashboards.source.rules import Recorded


def _overloaded(window: str) -> Recorded:
    return Recorded(
        f"job:loadgate_overloaded:ratio_rate{window}",
        f'sum by (job) (rate(loadgate_requests_total{{decision="overloaded"}}[{window}]))\n'
        f"  / (sum by (job) (rate(loadgate_requests_total[{window}])) > 0)",
    )


def _failed(window: str) -> Recorded:
    """What an objective counts as bad: refused because full, failed, or too late. Never a 429."""
    return Recorded(
        f"job:loadgate_failed:ratio_rate{window}",
        "(\n"
        f'    sum by (job) (rate(loadgate_requests_total{{decision="overloaded"}}[{window}]))\n'
        f'  + sum by (job) (rate(loadgate_finished_total{{outcome=~"error|overload"}}[{window}]))\n'
        ")\n"
        "  / (sum by (job) (rate("
        f'loadgate_requests_total{{decision=~"admitted|overloaded"}}[{window}])) > 0)',
    )


def _p99(metric: str) -> Recorded:
    return Recorded(
        f"job_controller:loadgate_{metric}:p99_5m",
        "histogram_quantile(\n"
        f"  0.99, sum by (job, controller, le) (rate(loadgate_{metric}_bucket[5m]))\n"
        ")",
    )


RECORDED: Final = (
    Recorded("job:loadgate_requests:rate5m", "sum by (job) (rate(loadgate_requests_total[5m]))"),
    _overloaded("5m"),
    *(_failed(window) for window in ("5m", "30m", "1h", "6h")),
    Recorded(
        "job_controller:loadgate_used:ratio_rate5m",
        "sum by (job, controller) (rate(loadgate_in_flight_seconds_total[5m]))\n"
        "  / (sum by (job, controller) (rate(loadgate_limit_seconds_total[5m])) > 0)",
    ),
    Recorded(
        "job_controller:loadgate_latency_seconds:mean5m",
        "sum by (job, controller) (rate(loadgate_latency_seconds_sum[5m]))\n"
        "  / (sum by (job, controller) (rate(loadgate_latency_seconds_count[5m])) > 0)",
    ),
    _p99("wait_seconds"),
)
