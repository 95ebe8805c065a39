"""What does an attacker gain, and a newcomer lose, while ten million keys are sprayed?

Every sprayed request comes with a key never seen before. A victim had used up its rate before
and tries again now and then; newcomers come once each. All time is virtual.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from loadgate.rates import create

SPRAYED_PER_SECOND: Final = 20_000.0
MAX_KEYS: Final = 1_000_000
REQUESTS_PER_NEWCOMER: Final = 100
REQUESTS_PER_TRY: Final = 1_000

# From a rate that forgets a sprayed key in a moment to one that remembers it for hours.
RATES: Final = (
    ("100/second", 100.0, 1.0),
    ("3/minute", 3.0, 60.0),
    ("5/hour", 5.0, 3600.0),
)


class Sprayed(NamedTuple):
    """What one rate went through."""

    rate: str
    sprayed: int
    keys: int
    evicted: int
    overflowed: int
    newcomers_refused: float
    expected: float
    victim_above_its_rate: int
    ns: float
    longest_ms: float


def expected_refusals(limit: float, per: float) -> float:
    """Share of newcomers refused in the long run, if only the overflow buckets served them.

    So many keys are remembered until one token is back: with less than `MAX_KEYS` of them nobody
    overflows. Otherwise what enters the table and what the overflow buckets let through is had
    by the attacker and the newcomers alike.
    """
    fresh_again = per / limit
    if SPRAYED_PER_SECOND * fresh_again <= MAX_KEYS:
        return 0.0
    entering = MAX_KEYS / fresh_again
    shared = min(65_536, MAX_KEYS // 16) * limit / per
    return max(0.0, 1.0 - (entering + shared) / SPRAYED_PER_SECOND)


def spray(requests: int, rates: tuple[tuple[str, float, float], ...] = RATES) -> Iterator[Sprayed]:
    """Spray each rate with so many requests."""
    for text, limit, per in rates:
        bucket = create("token-bucket", limit=limit, per=per, max_keys=MAX_KEYS)
        while bucket.hit("victim", 0.0).allowed:
            pass
        victim = newcomers = refused = 0
        longest = 0.0
        begin = time.process_time()
        for number in range(requests):
            now = number / SPRAYED_PER_SECOND
            before = time.thread_time()
            bucket.hit(f"sprayed-{number}", now)
            longest = max(longest, time.thread_time() - before)
            if not number % REQUESTS_PER_NEWCOMER:
                newcomers += 1
                refused += not bucket.hit(f"newcomer-{number}", now).allowed
            if not number % REQUESTS_PER_TRY:
                victim += bucket.hit("victim", now).allowed
        spent = time.process_time() - begin
        granted = math.floor(requests / SPRAYED_PER_SECOND * limit / per + 1e-6)
        yield Sprayed(
            text,
            requests,
            bucket.keys,
            bucket.evicted + bucket.forgotten,
            bucket.overflowed,
            refused / newcomers,
            expected_refusals(limit, per),
            max(0, victim - granted),
            spent / requests * 1e9,
            longest * 1e3,
        )
