"""Leaky bucket, as a queue: how long must this request wait so that they leave one by one?

State per key: one float. Burst: none leaves; up to `burst` cost units wait, the next is refused.
Error: none. The shaper only computes the delay; whoever calls it does the waiting, so nothing
is stored per waiter and nothing wakes up for nothing.
"""

from __future__ import annotations

from typing import Final, Unpack

from loadgate.decisions import Quota, Reason, Refuse, Stage
from loadgate.rates.spec import Settings
from loadgate.rates.token_bucket import TokenBucket

_SMALLEST_DELAY: Final = 1e-9  # seconds; what is left of a subtraction below this is rounding


class LeakyBucketShaper:
    """A queue for each key that lets `limit` per `per` seconds through, evenly spaced.

    Args:
        limit: Cost units that leave per `per` seconds, positive.
        per: Seconds, positive; 1 when left out.
        burst: Most cost units waiting, the one that leaves at once among them; at least 1. The
            longest delay is (burst - 1) x per / limit for a cost of 1. `limit` when None.
        name: Named by refusals.
        max_keys: Most keys remembered.
        max_bytes: Most bytes of keys and state.

    Raises:
        PolicyError: A value is out of bounds.
    """

    __slots__ = ("bucket",)

    def __init__(self, **settings: Unpack[Settings]) -> None:
        # Where the meter's level stands before a request is poured in is when it may leave.
        self.bucket = TokenBucket(**settings)

    def delay(self, key: str | bytes, now: float, cost: float = 1.0) -> float | Refuse:
        """Queue `cost` for `key`.

        Returns:
            Seconds after which it may go, 0.0 for at once; or a refusal when too much waits
            already, with the `retry_after` at which it would be accepted (`inf`: never).

        Raises:
            ValueError: The cost is not positive and finite, or `now` is not finite.
            TypeError: The key is neither str nor bytes.
        """
        quota = self.bucket.hit(key, now, cost)
        if not quota.allowed:
            return Refuse(
                Stage.RATE,
                Reason.RATE,
                quota.retry_after,
                cost,
                quota.remaining if cost <= quota.limit else quota.limit,
                quota.rate,
                quota,
            )
        delay = quota.reset_after - self.bucket.seconds(cost)
        return delay if delay > _SMALLEST_DELAY else 0.0

    def give_back(self, key: str | bytes, now: float, cost: float = 1.0) -> None:
        """Take one out of the queue that will not come (cancelled, gone).

        Those already told their delay keep it; the next to come waits less.
        """
        self.bucket.refund(Quota(True, 0.0, 0.0, 0.0, 0.0, key, cost, now), now)
