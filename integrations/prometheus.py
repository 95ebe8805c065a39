"""What does Prometheus read? Every controller's snapshot, taken at the scrape and at no other time.

    from prometheus_client import REGISTRY
    REGISTRY.register(LoadgateCollector(controller))

The hot path only adds to plain integers; this module turns them into metric families. Every
label set exists from the first scrape on, because a counter that appears at 1 has lost its first
increment for ``rate()``. No label holds a client.
"""

from __future__ import annotations

from collections.abc import Iterable

import anyio.lowlevel

from loadgate.integrations.extras import missing

try:
    from prometheus_client import REGISTRY
    from prometheus_client.core import Metric
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector, CollectorRegistry
except ModuleNotFoundError as error:
    raise missing(__name__, error) from None

from loadgate.controller import AdmissionController
from loadgate.integrations.decision_timer import DecisionTimer
from loadgate.integrations.door import Door
from loadgate.integrations.door_metrics import door_families
from loadgate.integrations.families import Look, Reloads, Source, families
from loadgate.integrations.witness import Witness

__all__ = ["LoadgateCollector", "MetricsPage", "Reloads"]


class LoadgateCollector(Collector):
    """Exports what controllers know of themselves.

    Register one of these for all controllers of a registry; `add` takes further ones. Reading
    changes nothing in a controller. Two controllers of the same name would export the same
    series twice, which Prometheus rejects.

    Args:
        controllers: What to export.
        witness: What saw the refusals of the one controller that is given, for who is refused
            most and for exemplars.
        decisions: What times its decisions.

    Raises:
        ValueError: Two controllers have the same name.
    """

    def __init__(
        self,
        *controllers: AdmissionController,
        witness: Witness | None = None,
        decisions: DecisionTimer | None = None,
    ) -> None:
        self._sources: list[Source] = []
        self.reloads: Reloads | None = None
        self.door: Door | None = None
        for controller in controllers:
            self.add(controller, witness=witness, decisions=decisions)

    def add(
        self,
        controller: AdmissionController,
        *,
        witness: Witness | None = None,
        decisions: DecisionTimer | None = None,
    ) -> None:
        """Export `controller` too.

        Raises:
            ValueError: Another one of this name is exported already.
        """
        if any(source.controller.name == controller.name for source in self._sources):
            raise ValueError(
                f"two controllers are called {controller.name!r}: give each its own name="
            )
        self._sources.append(Source(controller, witness, decisions))

    def describe(self) -> Iterable[Metric]:
        """The families, so that a registry notices names that are taken."""
        yield from families([], self.reloads)
        if self.door is not None:
            yield from door_families(self.door, names_only=True)

    def collect(self) -> Iterable[Metric]:
        """The families with their samples as they are now."""
        looks = [Look(source, source.controller.snapshot()) for source in self._sources]
        yield from families(looks, self.reloads)
        if self.door is not None:
            yield from door_families(self.door)


class MetricsPage:
    """The text of ``/metrics``, made so that no scrape holds the event loop up.

    One family is rendered at a time, with a turn of the event loop in between: a page of 300
    samples takes some milliseconds in all, and the requests that run must not wait for it.
    (A thread would not help: it holds the interpreter for as long.)

    Args:
        registry: What to render; everything that the process registers by default.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry

    async def render(self, accept: str) -> tuple[bytes, str]:
        """Body and content type for a client that sent this ``Accept`` header."""
        encode, kind = choose_encoder(accept)
        parts: list[bytes] = []
        for family in self._registry.collect():
            parts.append(encode(_Only(family)).removesuffix(b"# EOF\n"))
            await anyio.lowlevel.checkpoint()
        if kind.startswith("application/openmetrics-text"):
            parts.append(b"# EOF\n")
        return b"".join(parts), kind


class _Only(CollectorRegistry):
    """One family, in the shape that encoders take."""

    def __init__(self, family: Metric) -> None:
        super().__init__(auto_describe=False)
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)
