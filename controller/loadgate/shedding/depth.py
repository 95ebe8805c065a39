"""How deep may the queue be before arrivals are turned away?

`survival = max_queue / depth`: up to `max_queue` waiters everyone may wait, above it an
arrival survives with that probability. The rule alone bounds nothing (the depth settles at
`max_queue * offered / capacity`, an exact birth-death result), so `max_depth` does.

A queue is a promise about time, so unless counts are given they follow from the longest
wait and the rate at which places become free: half of `max_wait` worth of work may wait
freely, and twice that is the end. Half, because a queue that stands at its bound makes every
wait the longest one (Google's SRE book keeps queues at half of the pool or less for the
same reason).
"""

from __future__ import annotations

# Share of `max_wait` that a queue at `max_queue` takes to drain; see the module's text.
_FREE_SHARE = 0.5
# `max_depth` in units of `max_queue`: a full queue then drains in exactly `max_wait`.
_DEPTH_FACTOR = 2.0


def survival(depth: float, max_queue: float) -> float:
    """The probability with which an arrival that finds `depth` waiters may join them.

    Args:
        depth: Waiters before this arrival, at least 0.
        max_queue: Waiters up to which everyone may wait; 0 means that nobody waits.
    """
    if max_queue <= 0.0:
        return 0.0
    if depth <= max_queue:
        return 1.0
    return max_queue / depth


class DepthRule:
    """The two thresholds of the queue, given as counts or derived from time.

    Args:
        max_wait: Longest wait in seconds, at least 0.
        max_queue: Waiters up to which everyone may wait; None derives it from `max_wait`.
        max_depth: Waiters at which every arrival is refused; None means twice `max_queue`.
    """

    __slots__ = ("max_depth", "max_queue", "max_wait")

    def __init__(
        self, max_wait: float, max_queue: float | None = None, max_depth: float | None = None
    ) -> None:
        if max_queue is None and max_depth is not None:
            max_queue = max_depth / _DEPTH_FACTOR
        self.max_wait = max_wait
        self.max_queue = max_queue
        self.max_depth = max_depth

    def thresholds(self, drain_rate: float) -> tuple[float, float]:
        """`(max_queue, max_depth)` when `drain_rate` places a second become free."""
        max_queue = self.max_queue
        if max_queue is None:
            max_queue = self.max_wait * drain_rate * _FREE_SHARE
        max_depth = self.max_depth
        if max_depth is None:
            max_depth = max_queue * _DEPTH_FACTOR
        return max_queue, max_depth
