"""Which limiters are compared, and how is each asked for one decision about one key?

Every subject is used as its documentation shows, at its fastest: synchronous, in memory, one
object for all keys where it can have several. A subject is a function that decides once for each
key of a list, so that nothing stands between the loop and the library; reading the clock is
always included. Libraries are imported when they are measured, so that a missing one is named
and the rest still runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, cast

from loadgate.rates import create
from loadgate.rates.group import RateSet
from loadgate.rates.spec import Rate

Decide = Callable[[list[str]], None]  # once for each of these keys
FOREVER: Final = 10**9  # seconds, and requests: nothing comes back, or nothing is ever refused


class Subject(NamedTuple):
    """One limiter: its name, how to make one that allows or refuses, and what it needs."""

    name: str
    make: Callable[[bool, int], Decide]
    needs: str = ""
    keyed: bool = True
    most_keys: int = 1_000_000


class _Bucket:
    __slots__ = ("at", "tokens")

    def __init__(self, tokens: float, at: float) -> None:
        self.tokens = tokens
        self.at = at


class HandWritten:
    """What a careful programmer writes in ten minutes: a dict of token buckets, no more."""

    def __init__(self, rate: float, burst: float) -> None:
        self.rate = rate
        self.burst = burst
        self.buckets: dict[str, _Bucket] = {}

    def hit(self, key: str) -> bool:
        """Take one token."""
        now = time.monotonic()
        bucket = self.buckets.get(key)
        if bucket is None:
            bucket = self.buckets[key] = _Bucket(self.burst, now)
        tokens = min(self.burst, bucket.tokens + (now - bucket.at) * self.rate)
        bucket.at = now
        if tokens >= 1.0:
            bucket.tokens = tokens - 1.0
            return True
        bucket.tokens = tokens
        return False


def each(decide: Callable[[str], object]) -> Decide:
    """Call `decide` for each key."""

    def run(keys: list[str]) -> None:
        for key in keys:
            decide(key)

    return run


def hand_written(allow: bool, keys: int) -> Decide:
    """The floor that every ratio is taken against."""
    made = HandWritten(100.0, FOREVER) if allow else HandWritten(1.0 / FOREVER, 1.0)
    return each(made.hit)


def ours(algorithm: str) -> Callable[[bool, int], Decide]:
    """A limiter of this project, with the whole `Quota` of each decision."""

    def make(allow: bool, keys: int) -> Decide:
        settings: dict[str, Any]
        if not allow:
            settings = {"limit": 1, "per": FOREVER}
        elif algorithm.endswith("bucket"):
            settings = {"limit": 100, "burst": FOREVER}
        elif algorithm == "sliding-window-log":
            # A few hundred entries in sight at a time, and never more than a thousand.
            settings = {"limit": 10_000, "per": 0.0005}
        else:
            settings = {"limit": FOREVER}
        hit = create(algorithm, max_keys=2 * keys, max_bytes=1 << 34, **settings).hit
        clock = time.monotonic

        def run(keys: list[str]) -> None:
            for key in keys:
                hit(key, clock())

        return run

    return make


def ours_together(rates: int) -> Callable[[bool, int], Decide]:
    """Several rates as the controller charges them, all or nothing."""

    def make(allow: bool, keys: int) -> Decide:
        limit, per, burst = (100.0, 1.0, float(FOREVER)) if allow else (1.0, float(FOREVER), 1.0)
        group = RateSet(
            [
                Rate(f"rate-{number}", limit=limit, per=per, burst=burst, max_keys=2 * keys)
                for number in range(rates)
            ]
        )
        charge, clock = group.charge, time.monotonic

        def run(keys: list[str]) -> None:
            for key in keys:
                charge(key, 1.0, clock())

        return run

    return make


def of_limits(strategy: str) -> Callable[[bool, int], Decide]:
    """A strategy of `limits` over its memory storage."""

    def make(allow: bool, keys: int) -> Decide:
        import limits
        from limits.storage import MemoryStorage

        item = limits.RateLimitItemPerSecond(FOREVER) if allow else limits.RateLimitItemPerYear(1)
        hit = getattr(limits.strategies, strategy)(MemoryStorage()).hit

        def run(keys: list[str]) -> None:
            for key in keys:
                hit(item, key)

        return run

    return make


def of_throttled(algorithm: str) -> Callable[[bool, int], Decide]:
    """An algorithm of throttled-py over its memory store, made large enough for all keys."""

    def make(allow: bool, keys: int) -> Decide:
        from throttled import MemoryStore, Throttled, per_day, per_sec

        quota = per_sec(10**6, burst=10**6) if allow else per_day(1, burst=1)
        store = MemoryStore(options={"MAX_SIZE": 2 * keys + 1})
        return each(Throttled(using=algorithm, quota=quota, store=store).limit)

    return make


def of_pyrate(allow: bool, keys: int) -> Decide:
    """A bucket of pyrate-limiter for each key, in a dict: it leaves keys to its user."""
    from pyrate_limiter import InMemoryBucket, RateItem
    from pyrate_limiter import Rate as PyRate

    rates = [PyRate(FOREVER, 1)] if allow else [PyRate(1, FOREVER)]
    buckets: dict[str, Any] = {}

    def decide(key: str) -> object:
        bucket = buckets.get(key)
        if bucket is None:
            bucket = buckets[key] = InMemoryBucket(rates)
        now = cast(int, bucket.now())
        bucket.leak(now)
        return bucket.put(RateItem(key, now))

    return each(decide)


def of_aiolimiter(allow: bool, keys: int) -> Decide:
    """A limiter of aiolimiter for each key, in a dict; refusal is asked with `has_capacity`.

    Its `acquire` is a coroutine that never waits here, so it is run to its end by hand: that is
    cheaper than a task or an event loop, and in its favour.
    """
    from aiolimiter import AsyncLimiter

    limiters: dict[str, AsyncLimiter] = {}

    def decide(key: str) -> object:
        limiter = limiters.get(key)
        if limiter is None:
            limiter = limiters[key] = AsyncLimiter(FOREVER if allow else 1, 1 if allow else FOREVER)
            finish(limiter.acquire())
            return True
        if allow:
            finish(limiter.acquire())
            return True
        return limiter.has_capacity()

    return each(decide)


def finish(coroutine: Coroutine[Any, Any, object]) -> None:
    """Run a coroutine that does not wait."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("it waited")


FLOOR: Final = Subject("hand-written token bucket", hand_written)
OURS: Final = (
    Subject("loadgate token-bucket", ours("token-bucket")),
    Subject("loadgate leaky-bucket", ours("leaky-bucket")),
    Subject("loadgate fixed-window", ours("fixed-window")),
    Subject("loadgate sliding-window-counter", ours("sliding-window-counter")),
    Subject("loadgate sliding-window-log", ours("sliding-window-log")),
    Subject("loadgate RateSet, one rate", ours_together(1)),
    Subject("loadgate RateSet, two rates", ours_together(2)),
)
PEERS: Final = (
    Subject("limits fixed window", of_limits("FixedWindowRateLimiter"), "limits"),
    Subject(
        "limits sliding counter", of_limits("SlidingWindowCounterRateLimiter"), "limits",
        most_keys=100_000,
    ),
    Subject(
        "limits moving window", of_limits("MovingWindowRateLimiter"), "limits", most_keys=100_000
    ),
    Subject("throttled-py token bucket", of_throttled("token_bucket"), "throttled-py"),
    Subject("throttled-py gcra", of_throttled("gcra"), "throttled-py"),
    Subject(
        "throttled-py fixed window", of_throttled("fixed_window"), "throttled-py",
        most_keys=100_000,
    ),
    Subject(
        "throttled-py sliding window", of_throttled("sliding_window"), "throttled-py",
        most_keys=100_000,
    ),
    Subject(
        "pyrate-limiter per key", of_pyrate, "pyrate-limiter", keyed=False, most_keys=100_000
    ),
    Subject("aiolimiter per key", of_aiolimiter, "aiolimiter", keyed=False, most_keys=100_000),
)  # fmt: skip
SUBJECTS: Final = {subject.name: subject for subject in (FLOOR, *OURS, *PEERS)}
