"""What must hold when more arrives than can be done? One function for each claim.

Every case runs production rules in virtual time, on scenarios of `bench/scenarios/overload`,
and answers rows of figures with the bounds that they must keep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgate.decisions import Reason
from loadgate.simulation import scenario as scenarios
from loadgate.simulation.run import REASONS, Record, policy_for, requests, simulate
from loadgate.simulation.scenario import Scenario
from loadgate.simulation.workload import Workload

FOLDER: Final = Path(__file__).parent / "scenarios" / "overload"

# The best fixed limit of the base service of the scenarios (8 cores, 30 ms of waiting), which
# the queue and its rules are judged with.
KNEE: Final = {"concurrency": {"algorithm": "fixed", "initial": 24}}

# Seconds at the beginning that no figure counts: the queue and a limit find their places.
_SETTLING: Final = 5.0


class Row(msgspec.Struct, frozen=True):
    """One figure.

    Attributes:
        case: Which claim it belongs to.
        what: What it is.
        value: The figure.
        low: It must be at least this.
        high: It must be at most this.
    """

    case: str
    what: str
    value: float
    low: float = float("-inf")
    high: float = float("inf")

    @property
    def holds(self) -> bool:
        """Whether it is within its bounds."""
        return self.low <= self.value <= self.high


def load(name: str, changes: Mapping[str, Any] | None = None) -> Scenario:
    """The scenario of this file name, with some keys replaced."""
    return scenarios.with_keys(scenarios.read(FOLDER / f"{name}.toml"), changes or {})


def play(
    scenario: Scenario,
    seed: int,
    settings: Mapping[str, Any] | None = None,
    workload: Workload | None = None,
) -> Record:
    """Run a scenario behind the default policy with some settings."""
    return simulate(scenario, policy_for(scenario, settings), seed, workload=workload)


# -- B13 ---------------------------------------------------------------------------------------

_OUTAGE: Final = {"phases[1].load": 0.8, "phases[1].change": {"cpu": {"speed": 0.05}}}
_CLIENTS: Final[dict[str, dict[str, Any]]] = {
    "jitter": {},
    "unheard": {"clients[0].cancels": False},
    "at once": {"clients[0].jitter": False, "clients[0].backoff": 0.0},
    "budget": {"clients[0].budget": 0.1},
}


def retry_storm(seed: int, lengths: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0)) -> Iterator[Row]:
    """No length of the trigger leaves the system collapsed; without a limit, ten seconds do."""
    for trigger, changes in (("burst", {}), ("outage", _OUTAGE)):
        for kind, behaviour in _CLIENTS.items():
            worst, slowest = 1.0, 0.0
            for seconds in lengths:
                keys = {"phases[1].seconds": seconds, **changes, **behaviour}
                record = play(load("b13-retry-storm", keys), seed)
                worst = min(worst, _after(record, 20.0))
                slowest = max(slowest, _time_to_recover(record))
            name = f"{trigger} of 1 to 30 s, clients: {kind}"
            yield Row("B13", f"{name}: good after 20 s, at least", worst, low=0.95)
            yield Row("B13", f"{name}: seconds to recover, at most", slowest, high=15.0)
    off = {"concurrency": {"mode": "off"}}
    record = play(load("b13-retry-storm", _CLIENTS["unheard"]), seed, off)
    yield Row("B13", "the same without a limit, burst of 10 s", _after(record, 20.0), high=0.5)


def _end(record: Record) -> float:
    return sum(phase.seconds for phase in record.scenario.phases[:2])


def _after(record: Record, seconds: float) -> float:
    """Share of the arrivals answered in time from `seconds` after the trigger on."""
    return float(record.good[record.times > _end(record) + seconds].mean())


def _time_to_recover(record: Record) -> float:
    """Seconds after the trigger until 95 % are answered in time for five seconds."""
    end = _end(record)
    after = record.times - end
    second = np.floor(after[after >= 0]).astype(np.int64)
    good = np.bincount(second, weights=record.good[after >= 0]) / np.bincount(second)
    for start in range(len(good) - 5):
        if good[start : start + 5].min() >= 0.95:
            return float(start)
    return float("inf")


# -- B14 ---------------------------------------------------------------------------------------


def greedy_tenant(seed: int) -> Iterator[Row]:
    """One tenant asks for 200 times its share; the others get what they would get without it."""
    together = load("b14-greedy-tenant")
    alone = load("b14-greedy-tenant", {"clients[1].share": 1e-6, "phases[0].rate": 300.0})
    for name, settings in (("fixed", KNEE), ("adaptive", {})):
        for discipline in ("default", "fair"):
            queue = {"queue": {"discipline": discipline}}
            before = _tenants(play(alone, seed, {**settings, **queue}), alone, seed)
            record = play(together, seed, {**settings, **queue})
            per_tenant = _tenants(record, together, seed)
            case = f"{name}, {discipline}"
            low = 0.98 if name == "fixed" else 0.96  # the limit's own error is in it
            share = float(per_tenant.mean() / before.mean())
            yield Row("B14", f"{case}: tenants' goodput beside that without it", share, low=low)
            yield Row("B14", f"{case}: Jain's index among them", _jain(per_tenant), low=0.98)
            late = record.times > _SETTLING
            rate = record.good[late & (record.client == 1)].sum() / (60.0 - _SETTLING)
            # Max-min: the capacity of 400/s less what the others ask for, 300/s.
            yield Row("B14", f"{case}: what the greedy one gets, 1/s", float(rate), high=100.0)
    unfair = {**KNEE, "queue": {"fair_by": ""}}
    without = _tenants(play(together, seed, unfair), together, seed)
    yield Row("B14", "tenants' goodput when clients are not compared", float(without.mean()))
    work = requests(together, seed)
    named = [key or "" for key in work.keys or ()]
    shared = replace(work, keys=[_address(key) for key in named])
    record = play(together, seed, KNEE, shared)
    by_key = np.asarray(named)
    behind = np.isin(by_key, [f"tenants-{n}" for n in range(20)])
    late = record.times > _SETTLING
    for what, chosen in (("behind its address", behind), ("elsewhere", ~behind)):
        good = record.good[late & (record.client == 0) & chosen].mean()
        yield Row("B14", f"by address only: goodput of tenants {what}", float(good))


def _address(key: str) -> str:
    """The greedy tenant and twenty good ones share one address."""
    number = int(key.removeprefix("tenants-")) if key != "greedy" else 0
    return "shared" if number < 20 else key


def _tenants(record: Record, scenario: Scenario, seed: int) -> NDArray[np.float64]:
    """The answered share of each good tenant, shape (tenants,)."""
    keys = np.asarray(requests(scenario, seed).keys)
    chosen = (record.client == 0) & (record.times > _SETTLING)
    _, index = np.unique(keys[chosen], return_inverse=True)
    good = np.bincount(index, weights=record.good[chosen]) / np.bincount(index)
    return np.asarray(good, dtype=np.float64)


def _jain(shares: NDArray[np.float64]) -> float:
    return float(shares.sum() ** 2 / (len(shares) * (shares**2).sum()))


# -- B15 ---------------------------------------------------------------------------------------

_GRID: Final = (16, 20, 24, 28, 32)


def priorities(seed: int) -> Iterator[Row]:
    """Three classes at twice the capacity, each request with a timeout of its own."""
    scenario = load("b15-priorities")
    work = requests(scenario, seed)
    best = max((_fixed(scenario, seed, work, limit) for limit in _GRID), key=lambda r: r.sum())
    record = play(scenario, seed, workload=work)
    mine = _by_class(record, work)
    for index, client in enumerate(record.clients):
        share = float(mine[index] / best[index])
        yield Row("B15", f"{client.name}: goodput beside the best fixed limit's", share, low=0.95)
    timeouts = [REASONS.index(reason) for reason in (Reason.DEADLINE, Reason.WAIT_TIMEOUT)]
    yield Row("B15", "priority inversions", float(_inversions(record, timeouts)), high=0.0)
    late = record.latency > np.asarray(work.deadlines)
    yield Row("B15", "answered too late, share of those answered", float(late.mean()), high=0.1)


def _fixed(scenario: Scenario, seed: int, work: Workload, limit: int) -> NDArray[np.float64]:
    settings = {"concurrency": {"algorithm": "fixed", "initial": limit}}
    return _by_class(play(scenario, seed, settings, work), work)


def _by_class(record: Record, work: Workload) -> NDArray[np.float64]:
    """Answers within their timeout, by class, shape (classes,)."""
    good = record.latency <= np.asarray(work.deadlines)
    chosen = good & (record.times > _SETTLING)
    return np.bincount(record.client[chosen], minlength=len(record.clients)).astype(np.float64)


def _inversions(record: Record, timeouts: list[int]) -> int:
    """Requests refused, not for their time, while one of a lower class waited that got a place."""
    count = 0
    for level in range(len(record.clients) - 1):
        refused = (record.client == level) & record.refused & ~np.isin(record.reason, timeouts)
        lower = (record.client > level) & (record.wait > 0.0)
        begun = record.times[lower]
        ended = np.sort(begun + record.wait[lower])
        at = record.times[refused]  # nobody is evicted by a lower class: it was on arrival
        waiting = np.searchsorted(begun, at) - np.searchsorted(ended, at)
        count += int((waiting > 0).sum())
    return count


# -- B16 ---------------------------------------------------------------------------------------


# More places than run at once: 14 polls a second for ten seconds, and some twenty requests.
_ENOUGH: Final = {"concurrency": {"algorithm": "fixed", "initial": 200}}


def long_polls(seed: int) -> Iterator[Row]:
    """Long-lived requests do not make others be refused."""
    scenario = load("b16-long-polls")
    work = requests(scenario, seed)
    polls = [index == 1 for index in work.client]
    io, cpu = work.sizes
    work = replace(
        work,
        sizes=[
            [10.0 if poll else size for poll, size in zip(polls, io, strict=True)],
            [0.001 if poll else size for poll, size in zip(polls, cpu, strict=True)],
        ],
    )
    late = work.times > 30.0  # three lives of a poll
    for limit, settings in (("fixed 200", _ENOUGH), ("adaptive", {})):
        record = play(scenario, seed, settings, work)
        for index, name in enumerate(("requests", "polls")):
            chosen = late & (record.client == index)
            refused, good = record.refused[chosen].mean(), record.good[chosen].mean()
            yield Row("B16", f"{limit}, {name}: refused", float(refused), high=0.001)
            yield Row("B16", f"{limit}, {name}: in time", float(good), low=0.97)


# -- the table of priorities ---------------------------------------------------------------------

# The exact shares of five equal classes, the lowest first: whole classes from the top until the
# capacity is used up. (In a model of failsafe-go's prioritizer, thresholds worked out every
# second reach 0.5 for each class at 20 ms and 2 x, and throwing out the lowest waiter 0, 0, 0.5,
# 1, 1 with a median wait of 37 ms; 0.24, 0.92, 1, 1, 1 at 1.2 x.)
_TABLE: Final = {
    ("20 ms", 2.0): (0.0, 0.0, 0.5, 1.0, 1.0),
    ("20 ms", 1.2): (1.0 / 6.0, 1.0, 1.0, 1.0, 1.0),
    ("2 s", 2.0): (0.0, 0.0, 0.5, 1.0, 1.0),
    ("2 s", 1.2): (1.0 / 6.0, 1.0, 1.0, 1.0, 1.0),
}
_LENGTH: Final = {"20 ms": (0.02, 40.0), "2 s": (2.0, 4000.0)}
_LIMIT: Final = 50
_WAIT: Final = 0.037


def priority_table(seed: int) -> Iterator[Row]:
    """Priorities are exact for handlers much shorter than any period of calibration."""
    for (length, overload), expected in _TABLE.items():
        mean, seconds = _LENGTH[length]
        record = five_classes(mean, overload, seconds, seed)
        late = record.times > 0.1 * seconds
        case = f"{length}, {overload:g} x"
        for index, share in enumerate(expected):
            chosen = late & (record.client == 4 - index)
            admitted = 1.0 - float(record.refused[chosen].mean())
            what = f"{case}: admitted of class {index + 1} of 5, the lowest first"
            yield Row("priorities", what, admitted, low=share - 0.03, high=share + 0.03)
        if overload == 2.0 and length == "20 ms":
            wait = float(np.nanmedian(record.wait[late]))
            yield Row("priorities", f"{case}: median wait, s", wait, high=_WAIT)


def five_classes(mean: float, overload: float, seconds: float, seed: int) -> Record:
    """Five equal classes at a limit of 50, everyone waits who may (2 to 3 times the limit)."""
    scenario = scenarios.from_mapping(
        {
            "title": "five classes",
            "slo": 1e6,
            "stages": [{"kind": "delay", "time": {"law": "exponential", "mean": mean}}],
            "clients": [{"name": f"class {n}", "priority": f"p{n}"} for n in range(5)],
            "phases": [{"seconds": seconds, "rate": overload * _LIMIT / mean}],
            "policy": {
                "priorities": [f"p{n}" for n in range(5)],
                "concurrency": {"algorithm": "fixed", "initial": _LIMIT},
                "queue": {
                    "max_queue": 2 * _LIMIT,
                    "max_depth": 3 * _LIMIT,
                    "max_wait": 3600.0,
                    "discipline": "fifo",
                },
            },
        }
    )
    return play(scenario, seed)


# -- how long the queue makes wait ---------------------------------------------------------------

_LOADS: Final = (0.5, 0.8, 1.0, 1.2, 2.0, 5.0, 10.0)
# By time, as it is unless asked otherwise, and by numbers alone (a thirtieth, a third, one and a
# half times and six times of what the service does in a second, wait as they may).
_QUEUES: Final[dict[str, dict[str, Any]]] = {
    "default": {},
    "budget": {"rule": "budget"},
    "ramp": {"rule": "ramp"},
    **{
        f"{rule} {most}": {
            "rule": rule, "discipline": "fifo", "max_wait": 3600.0,
            "max_queue": most, "max_depth": 2 * most,
        }
        for rule in ("survival", "ramp")
        for most in (8, 24, 100, 400)
    },
}  # fmt: skip


def queue_waits(seed: int) -> Iterator[Row]:
    """Seconds in the queue of those who got a place, by load; the limit is right and fixed."""
    for name, queue in _QUEUES.items():
        for load in _LOADS:
            record = play(steady(load), seed, {**KNEE, "queue": queue})
            wait = record.wait[record.times > _SETTLING]
            middle, longest = np.nanpercentile(wait, (50, 99))
            # One who waited out its time is refused, so nobody waits longer.
            high = 0.1 if "max_wait" not in queue else float("inf")
            yield Row("queue", f"{name}, load {load:g}: median wait, s", float(middle), high=high)
            yield Row("queue", f"{name}, load {load:g}: wait p99, s", float(longest), high=high)


def steady(load: float) -> Scenario:
    """The base service for half a minute at this load."""
    return scenarios.from_mapping(
        {
            "title": "steady load",
            "slo": 0.25,
            "stages": [
                {"kind": "delay", "time": {"law": "exponential", "mean": 0.03}},
                {"kind": "cores", "count": 8, "time": {"law": "exponential", "mean": 0.02}},
            ],
            "phases": [{"seconds": 30.0, "load": load}],
        }
    )


CASES: Final = {
    "B13": retry_storm,
    "B14": greedy_tenant,
    "B15": priorities,
    "B16": long_polls,
    "priorities": priority_table,
    "queue": queue_waits,
}
