"""Which series exist? Everything that a process with all there is exports."""

from __future__ import annotations

from functools import cache

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample

from loadgate import AdmissionController, Concurrency, Policy, Rate
from loadgate.decisions import Reason, Refuse, Stage
from loadgate.integrations.decision_timer import DecisionTimer
from loadgate.integrations.door import Door
from loadgate.integrations.prometheus import LoadgateCollector, Reloads
from loadgate.integrations.witness import Witness
from loadgate.shared import StoreStats
from loadgate.shedding.brake import BrakeState
from loadgate.testing import VirtualClock


def exported() -> frozenset[str]:
    """Names of all series of ours."""
    return frozenset(sample.name for sample in samples())


@cache
def samples() -> tuple[Sample, ...]:
    """Every sample of one controller with one rate, a store, a door, and all that can be had."""
    policy = Policy(
        rates=[Rate("per-client", "10/second")], concurrency=Concurrency(latency_target=0.5)
    )
    controller = AdmissionController(policy, clock=VirtualClock())
    snapshot = controller.snapshot()
    wait = snapshot.wait
    known = {
        "state": "closed", "decisions": {"store": 0}, "troubles": {"timeout": 0}, "wait": wait,
        "rates": {},
    }  # fmt: skip
    numbers = {field: 0 for field in StoreStats.__struct_fields__ if field not in known}
    whole = msgspec.structs.replace(
        snapshot,
        store=msgspec.convert({**numbers, "connected": True, **known}, StoreStats),
        signals={"pool": BrakeState(0.0, 1.0, 1.0)},
    )
    controller.snapshot = lambda: whole  # type: ignore[method-assign]  # as if it had a store
    witness = Witness(logs=False, top=1)
    witness.refused(Refuse(Stage.RATE, Reason.RATE, 1.0), "a", 429, 0.0)
    collector = LoadgateCollector(controller, witness=witness, decisions=DecisionTimer(controller))
    collector.reloads = Reloads()
    collector.door = Door(controller)
    registry = CollectorRegistry()
    registry.register(collector)
    return tuple(sample for family in registry.collect() for sample in family.samples)
