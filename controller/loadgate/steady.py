"""How does time go on when a clock steps back?

Every rule compares `now` with moments it has stored: when to look next, since when a queue
stands, when a window ends. After a step back of an hour all of them would lie an hour ahead,
and whatever waits for them would stand still so long. The two monotonic clocks of Python never
step back; `time.time` does, whenever somebody sets it. So it is mended once, where time comes in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Final

_MONOTONIC: Final = (time.monotonic, time.perf_counter)

# Seconds behind the last reading that are no step of the clock, but two threads that read it at
# once, or a clock that is being slowed down: the last reading holds until it is reached again.
_NO_STEP: Final = 0.001


def steady(clock: Callable[[], float]) -> Callable[[], float]:
    """`clock` if it is monotonic, else one that goes on as it does and never steps back."""
    return clock if clock in _MONOTONIC else SteadyClock(clock)


class SteadyClock:
    """Goes as another clock does, but after a step back it goes on from where it was.

    Args:
        clock: Seconds.
    """

    __slots__ = ("_ahead", "_clock", "_last")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ahead = 0.0
        self._last = -inf

    def __call__(self) -> float:
        """Seconds, never fewer than the last time."""
        now = self._clock() + self._ahead
        if now < self._last:
            behind = self._last - now
            if behind > _NO_STEP:
                self._ahead += behind
            return self._last
        self._last = now
        return now
