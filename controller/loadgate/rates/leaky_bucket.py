"""Leaky bucket, as a meter: a request is poured in, the bucket leaks, what would spill is refused.

State per key: one float, as for the token bucket. Burst: the bucket's size at any moment; over
any T seconds at most burst + limit/per x T. Error: none.

The meter and the token bucket are mirror images (water = burst - tokens) and admit exactly the
same requests; Turner 1986 described the one, the ATM Forum's GCRA proves them equal. People ask
for it by this name, and by it they often mean the other leaky bucket, the queue that delays:
that one is `shaper.py`.
"""

from __future__ import annotations

from loadgate.rates.token_bucket import TokenBucket


class LeakyBucket(TokenBucket):
    """A leaky bucket for each key; see `TokenBucket` for the settings and the decisions.

    `Quota.remaining` is the room left above the water, `reset_after` the seconds until it is
    empty.
    """

    __slots__ = ()

    algorithm = "leaky-bucket"
