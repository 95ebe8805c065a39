"""Are we refusing, whom, why, and does it help? The first screen at three in the morning."""

from __future__ import annotations

from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from loadgate.dashboards.source import thresholds as t
from loadgate.dashboards.source.panels import (
    ADMITTED,
    CLASSES,
    FAILED,
    LIMIT,
    OVERLOADED,
    QUIET,
    RATE_LIMITED,
    REASONS,
    SEL,
    WAITING,
    WHO,
    Placed,
    Query,
    Row,
    lines,
    number,
    quantile,
    rate,
    rows,
    share,
    states,
)

UID = "loadgate-overview"
TITLE = "Loadgate / Overview"
SAYS = "Are we refusing, whom, why, and does it help? Start here."


def _requests(more: str = "") -> str:
    return rate("requests_total", more)


PANELS: list[Placed | Row] = [
    number(
        "Refused: full (503)",
        "Share of all requests that were refused because the service is full. 0 is normal. "
        "Above 1 % users notice, above 5 % somebody should look: 'Why are requests refused?' "
        "below names the reason, and the runbook of each reason starts there.",
        "percentunit",
        Query(share(_requests(',decision="overloaded"'), _requests())),
        red=(("green", None), ("yellow", t.SHED_NOTICE), ("red", t.SHED_HIGH)),
    ),
    number(
        "Refused: rate (429)",
        "Share of all requests that were refused because their client asked for more than its "
        "share. That is policy and no failure; if it surprises you, the fairness dashboard says "
        "whether one client or everybody is hit.",
        "percentunit",
        Query(share(_requests(',decision="rate_limited"'), _requests())),
        red=((RATE_LIMITED, None),),
    ),
    number(
        "Goodput",
        "Requests that ended well each second. Under overload it must stay near its highest "
        "value: that is what refusing is for. If it falls while requests are refused, the limit "
        "is too high (see the tuning dashboard).",
        "reqps",
        Query(rate("finished_total", ',outcome="success"')),
        red=((ADMITTED, None),),
    ),
    number(
        "Every place taken",
        "Share of the time in which no further request could have started, as a mean over the "
        "instances. Above 0.9 without refusals the service runs at its edge: add capacity before "
        "users notice.",
        "percentunit",
        Query(rate("saturated_seconds_total", of="avg")),
        red=(("green", None), ("yellow", t.SATURATED_NOTICE), ("red", t.SATURATED)),
    ),
    number(
        "p99 latency",
        "99 of 100 admitted requests got the first message of their answer within this time, the "
        "wait in the queue left out. It must not follow the load: if it does, requests queue "
        "behind the limit and the limit is too high.",
        "s",
        Query(quantile(0.99, "loadgate_latency_seconds")),
    ),
    number(
        "Event loop stalled",
        "Share of the time in which the event loop did not turn, the worst instance. Handlers "
        "that compute or block cause it; everything else waits meanwhile. Above 5 % move that "
        "work off the loop or add processes.",
        "percentunit",
        Query(rate("event_loop_stalled_seconds_total", of="max")),
        red=(("green", None), ("yellow", t.SHED_NOTICE), ("red", t.STALLED)),
    ),
    lines(
        "Why are requests refused?",
        "What was decided about each request, by reason. queue_full, queue_shed, wait_timeout: "
        "really full, so scale or find the slow dependency. deadline: clients give less time "
        "than the queue takes. priority, fair_share: somebody more important, or more modest, "
        "went first. loop_lag: the event loop is blocked. rate: the client's own doing. "
        "store_unavailable: the shared store is down and a rate is set to refuse then.",
        "reqps",
        Query(
            rate("requests_total", ',decision!="admitted"', by="decision, reason"),
            "{{reason}}",
        ),
        Query(_requests(',decision="admitted"'), "admitted"),
        colors={"admitted": ADMITTED} | REASONS,
        right=True,
        stack=True,
    ),
    lines(
        "How much is asked, admitted and done?",
        "Asked minus admitted is what was refused. Admitted minus done well is work that was "
        "wasted: it failed, came too late, or its client had left. Done should stay flat when "
        "asked rises above it.",
        "reqps",
        Query(_requests(), "asked"),
        Query(_requests(',decision="admitted"'), "admitted"),
        Query(rate("finished_total", ',outcome="success"'), "done well"),
        colors={"asked": QUIET, "admitted": WAITING, "done well": ADMITTED},
    ),
    Row("For those who are admitted"),
    lines(
        "How long do they take?",
        "Latency of admitted requests from their place to the first message of the answer, and "
        "the 99th percentile of the wait before it. Latency that rises with the load means a "
        "limit that is too high or a dependency that became slower: compare with 'Is it "
        "queueing behind the limit?' on the tuning dashboard.",
        "s",
        Query(quantile(0.5, "loadgate_latency_seconds"), "p50"),
        Query(quantile(0.95, "loadgate_latency_seconds"), "p95"),
        Query(quantile(0.99, "loadgate_latency_seconds"), "p99"),
        Query(quantile(0.99, "loadgate_wait_seconds"), "p99 of the wait"),
        Query(f"min(loadgate_latency_target_seconds{{{SEL}}})", "target"),
        colors={
            "p50": "light-green",
            "p95": "green",
            "p99": "dark-green",
            "p99 of the wait": WAITING,
            "target": LIMIT,
        },
        dashed=["target"],
        width=8,
    ),
    lines(
        "How do they end?",
        "Admitted requests by what they showed. error: the handler failed. overload: it worked "
        "too late, or something behind it was full. cancelled: the client left. A rise of "
        "overload tells of a dependency, not of this service.",
        "reqps",
        Query(rate("finished_total", by="outcome"), "{{outcome}}"),
        colors={
            "success": ADMITTED,
            "error": FAILED,
            "overload": OVERLOADED,
            "cancelled": QUIET,
            "ignored": "light-blue",
        },
        stack=True,
        width=8,
    ),
    lines(
        "How much work is wasted?",
        "Share of the time that places were occupied by requests whose answer came after their "
        "client's timeout. Above 5 % let clients send their timeout and shorten queue.max_wait: "
        "what cannot be answered in time is then refused at once.",
        "percentunit",
        Query(
            share(
                rate("wasted_seconds_total"),
                rate("held_seconds_total"),
            ),
            "wasted",
        ),
        colors={"wasted": FAILED},
        red=(("red", t.WASTED),),
        width=8,
    ),
    Row("Where is it?"),
    lines(
        "Is one instance alone?",
        "Share of requests refused because full, by instance. One line above the others is one "
        "bad replica: take it out. All together: load or a dependency.",
        "percentunit",
        Query(
            share(
                rate("requests_total", ',decision="overloaded"', by="instance"),
                rate("requests_total", by="instance"),
            ),
            "{{instance}}",
        ),
        shades={"/.+/": OVERLOADED},
        red=(("red", t.SHED_HIGH),),
        width=8,
    ),
    lines(
        "Are the important ones served?",
        "Share of requests refused because full, by priority class. The lowest class must go "
        "first. If critical is refused while others are served, requests carry the wrong class.",
        "percentunit",
        Query(
            share(
                rate(
                    "class_requests_total",
                    ',decision="overloaded",priority=~"$priority"',
                    by="priority",
                ),
                rate("class_requests_total", ',priority=~"$priority"', by="priority"),
            ),
            "{{priority}}",
        ),
        colors=CLASSES,
        red=(("red", t.CRITICAL_SHED),),
        width=8,
    ),
    lines(
        "Is the event loop late?",
        "By how much the event loop is late now, the worst instance, how long it stood still each "
        "second, and how long each time. Latency rises with it though nothing behind the service "
        "is slow. Look for handlers that compute, block or log synchronously.",
        "s",
        Query(f"max(loadgate_event_loop_lag_seconds{{{SEL}}})", "late by"),
        Query(rate("event_loop_stalled_seconds_total", of="max"), "stalled each second"),
        Query(
            share(rate("event_loop_stalled_seconds_total"), rate("event_loop_stalls_total")),
            "a stall's length",
        ),
        colors={"late by": OVERLOADED, "stalled each second": FAILED, "a stall's length": QUIET},
        width=8,
    ),
    lines(
        "What happens at the door?",
        "Requests that the door in front of the HTTP server let pass or refused before HTTP began, "
        "and the instances whose door is closed. It only closes far above capacity, when even "
        "refusing costs too much; what it refuses is also counted as loop_lag. Only "
        "`loadgate serve` has one. Loops pacing: instances whose event loop is late, so that "
        "requests begin a few at a time.",
        "reqps",
        Query(rate("door_requests_total", by="decision"), "{{decision}}"),
        Query(f"sum(loadgate_door_closed{{{SEL}}})", "doors closed"),
        Query(f"sum(loadgate_event_loop_paced{{{SEL}}})", "loops pacing"),
        colors={
            "passed": ADMITTED,
            "answered": OVERLOADED,
            "dropped": FAILED,
            "doors closed": LIMIT,
            "loops pacing": QUIET,
        },
        width=8,
    ),
    lines(
        "What would be refused?",
        "Requests that ran although a stage in observe mode would have refused them, by reason. "
        "Before you set a rate or a limit to enforce, watch this for a week: it must be empty in "
        "ordinary times.",
        "reqps",
        Query(rate("would_refuse_total", by="reason"), "{{reason}}"),
        colors=REASONS,
        stack=True,
        right=True,
        width=8,
    ),
    lines(
        "Is anything switched off or away?",
        "Instances whose kill switch lets everyone through, and the requests it lets through each "
        "second: nothing is protected meanwhile, so switch it off when the reason is gone. And "
        "instances that decide about shared rates without their store, which is away: see the "
        "dashboard of the shared store.",
        "short",
        Query(f"sum(loadgate_bypassing{{{SEL}}})", "kill switch on"),
        Query(rate("bypassed_total"), "let through each second"),
        Query(f'sum(loadgate_store_state{{{SEL},state!="closed"}})', "store away"),
        colors={
            "kill switch on": FAILED,
            "let through each second": OVERLOADED,
            "store away": "dark-blue",
        },
        width=8,
    ),
    states(
        "Is the policy file in force?",
        "Red while the policy on disk could not be loaded: the old one stays in force, the "
        "log of the process says what is wrong, `loadgate check FILE` too. Orange while a "
        "process drains. Only `loadgate serve` tells of policy files.",
        Query(
            f"min by (instance) (loadgate_policy_last_reload_success{{{WHO}}})",
            "{{instance}} policy",
        ),
        Query(f"max by (instance) (1 + loadgate_draining{{{SEL}}})", "{{instance}} serving"),
        mappings={
            "0": ("reload failed", "red"),
            "1": ("good", "green"),
            "2": ("draining", "orange"),
        },
        width=8,
    ),
    rows(
        "What runs?",
        "Version and policy of each process. Two rows of one job that differ are a rollout that "
        "has not ended, or a process that missed a reload.",
        Query(
            f"loadgate_policy_info{{{SEL}}} * on (job, instance) group_left (version) "
            f"loadgate_build_info{{{WHO}}}",
            instant=True,
            format=PromQueryFormat.TABLE,
        ),
        width=16,
    ),
]
