"""Arrivals are fixed before the run, follow the asked rate, and depend on the seed alone."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgate.integrations.loadgen import ClientClass, Phase
from loadgate.integrations.loadgen.schedule import arrivals

PHASES = (Phase("low", 100.0), Phase("ramp", 100.0), Phase("high", 100.0))
rates = st.one_of(
    st.floats(0, 50), st.tuples(st.floats(0, 50), st.floats(0, 50)).map(lambda pair: (*pair,))
)


def test_equal_seeds_give_equal_schedules_and_others_do_not() -> None:
    one = ClientClass(name="user", rates=(10.0, (10.0, 50.0), 50.0))
    assert arrivals(one, PHASES, 7) == arrivals(one, PHASES, 7)
    assert arrivals(one, PHASES, 7) != arrivals(one, PHASES, 8)


def test_classes_draw_from_streams_of_their_own() -> None:
    one = ClientClass(name="user", rates=(10.0,))
    other = ClientClass(name="robot", rates=(10.0,))
    assert arrivals(one, PHASES, 1) != arrivals(other, PHASES, 1)


def test_poisson_arrivals_are_as_many_and_as_irregular_as_asked() -> None:
    one = ClientClass(name="user", rates=(10.0, (10.0, 50.0), 50.0))
    times = arrivals(one, PHASES, 3)
    for start, end, expected in ((0, 100, 1000), (100, 200, 3000), (200, 300, 5000)):
        count = sum(1 for at in times if start <= at < end)
        assert abs(count - expected) < 4 * sqrt(expected)
    gaps = [b - a for a, b in pairwise(times) if a >= 200]
    mean = sum(gaps) / len(gaps)
    spread = sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert spread / mean == pytest.approx(1.0, abs=0.06)  # exponential gaps


def test_a_ramp_is_straight() -> None:
    one = ClientClass(name="user", rates=((0.0, 100.0),), spacing="even")
    times = arrivals(one, (Phase("ramp", 10.0),), 1)
    assert len(times) == 500
    assert sum(1 for at in times if at < 5.0) == 125  # a quarter of the area under the line


def test_even_arrivals_are_regular() -> None:
    one = ClientClass(name="user", rates=(4.0,), spacing="even")
    assert list(arrivals(one, (Phase("all", 1.0),), 1)) == [0.125, 0.375, 0.625, 0.875]


def test_given_arrivals_are_taken_as_they_are() -> None:
    one = ClientClass(name="user", arrivals=(0.0, 0.5, 0.5, 2.0), rates=(9.0,))
    assert list(arrivals(one, PHASES, 1)) == [0.0, 0.5, 0.5, 2.0]


@given(st.lists(rates, max_size=3), st.integers(0, 10), st.sampled_from(["poisson", "even"]))
def test_arrivals_are_sorted_and_lie_in_phases_that_ask_for_some(
    asked: list[float | tuple[float, float]], seed: int, spacing: str
) -> None:
    one = ClientClass(name="user", rates=tuple(asked), spacing=spacing)  # type: ignore[arg-type]  # drawn
    times = list(arrivals(one, PHASES, seed))
    assert times == sorted(times)
    for at in times:
        rate = asked[min(int(at // 100), len(asked) - 1)]
        assert 0 <= at <= 300
        assert rate not in (0, (0, 0)) or at % 100 == 0
