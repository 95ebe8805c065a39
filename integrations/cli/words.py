"""What does a policy mean, in words? What clients may do, what they see, what is switched off."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from loadgate.policy import Concurrency, Policy, Queue, Rate, Signals
from loadgate.shared import Store

# What the socket, or the proxies that are trusted, tell of a client: key name to the lengths of
# the IPv4 and IPv6 prefixes that count as one. /24 and /48 are what one organisation is given.
KEYS = {"client": (32, 64), "address": (32, 64), "network": (24, 48)}

_PER = {1.0: "second", 60.0: "minute", 3600.0: "hour", 86400.0: "day"}

_ALGORITHMS = {
    "adaptive": "finds its own value from latency and throughput",
    "fixed": "never moves",
    "aimd": "rises by one while all is well and falls by a share after an overload",
}

_WINDOWS = {
    "fixed-window": "windows that start on the clock: around a boundary up to twice as many pass",
    "sliding-window-counter": "a sliding window, estimated from two counters",
    "sliding-window-log": "an exact sliding window, which remembers every request",
}


_MODES = {
    "strict": "the store is asked for each request",
    "local": "each process decides in memory against shares that it leases from the store",
}

_FAILURES = {
    "emergency": "each process grants its part of the rate",
    "open": "everybody passes",
    "closed": "requests are refused (503)",
}


def describe(policy: Policy) -> str:
    """Say what `policy` does, as plain text of several paragraphs."""
    return "\n".join(_paragraphs(policy)) + "\n"


def untold(policy: Policy) -> list[str]:
    """Keys that a rate asks for and no built-in identify tells, in order."""
    return sorted(_counted(policy) - set(KEYS))


def told(policy: Policy) -> dict[str, tuple[int, int]] | None:
    """The keys that the built-in identify tells under `policy`; None for the client alone.

    One key needs no mapping, which is cheaper for each request.
    """
    return None if _counted(policy) <= {"client"} else KEYS


def _counted(policy: Policy) -> set[str]:
    """Keys that a rate asks for."""
    return {key for rate in policy.rates for key in (rate.key, *rate.match)}


HOLDS_ALL: Final = (
    "One client may hold every place, as one that uploads slowly does: set "
    "concurrency.max_share (0.25, say) if clients are told apart."
)


def warnings(policy: Policy) -> list[str]:
    """What disables protection, or nearly so; each a sentence."""
    found: list[str] = []
    enforced = [rate for rate in policy.rates if rate.mode == "enforce"]
    if not policy.rates:
        found.append("There are no rates: one greedy client can take the whole service.")
    elif not enforced:
        found.append("No rate is enforced: one greedy client can take the whole service.")
    for rate in policy.rates:
        if rate.mode == "observe":
            found.append(
                f"Rate {rate.name!r} only observes: it decides and counts, refuses nobody."
            )
        elif rate.mode == "off":
            found.append(f"Rate {rate.name!r} is off.")
        elif rate.on_missing == "skip":
            found.append(
                f"Rate {rate.name!r} does not apply to requests without the key {rate.key!r}: "
                "leaving it out is a free pass."
            )
    if one_may_hold_all(policy):
        found.append(HOLDS_ALL)
    if policy.concurrency.mode == "observe":
        found.append(
            "The limit only observes: it learns and counts, but everyone runs at once and "
            "nobody is refused when the service is full."
        )
    elif policy.concurrency.mode == "off":
        found.append("The limit is off: nobody is refused when the service is full.")
    if not policy.enabled:
        found.append("enabled = false: everyone is admitted, rates and limit hold for nobody.")
    if policy.queue.mode == "observe":
        found.append(
            "The queue only observes: whoever finds no place waits, however many wait already."
        )
    if policy.queue.max_refused is not None:
        found.append(
            f"At most {100.0 * policy.queue.max_refused:.10g}% of the arrivals are refused "
            "(queue.max_refused): beyond that everyone is let through, which disables protection "
            "when it is needed most."
        )
    if policy.signals.mode != "enforce":
        found.append(
            f"The signals are in mode {policy.signals.mode!r}: a late event loop or full memory "
            "refuses nobody."
        )
    if policy.signals.max_lag is None:
        found.append(
            "The event loop is not watched: handlers that burn CPU can make every answer late "
            "without a single refusal."
        )
    return found


def one_may_hold_all(policy: Policy) -> bool:
    """Whether clients are compared, but only once somebody waits: who holds a place keeps it."""
    concurrency = policy.concurrency
    compared = concurrency.mode == "enforce" and bool(policy.queue.fair_by)
    return compared and concurrency.max_share is None


def _paragraphs(policy: Policy) -> Iterator[str]:
    yield "Rates: what each client may ask for (429 above it)"
    if policy.rates:
        for rate in policy.rates:
            yield from _indented(_rate(rate))
        if len(policy.rates) > 1:
            yield from _indented(["All of them must agree: a refused request is charged by none."])
    else:
        yield from _indented(["none"])
    yield ""
    if policy.store is not None:
        yield "Store: where shared rates are counted"
        yield from _indented(_store(policy.store, policy.rates))
        yield ""
    yield "Limit: how many requests run at once"
    yield from _indented(_limit(policy.concurrency))
    yield ""
    yield "Queue: what happens above the limit (503 in the end)"
    yield from _indented(_queue(policy.queue, policy.concurrency, policy.priorities))
    yield ""
    yield "Event loop"
    yield from _indented(_signals(policy.signals))
    yield ""
    yield "What a client sees"
    yield from _indented(_answers(policy))
    yield ""
    found = warnings(policy)
    yield "Not protected" if found else "Everything is enforced."
    yield from (f"  ! {warning}" for warning in found)


def _indented(lines: Sequence[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _rate(rate: Rate) -> list[str]:
    whose = "the client" if rate.key == "client" else f"its {rate.key!r}"
    lines = [f"{rate.name}: {rate.limit:.15g} per {_period(rate.per)}, counted by {whose}"]
    if rate.algorithm in _WINDOWS:
        lines.append(f"  {rate.algorithm}: {_WINDOWS[rate.algorithm]}.")
    else:
        lines.append(
            f"  {rate.algorithm}: up to {rate.burst:.15g} at once after a pause, then one every "
            f"{seconds(rate.per / rate.limit)}."
        )
    if rate.match:
        lines.append(f"  Only for clients with {_matches(rate)}.")
    if rate.exempt:
        lines.append(f"  Not for {_named(rate.exempt)}.")
    if rate.on_outcome:
        lines.append(f"  Charged when the request has ended as: {rate.charge}.")
    lines.append(
        {
            "shared": f"  Requests without a {rate.key!r} share one count.",
            "skip": f"  Requests without a {rate.key!r} are not counted.",
            "refuse": f"  Requests without a {rate.key!r} are refused.",
        }[rate.on_missing]
    )
    if rate.shared:
        lines.append("  Counted in the shared store, for all processes together.")
    if rate.mode != "enforce":
        lines.append(f"  Mode {rate.mode}: refuses nobody.")
    return lines


def _store(store: Store, rates: Sequence[Rate]) -> list[str]:
    if store.secret.startswith("env:"):
        secret = f"in the variable {store.secret.removeprefix('env:')}"
    else:
        secret = "in the file"
    lines = [
        f"url: {without_password(store.url)}; its secret stands {secret}.",
        f"mode {store.mode}: {_MODES[store.mode]}.",
        f"budget: a decision takes at most {seconds(store.budget)}.",
    ]
    shared = [rate.name for rate in rates if rate.shared]
    if not shared:
        return [*lines, "No rate is shared: nothing is counted there."]
    usual = store.on_failure or "emergency"
    if store.mode == "local" and store.overdraft:
        lines.append(f"overdraft: {store.overdraft:.15g} beyond what a process has leased.")
    lines.append(f"on_failure {usual}: while it does not answer, {_FAILURES[usual]}.")
    lines += [
        f"  For rate {name!r} {choice}: {_FAILURES[choice]}."
        for name, choice in store.overrides.items()
    ]
    return lines


def without_password(url: str) -> str:
    """`url` as it may be shown: without user, password and options."""
    if url.startswith("env:"):
        return url
    scheme, slashes, rest = url.partition("://")
    options = re.search(r"[?#]", rest)
    before, at, after = rest.rpartition("@")
    # Where an @ stands behind a ? nobody can tell a password from options.
    if not slashes or (at and options and options.start() < len(before)):
        return f"{scheme}://…" if slashes else "…"
    where = re.split(r"[?#]", after)[0]
    return f"{scheme}://{'…@' if at else ''}{where}"


def unset(store: Store, environment: Mapping[str, str]) -> list[str]:
    """Variables that `store` names and `environment` does not have, in order."""
    named = [text.removeprefix("env:") for text in (store.url, store.secret) if text[:4] == "env:"]
    return [name for name in dict.fromkeys(named) if not environment.get(name)]


def _limit(concurrency: Concurrency) -> list[str]:
    if concurrency.mode == "off":
        return ["off: every request runs at once"]
    how = _ALGORITHMS.get(concurrency.algorithm, "moves as published")
    # The limit itself knows best where it starts: defaults depend on the bounds.
    start = concurrency.create().limit
    if concurrency.algorithm == "fixed":
        lines = [f"fixed: {start}; it {how}."]
    else:
        lines = [
            f"{concurrency.algorithm}: starts at {start}, stays within {concurrency.min} and "
            f"{concurrency.max}; it {how}."
        ]
    if concurrency.latency_target is not None:
        lines.append(f"It also aims at a latency of {seconds(concurrency.latency_target)}.")
    if concurrency.options:
        options = ", ".join(f"{name} = {value!r}" for name, value in concurrency.options.items())
        lines.append(f"Options: {options}.")
    if concurrency.mode == "observe":
        lines.append("Mode observe: it learns and counts what it would refuse, refuses nobody.")
    return lines


def _queue(queue: Queue, concurrency: Concurrency, priorities: Sequence[str]) -> list[str]:
    if concurrency.mode != "enforce":
        return ["nobody waits: the limit is not enforced"]
    if queue.max_wait <= 0.0 or queue.max_queue == 0.0:
        return ["nobody waits: a request that finds no free place is refused at once"]
    lines = [f"A request waits at most {seconds(queue.max_wait)} for a place, then it is refused."]
    if queue.max_queue is None:
        lines.append(
            f"How many may wait follows the throughput: as many as leave in half of "
            f"{seconds(queue.max_wait)}."
        )
    else:
        lines.append(f"Up to {queue.max_queue:.15g} waiters everyone may wait.")
    many = "that" if queue.max_queue is None else f"{queue.max_queue:.15g}"
    most = f"twice {many}" if queue.max_depth is None else f"{queue.max_depth:.15g}"
    lines.append(
        f"Above {many} a growing share of arrivals is refused at once, at {most} all of them."
    )
    if queue.discipline == "fifo":
        lines.append("First come, first served.")
    else:
        lines.append("First come, first served; newest first once the queue has stood for 100 ms.")
    if len(priorities) > 1:
        lines.append(
            f"Priorities: {', '.join(priorities)}; the first is served first, the last is "
            "refused first."
        )
    lines.append("A request whose own timeout cannot be met is refused at once.")
    return lines


def _signals(signals: Signals) -> list[str]:
    if signals.max_lag is None:
        return ["not watched"]
    return [f"Arrivals are refused (503) while it is more than {seconds(signals.max_lag)} late."]


def _answers(policy: Policy) -> list[str]:
    lines: list[str] = []
    if any(rate.mode == "enforce" for rate in policy.rates):
        lines.append(
            "429 when its own rate is used up: Retry-After is the exact time at which the same "
            "request passes."
        )
    lines.append(
        "503 when the service is full: Retry-After is an estimate, and the request was "
        "charged to no rate."
    )
    lines.append("Both say why, as application/problem+json.")
    return lines


def _matches(rate: Rate) -> str:
    return " and ".join(
        f"{key} {_named([values] if isinstance(values, str) else values, 'or')}"
        for key, values in rate.match.items()
    )


def _named(values: Sequence[str], last: str = "and") -> str:
    """A few of `values`, and how many there are beyond."""
    shown = [repr(value) for value in values[:3]]
    if len(values) > 3:
        return f"{', '.join(shown)} {last} {len(values) - 3} more"
    return f" {last} ".join(shown)


def _period(per: float) -> str:
    return _PER.get(per, seconds(per))


def seconds(value: float) -> str:
    """`value` seconds as people say it."""
    if value < 1e-3:
        return f"{value * 1e6:.3g} µs"
    if value < 1.0:
        return f"{value * 1e3:.3g} ms"
    return f"{value:g} s"
