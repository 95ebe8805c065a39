"""Is the limit right? Everything that it rests on, on one screen."""

from __future__ import annotations

from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from loadgate.dashboards.source import thresholds as t
from loadgate.dashboards.source.panels import (
    ADMITTED,
    FAILED,
    LIMIT,
    OVERLOADED,
    QUIET,
    SEL,
    WAITING,
    Placed,
    Query,
    Row,
    lines,
    plume,
    quantile,
    rate,
    rows,
    share,
    text,
)

UID = "loadgate-tuning"
TITLE = "Loadgate / Tuning the limit"
SAYS = "Is the limit right? In flight, queue and latency beside it, and what it rests on."


_MEAN_LATENCY = share(rate("latency_seconds_sum"), rate("latency_seconds_count"))
_UNLOADED = f'avg(loadgate_limit_state{{{SEL},name="unloaded_latency"}})'

_SETTINGS = """\
- Refused, the limit is used up, latency is near the unloaded one: the service is full and well. \
Add capacity; only if `wanted` stands above the limit, raise `concurrency.max`.
- Latency above three times the unloaded one: something behind the limit is slow. Treat it there.
- The limit at its floor although latency is fine: `concurrency.min`.
- Restless under steady load: `concurrency.latency_target`.
- Waits near what is allowed: capacity, never a longer `queue.max_wait`.
- Refused although the limit is hardly used: a brake (`signals`), a rate, or too short timeouts.
"""

PANELS: list[Placed | Row] = [
    lines(
        "How full is it?",
        "Exact means over each interval, summed over instances: the limit, the requests that ran, "
        "and those that waited; and the most that ran at once. In flight along the limit while "
        "latency stays flat: the limit is too low. A limit far above in flight: nothing holds it, "
        "it must not keep growing. In flight may exceed a limit that has just fallen: running "
        "work is not killed. Long-lived requests run on beside the limit.",
        "short",
        Query(rate("limit_seconds_total"), "limit"),
        Query(rate("in_flight_seconds_total"), "in flight"),
        Query(rate("waiting_seconds_total"), "waiting"),
        Query(f"sum(loadgate_long_lived{{{SEL}}})", "long-lived"),
        Query(f"sum(loadgate_in_flight_peak{{{SEL}}})", "most at once"),
        colors={"limit": LIMIT, "in flight": ADMITTED, "waiting": WAITING, "most at once": QUIET},
        steps=["limit", "most at once"],
        dashed=["most at once"],
        width=24,
        height=9,
    ),
    lines(
        "Is it queueing behind the limit?",
        "Mean latency beside the unloaded latency that the limit has learned. The gap is time "
        "spent queueing inside the protected section (for a lock, a connection, a core). A gap "
        "that does not close after the limit has fallen: a dependency became slower, and the "
        "unloaded latency will follow.",
        "s",
        Query(_MEAN_LATENCY, "mean latency"),
        Query(_UNLOADED, "unloaded"),
        Query(f"min(loadgate_latency_target_seconds{{{SEL}}})", "target"),
        colors={"mean latency": OVERLOADED, "unloaded": ADMITTED, "target": LIMIT},
        dashed=["target"],
        log=True,
        width=8,
    ),
    lines(
        "By how much?",
        "Mean latency over unloaded latency. 1 is an idle service; below 1.5 is healthy; above 3 "
        "requests spend most of their time waiting for something behind the limit: find what, "
        "before you raise anything.",
        "none",
        Query(f"({_MEAN_LATENCY}) / ({_UNLOADED} > 0)", "latency / unloaded"),
        colors={"latency / unloaded": OVERLOADED},
        red=(("yellow", t.INFLATED_NOTICE), ("red", t.INFLATED)),
        width=8,
    ),
    text(
        "Which setting to move?",
        "What the panels around this one say, and which setting answers it. Where none is named, "
        "none helps.",
        _SETTINGS,
        width=8,
    ),
    lines(
        "How much of the limit is used?",
        "Exact mean of the requests that ran over the exact mean of the limit. Near 1 the limit "
        "decides, near 0 the load does. Above 1 only just after a cut.",
        "percentunit",
        Query(share(rate("in_flight_seconds_total"), rate("limit_seconds_total")), "used"),
        Query(rate("saturated_seconds_total", of="avg"), "every place taken"),
        colors={"used": ADMITTED, "every place taken": LIMIT},
        red=(("red", t.USED),),
        width=8,
    ),
    lines(
        "Where between its bounds?",
        "The limit of each controller beside concurrency.min and max. At the floor the service "
        "or what it calls is down, or the unloaded latency was learned far too low. At the "
        "ceiling nothing is protected any more: raise max knowingly.",
        "short",
        Query(f"loadgate_limit{{{SEL}}}", "{{instance}} {{controller}}"),
        Query(f"min(loadgate_limit_min{{{SEL}}})", "min"),
        Query(f"max(loadgate_limit_max{{{SEL}}})", "max"),
        colors={"min": FAILED, "max": FAILED},
        dashed=["min", "max"],
        log=True,
        width=8,
    ),
    lines(
        "Is it restless?",
        "Standard deviation of the limit over its mean in ten minutes. Above 0.3 under steady "
        "load it oscillates: give a fixed latency_target, or a larger window where the algorithm "
        "has one.",
        "percentunit",
        Query(
            f"max(stddev_over_time(loadgate_limit{{{SEL}}}[10m]) "
            f"/ avg_over_time(loadgate_limit{{{SEL}}}[10m]))",
            "worst",
        ),
        red=(("red", t.RESTLESS),),
        width=8,
    ),
    lines(
        "How often does it move?",
        "Changes of the limit each second. Equal numbers up and down at a high rate are "
        "flapping; only down is a cut that goes on.",
        "cps",
        Query(rate("limit_changes_total", by="direction"), "{{direction}}"),
        colors={"up": ADMITTED, "down": FAILED},
        width=8,
    ),
    lines(
        "What does the limit want?",
        "Means over the instances: what the adaptive limit would enforce if nothing held it "
        "(wanted), the number of requests at which the service is just full (knee), and what is "
        "enforced. Wanted above the limit: concurrency.max or a brake holds it down. Below: "
        "concurrency.min holds it up, or requests keep their places long after their answer has "
        "begun (places_per_running in the table). A knee far below what you know the service can "
        "do: the unloaded latency was learned too low.",
        "short",
        Query(f'avg by (name) (loadgate_limit_state{{{SEL},name=~"wanted|knee"}})', "{{name}}"),
        Query(f"avg(loadgate_limit{{{SEL}}})", "limit"),
        colors={"wanted": ADMITTED, "knee": WAITING, "limit": LIMIT},
        steps=["limit"],
        log=True,
        width=8,
    ),
    rows(
        "What does it rest on?",
        "The numbers inside the algorithm now, by their names in its explain(), means over the "
        "instances. Different algorithms have different ones; the pages on the algorithms say "
        "what they mean.",
        Query(
            f"avg by (name) (loadgate_limit_state{{{SEL}}})",
            instant=True,
            format=PromQueryFormat.TABLE,
        ),
        values=True,
        width=8,
    ),
    Row("What else holds it back"),
    lines(
        "What brakes the limit?",
        "What signals beside latency leave of the limit: 1 when none brakes. The lowest of them "
        "holds. A brake that is on all day is a resource that is full: add it, or move its bound.",
        "percentunit",
        Query(f"min(loadgate_brake_ratio{{{SEL}}})", "left of the limit"),
        Query(f"min by (signal) (loadgate_signal_factor_ratio{{{SEL}}})", "{{signal}} leaves"),
        colors={"left of the limit": LIMIT},
        high=1.0,
        width=8,
    ),
    lines(
        "How near are the signals to their bounds?",
        "Each signal over the value from which on it brakes. At 1 it begins to.",
        "percentunit",
        Query(f"max by (signal) (loadgate_signal_value_ratio{{{SEL}}})", "{{signal}}"),
        red=(("red", 1.0),),
        width=8,
    ),
    lines(
        "How much memory is used?",
        "Bytes in use beside the bound (signals.max_memory), the fullest instance. 0 where no "
        "bound is set. Near the bound arrivals are refused with the reason memory.",
        "bytes",
        Query(f"max(loadgate_memory_used_bytes{{{SEL}}})", "used"),
        Query(f"min(loadgate_memory_bound_bytes{{{SEL}}})", "bound"),
        colors={"used": ADMITTED, "bound": LIMIT},
        dashed=["bound"],
        width=8,
    ),
    Row("The queue"),
    lines(
        "How deep is it?",
        "Waiters as an exact mean, the depth up to which everyone may wait, and the depth at "
        "which every arrival is refused. The two bounds follow the measured throughput unless "
        "they are set. A mean near the lower bound is a standing queue: it adds latency and "
        "serves nobody better.",
        "short",
        Query(rate("waiting_seconds_total"), "waiting"),
        Query(f"sum(loadgate_waiting{{{SEL}}})", "waiting at the scrape"),
        Query(f"sum(loadgate_max_queue{{{SEL}}})", "everyone may wait"),
        Query(f"sum(loadgate_max_depth{{{SEL}}})", "all are refused"),
        colors={
            "waiting": WAITING,
            "waiting at the scrape": "light-blue",
            "everyone may wait": OVERLOADED,
            "all are refused": FAILED,
        },
        dashed=["everyone may wait", "all are refused"],
        width=8,
    ),
    lines(
        "How do waits end?",
        "got a place: good. wait_timeout above 1 % of those who waited: the queue is longer than "
        "max_wait allows, so it only delays the refusal. left: clients give up sooner than "
        "max_wait.",
        "reqps",
        Query(rate("wait_seconds_count"), "got a place"),
        Query(rate("requests_total", ',reason="wait_timeout"'), "wait_timeout"),
        Query(rate("requests_total", ',reason=~"priority|fair_share"'), "made room"),
        Query(rate("requests_total", ',decision="left"'), "left"),
        colors={
            "got a place": ADMITTED,
            "wait_timeout": OVERLOADED,
            "made room": "purple",
            "left": QUIET,
        },
        width=8,
    ),
    lines(
        "How long are waits beside what is allowed?",
        "99th percentile of the wait of those who got a place, over queue.max_wait. Above 0.8 "
        "the queue is as long as it may be: it is time for capacity, not for a longer queue.",
        "percentunit",
        Query(
            share(
                quantile(0.99, "loadgate_wait_seconds"),
                f"min(loadgate_max_wait_seconds{{{SEL}}})",
            ),
            "p99 of the wait / max_wait",
        ),
        red=(("red", t.WAIT_HIGH),),
        width=8,
    ),
    plume(
        "Where do the waits lie?",
        "Each column is an interval, each row a stretch of waiting time, colour the number of "
        "requests. Two bands: those who just missed a place, and those who got the last one. A "
        "band at max_wait: the queue is the bottleneck.",
        "s",
        "loadgate_wait_seconds",
    ),
    plume(
        "Where do the latencies lie?",
        "As above for the latency of admitted requests. A second band that appears under load is "
        "queueing; one that is always there is a second kind of request, and teaches the limit "
        "nothing wrong.",
        "s",
        "loadgate_latency_seconds",
    ),
    Row("Is the measuring right?"),
    lines(
        "Do two ways of measuring agree?",
        "Little's law: requests in flight over admissions a second is the mean time a place is "
        "held; beside it the mean that was measured request by request. They must overlap (after "
        "a change of load with a delay of one request). If the first stays above, places leak.",
        "s",
        Query(
            share(rate("in_flight_seconds_total"), rate("requests_total", ',decision="admitted"')),
            "in flight / admissions",
        ),
        Query(share(rate("held_seconds_total"), rate("finished_total")), "measured"),
        colors={"in flight / admissions": WAITING, "measured": ADMITTED},
        width=8,
    ),
    lines(
        "How fast do places become free?",
        "What the controller believes of its own throughput when every place is taken, beside "
        "the admissions that happen. The bounds of the queue and Retry-After follow it. While "
        "nothing is full it is only an estimate.",
        "reqps",
        Query(f"sum(loadgate_drain_rate{{{SEL}}})", "free each second when full"),
        Query(rate("requests_total", ',decision="admitted"'), "admitted"),
        Query(f"sum(loadgate_in_flight{{{SEL}}})", "in flight at the scrape"),
        colors={
            "free each second when full": LIMIT,
            "admitted": ADMITTED,
            "in flight at the scrape": QUIET,
        },
        dashed=["free each second when full"],
        width=8,
    ),
    lines(
        "What does deciding cost?",
        "Seconds that the synchronous part of a decision took, of one request in 64. Microseconds "
        "are normal. A rise of the median is a slow machine or a large policy; a rise of the p99 "
        "alone is garbage collection or a machine that is shared.",
        "s",
        Query(quantile(0.5, "loadgate_decision_duration_seconds"), "p50"),
        Query(quantile(0.99, "loadgate_decision_duration_seconds"), "p99"),
        Query(quantile(0.5, "loadgate_door_decision_duration_seconds"), "p50 at the door"),
        log=True,
        width=8,
    ),
]
