"""Which signals brake the limit now, and how hard? Loop lag, memory and gauges of the user's.

Read on the ticks of the watch over the event loop: nothing is read while nothing runs or waits.
A signal that cannot be read, raises or answers no number is ignored and counted; it never
brakes and never stops the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from loadgate.memory import Memory
from loadgate.policy import Signals
from loadgate.shedding.brake import PERIOD, Brake, BrakeState

Gauge = Callable[[], float]

# The limit is braked from half of what refuses arrivals: a brake that acts at the same moment
# as a refusal would never be seen.
_LAG_TARGET = 0.5
# Share of the memory's bound from which it brakes; the rest is what the last tenth of a second
# of admissions may still allocate.
_MEMORY_TARGET = 0.9
# Seconds between two readings of the memory: reading takes some 20 µs, and a process needs
# seconds to fill gigabytes.
_MEMORY_EVERY = 1.0

_LAG = "loop_lag"
_MEMORY = "memory"


class Brakes:
    """All brakes of one controller.

    Args:
        signals: What to look at.
        gauges: The user's gauges by name: each answers a pressure, 0 for none, 1 for full.
        changed: Called with `(factor, now)` when what is left of the limit has changed.

    Attributes:
        factor: What the signals leave of the limit.
        memory_used: Bytes at the last reading.
        memory_full: Whether that is more than may be.
    """

    __slots__ = (
        "_brakes", "_changed", "_gauges", "_gauges_due", "_memory", "_memory_due", "_told",
        "enforced", "factor", "memory_full", "memory_used",
    )  # fmt: skip

    def __init__(
        self,
        signals: Signals,
        gauges: Mapping[str, Gauge],
        changed: Callable[[float, float], None],
    ) -> None:
        self._changed = changed
        self._gauges = dict(gauges)
        self._brakes: dict[str, Brake] = {}
        self.factor = 1.0
        self.memory_used = 0
        self.memory_full = False
        self._told = (1.0, False)
        self._gauges_due = self._memory_due = float("-inf")
        self.enforced = True
        self.follow(signals)

    def follow(self, signals: Signals, now: float = 0.0) -> None:
        """Go on with other settings; brakes whose target stays the same keep their factor."""
        before = self._brakes
        looks = signals.mode != "off"
        self.enforced = signals.mode == "enforce"
        self._memory = None
        wanted: dict[str, Brake] = {}
        if looks and signals.max_lag is not None:
            wanted[_LAG] = Brake(signals.max_lag * _LAG_TARGET)
        if looks and signals.max_memory is not None:
            self._memory = Memory(signals.max_memory)
            wanted[_MEMORY] = Brake(_MEMORY_TARGET, 1.0 - _MEMORY_TARGET)
        self.memory_full = self.memory_full and self._memory is not None
        if looks:
            target = signals.gauge_target
            wanted |= {name: Brake(target, 1.0 - target) for name in self._gauges}
        self._brakes = {
            name: before[name] if name in before and before[name].target == brake.target else brake
            for name, brake in wanted.items()
        }
        self._tell(now)

    @property
    def gauged(self) -> bool:
        """Whether there are gauges of the user's."""
        return bool(self._gauges)

    @property
    def memory_bound(self) -> int:
        """Bytes that may be used, 0 if there is no bound."""
        return (self._memory.bound or 0) if self._memory is not None else 0

    def tick(self, now: float, lag: float) -> None:
        """The event loop has turned, `lag` seconds late."""
        changed = False
        if (brake := self._brakes.get(_LAG)) is not None:
            changed = brake.read(lag, now)
        if self._memory is not None and not self._memory_due - _MEMORY_EVERY <= now < (
            self._memory_due
        ):
            self._memory_due = now + _MEMORY_EVERY
            self._read_memory(self._memory)
        if not self._gauges_due - PERIOD <= now < self._gauges_due:
            self._gauges_due = now + PERIOD
            changed = self._read_the_others(now) or changed
        if changed or self.memory_full != self._told[1]:
            self._tell(now)

    def state(self) -> dict[str, BrakeState]:
        """What each brake says of itself, by name."""
        return {name: brake.state() for name, brake in self._brakes.items()}

    def _tell(self, now: float) -> None:
        """Whoever acts on it hears what the signals leave of the limit, and in which mode."""
        self.factor = min((brake.factor for brake in self._brakes.values()), default=1.0)
        told = self.factor if self.enforced else 1.0, self.memory_full
        if told != self._told:
            self._told = told
            self._changed(told[0], now)

    def _read_memory(self, memory: Memory) -> None:
        used = memory.used()
        if used is None or memory.bound is None:
            self._brakes[_MEMORY].broken += 1
            self.memory_used, self.memory_full = 0, False
        else:
            self.memory_used, self.memory_full = used, used >= memory.bound

    def _read_the_others(self, now: float) -> bool:
        changed = False
        if self._memory is not None and self._memory.bound:
            changed = self._brakes[_MEMORY].read(self.memory_used / self._memory.bound, now)
        for name, gauge in self._gauges.items():
            if (brake := self._brakes.get(name)) is None:
                continue
            try:
                pressure = float(gauge())
            except Exception:  # whatever is wrong with it must not stop the service
                pressure = float("nan")
            changed = brake.read(pressure, now) or changed
        return changed
