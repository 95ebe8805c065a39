"""Is everybody treated alike? Rates, priorities, and who is refused most."""

from __future__ import annotations

from loadgate.dashboards.source import thresholds as t
from loadgate.dashboards.source.panels import (
    ADMITTED,
    CLASSES,
    FAILED,
    OVERLOADED,
    QUIET,
    RATE_LIMITED,
    SEL,
    WAITING,
    Placed,
    Query,
    Row,
    bars,
    lines,
    number,
    rate,
    share,
)

UID = "loadgate-fairness"
TITLE = "Loadgate / Fairness"
SAYS = "Is everybody treated alike? Rates, priorities, and who is refused most."


def _by_rate(metric: str, more: str = "", by: str = "rate") -> str:
    return rate(f"rate_{metric}_total", more, by=by)


def _by_class(more: str = "") -> str:
    return rate("class_requests_total", f',priority=~"$priority"{more}', by="priority")


PANELS: list[Placed | Row] = [
    number(
        "Refusals that hit one client",
        "Share of the refusals of the last 5 to 10 minutes that hit the client refused most. "
        "Above 0.6 one client is the problem: its refusals protect the others, so talk to it (and "
        "look whether it heeds Retry-After) rather than raise a limit. Near 0 everybody is "
        "hit: that is overload or a rate that is too low.",
        "percentunit",
        Query(f"max(loadgate_top_refused_share_ratio{{{SEL}}})"),
        red=(("green", None), ("red", t.DOMINATES)),
        width=6,
    ),
    number(
        "Clients refused lately",
        "Clients that were refused in the last 5 to 10 minutes (above 256 only the frequent are "
        "told apart). Thousands at once that never came before: an attack from many addresses; "
        'count networks beside addresses (a rate with key = "network").',
        "short",
        Query(f"sum(loadgate_refused_clients{{{SEL}}})"),
        width=6,
    ),
    number(
        "Refused: rate (429)",
        "Share of all requests that a rate refused.",
        "percentunit",
        Query(
            share(
                rate("requests_total", ',decision="rate_limited"'),
                rate("requests_total"),
            )
        ),
        red=((RATE_LIMITED, None),),
        width=6,
    ),
    number(
        "Refused for others' sake",
        "Requests each second that made room for a higher priority or for a client below its "
        "fair share. It happens only while the service is full; in ordinary times it is 0.",
        "reqps",
        Query(rate("requests_total", ',reason=~"priority|fair_share"')),
        red=((OVERLOADED, None),),
        width=6,
    ),
    lines(
        "Which rate refuses?",
        "What each rate decided. would_refuse is a rate in observe mode. A rate that never "
        "refuses protects from nothing; one that refuses all day is too low, or somebody's loop "
        "is broken.",
        "reqps",
        Query(
            _by_rate("decisions", ',decision!="allowed"', "rate, decision"),
            "{{rate}}: {{decision}}",
        ),
        shades={"/: refused$/": RATE_LIMITED, "/: would_refuse$/": QUIET},
        stack=True,
    ),
    lines(
        "What share does each rate refuse?",
        "Refused over all decisions of the rate.",
        "percentunit",
        Query(
            share(_by_rate("decisions", ',decision="refused"'), _by_rate("decisions")), "{{rate}}"
        ),
        shades={"/.+/": RATE_LIMITED},
        high=1.0,
    ),
    Row("Priorities"),
    lines(
        "What does each class ask for?",
        "Requests by priority class. A class that grows at the cost of another is a client that "
        "has learned to call itself important: derive classes from who asks, not from what they "
        "send.",
        "reqps",
        Query(_by_class(), "{{priority}}"),
        colors=CLASSES,
        stack=True,
    ),
    lines(
        "What share of each class is refused because full?",
        "The lowest class must be refused first and the highest hardly ever. If lines lie on top "
        "of each other, classes do not reach the controller.",
        "percentunit",
        Query(share(_by_class(',decision="overloaded"'), _by_class()), "{{priority}}"),
        colors=CLASSES,
        red=(("red", t.CRITICAL_SHED),),
    ),
    lines(
        "Who makes room?",
        "Waiters each second that had to go for an arrival, and requests that were let through "
        "because enough had been refused (queue.max_refused).",
        "cps",
        Query(rate("evicted_total"), "had to go"),
        Query(rate("spared_total"), "spared"),
        colors={"had to go": OVERLOADED, "spared": ADMITTED},
    ),
    lines(
        "Is there anything to share out?",
        "Contended instances, and the place-seconds that a typical client used lately. While "
        "nobody waits everybody has all they ask for, and both are 0.",
        "short",
        Query(f"sum(loadgate_contended{{{SEL}}})", "contended instances"),
        Query(f"avg(loadgate_fair_level_seconds{{{SEL}}})", "a typical client's place-seconds"),
        colors={"contended instances": OVERLOADED, "a typical client's place-seconds": WAITING},
    ),
    Row("Clients"),
    bars(
        "Who is refused most?",
        "Refusals of the last 5 to 10 minutes by client, as keyed hashes (the log has the same "
        "ones), as far as they are known: a sample in bounded memory. Only where it was asked for "
        "(loadgate serve --top-clients 10, Witness(top=10)); without it this is empty.",
        "short",
        Query(
            f"topk($topk, sum by (client) (loadgate_top_refused{{{SEL}}}))",
            "{{client}}",
            instant=True,
        ),
        color=RATE_LIMITED,
    ),
    lines(
        "How many keys are remembered?",
        "Keys that each rate remembers, the table of buckets. It grows with the clients of the "
        "last while, not for ever; at its bound keys are evicted.",
        "short",
        Query(f"sum by (rate) (loadgate_rate_keys{{{SEL}}})", "{{rate}}"),
        width=6,
    ),
    lines(
        "How much memory do they take?",
        "Bytes of the keys and their state.",
        "bytes",
        Query(f"sum by (rate) (loadgate_rate_size_bytes{{{SEL}}})", "{{rate}}"),
        width=6,
    ),
    lines(
        "Is the table full?",
        "Decisions each second about unknown keys that had to share a bucket because the table "
        "was full. Above 0 an innocent newcomer may be refused for others: raise the rate's "
        "max_keys, or find who brings so many keys.",
        "cps",
        Query(_by_rate("overflowed"), "{{rate}} overflowed"),
        Query(_by_rate("keys_dropped", "", "rate, why"), "{{rate}} {{why}}"),
        colors={"/overflowed/": FAILED, "/idle/": ADMITTED, "/evicted/": OVERLOADED},
        width=12,
    ),
    lines(
        "Who carries no key?",
        "Requests each second without the key that the rate counts; they share one bucket, or "
        "what on_missing says. If this is not 0, identify finds nobody: check the proxies that "
        "are trusted, and the header that carries the key.",
        "reqps",
        Query(_by_rate("missing"), "{{rate}}"),
        colors={"/.*/": OVERLOADED},
    ),
]
