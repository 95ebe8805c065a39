"""Who is refused most is found in bounded memory, whoever else comes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadgate.integrations.frequent import Frequent


@given(st.lists(st.integers(0, 30), max_size=400), st.integers(1, 8))
def test_a_count_is_never_too_high_and_too_low_by_a_known_part_at_most(
    keys: list[int], counters: int
) -> None:
    frequent = Frequent[int](counters)
    for key in keys:
        frequent.add(key, 0.0)
    counts = frequent.counts(0.0)
    assert len(counts) <= counters
    assert frequent.total(0.0) == len(keys)
    for key in range(31):
        true = keys.count(key)
        assert true - len(keys) / (counters + 1) <= counts.get(key, 0) <= true
    assert list(counts.values()) == sorted(counts.values(), reverse=True)


def test_a_greedy_client_is_found_among_a_million_others_who_come_once() -> None:
    frequent = Frequent[str]()
    for number in range(20_000):
        frequent.add(f"once-{number}", 1.0)
        if number % 20 == 0:
            frequent.add("greedy", 1.0)
    assert next(iter(frequent.counts(1.0))) == "greedy"


def test_what_is_over_is_forgotten_after_two_stretches() -> None:
    frequent = Frequent[str](stretch=100.0)
    frequent.add("early", 0.0)
    frequent.add("late", 150.0)
    assert frequent.counts(150.0) == {"early": 1, "late": 1}
    assert frequent.total(150.0) == 2
    assert frequent.counts(260.0) == {"late": 1}
    assert frequent.counts(1000.0) == {}
    assert frequent.total(1000.0) == 0
