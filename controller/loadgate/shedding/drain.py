"""How fast do places become free?

By Little's law `limit / held` places a second become free when all of them are taken, where
`held` is the mean time for which those who ended lately had theirs. In saturation this is the
measured throughput itself; below, it is what the throughput would be if that time stayed as
it is. (The in-flight integral over the completions would do as well, but counts the work of
those who have not ended yet, which ruins the first estimate after a start.) No clock is read
and nothing is kept per request.
"""

from __future__ import annotations

# Seconds between two checkpoints: long enough for some ten completions at 20 a second, short
# enough to follow a capacity that halves within the patience of a client.
_CHECKPOINT = 0.5


class DrainRate:
    """Places that become free each second, from counters that exist anyway."""

    __slots__ = ("_extra", "_finished", "_held", "due", "latency", "work")

    def __init__(self) -> None:
        self._held = 0.0
        self._finished = 0
        self._extra = 0.0
        self.latency = 0.0
        """Mean seconds a request ran lately, 0.0 before anything has finished."""
        self.work = 0.0
        """Mean place-seconds of it: the same, unless requests occupy several places."""
        self.due = float("-inf")

    def checkpoint(self, now: float, held: float, finished: int, extra: float = 0.0) -> None:
        """Look at the counters; call it whenever `now >= due`.

        Args:
            now: Monotonic seconds.
            held: Seconds for which all who ended since the beginning had their places.
            finished: Requests that ended since the beginning.
            extra: What `held` counts for places beyond the first of each request.
        """
        self.due = now + _CHECKPOINT
        done = finished - self._finished
        if done <= 0:
            return
        work = (held - self._held) / done
        mean = work - (extra - self._extra) / done
        # Half new, half old: halves the sampling noise of a few completions, and a change
        # is three quarters there after two checkpoints.
        self.work = work if self.work == 0.0 else 0.5 * (self.work + work)
        self.latency = mean if self.latency == 0.0 else 0.5 * (self.latency + mean)
        self._held = held
        self._extra = extra
        self._finished = finished

    def rate(self, places: int) -> float:
        """Requests a second that get done with `places` taken; 0.0 when not known yet."""
        return places / self.work if self.work > 0.0 else 0.0
