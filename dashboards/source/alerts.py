"""When must somebody do something? Alerts, each with its panel and its runbook.

Shares are only believed while there is traffic: three requests at night prove nothing.
"""

from __future__ import annotations

from typing import Final

from loadgate.dashboards.source import fairness, overview, store, tuning
from loadgate.dashboards.source import thresholds as t
from loadgate.dashboards.source.rules import Alert

_BUSY: Final = f"\n  and on (job) job:loadgate_requests:rate5m > {t.TRAFFIC:g}"
_SHARE: Final = "{{ $value | humanizePercentage }}"
_WHERE: Final = "{{ $labels.job }}"
_CONTROLLER: Final = "controller {{ $labels.controller }} of {{ $labels.job }}"

ALERTS: Final = (
    Alert(
        "LoadgateSheddingHigh",
        f"job:loadgate_overloaded:ratio_rate5m > {t.SHED_HIGH:g}{_BUSY}",
        "10m",
        "ticket",
        f"{_WHERE} refuses {_SHARE} of its requests because it is full",
        "Look at 'Why are requests refused?': the largest reason says where to go on.",
        overview.UID,
        "Refused: full (503)",
    ),
    Alert(
        "LoadgateSheddingSevere",
        f"job:loadgate_overloaded:ratio_rate5m > {t.SHED_SEVERE:g}{_BUSY}",
        "3m",
        "page",
        f"{_WHERE} refuses {_SHARE} of its requests because it is full",
        "Is one instance alone, was there a deployment, is a dependency slow? Then scale.",
        overview.UID,
        "Why are requests refused?",
    ),
    Alert(
        "LoadgateCriticalShed",
        'sum by (job) (rate(loadgate_class_requests_total{priority="critical",'
        'decision="overloaded"}[5m]))\n'
        '  / (sum by (job) (rate(loadgate_class_requests_total{priority="critical"}[5m])) > 0.1)\n'
        f"  > {t.CRITICAL_SHED:g}",
        "5m",
        "page",
        f"{_WHERE} refuses {_SHARE} of its critical requests",
        "Lower classes should be gone first: if they are still served, requests carry the "
        "wrong class.",
        overview.UID,
        "Are the important ones served?",
    ),
    Alert(
        "LoadgateSloBurnFast",
        f"job:loadgate_failed:ratio_rate1h > {t.BURN_FAST:g}\n"
        f"  and on (job) job:loadgate_failed:ratio_rate5m > {t.BURN_FAST:g}{_BUSY}",
        "2m",
        "page",
        f"{_WHERE} fails {_SHARE} of its requests: a month's budget in two days",
        "Refused, failed and late together. See which of the three on the overview.",
        overview.UID,
        "How do they end?",
    ),
    Alert(
        "LoadgateSloBurnSlow",
        f"job:loadgate_failed:ratio_rate6h > {t.BURN_SLOW:g}\n"
        f"  and on (job) job:loadgate_failed:ratio_rate30m > {t.BURN_SLOW:g}{_BUSY}",
        "15m",
        "ticket",
        f"{_WHERE} fails {_SHARE} of its requests: a month's budget in five days",
        "Refused, failed and late together. See which of the three on the overview.",
        overview.UID,
        "How do they end?",
    ),
    Alert(
        "LoadgateSaturated",
        f"avg by (job) (rate(loadgate_saturated_seconds_total[15m])) > {t.SATURATED:g}\n"
        f"  and on (job) job:loadgate_overloaded:ratio_rate5m < {t.SHED_NOTICE:g}",
        "15m",
        "ticket",
        f"every place of {_WHERE} is taken {_SHARE} of the time",
        "It runs at its edge and users do not notice yet: add capacity now.",
        overview.UID,
        "Every place taken",
    ),
    Alert(
        "LoadgateLatencyInflated",
        "job_controller:loadgate_latency_seconds:mean5m\n"
        "  / on (job, controller) (avg by (job, controller) "
        '(loadgate_limit_state{name="unloaded_latency"}) > 0)\n'
        f"  > {t.INFLATED:g}{_BUSY}",
        "10m",
        "ticket",
        f"requests of {_CONTROLLER} take {{{{ $value | humanize }}}} times as long as without load",
        "Something behind the limit is slow: find the dependency before raising anything.",
        tuning.UID,
        "By how much?",
    ),
    Alert(
        "LoadgateBaselineGrown",
        'avg by (job, controller) (loadgate_limit_state{name="unloaded_latency"})\n'
        f"  > {t.BASELINE_GROWN:g} * avg by (job, controller) "
        '(loadgate_limit_state{name="unloaded_latency"} offset 1d)',
        "30m",
        "ticket",
        f"the unloaded latency of {_CONTROLLER} has doubled since yesterday",
        "A dependency became slower for good, or steady load is taken for none.",
        tuning.UID,
        "Is it queueing behind the limit?",
    ),
    Alert(
        "LoadgateLimitAtFloor",
        "loadgate_limit <= loadgate_limit_min\n"
        "  and on (job, instance, controller) sum by (job, instance, controller)\n"
        '    (rate(loadgate_requests_total{decision="overloaded"}[5m])) > 0',
        "10m",
        "page",
        "the limit of " + _CONTROLLER + " on {{ $labels.instance }} is at its floor and it refuses",
        "The service or what it calls is down. If it is not, the unloaded latency is wrong: "
        "apply the policy again with concurrency.min raised.",
        tuning.UID,
        "Where between its bounds?",
    ),
    Alert(
        "LoadgateLimitAtCeiling",
        "loadgate_limit >= loadgate_limit_max\n"
        f"  and on (job, controller) job_controller:loadgate_used:ratio_rate5m > {t.USED:g}",
        "10m",
        "ticket",
        "the limit of " + _CONTROLLER + " on {{ $labels.instance }} is at its ceiling and used up",
        "Nothing is protected above it. Raise concurrency.max knowingly, or add instances.",
        tuning.UID,
        "How much of the limit is used?",
    ),
    Alert(
        "LoadgateLimitRestless",
        "max by (job, controller) (stddev_over_time(loadgate_limit[10m]) "
        "/ avg_over_time(loadgate_limit[10m]))\n"
        f"  > {t.RESTLESS:g}\n"
        "  and on (job, controller) job_controller:loadgate_used:ratio_rate5m > 0.5",
        "15m",
        "ticket",
        f"the limit of {_CONTROLLER} swings by {_SHARE} of its mean",
        "Under steady load that is oscillation: set latency_target, or a larger window.",
        tuning.UID,
        "Is it restless?",
    ),
    Alert(
        "LoadgateWaitHigh",
        "job_controller:loadgate_wait_seconds:p99_5m\n"
        "  / on (job, controller) (min by (job, controller) (loadgate_max_wait_seconds) > 0)\n"
        f"  > {t.WAIT_HIGH:g}\n"
        "  and on (job, controller) sum by (job, controller)\n"
        f"    (rate(loadgate_wait_seconds_count[5m])) > {t.TRAFFIC:g}",
        "10m",
        "ticket",
        f"the queue of {_CONTROLLER} is as long as it may be",
        "Add capacity. A longer queue only makes answers later.",
        tuning.UID,
        "How long are waits beside what is allowed?",
    ),
    Alert(
        "LoadgateWastedWork",
        "sum by (job) (rate(loadgate_wasted_seconds_total[5m]))\n"
        "  / (sum by (job) (rate(loadgate_held_seconds_total[5m])) > 0)\n"
        f"  > {t.WASTED:g}{_BUSY}",
        "10m",
        "ticket",
        f"{_WHERE} spends {_SHARE} of its time on answers that come too late",
        "Shorten queue.max_wait, or find why requests take longer than their clients wait.",
        overview.UID,
        "How much work is wasted?",
    ),
    Alert(
        "LoadgateClientDominates",
        f"max by (job, controller) (loadgate_top_refused_share_ratio) > {t.DOMINATES:g}\n"
        "  and on (job) sum by (job)\n"
        '    (rate(loadgate_requests_total{decision!="admitted"}[5m])) > '
        f"{t.TRAFFIC:g}",
        "30m",
        "info",
        f"one client gets {_SHARE} of the refusals of {_CONTROLLER}",
        "Others are protected from it. Find it by its hash in the log, and talk to it.",
        fairness.UID,
        "Refusals that hit one client",
    ),
    Alert(
        "LoadgateRateTableFull",
        "sum by (job, controller, rate) (rate(loadgate_rate_overflowed_total[5m])) > 0",
        "5m",
        "ticket",
        "the table of rate {{ $labels.rate }} of " + _CONTROLLER + " is full",
        "Newcomers share buckets and may be refused for others: is it an attack from many "
        "addresses, or is the table too small?",
        fairness.UID,
        "Is the table full?",
    ),
    Alert(
        "LoadgateEventLoopBlocked",
        "max by (job, instance) (rate(loadgate_event_loop_stalled_seconds_total[5m]))"
        f" > {t.STALLED:g}",
        "5m",
        "ticket",
        "the event loop of {{ $labels.instance }} stands still " + _SHARE + " of the time",
        "A handler computes or blocks: move that work off the loop.",
        overview.UID,
        "Event loop stalled",
    ),
    Alert(
        "LoadgateStoreUnavailable",
        'sum by (job) (rate(loadgate_requests_total{reason="store_unavailable"}[5m])) > 0',
        "2m",
        "page",
        f"{_WHERE} refuses requests because the shared store does not answer",
        "Is the store up and reachable? Until then, set on_failure of rates that guard no "
        "security to emergency and reload.",
        store.UID,
        "Refused because it is away (503)",
    ),
    Alert(
        "LoadgateStoreAway",
        "sum by (job) (rate(loadgate_store_decisions_total"
        '{by=~"emergency|open|closed"}[5m]))\n'
        "  / (sum by (job) (rate(loadgate_store_decisions_total[5m])) > 0)\n"
        f"  > {t.STOOD_IN:g}",
        "2m",
        "page",
        f"{_WHERE} makes {_SHARE} of its shared decisions without the store",
        "Shared rates are per process now, or not kept at all. Is the store up and reachable?",
        store.UID,
        "Decided without the store",
    ),
    Alert(
        "LoadgateStoreSlow",
        "histogram_quantile(\n"
        "  0.99, sum by (job, le) (rate(loadgate_store_wait_seconds_bucket[5m]))\n"
        f") > {t.STORE_SLOW:g}{_BUSY}",
        "10m",
        "ticket",
        f"one in a hundred requests of {_WHERE} waits "
        "{{ $value | humanizeDuration }} for the shared store",
        "Is the store busy with something else, or far away?",
        store.UID,
        "p99 of asking",
    ),
    Alert(
        "LoadgatePolicyReloadFailed",
        "min by (job, instance) (loadgate_policy_last_reload_success) == 0",
        "5m",
        "ticket",
        "{{ $labels.instance }} could not load its policy file",
        "The old policy stays in force. `loadgate check FILE` says what is wrong.",
        overview.UID,
        "Is the policy file in force?",
    ),
    Alert(
        "LoadgateMetricsMissing",
        "up == 0 and on (job, instance) max_over_time(loadgate_build_info[1h])",
        "5m",
        "ticket",
        "{{ $labels.instance }} has shown metrics within the hour and does not any more",
        "Is the process alive (/healthz on the same port), is the port reachable?",
        overview.UID,
        "What runs?",
    ),
)
