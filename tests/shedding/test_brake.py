from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgate.shedding.brake import GAIN, LEAST, PERIOD, STEP, Brake


def hold(brake: Brake, value: float, periods: int, now: float) -> float:
    """Show `value` for whole periods; returns when they end."""
    for _ in range(periods):
        now += PERIOD
        brake.read(value, now)
    return now


def test_the_law_is_breakwaters() -> None:
    brake = Brake(0.1)
    hold(brake, 0.2, 1, 0.0)
    assert brake.factor == pytest.approx(1.0 - GAIN)
    hold(brake, 10.0, 1, 1.0)
    assert brake.factor == pytest.approx((1.0 - GAIN) / 2)  # never more than half at once


def test_at_the_target_it_does_not_brake_and_grows_again_in_steps() -> None:
    brake = Brake(0.1)
    now = hold(brake, 1.0, 3, 0.0)
    assert brake.factor == pytest.approx(0.125)
    now = hold(brake, 0.1, 2, now)
    assert brake.factor == pytest.approx(0.125 + 2 * STEP)
    hold(brake, 0.0, 40, now)
    assert brake.factor == 1.0


def test_within_a_period_the_highest_reading_counts_and_only_once() -> None:
    brake = Brake(0.1)
    assert not brake.read(0.0, 0.0)
    assert not brake.read(0.3, 0.01)
    assert not brake.read(0.0, 0.02)
    assert brake.read(0.0, PERIOD)
    assert brake.factor == pytest.approx(1.0 - 2 * GAIN)


def test_time_at_rest_counts_as_recovery() -> None:
    brake = Brake(0.1)
    hold(brake, 10.0, 3, 0.0)
    brake.read(0.0, 60.0)
    assert brake.factor == 1.0


def test_something_always_runs() -> None:
    brake = Brake(0.1)
    hold(brake, 1e9, 100, 0.0)
    assert brake.factor == LEAST


@pytest.mark.parametrize("nonsense", [float("nan"), float("inf"), -1.0])
def test_a_broken_signal_is_ignored_counted_and_told(nonsense: float) -> None:
    brake = Brake(0.1)
    now = hold(brake, 1.0, 1, 0.0)
    hold(brake, nonsense, 30, now)
    assert brake.factor == 1.0
    assert brake.broken == 30
    assert "30 readings were ignored" in brake.state().explain("pool")


def test_it_says_what_it_does() -> None:
    brake = Brake(0.9, 0.1)
    assert "brakes above 0.9" in brake.state().explain("pool")
    hold(brake, 1.0, 1, 0.0)
    assert brake.factor == pytest.approx(0.9)
    assert "90 % of the limit are left" in brake.state().explain("pool")


@given(st.lists(st.tuples(st.floats(), st.floats(-10.0, 10.0)), max_size=50))
def test_the_factor_stays_in_its_bounds_whatever_is_read(steps: list[tuple[float, float]]) -> None:
    brake, now = Brake(0.05), 100.0
    for value, passed in steps:
        now += passed
        before = brake.factor
        assert brake.read(value, now) == (brake.factor != before)
        assert LEAST <= brake.factor <= 1.0
