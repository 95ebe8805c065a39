"""Should this client even ask? Refuse locally what the server would refuse anyway."""

from __future__ import annotations

from loadgate.errors import PolicyError

# Twelve buckets make the window slide in steps of a twelfth of it (10 s by default): what leaves
# the window leaves it at most that much too late.
_BUCKETS = 12


class Throttle:
    """Google's client-side throttling, over a sliding window.

    Source: "Site Reliability Engineering", chapter 21. With `requests` asked for (also those
    that were refused here) and `accepts` taken by the server during the window, a request is
    refused here with probability ``max(0, (requests - k * accepts) / (requests + 1))``. In
    the steady state the server sees at most `k` times what it accepts.

    A request is counted when it starts and an accept when it is answered, so a server that
    answers nothing is noticed at once. One departure: below `min_requests` in the window nothing
    is refused, because the estimate is noise there (after a single failure the formula
    refuses every second request).

    Args:
        k: How many requests the server may see for each that it accepts (default 2.0, at
            least 1). Lower throttles sooner and notices a recovery later.
        window: Seconds that count (default 120.0, the book's two minutes).
        min_requests: Requests in the window below which nothing is refused (default 10; 0 is
            the published formula).

    Raises:
        PolicyError: For a number outside its bounds.
    """

    __slots__ = ("_accepts", "_current", "_requests", "_width", "k", "min_requests", "window")

    def __init__(self, *, k: float = 2.0, window: float = 120.0, min_requests: int = 10) -> None:
        if not 1.0 <= k < float("inf"):
            raise PolicyError("throttle.k", f"{k!r} must be finite and at least 1")
        if not 0.0 < window < float("inf"):
            raise PolicyError("throttle.window", f"{window!r} must be finite and above 0")
        if min_requests < 0:
            raise PolicyError("throttle.min_requests", f"{min_requests!r} must be at least 0")
        self.k = k
        self.window = window
        self.min_requests = min_requests
        self._width = window / _BUCKETS
        self._current = 0
        self._requests = [0] * _BUCKETS
        self._accepts = [0] * _BUCKETS

    def probability(self, now: float) -> float:
        """The share of requests that is refused here at `now`, in [0, 1)."""
        self._slide(now)
        requests, accepts = sum(self._requests), sum(self._accepts)
        if requests < self.min_requests:
            return 0.0
        return max(0.0, (requests - self.k * accepts) / (requests + 1))

    def admits(self, now: float, draw: float) -> bool:
        """Decide about one request and count it, whatever the decision."""
        admitted = draw >= self.probability(now)
        self._requests[self._current % _BUCKETS] += 1
        return admitted

    def on_accept(self, now: float) -> None:
        """Count a request that the server took."""
        self._slide(now)
        self._accepts[self._current % _BUCKETS] += 1

    def _slide(self, now: float) -> None:
        bucket = int(now // self._width)
        # A clock that goes backwards adds to the newest bucket instead of emptying the window.
        for empty in range(max(self._current + 1, bucket - _BUCKETS + 1), bucket + 1):
            self._requests[empty % _BUCKETS] = 0
            self._accepts[empty % _BUCKETS] = 0
        self._current = max(self._current, bucket)
