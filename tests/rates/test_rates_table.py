"""The key table: bounded, forgetful at a constant price, and never in favour of an attacker."""

from __future__ import annotations

import sys
import unicodedata
from typing import Any, cast

import pytest

from loadgate.rates import Limiter, create
from loadgate.rates.table import OverflowQuota

EVERY = [
    "token-bucket",
    "leaky-bucket",
    "fixed-window",
    "sliding-window-counter",
    "sliding-window-log",
]


def make(
    algorithm: str = "token-bucket", *, limit: float = 5, per: float = 60.0, **bounds: Any
) -> Limiter[Any]:
    made: Limiter[Any] = create(algorithm, limit=limit, per=per, **bounds)
    return made


def exhaust(limiter: Limiter[Any], key: str | bytes, now: float) -> None:
    while limiter.hit(key, now).allowed:
        pass


@pytest.mark.parametrize("algorithm", EVERY)
def test_a_limited_key_stays_limited_while_others_are_sprayed(algorithm: str) -> None:
    limiter = make(algorithm, max_keys=500)
    exhaust(limiter, "victim", 0.0)
    for number in range(20_000):
        limiter.hit(f"spray-{number}", number * 1e-4)
        if number % 500 == 0:
            assert not limiter.hit("victim", number * 1e-4).allowed
    assert limiter.keys <= 500
    assert limiter.overflowed >= 19_000
    assert limiter.evicted == 0


@pytest.mark.parametrize("algorithm", EVERY)
def test_spraying_slowly_enough_to_be_forgotten_evicts_only_fresh_keys(algorithm: str) -> None:
    # One token is back after 12 s, a window after two minutes: most sprayed keys are fresh again.
    limiter = make(algorithm, max_keys=200)
    exhaust(limiter, "victim", 0.0)
    refilled = 0
    for number in range(1, 6_000):
        now = number * 1.0
        limiter.hit(f"spray-{number}", now)
        quota = limiter.hit("victim", now)
        refilled += quota.allowed
    # The victim had no more than its rate: its state was never dropped and begun anew.
    assert refilled <= 6_000 / 60 * 5 + 5
    assert limiter.keys <= 200
    assert limiter.evicted + limiter.forgotten > 5_000


@pytest.mark.parametrize("algorithm", EVERY)
def test_idle_keys_are_forgotten_while_one_client_goes_on(algorithm: str) -> None:
    limiter = make(algorithm, limit=5, per=1.0)
    for number in range(2_000):
        limiter.hit(f"once-{number}", number * 1e-3)
    assert limiter.keys >= 1_000
    for number in range(4_000):
        limiter.hit("steady", 1000.0 + number * 0.5)
    assert limiter.keys <= 2
    assert limiter.forgotten >= 1_999


@pytest.mark.parametrize("algorithm", EVERY)
def test_idle_keys_are_forgotten_under_nothing_but_refusals(algorithm: str) -> None:
    limiter = make(algorithm, limit=5, per=1.0)
    for number in range(500):
        limiter.hit(f"once-{number}", 0.0)
    for number in range(3_000):
        limiter.hit("greedy", 1000.0 + number * 1e-3)
    assert limiter.keys <= 2


def test_forgetting_costs_each_request_a_bounded_number_of_steps() -> None:
    # Nobody pays for the crowd: after a spray the table shrinks by at most 8 keys at a time.
    limiter = make(limit=5, per=1.0)
    for number in range(5_000):
        limiter.hit(f"once-{number}", 0.0)
    keys = limiter.keys
    for number in range(2_000):
        limiter.hit("steady", 1000.0 + number)
        assert keys - limiter.keys <= 8
        keys = limiter.keys


def test_a_key_in_use_is_not_forgotten_between_its_visits() -> None:
    limiter = make(limit=5, per=1.0)
    for turn in range(20):
        for number in range(100):
            limiter.hit(f"client-{number}", turn * 5.0 + number * 0.01)
    assert limiter.keys == 100
    assert limiter.forgotten == 0


@pytest.mark.parametrize("algorithm", EVERY)
def test_the_table_is_bounded_in_bytes_too(algorithm: str) -> None:
    limiter = make(algorithm, max_bytes=200_000)
    for number in range(300):
        limiter.hit(f"{number:05d}" + "x" * 10_000, 0.0)
    assert 10 <= limiter.keys <= 20
    assert limiter.size_bytes <= 200_000
    quota = limiter.hit("y" * 300_000, 0.0)
    assert isinstance(quota, OverflowQuota)
    assert quota.allowed


def test_an_overflow_bucket_is_limited_like_a_key_and_gives_back_like_one() -> None:
    limiter = make(max_keys=1)
    exhaust(limiter, "first", 0.0)
    receipts = [limiter.hit("late", 0.0) for _ in range(5)]
    assert all(isinstance(receipt, OverflowQuota) and receipt.allowed for receipt in receipts)
    assert [receipt.key for receipt in receipts] == ["late"] * 5
    assert not limiter.hit("late", 0.0).allowed
    # With room for one key there is one overflow bucket, so the next newcomer shares it.
    refused = limiter.hit("innocent", 0.0)
    assert not refused.allowed
    assert refused.retry_after == pytest.approx(12.0)
    assert limiter.peek("innocent", 0.0).remaining == 0.0
    limiter.refund(receipts[0], 0.0)
    assert limiter.hit("innocent", 0.0).allowed
    assert limiter.keys == 1


def test_newcomers_get_entries_again_once_the_spray_is_over() -> None:
    limiter = make(max_keys=100)
    for number in range(5_000):
        limiter.hit(f"spray-{number}", 0.0)
    for number in range(80):
        quota = limiter.hit(f"client-{number}", 30.0)
        assert not isinstance(quota, OverflowQuota)
        assert quota.remaining == 4.0


def test_peek_at_an_unknown_key_sees_the_bucket_it_would_share() -> None:
    limiter = make(max_keys=1)
    exhaust(limiter, "first", 0.0)
    exhaust(limiter, "late", 0.0)
    assert not limiter.peek("innocent", 0.0).allowed
    assert limiter.peek("innocent", 13.0).allowed
    assert limiter.keys == 1


@pytest.mark.parametrize("algorithm", EVERY)
def test_keys_are_counted_as_they_stand(algorithm: str) -> None:
    limiter = make(algorithm, limit=1)
    composed = unicodedata.normalize("NFC", "e\u0301")
    keys: list[str | bytes] = [
        "",
        b"",
        "a",
        b"a",
        "A",
        " a",
        "a ",
        "a\x00",
        "a\n",
        "1",
        "None",
        "\ud800",
        "\udfff\ud800",
        b"\xff",
        b"\xed\xa0\x80",
        composed,
        unicodedata.normalize("NFD", composed),
        "tenant/a/b",
        "tenant/a:b",
        "x" * 100_000,
        "x" * 100_000 + "y",
        "'; DROP TABLE keys; --",
        "{}",
        "%s",
    ]
    for key in keys:
        assert limiter.hit(key, 0.0).allowed, repr(key)
    for key in keys:
        assert not limiter.hit(key, 0.0).allowed, repr(key)
    assert limiter.keys == len(keys)


@pytest.mark.parametrize("algorithm", EVERY)
def test_lone_surrogates_and_bytes_may_overflow_too(algorithm: str) -> None:
    limiter = make(algorithm, limit=1, max_keys=1)
    limiter.hit("first", 0.0)
    for key in ("\ud800", b"\xff", "ordinary"):
        assert isinstance(limiter.hit(key, 0.0), OverflowQuota)


@pytest.mark.parametrize("algorithm", EVERY)
@pytest.mark.parametrize("key", [None, 1, 1.0, True, ("a", "b"), bytearray(b"a"), object()])
def test_a_key_of_another_type_is_an_error(algorithm: str, key: object) -> None:
    limiter = make(algorithm, max_keys=1)
    limiter.hit("first", 0.0)
    limiter.hit("overflowing", 0.0)
    for ask in (limiter.hit, limiter.peek, limiter.take):
        with pytest.raises(TypeError):
            ask(cast(str, key), 0.0)
    with pytest.raises(TypeError):
        limiter.hit(cast(str, key), 0.0, 1_000.0)


def test_a_subclass_of_str_cannot_redefine_who_it_is() -> None:
    class Chameleon(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            return False

        def __hash__(self) -> int:
            return 1

    limiter = make(limit=1)
    assert limiter.hit(Chameleon("a"), 0.0).allowed
    assert not limiter.hit("a", 0.0).allowed
    assert not limiter.hit(Chameleon("a"), 0.0).allowed


def test_a_smaller_table_shrinks_as_its_keys_become_fresh() -> None:
    limiter = make(limit=5, per=1.0)
    for number in range(1_000):
        limiter.hit(f"client-{number}", 0.0)
    limiter.resize(10, 1 << 20)
    for number in range(2_000):
        limiter.hit(f"other-{number}", 5.0 + number)
    assert limiter.keys <= 10


def test_state_per_key_is_small() -> None:
    # 1,000 keys; bench/rates.py measures a million and the whole process.
    for algorithm, most in (
        ("token-bucket", 24),
        ("leaky-bucket", 24),
        ("fixed-window", 24),
        ("sliding-window-counter", 32),
        ("sliding-window-log", 100 + 8 * 5),
    ):
        limiter = make(algorithm)
        for number in range(1_000):
            limiter.hit(f"client-{number}", 0.0)
        shards = limiter._shards  # pyright: ignore[reportPrivateUsage]  # what is measured
        states = [state for shard in shards for state in shard.values()]
        assert len(states) == 1_000
        assert max(sys.getsizeof(state) for state in states) <= most


def test_keys_are_spread_over_dicts_so_that_none_is_copied_in_one_long_pause() -> None:
    limiter = make(limit=1, per=1e9)
    for number in range(20_000):
        limiter.hit(f"client-{number}", 0.0)
        limiter.hit(b"client-%d" % number, 0.0)
    sizes = [len(shard) for shard in limiter._shards]  # pyright: ignore[reportPrivateUsage]  # where they are
    assert sum(sizes) == 40_000
    # 312 of 40,000 in each of 128, with a standard deviation of 18.
    assert len(sizes) == 128
    assert max(sizes) < 312 + 6 * 18
    assert min(sizes) > 312 - 6 * 18
