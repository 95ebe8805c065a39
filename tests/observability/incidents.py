"""An hour in the life of a service, in virtual time: calm, and every incident the runbooks know.

The real rules decide (a controller's admission and rates inside the simulator's engine), the
real collector is scraped every 15 virtual seconds, and what it said becomes an OpenMetrics file
that promtool turns into a database.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import msgspec
import numpy as np

from loadgate import AdmissionController, Policy, Reason
from loadgate.integrations.decision_timer import DECISION_EDGES, EVERY, DecisionTimer
from loadgate.integrations.door import Door
from loadgate.integrations.prometheus import LoadgateCollector, Reloads
from loadgate.integrations.witness import Witness
from loadgate.shared import StoreStats
from loadgate.shedding.brake import BrakeState
from loadgate.simulation import build, streams
from loadgate.simulation.engine import Engine
from loadgate.simulation.request import Request
from loadgate.simulation.scenario import Scenario, from_mapping
from loadgate.simulation.workload import Workload
from loadgate.telemetry import WAIT_EDGES, Histogram, HistogramSnapshot, Snapshot

# A Monday at noon: where the virtual hour begins, in seconds since the epoch.
BEGIN: Final = 1_767_614_400.0
SCRAPE: Final = 15.0
JOB: Final = "shop"
INSTANCE: Final = "10.0.0.1:9464"
GREEDY: Final = "greedy"
# The store goes away when the loop is blocked, and is back three minutes later.
STORE_AWAY: Final = "blocked loop"
STORE_AWAY_FOR: Final = 180.0

# The service can do 40/s: four places of a tenth of a second.
CAPACITY: Final = 40.0


class Incident(NamedTuple):
    """What happens from when to when, in seconds of the hour."""

    name: str
    seconds: float
    load: float
    more: dict[str, Any]


HOUR: Final = (
    Incident("calm", 420, 0.5, {}),
    Incident("overload", 480, 2.0, {}),
    Incident("calm", 300, 0.5, {}),
    Incident("greedy client", 480, 0.5, {}),
    Incident("calm", 300, 0.5, {}),
    Incident("slow downstream", 480, 0.5, {"change": {"api": {"work": 6.0}}}),
    Incident("calm", 240, 0.5, {}),
    Incident("downstream down", 360, 0.5, {"change": {"db": {"speed": 0.02}}}),
    Incident("calm", 180, 0.5, {}),
    Incident("blocked loop", 180, 0.5, {"pauses": {"every": 5.0, "seconds": 0.6}}),
    Incident("calm", 180, 0.5, {}),
)

POLICY: Final = Policy.from_mapping(
    {
        "rates": [
            {"name": "per-client", "rate": "8/second burst 16"},
            {"name": "tighter", "rate": "1/second burst 4", "mode": "observe"},
        ],
        "concurrency": {"min": 2, "max": 60, "latency_target": 0.5},
        "queue": {"max_wait": 0.2},
    }
)

_SERVICE: Final[dict[str, Any]] = {
    "title": "an hour of incidents",
    "slo": 1.0,
    "stages": [
        {"name": "api", "kind": "delay", "time": {"law": "exponential", "mean": 0.05}},
        {
            "name": "db",
            "kind": "pool",
            "count": 4,
            "time": {"law": "exponential", "mean": 0.1},
        },
    ],
}
_PATIENT: Final = {"deadline": {"law": "constant", "mean": 2.0}, "timeout": 4.0, "keys": 40}


def begin_of(name: str) -> float:
    """When the incident of that name begins, seconds since the epoch."""
    at = BEGIN
    for incident in HOUR:
        if incident.name == name:
            return at
        at += incident.seconds
    raise KeyError(name)


def middle_of(name: str) -> float:
    """A moment when the incident has lasted long enough to be seen in every rate."""
    (seconds,) = (one.seconds for one in HOUR if one.name == name)
    return begin_of(name) + 0.75 * seconds


def end() -> float:
    """When the hour ends, seconds since the epoch."""
    return BEGIN + sum(incident.seconds for incident in HOUR)


def simulated() -> str:
    """The hour as an OpenMetrics text with timestamps."""
    everyone = _scenario(
        [
            {"name": "buyers", "share": 0.2, "priority": "critical", **_PATIENT},
            {"name": "visitors", "share": 0.6, "priority": "default", **_PATIENT},
            {"name": "robots", "share": 0.2, "priority": "background", **_PATIENT},
        ],
        [
            {"name": one.name, "seconds": one.seconds, "rate": one.load * CAPACITY, **one.more}
            for one in HOUR
        ],
    )
    greedy = _scenario(
        [{"name": GREEDY, "priority": "default", "deadline": {"law": "constant", "mean": 2.0}}],
        [
            {"seconds": one.seconds, "rate": 40.0 if one.name == "greedy client" else 0.0}
            for one in HOUR
        ],
    )
    priorities = tuple(POLICY.priorities)
    work = _together(build.workload(everyone, 1, priorities), build.workload(greedy, 2, priorities))
    hour = _Hour(everyone, work)
    return hour.run()


def _scenario(clients: list[dict[str, Any]], phases: list[dict[str, Any]]) -> Scenario:
    return from_mapping({**_SERVICE, "clients": clients, "phases": phases})


def _together(one: Workload, two: Workload) -> Workload:
    """Both workloads as one."""
    order = np.argsort(np.concatenate([one.times, two.times]), kind="stable").tolist()

    def merged(first: Iterable[Any], second: Iterable[Any]) -> list[Any]:
        both = [*first, *second]
        return [both[i] for i in order]

    ones = one.keys or ["" for _ in one.client]
    twos = two.keys or [two.clients[which].name for which in two.client]
    return Workload(
        times=np.asarray(merged(one.times.tolist(), two.times.tolist())),
        client=merged(one.client, (which + len(one.clients) for which in two.client)),
        sizes=[merged(*sizes) for sizes in zip(one.sizes, two.sizes, strict=True)],
        clients=(*one.clients, *two.clients),
        horizon=one.horizon,
        deadlines=merged(one.deadlines or (), two.deadlines or ()),
        keys=merged(ones, twos),
    )


class _Store:
    """Stands for a shared store: asked 20 times a second, away for a while.

    What the numbers are called is the real `StoreStats`; what a real store does to them is
    tested where the store is.
    """

    def __init__(self) -> None:
        self._wait = Histogram(WAIT_EDGES)
        self._decided = 0.0
        self._stood_in = 0.0

    def at(self, now: float) -> StoreStats:
        """As it is at `now`, a scrape after the last look."""
        first = begin_of(STORE_AWAY) - BEGIN
        away = first <= now < first + STORE_AWAY_FOR
        if away:
            self._stood_in += 20 * SCRAPE
        else:
            self._decided += 20 * SCRAPE
            for milli in (0.3, 0.4, 0.6, 2.0):
                self._wait.add(milli * 1e-3)
        decided, stood_in = int(self._decided), int(self._stood_in)
        return StoreStats(
            state="open" if away else "closed",
            connected=not away,
            decisions={"store": decided, "emergency": stood_in, "open": 0, "closed": 0},
            troubles={"timeout": stood_in // 10, "lost": 0, "open": stood_in - stood_in // 10},
            incidents=int(stood_in > 0),
            away=stood_in / 20,
            oldest=0.3 if away else 0.001,
            waiting=1,
            calls=decided // 2,
            asked=decided,
            stale=0,
            late=stood_in // 20,
            stalls=0,
            connections=1 + int(stood_in > 0 and not away),
            given_back=decided // 10,
            forgotten=0,
            nodes=3,
            wait=self._wait.freeze(),
            rates={},
        )


class _WithStore(AdmissionController):
    """A controller whose snapshots tell of a store."""

    stores: _Store

    def snapshot(self) -> Snapshot:
        look = super().snapshot()
        return msgspec.structs.replace(
            look,
            store=self.stores.at(look.at),
            signals={"pool": BrakeState(value=0.4, target=0.8, factor=1.0)},
        )


class _Decided:
    """Stands for a `DecisionTimer`: in virtual time a decision takes none."""

    def __init__(self) -> None:
        self.histogram = Histogram(DECISION_EDGES)

    def freeze(self) -> HistogramSnapshot:
        return self.histogram.freeze()


class _Watched(Engine):
    """An engine whose refusals are counted and seen as a controller's are."""

    controller: AdmissionController
    witness: Witness

    def _refused(self, request: Request, now: float) -> None:
        refusal = request.refusal
        assert refusal is not None
        status = 503
        if refusal.reason is Reason.RATE:
            status = 429
            self.controller.telemetry.refused[refusal.reason] += 1
            self.controller.telemetry.rate_limited[request.level] += 1
        assert self.workload.keys is not None
        self.witness.refused(refusal, self.workload.keys[request.index], status, now)
        super()._refused(request, now)


class _Hour:
    def __init__(self, scenario: Scenario, work: Workload) -> None:
        self._now = 0.0
        self._horizon = work.horizon
        controller = _WithStore(
            POLICY, clock=lambda: self._now, draw=streams.dice(1, "gate").random, name="checkout"
        )
        controller.stores = _Store()
        witness = Witness(logs=False, top=5, wall=lambda: BEGIN + self._now)
        self._decided = _Decided()
        collector = LoadgateCollector(
            controller, witness=witness, decisions=cast("DecisionTimer", self._decided)
        )
        collector.reloads = self._reloads = Reloads()
        self._reloads.at = BEGIN - 86_400.0
        collector.door = self._door = Door(controller)
        self._collector = collector
        engine = _Watched(
            work,
            build.stages(scenario),
            controller.admission,
            gate_dice=streams.dice(1, "gate"),
            client_dice=streams.dice(1, "clients"),
            rates=controller.rates,
        )
        engine.controller = controller
        engine.witness = witness
        build.schedule(scenario, engine)
        engine.at(0.0, self._scrape)
        self._engine = engine
        self._series: dict[str, dict[str, list[str]]] = {}
        self._heads: dict[str, list[str]] = {}

    def run(self) -> str:
        self._engine.run(until=self._horizon)
        lines: list[str] = []
        for family, series in self._series.items():
            lines += self._heads[family]
            for samples in series.values():
                lines += samples
        return "\n".join(lines) + "\n# EOF\n"

    def _scrape(self, now: float) -> None:
        self._now = now
        for _ in range(EVERY):  # one of them is timed
            self._door.ask(b"GET /healthz HTTP/1.1\r\n\r\n")
        for micro in (2, 3, 4, 30):
            self._decided.histogram.add(micro * 1e-6)
        if now >= self._horizon - 120.0 and self._reloads.succeeded:
            self._reloads.note(succeeded=False)
        at = BEGIN + now
        for family in self._collector.collect():
            self._heads.setdefault(
                family.name,
                [f"# HELP {family.name} {family.documentation}",
                 f"# TYPE {family.name} {family.type}"],
            )  # fmt: skip
            for sample in family.samples:
                self._add(family.name, sample.name, sample.labels, sample.value, at)
        for name, value in (("up", 1.0), ("process_start_time_seconds", BEGIN - 90_000.0)):
            self._heads.setdefault(name, [f"# TYPE {name} gauge"])
            self._add(name, name, {}, value, at)
        if now + SCRAPE < self._horizon:
            self._engine.at(now + SCRAPE, self._scrape)

    def _add(self, family: str, name: str, labels: dict[str, str], value: float, at: float) -> None:
        written = ",".join(
            f'{key}="{text}"' for key, text in {**labels, "job": JOB, "instance": INSTANCE}.items()
        )
        series = self._series.setdefault(family, {}).setdefault(f"{name}{{{written}}}", [])
        if value == inf:
            raise ValueError(f"{name} is infinite")
        series.append(f"{name}{{{written}}} {float(value)!r} {at:.3f}")


def written(folder: Path) -> Path:
    """The hour as a file."""
    path = folder / "hour.openmetrics"
    path.write_text(simulated())
    return path
