"""What happened between two looks? Rates, exact means and quantiles from two statuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import msgspec

from loadgate.integrations.console.status import Counts, Status, StoreLook


class Reading(msgspec.Struct, frozen=True):
    """One stretch of time.

    Attributes:
        seconds: Its length.
        limit: Mean of the limit.
        in_flight: Mean of the requests that ran.
        waiting: Mean of the requests that waited.
        saturated: Share of the time in which every place was taken, 0 to 1.
        stalled: Share of the time in which the event loop stood still.
        asked: Requests per second, those who still wait left out.
        admitted: Admissions per second.
        done: Requests per second that ended well.
        refused: Refusals per second by reason, those that happened.
        p50: Seconds, latency of the admitted; None if none ended.
        p99: Seconds, likewise.
        wait99: Seconds, 99th percentile of the wait; None if nobody waited.
        classes: Per second, by priority class: admitted, rate_limited, overloaded.
        stood_in: Share of the decisions about shared rates that the store did not make; None
            without any.
    """

    seconds: float
    limit: float
    in_flight: float
    waiting: float
    saturated: float
    stalled: float
    asked: float
    admitted: float
    done: float
    refused: dict[str, float]
    p50: float | None
    p99: float | None
    wait99: float | None
    classes: dict[str, dict[str, float]]
    stood_in: float | None


def between(before: Status, after: Status) -> Reading | None:
    """What happened from `before` to `after`; None if no time passed or the process is new."""
    seconds = after.at - before.at
    if seconds <= 0.0 or sum(after.requests.values()) < sum(before.requests.values()):
        return None

    def per_second(new: Mapping[str, int], old: Mapping[str, int]) -> dict[str, float]:
        return {
            name: grown / seconds
            for name, count in new.items()
            if (grown := count - old.get(name, 0)) > 0
        }

    requests = per_second(after.requests, before.requests)
    return Reading(
        seconds=seconds,
        limit=(after.limit_seconds - before.limit_seconds) / seconds,
        in_flight=(after.busy - before.busy) / seconds,
        waiting=(after.queued - before.queued) / seconds,
        saturated=(after.saturated - before.saturated) / seconds,
        stalled=(after.stalled - before.stalled) / seconds,
        asked=sum(requests.values()),
        admitted=requests.get("admitted", 0.0),
        done=per_second(after.finished, before.finished).get("success", 0.0),
        refused=per_second(after.refused, before.refused),
        p50=quantile(0.5, before.latency, after.latency),
        p99=quantile(0.99, before.latency, after.latency),
        wait99=quantile(0.99, before.wait, after.wait),
        classes={
            name: per_second(counts, before.classes.get(name, {}))
            for name, counts in after.classes.items()
        },
        stood_in=_stood_in(before.store, after.store),
    )


def _stood_in(before: StoreLook | None, after: StoreLook | None) -> float | None:
    if before is None or after is None:
        return None
    grown = {
        who: count - before.decisions.get(who, 0)
        for who, count in after.decisions.items()
        if who != "none"
    }
    stood_in = sum(grown.get(who, 0) for who in ("emergency", "open", "closed"))
    return stood_in / total if (total := sum(grown.values())) > 0 else None


def quantile(q: float, before: Counts, after: Counts) -> float | None:
    """The `q`-quantile of what was added, in seconds, by a straight line inside its bucket.

    That is what Prometheus does, so that both say the same; like there, what lies above the last
    edge is said to be at it. None if nothing was added.
    """
    if before.edges != after.edges:
        return None
    added: Sequence[int] = [new - old for new, old in zip(after.counts, before.counts, strict=True)]
    total = sum(added)
    if total <= 0:
        return None
    rank = q * total
    below = [0, *accumulate(added)]
    edges = (0.0, *after.edges)
    for index, (low, high) in enumerate(pairwise(edges)):
        if below[index + 1] >= rank and added[index]:
            return low + (high - low) * (rank - below[index]) / added[index]
    return after.edges[-1]
