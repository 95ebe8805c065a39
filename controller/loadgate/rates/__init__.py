"""Has this client anything left? One file per algorithm; `create` makes one by name."""

from __future__ import annotations

from typing import Any, Literal, Unpack, overload

from loadgate.errors import PolicyError
from loadgate.rates.base import Limiter
from loadgate.rates.fixed_window import FixedWindow
from loadgate.rates.leaky_bucket import LeakyBucket
from loadgate.rates.shaper import LeakyBucketShaper
from loadgate.rates.sliding_window_counter import SlidingWindowCounter
from loadgate.rates.sliding_window_log import SlidingWindowLog
from loadgate.rates.spec import (
    ALGORITHMS,
    DEFAULT_MAX_BYTES,
    DEFAULT_MAX_KEYS,
    Rate,
    Settings,
    one_of,
    whole,
)
from loadgate.rates.token_bucket import TokenBucket

__all__ = ["ALGORITHMS", "SHAPER", "Limiter", "PolicyError", "Rate", "create"]

SHAPER = "leaky-bucket-shaper"

_LIMITERS: dict[str, Any] = {
    "token-bucket": TokenBucket,
    "leaky-bucket": LeakyBucket,
    "fixed-window": FixedWindow,
    "sliding-window-counter": SlidingWindowCounter,
    "sliding-window-log": SlidingWindowLog,
    SHAPER: LeakyBucketShaper,
}


@overload
def create(
    algorithm: Literal["leaky-bucket-shaper"], **settings: Unpack[Settings]
) -> LeakyBucketShaper: ...
@overload
def create(
    algorithm: Literal[
        "token-bucket",
        "leaky-bucket",
        "fixed-window",
        "sliding-window-counter",
        "sliding-window-log",
    ],
    **settings: Unpack[Settings],
) -> Limiter[Any]: ...
@overload
def create(algorithm: str, **settings: Unpack[Settings]) -> Any: ...
def create(
    algorithm: str,
    *,
    limit: float,
    per: float = 1.0,
    burst: float | None = None,
    name: str = "",
    max_keys: int = DEFAULT_MAX_KEYS,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Limiter[Any] | LeakyBucketShaper:
    """Make a limiter of many keys.

    Args:
        algorithm: "token-bucket", "leaky-bucket", "fixed-window", "sliding-window-counter",
            "sliding-window-log", or "leaky-bucket-shaper", which delays instead of refusing.
        limit: Cost units per `per` seconds; whole for windows.
        per: Seconds.
        burst: Cost units that may be had at once; buckets only. `limit` (at least 1) when None.
        name: Put into every `Quota`.
        max_keys: Most keys remembered.
        max_bytes: Most bytes of keys and state.

    Raises:
        PolicyError: A value is out of bounds, or nobody knows the algorithm.
    """
    one_of("algorithm", algorithm, tuple(_LIMITERS))
    whole("max_keys", max_keys, least=1)
    whole("max_bytes", max_bytes, least=1024)
    limiter: Limiter[Any] | LeakyBucketShaper = _LIMITERS[algorithm](
        limit=limit, per=per, burst=burst, name=name, max_keys=max_keys, max_bytes=max_bytes
    )
    return limiter
