from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgate.shedding.depth import DepthRule, survival
from loadgate.shedding.drain import DrainRate


def test_survival_is_one_up_to_max_queue_and_max_queue_over_depth_above() -> None:
    assert survival(0, 100) == 1.0
    assert survival(100, 100) == 1.0
    assert survival(200, 100) == 0.5
    assert survival(0, 0) == 0.0


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_survival_is_a_probability(depth: float, max_queue: float) -> None:
    assert 0.0 <= survival(depth, max_queue) <= 1.0


@pytest.mark.parametrize(
    ("rule", "thresholds"),
    [
        (DepthRule(0.1), (20.0, 40.0)),
        (DepthRule(0.1, max_queue=7), (7, 14)),
        (DepthRule(0.1, max_depth=10), (5, 10)),
        (DepthRule(0.1, max_queue=3, max_depth=30), (3, 30)),
        (DepthRule(0.0), (0.0, 0.0)),
    ],
)
def test_thresholds_follow_from_time_unless_counts_are_given(
    rule: DepthRule, thresholds: tuple[float, float]
) -> None:
    assert rule.thresholds(400.0) == thresholds


def test_the_drain_rate_is_littles_law_over_the_last_checkpoints() -> None:
    drain = DrainRate()
    assert drain.rate(20) == 0.0
    drain.checkpoint(0.1, held=0.05, finished=1)
    assert drain.rate(20) == pytest.approx(400.0)
    drain.checkpoint(1.0, held=0.05 + 10 * 0.15, finished=11)
    assert drain.latency == pytest.approx(0.1)  # half new, half old
    drain.checkpoint(2.0, held=0.05 + 10 * 0.15, finished=11)
    assert drain.latency == pytest.approx(0.1)  # nothing ended, nothing learned
