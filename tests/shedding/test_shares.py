from __future__ import annotations

from loadgate.shedding.readiness import Readiness
from loadgate.shedding.refused_share import RefusedShare
from loadgate.shedding.shares import Holders, Reserves


def test_a_class_below_its_reserve_is_next_whatever_its_priority() -> None:
    reserves = Reserves(("high", "low"), {"low": 0.2})
    waiting = {0: 3, 1: 1}
    assert reserves.next_class(lambda level: waiting[level], 10) == 1
    reserves.of(1).in_flight = 2
    assert reserves.next_class(lambda level: waiting[level], 10) is None
    assert reserves.next_class(lambda level: waiting[level], 11) == 1  # 2.2 places are 3


def test_a_class_that_does_not_wait_is_owed_nothing() -> None:
    reserves = Reserves(("high", "low"), {"low": 0.2})
    assert reserves.next_class(lambda level: 1 - level, 10) is None


def test_as_many_waiters_as_places_are_owed_are_protected() -> None:
    reserves = Reserves(("high", "low"), {"low": 0.2})
    assert reserves.protects(1, 2, 10)
    assert not reserves.protects(1, 3, 10)
    assert not reserves.protects(0, 1, 10)


def test_who_runs_stays_counted_under_its_name_when_classes_change() -> None:
    reserves = Reserves(("a", "b"), {"b": 0.5})
    share = reserves.of(1)
    share.in_flight = 3
    reserves.follow(("b", "c", "a"), {"b": 0.4})
    assert reserves.of(0) is share
    assert share.owed(10) == 1
    assert reserves.of(99) is reserves.of(2)


def test_holders_are_counted_and_forgotten() -> None:
    holders = Holders(0.25)
    assert (holders.bound(10), holders.bound(1)) == (2, 1)
    holders.take("a", 2)
    holders.take("a", 1)
    assert holders.held("a") == 3
    holders.give_back("a", 3)
    holders.give_back("a", 3)  # ending twice is harmless
    assert holders.total() == 0


def test_the_cap_lets_through_what_would_pass_it() -> None:
    cap = RefusedShare(0.25)
    refused = 0
    for arrived in range(1, 1001):
        if cap.allows(1.0, arrived, refused):
            refused += 1
    assert refused == 250


def test_the_cap_looks_at_ten_seconds() -> None:
    cap = RefusedShare(0.5)
    assert cap.allows(0.0, 1, 0) is False
    assert cap.allows(1.0, 1000, 0)
    assert not cap.allows(20.0, 1001, 1)  # a new window: nothing has arrived in it but this one


def look(ready: Readiness, begin: float, seconds: int, share: float, seen: list[int]) -> float:
    """Look once a second while a hundred come, of which `share` are refused."""
    for _ in range(seconds):
        begin += 1.0
        seen[0] += 100
        seen[1] += int(100 * share)
        ready.look(begin, *seen)
    return begin


def test_readiness_needs_five_bad_seconds_and_five_good_ones() -> None:
    ready, seen = Readiness(), [0, 0]
    now = look(ready, 0.0, 4, 0.9, seen)
    assert ready.ready
    now = look(ready, now, 3, 0.9, seen)
    assert not ready.ready
    now = look(ready, now, 20, 0.3, seen)
    assert not ready.ready  # neither bad nor good: it stays what it is
    now = look(ready, now, 4, 0.0, seen)
    assert not ready.ready
    look(ready, now, 2, 0.0, seen)
    assert ready.ready


def test_a_second_of_peace_starts_the_count_again() -> None:
    ready, seen = Readiness(), [0, 0]
    now = 0.0
    for _ in range(10):
        now = look(ready, now, 4, 0.9, seen)
        now = look(ready, now, 1, 0.1, seen)
    assert ready.ready


def test_without_requests_it_becomes_ready_again() -> None:
    ready, seen = Readiness(), [0, 0]
    now = look(ready, 0.0, 10, 1.0, seen)
    assert not ready.ready
    for _ in range(7):
        now += 1.0
        ready.look(now, *seen)
    assert ready.ready


def test_looks_that_come_at_once_are_one_look() -> None:
    ready = Readiness()
    ready.look(0.0, 0, 0)
    for n in range(1000):
        ready.look(0.0001 * n, n, n)
    assert ready.ready
