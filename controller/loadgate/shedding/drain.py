"""How fast do places become free?

The departures of the last second or so, scaled to a full house. By Little's law the mean
latency over an interval is the in-flight integral divided by the completions, and
`limit / latency` places a second become free when all of them are taken. In saturation this
is the measured throughput itself; below, it is what the throughput would be if latency
stayed as it is. No clock is read and nothing is kept per request.
"""

from __future__ import annotations

# Seconds between two checkpoints: long enough for some ten completions at 20 a second, short
# enough to follow a capacity that halves within the patience of a client.
_CHECKPOINT = 0.5


class DrainRate:
    """Places that become free each second, from counters that exist anyway."""

    __slots__ = ("_busy", "_finished", "due", "latency")

    def __init__(self) -> None:
        self._busy = 0.0
        self._finished = 0
        self.latency = 0.0
        """Mean seconds a place was taken lately, 0.0 before anything has finished."""
        self.due = float("-inf")

    def checkpoint(self, now: float, busy: float, finished: int) -> None:
        """Look at the counters; call it whenever `now >= due`.

        Args:
            now: Monotonic seconds.
            busy: Integral of `in_flight` over time since the beginning, seconds.
            finished: Requests that ended since the beginning.
        """
        self.due = now + _CHECKPOINT
        done = finished - self._finished
        spent = busy - self._busy
        if done == 0 and spent > 0.0:
            return  # Work is under way: wait for its end rather than divide by nothing.
        if done > 0:
            mean = spent / done
            # Half new, half old: halves the sampling noise of a few completions, and a change
            # is three quarters there after two checkpoints.
            self.latency = mean if self.latency == 0.0 else 0.5 * (self.latency + mean)
        self._busy = busy
        self._finished = finished

    def rate(self, places: int) -> float:
        """Places a second that become free with `places` taken; 0.0 when not known yet."""
        return places / self.latency if self.latency > 0.0 else 0.0
