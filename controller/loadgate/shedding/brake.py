"""How hard does a signal brake the limit? A factor that falls while the signal is high.

The law is Breakwater's for its credits (Cho et al., OSDI 2020): above the target, and once in
every `PERIOD`, the factor is multiplied by `max(1/2, 1 - GAIN * (value - target) / target)`;
at or below it, `STEP` is added. The factor lies over the limit, which does not learn from it:
the limit answers how much the service can do, the brake that the process cannot keep up right
now. Breakwater acts once per round trip of a network with a gain of 0.02; a period here is a
tenth of a second, thousands of those, hence the larger gain.
"""

from __future__ import annotations

from math import inf
from typing import Final

import msgspec

# Seconds between two steps: twenty ticks of the loop's watch, and what `max_lag` is by default.
PERIOD: Final = 0.1
# A signal at twice its target takes a tenth off in each period, half within seven of them.
GAIN: Final = 0.1
# From 0 to 1 in two seconds: slower than it falls under a heavy signal, so that a load that
# stays is met by a brake that stays.
STEP: Final = 0.05
# A brake leaves something running, or nothing could ever show that the cause is gone.
LEAST: Final = 0.05


class BrakeState(msgspec.Struct, frozen=True, gc=False):
    """What a brake says of itself.

    Attributes:
        value: The signal in the last whole period.
        target: The value above which it brakes.
        factor: What is left of the limit, 1.0 when it does not brake.
        broken: Readings that were no number and were ignored.
    """

    value: float
    target: float
    factor: float
    broken: int = 0

    def explain(self, name: str) -> str:
        """Say in a sentence what it does and why."""
        if self.factor >= 1.0:
            said = f"{name} is at {self.value:.3g}, it brakes above {self.target:.3g}"
        else:
            said = (
                f"{name} is at {self.value:.3g}, it brakes above {self.target:.3g}: "
                f"{100.0 * self.factor:.0f} % of the limit are left"
            )
        return f"{said}; {self.broken} readings were ignored" if self.broken else said


class Brake:
    """One signal and its factor.

    Args:
        target: Above it the signal brakes; greater than 0.
        unit: What counts as an excess of one; by default the target itself, as in Breakwater.
            A gauge that ends at 1 and brakes above 0.9 has a unit of 0.1.

    Attributes:
        factor: What is left of the limit, in [LEAST, 1].
        broken: Readings that were no number and were ignored.
    """

    __slots__ = ("_due", "_high", "_unit", "_value", "broken", "factor", "target")

    def __init__(self, target: float, unit: float | None = None) -> None:
        self.target = target
        self._unit = target if unit is None else unit
        self.factor = 1.0
        self.broken = 0
        self._high = 0.0
        self._value = 0.0
        self._due = -inf

    def read(self, value: float, now: float) -> bool:
        """Take one reading; the highest of each period counts.

        Returns:
            Whether the factor has changed.
        """
        if not 0.0 <= value < inf:
            self.broken += 1  # a signal that is broken must not brake
            value = 0.0
        if value > self._high:
            self._high = value
        if self._due - 2.0 * PERIOD < now < self._due:
            return False
        # Periods in which nobody looked had nothing to look at: the process was at rest.
        passed = 1.0 if now < self._due else min(1.0 + (now - self._due) / PERIOD, 1.0 / STEP)
        self._due = now + PERIOD
        self._value, self._high = self._high, 0.0
        before = self.factor
        excess = self._value - self.target
        if excess > 0.0:
            self.factor = max(LEAST, before * max(0.5, 1.0 - GAIN * excess / self._unit))
        elif before < 1.0:
            self.factor = min(1.0, before + STEP * passed)
        return self.factor != before

    def state(self) -> BrakeState:
        """What it says of itself."""
        return BrakeState(self._value, self.target, self.factor, self.broken)
