"""What if only failures count? Add one while they are rare, multiply down when one is seen.

The algorithm of Netflix's concurrency-limits, AIMDLimit.
"""

from __future__ import annotations

from typing import Any

from loadgate.limits.sampled import SampledLimit
from loadgate.limits.settings import real


class AimdLimit(SampledLimit):
    """Additive increase, multiplicative decrease.

    A dropped sample, or one slower than `timeout`, takes the limit to `ratio` times itself
    (rounded down); any other adds 1 if at least half of the limit was in use. The state is the
    integer itself. Sample by sample (`window=None`) this grows by one per request, so it
    doubles each round trip, and a burst of 20 timeouts takes 88 % away; behind the window it
    moves one step a second.

    Published defaults: initial 20, min 20, max 200, ratio 0.9, timeout 5 s.

    Args:
        initial: The limit at the start.
        min: The lowest limit.
        max: The highest limit.
        window: Seconds of one window; None for sample by sample.
        ratio: What a drop leaves of the limit, within [0.5, 1).
        timeout: Seconds from which a success counts as dropped.
    """

    __slots__ = ("ratio", "timeout")

    algorithm = "aimd"

    def __init__(
        self,
        *,
        initial: int,
        min: int,
        max: int,
        window: float | None = 1.0,
        ratio: float = 0.9,
        timeout: float = 5.0,
    ) -> None:
        super().__init__(initial=initial, min=min, max=max, window=window)
        self.ratio = real("ratio", ratio, 0.5, 0.999)
        self.timeout = real("timeout", timeout, 1e-6)

    def law(self, latency: float, in_flight: int, dropped: bool) -> float:
        """Multiply down on a drop, else add one if the limit was half used."""
        if dropped or latency > self.timeout:
            return self.limit * self.ratio
        if in_flight * 2 >= self.limit:
            return self.limit + 1
        return self.limit

    def state(self) -> dict[str, Any]:
        """Say the two settings."""
        return {"ratio": self.ratio, "timeout": self.timeout}
