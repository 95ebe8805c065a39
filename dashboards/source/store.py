"""Does the shared store work, and who decides while it does not?"""

from __future__ import annotations

from loadgate.dashboards.source import thresholds as t
from loadgate.dashboards.source.panels import (
    ADMITTED,
    FAILED,
    OVERLOADED,
    QUIET,
    SEL,
    WAITING,
    Placed,
    Query,
    Row,
    lines,
    number,
    plume,
    quantile,
    rate,
    share,
    states,
)

UID = "loadgate-store"
TITLE = "Loadgate / Shared store"
SAYS = "Does the shared store work, and who decides while it does not? Empty without one."

_STOOD_IN = ',by=~"emergency|open|closed"'

PANELS: list[Placed | Row] = [
    number(
        "Decided without the store",
        "Share of the decisions about shared rates that were made because the store did not "
        "answer: by an emergency rate of the process, by letting through (open), or by refusing "
        "(closed). Above 0 rates are per process, or not at all: find out why it is away.",
        "percentunit",
        Query(share(rate("store_decisions_total", _STOOD_IN), rate("store_decisions_total"))),
        red=(("green", None), ("red", t.STOOD_IN)),
        width=6,
    ),
    number(
        "p99 of asking",
        "99 of 100 requests waited no longer than this for the store. Every request that a "
        "shared rate counts waits so long: above 10 ms look at the store and the network.",
        "s",
        Query(quantile(0.99, "loadgate_store_wait_seconds")),
        red=(("green", None), ("red", t.STORE_SLOW)),
        width=6,
    ),
    number(
        "Refused because it is away (503)",
        "Requests each second refused because a rate that guards security (on_failure = "
        "closed) could not ask.",
        "reqps",
        Query(rate("requests_total", ',reason="store_unavailable"')),
        red=((OVERLOADED, None),),
        width=6,
    ),
    number(
        "Processes that share it",
        "Processes that use the store, as far as one of them knows. Emergency rates are divided "
        "by this number.",
        "short",
        Query(f"max(loadgate_store_nodes{{{SEL}}})"),
        width=6,
    ),
    lines(
        "Who decides?",
        "Decisions about shared rates. store: asked. lease: from a share that was fetched before. "
        "cache: refused before, and still. emergency, open, closed: the store did not answer.",
        "reqps",
        Query(rate("store_decisions_total", by="by"), "{{by}}"),
        colors={
            "store": ADMITTED,
            "lease": "light-green",
            "cache": WAITING,
            "emergency": OVERLOADED,
            "open": FAILED,
            "closed": "dark-red",
            "none": QUIET,
        },
        stack=True,
    ),
    states(
        "In which state is the circuit breaker?",
        "Green: it works. Orange: it is back and being probed. Red: it is away and not asked.",
        Query(
            f'max by (instance) (2 * loadgate_store_state{{{SEL},state="open"}}) '
            f'+ max by (instance) (loadgate_store_state{{{SEL},state="half-open"}})',
            "{{instance}}",
        ),
        mappings={"0": ("works", "green"), "1": ("being probed", "orange"), "2": ("away", "red")},
    ),
    lines(
        "How long do requests wait for it?",
        "Only requests that the store decided. A p99 far from the median is a store that is "
        "busy with something else, or a network that loses packets.",
        "s",
        Query(quantile(0.5, "loadgate_store_wait_seconds"), "p50"),
        Query(quantile(0.99, "loadgate_store_wait_seconds"), "p99"),
        Query(f"max(loadgate_store_oldest_call_seconds{{{SEL}}})", "oldest call"),
        colors={"p50": "light-green", "p99": "dark-green", "oldest call": OVERLOADED},
        red=(("red", t.STORE_SLOW),),
        width=8,
    ),
    plume(
        "Where do these waits lie?",
        "Each column is an interval, each row a stretch of waiting time, colour the number of "
        "requests.",
        "s",
        "loadgate_store_wait_seconds",
        width=8,
    ),
    lines(
        "Why is there no answer?",
        "Questions without an answer, each second. timeout: the store is slow. lost: the "
        "connection broke. failed: it said no (look at the log). open: it was not asked, because "
        "the breaker is open. saturated: more questions than it answers.",
        "cps",
        Query(rate("store_troubles_total", by="why"), "{{why}}"),
        colors={
            "timeout": OVERLOADED,
            "lost": FAILED,
            "failed": "dark-red",
            "open": QUIET,
            "saturated": "yellow",
        },
        stack=True,
        width=8,
    ),
    Row("The link"),
    lines(
        "Is it connected?",
        "Instances without a connection, new connections, and how often the store went away. "
        "Connections that are made all the time: something between closes them.",
        "short",
        Query(f"sum(1 - loadgate_store_connected{{{SEL}}})", "instances without"),
        Query(rate("store_connections_total"), "connections each second"),
        Query(rate("store_incidents_total"), "incidents each second"),
        Query(rate("store_away_seconds_total"), "instances away (mean)"),
        colors={
            "instances without": FAILED,
            "connections each second": WAITING,
            "incidents each second": OVERLOADED,
            "instances away (mean)": "dark-red",
        },
        width=8,
    ),
    lines(
        "How many questions share a call?",
        "Questions over calls: under load many travel together, which is what makes the store "
        "cheap. 1 is a service at rest.",
        "none",
        Query(
            share(rate("store_questions_total"), rate("store_calls_total")), "questions in a call"
        ),
        Query(f"sum(loadgate_store_waiting{{{SEL}}})", "waiting at the scrape"),
        colors={"questions in a call": ADMITTED, "waiting at the scrape": WAITING},
        width=8,
    ),
    lines(
        "What came too late or was lost?",
        "stale: the store saw the question too late and did nothing. late: nobody waited for the "
        "answer any more. forgotten: charges that should have been given back and could not. "
        "given back: charges of requests that were refused later, which is as it should be. "
        "our own stalls: the event loop was late, so the store was not blamed.",
        "cps",
        Query(rate("store_stale_total"), "stale"),
        Query(rate("store_late_total"), "late"),
        Query(rate("store_forgotten_total"), "forgotten"),
        Query(rate("store_given_back_total"), "given back"),
        Query(rate("store_loop_stalls_total"), "our own stalls"),
        colors={
            "stale": OVERLOADED,
            "late": "yellow",
            "forgotten": FAILED,
            "given back": ADMITTED,
            "our own stalls": QUIET,
        },
        width=8,
    ),
]
