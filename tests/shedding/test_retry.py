from __future__ import annotations

from itertools import pairwise

import pytest

from loadgate.shedding.retry import CEILING, FLOOR, RetryAfter


def refuse(retry: RetryAfter, begin: float, seconds: float, rate: float) -> float:
    """Refuse evenly, `rate` times a second; returns when it ends."""
    for n in range(int(seconds * rate)):
        retry.after(begin + n / rate, 0.0, 100.0)
    return begin + seconds


def test_the_pause_doubles_while_refusals_go_on_and_stays_bounded() -> None:
    retry = RetryAfter()
    assert retry.pause == FLOOR
    now = refuse(retry, 0.0, 1.5, 10.0)
    assert retry.pause == 2.0
    now = refuse(retry, now, 2.0, 10.0)
    assert retry.pause == 4.0
    now = refuse(retry, now, 100.0, 10.0)
    assert retry.pause == pytest.approx(CEILING / 1.5)
    assert all(FLOOR <= retry.after(now, 1e9, 100.0) <= CEILING for _ in range(100))


def test_it_falls_back_by_a_second_for_each_stretch_with_few_refusals() -> None:
    retry = RetryAfter()
    now = refuse(retry, 0.0, 40.0, 10.0)
    high = retry.pause
    now = refuse(retry, now, 2.0 * high + 1.0, 0.5)
    assert FLOOR < retry.pause < high
    retry.after(now + 1000.0, 0.0, 100.0)
    assert retry.pause == FLOOR


def test_two_refusals_a_second_neither_double_nor_shrink_it() -> None:
    retry = RetryAfter()
    refuse(retry, 0.0, 20.0, 2.0)
    assert retry.pause == FLOOR
    now = refuse(retry, 20.0, 3.1, 10.0)
    held = retry.pause
    assert held > FLOOR
    refuse(retry, now, 20.0, 2.0)
    assert retry.pause == held


def test_a_large_service_may_refuse_one_in_a_hundred() -> None:
    retry = RetryAfter()
    for n in range(2000):
        retry.after(n / 50.0, 0.0, 10_000.0)  # 50 refusals a second, of 10,000
    assert retry.pause == FLOOR


def test_the_time_in_which_the_queue_drains_counts_when_it_is_longer() -> None:
    assert RetryAfter().after(0.0, 7.0, 100.0) >= 7.0


def test_answers_given_together_are_spread_evenly() -> None:
    retry = RetryAfter(0.3)
    answers = sorted(retry.after(0.0, 0.0, 1e9) for _ in range(100))
    assert answers[0] >= 1.0
    assert answers[-1] < 1.5
    gaps = [b - a for a, b in pairwise(answers)]
    assert max(gaps) < 3 * 0.5 / 100


def test_processes_begin_their_spread_elsewhere() -> None:
    assert RetryAfter(0.1).after(0.0, 0.0, 1.0) != RetryAfter(0.2).after(0.0, 0.0, 1.0)
