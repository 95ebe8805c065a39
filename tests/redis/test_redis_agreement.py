"""The script decides what the limiters in memory decide, on every server."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgate.decisions import Quota
from loadgate.rates import create
from loadgate.rates.spec import ALGORITHMS, BUCKETS, Rate
from tests.redis.servers import Server
from tests.redis.turned import Turned

# Microseconds. All moments end in 3, so that none is a multiple of a share of a window: there
# floats round to one side and integers do not.
START = 1_000_000_003

PERIODS = (0.1, 0.5, 1.0, 7.0, 60.0)

Step = tuple[str, str, int, float]


@st.composite
def rates(draw: st.DrawFn, algorithm: str) -> Rate:
    per = draw(st.sampled_from(PERIODS))
    if algorithm in BUCKETS:
        limit = draw(st.sampled_from((0.5, 1.0, 2.5, 3.0, 7.0, 10.0, 100.0, 1000.0)))
        burst = draw(st.sampled_from((1.0, 1.5, 4.0, 10.0, 200.0)))
        return Rate("r", limit=limit, per=per, burst=burst, algorithm=algorithm)
    limit = float(draw(st.integers(1, 20)))
    return Rate("r", limit=limit, per=per, algorithm=algorithm)


def steps(algorithm: str) -> st.SearchStrategy[list[Step]]:
    whole = algorithm == "sliding-window-log"
    costs = (1.0, 1.0, 2.0, 3.0, 25.0) if whole else (1.0, 1.0, 0.5, 0.25, 2.0, 3.0, 25.0)
    return st.lists(
        st.tuples(
            st.sampled_from(("hit", "hit", "hit", "hit", "peek", "refund", "take")),
            st.sampled_from("ab"),
            st.one_of(
                st.just(0),
                st.integers(0, 100).map(lambda n: n * 10),
                st.integers(0, 200_000).map(lambda n: n * 10),
                st.integers(0, 10_000_000).map(lambda n: n * 10),
            ),
            st.sampled_from(costs),
        ),
        max_size=40,
    )


@pytest.fixture(scope="module")
def turned(any_server: Server) -> Generator[Turned]:
    made = Turned(any_server)
    yield made
    made.close()


def same(ours: Quota, stored: Quota) -> None:
    assert stored.allowed == ours.allowed, (ours, stored)
    assert stored.limit == ours.limit
    assert stored.remaining == pytest.approx(ours.remaining, abs=2e-5)
    assert stored.reset_after == pytest.approx(ours.reset_after, abs=3e-6)
    if math.isinf(ours.retry_after):
        assert math.isinf(stored.retry_after)
    else:
        assert stored.retry_after == pytest.approx(ours.retry_after, abs=3e-6)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_memory_and_store_agree(turned: Turned, algorithm: str) -> None:
    @settings(
        max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
    )
    @given(rates(algorithm), steps(algorithm))
    def agree(rate: Rate, plan: list[Step]) -> None:
        ours: Any = create(algorithm, limit=rate.limit, per=rate.per, burst=rate.burst)
        stored = turned.limiter(rate)
        receipts: list[tuple[Quota, str, int]] = []
        now = START
        for action, key, passed, cost in plan:
            now += passed
            if action == "hit":
                quota = ours.hit(key, now / 1e6, cost)
                answer, id = stored.hit(key, now, cost)
                same(quota, answer)
                if quota.allowed:
                    receipts.append((quota, id, now))
            elif action == "peek":
                same(ours.peek(key, now / 1e6, cost), stored.peek(key, now, cost))
            elif action == "take":
                ours.take(key, now / 1e6, cost)
                stored.take(key, now, cost)
            elif receipts:
                quota, id, at = receipts.pop()
                ours.refund(quota, now / 1e6)
                stored.refund(str(quota.key), now, quota.cost, at, id)

    agree()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_refused_until_exactly_retry_after_and_allowed_at_it(
    turned: Turned, algorithm: str
) -> None:
    @settings(max_examples=15, deadline=None, database=None)
    @given(rates(algorithm), st.lists(st.integers(0, 3_000_000), max_size=30), st.integers(1, 3))
    def exact(rate: Rate, gaps: list[int], cost: int) -> None:
        stored = turned.limiter(rate)
        now = START
        for gap in gaps:
            now += gap
            quota, _ = stored.hit("a", now, cost)
            if quota.allowed or math.isinf(quota.retry_after):
                assert quota.allowed or cost > rate.burst
                continue
            wait = round(quota.retry_after * 1e6)
            assert wait >= 1
            assert not stored.peek("a", now + wait - 1, cost).allowed
            assert stored.peek("a", now + wait, cost).allowed

    exact()
