"""Faults that users of other limiters met, and what happens here instead.

Decimal rates, lockouts after a lowered rate, refused requests that spend other rates, clock
steps, keys that are joined or interpolated, and tables that forget a limited key have tests of
their own in the neighbouring files.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from loadgate.rates import Limiter, create
from loadgate.rates.group import RateSet
from loadgate.rates.spec import Rate

EVERY = [
    "token-bucket",
    "leaky-bucket",
    "fixed-window",
    "sliding-window-counter",
    "sliding-window-log",
]


@pytest.mark.parametrize("algorithm", EVERY)
def test_a_refused_cost_does_not_burn_the_window(algorithm: str) -> None:
    # Cost 6 at a limit of 5 was refused and spent the window all the same.
    limiter: Limiter[Any] = create(algorithm, limit=5, per=60.0)
    limiter.hit("k", 1.0, 2)
    assert not limiter.hit("k", 1.0, 4).allowed
    assert not limiter.hit("k", 1.0, 6).allowed
    assert limiter.hit("k", 1.0, 3).allowed


@pytest.mark.parametrize("algorithm", EVERY)
def test_two_clients_never_share_a_budget(algorithm: str) -> None:
    limiter: Limiter[Any] = create(algorithm, limit=1, per=60.0)
    assert limiter.hit("first", 1.0).allowed
    assert not limiter.hit("first", 1.0).allowed
    assert limiter.hit("second", 1.0).allowed


@pytest.mark.parametrize("algorithm", EVERY)
def test_no_limiter_starts_a_thread(algorithm: str) -> None:
    # A timer for each request grew to 164 threads in two seconds.
    before = threading.active_count()
    limiter: Limiter[Any] = create(algorithm, limit=5, per=1.0)
    for number in range(2_000):
        limiter.hit(f"client-{number}", number * 1e-3)
    assert threading.active_count() == before


def test_the_default_algorithm_has_no_boundary_to_exploit() -> None:
    # 10/second in fixed windows let 19 through within 0.15 s.
    rates = RateSet([Rate("per-client", "10/second")])
    moments = [0.93 + step * 0.005 for step in range(30)]
    admitted = sum(isinstance(rates.charge("k", 1.0, now), tuple) for now in moments)
    assert admitted <= 10 + 10 * 0.15


@pytest.mark.parametrize("algorithm", ["token-bucket", "leaky-bucket"])
def test_a_burst_far_below_the_rate_still_limits(algorithm: str) -> None:
    # 1000/s with a burst of 100 expired at once in a store that counts whole seconds.
    bucket: Limiter[Any] = create(algorithm, limit=1000, burst=100)
    assert sum(bucket.hit("k", 5.0).allowed for _ in range(400)) == 100


def test_an_idle_bucket_only_ever_gains() -> None:
    # Refilling by assignment took a bucket that idled for 0.12 s from 10 tokens to 1.2.
    bucket: Limiter[Any] = create("token-bucket", limit=10, burst=10)
    bucket.hit("k", 0.0)
    for now in (0.0, 0.05, 0.12, 0.5, 100.0):
        assert bucket.peek("k", now).remaining >= 8.0
    assert bucket.peek("k", 100.0).remaining == 9.0


@pytest.mark.parametrize("algorithm", EVERY)
def test_the_time_told_is_never_negative_and_never_an_epoch(algorithm: str) -> None:
    # Whoever waited as told was refused, then saw 0 and at last -1,484,742,195.
    limiter: Limiter[Any] = create(algorithm, limit=3, per=10.0)
    now = 1_700_000_000.3
    for _ in range(50):
        quota = limiter.hit("k", now)
        assert 0.0 <= quota.retry_after <= 20.0
        assert 0.0 <= quota.reset_after <= 20.0
        if not quota.allowed:
            now += quota.retry_after
            assert limiter.peek("k", now).allowed


def test_a_rate_of_one_in_an_hour_survives_a_crowd() -> None:
    # A default store of 1,024 keys forgot the limited one after 1,100 others.
    limiter: Limiter[Any] = create("token-bucket", limit=1, per=3600.0)
    limiter.hit("limited", 0.0)
    for number in range(3_000):
        limiter.hit(f"other-{number}", 1.0)
    assert not limiter.hit("limited", 2.0).allowed


def test_a_request_is_charged_once_by_each_rate() -> None:
    # A decorator and a default limit deducted two for one request.
    rates = RateSet([Rate("first", limit=10), Rate("second", limit=10)])
    charged = rates.charge("k", 1.0, 0.0)
    assert isinstance(charged, tuple)
    assert [quota.remaining for quota in charged] == [9.0, 9.0]


def test_what_a_client_gave_up_waiting_for_is_given_back() -> None:
    # Abandoned waits kept consuming tokens and starved those who were still there.
    rates = RateSet([Rate("per-client", limit=5)])
    for _ in range(100):
        charged = rates.charge("k", 1.0, 0.0)
        assert isinstance(charged, tuple)
        rates.refund(charged, 0.1)
