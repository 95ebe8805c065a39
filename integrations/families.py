"""Which metrics are there? One family for each, made from snapshots; names and helps live here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from loadgate import __version__
from loadgate.controller import AdmissionController
from loadgate.decisions import Reason
from loadgate.integrations.decision_timer import DecisionTimer
from loadgate.integrations.families_histogram import add_histogram, exemplar
from loadgate.integrations.families_pressure import pressure_families
from loadgate.integrations.families_store import store_families
from loadgate.integrations.witness import Witness
from loadgate.telemetry import Snapshot

_BY = ["controller"]


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


class Source(NamedTuple):
    """A controller, and what watches it."""

    controller: AdmissionController
    witness: Witness | None
    decisions: DecisionTimer | None


class Look(NamedTuple):
    """One controller at the moment of a scrape."""

    source: Source
    at: Snapshot


# Metric, field of `Snapshot`, help. One number for each controller.
_GAUGES = (
    ("limit", "limit", "Requests that may run at once."),
    ("in_flight", "in_flight", "Requests that run."),
    ("long_lived", "long_lived", "Requests that run on beside the limit, without a place."),
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
    (
        "event_loop_paced",
        "paced",
        "1 while requests begin a few at a time, because the event loop is late.",
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


def families(looks: list[Look], reloads: Reloads | None) -> Iterator[Metric]:
    """Every family, with the samples of `looks`; without looks, the names alone."""
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
        for (_, witness, _), look in looks:
            slow = witness.slow_examples if witness and field == "latency" else {}
            add_histogram(histogram, look.name, getattr(look, field), slow)
        yield histogram
    yield from _decisions(looks)
    yield from _limits(looks)
    yield from _rates(looks)
    yield from pressure_families(look for _, look in looks)
    yield from store_families(look for _, look in looks)
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
    for (_, witness, _), look in looks:
        requests.add_metric([look.name, "admitted", "none"], look.admitted)
        examples = {} if witness is None else witness.refused_examples
        for reason, count in look.refused.items():
            decision = "rate_limited" if reason == Reason.RATE else "overloaded"
            example = exemplar(examples.get(Reason(reason)))
            requests.add_metric([look.name, decision, reason], count, exemplar=example)
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


def _decisions(looks: list[Look]) -> Iterator[Metric]:
    durations = HistogramMetricFamily(
        "loadgate_decision_duration_seconds",
        "Seconds that deciding took, of one request in many (what is awaited left out).",
        labels=_BY,
    )
    share = GaugeMetricFamily(
        "loadgate_top_refused_share_ratio",
        "Share of the refusals of the last 5 to 10 minutes that hit the client refused most.",
        labels=_BY,
    )
    clients = GaugeMetricFamily(
        "loadgate_refused_clients",
        "Clients refused in the last 5 to 10 minutes; beyond 256 only the frequent are counted.",
        labels=_BY,
    )
    top = GaugeMetricFamily(
        "loadgate_top_refused",
        "Refusals of the last 5 to 10 minutes of the clients refused most, by their keyed hashes.",
        labels=["controller", "client"],
    )
    for (_, witness, decisions), look in looks:
        if decisions is not None:
            add_histogram(durations, look.name, decisions.freeze())
        if witness is not None:
            share.add_metric([look.name], witness.top_share(look.at))
            clients.add_metric([look.name], witness.clients(look.at))
            for client, count in witness.top(look.at).items():
                top.add_metric([look.name, client], count)
    yield from (durations, share, clients, top)


def _limits(looks: list[Look]) -> Iterator[Metric]:
    changes = CounterMetricFamily(
        "loadgate_limit_changes",
        "Times the limit has moved.",
        labels=["controller", "direction"],
    )
    low = GaugeMetricFamily("loadgate_limit_min", "The lowest the limit may go.", labels=_BY)
    high = GaugeMetricFamily("loadgate_limit_max", "The highest the limit may go.", labels=_BY)
    target = GaugeMetricFamily(
        "loadgate_latency_target_seconds",
        "The latency that the limit aims at (concurrency.latency_target), where one is set.",
        labels=_BY,
    )
    longest = GaugeMetricFamily(
        "loadgate_max_wait_seconds", "The longest wait in the queue (queue.max_wait).", labels=_BY
    )
    state = GaugeMetricFamily(
        "loadgate_limit_state",
        "The numbers on which the limit's algorithm rests, by their names in its explain().",
        labels=["controller", "name"],
    )
    for (controller, *_), look in looks:
        changes.add_metric([look.name, "up"], look.limit_rises)
        changes.add_metric([look.name, "down"], look.limit_falls)
        low.add_metric([look.name], controller.policy.concurrency.min)
        high.add_metric([look.name], controller.policy.concurrency.max)
        longest.add_metric([look.name], controller.policy.queue.max_wait)
        if (objective := controller.policy.concurrency.latency_target) is not None:
            target.add_metric([look.name], objective)
        for name, value in look.limit_state.items():
            # The three have metrics of their own.
            if isinstance(value, int | float) and name not in {"limit", "min", "max"}:
                state.add_metric([look.name, name], value)
    yield changes
    yield low
    yield high
    yield longest
    yield target
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
        shared: dict[str, Any] = {} if look.store is None else look.store.rates
        for rate, stats in (look.rates | shared).items():
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
    for (controller, *_), look in looks:
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
