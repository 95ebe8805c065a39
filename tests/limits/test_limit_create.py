from typing import Any

import pytest

from loadgate.errors import PolicyError
from loadgate.limits import ALGORITHMS, PUBLISHED, Limit, create


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_makes_a_limit_that_starts_within_its_bounds(algorithm: str) -> None:
    limit = create(algorithm, initial=7, min=2, max=9)
    assert isinstance(limit, Limit)
    assert 2 <= limit.limit <= 9


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_published_settings_are_accepted(algorithm: str) -> None:
    assert create(algorithm, **PUBLISHED[algorithm]).limit >= 1


@pytest.mark.parametrize(
    ("algorithm", "settings", "path", "words"),
    [
        ("adaptve", {}, "algorithm", ["adaptve", "did you mean 'adaptive'"]),
        ("adaptive", {"min": 5, "max": 3}, "min", ["5", "3"]),
        ("adaptive", {"initial": 0}, "initial", ["0"]),
        ("adaptive", {"initial": 30, "max": 25}, "initial", ["30", "25"]),
        ("adaptive", {"initial": float("nan")}, "initial", ["nan"]),
        ("adaptive", {"max": float("inf")}, "max", ["inf"]),
        ("adaptive", {"initial": 2.5}, "initial", ["2.5", "whole"]),
        ("adaptive", {"initial": True}, "initial", ["True", "number"]),
        ("adaptive", {"latency_target": 0.0}, "latency_target", ["0.0"]),
        ("adaptive", {"latency_target": float("nan")}, "latency_target", ["nan"]),
        ("adaptive", {"latency_goal": 0.2}, "latency_goal", ["did you mean 'latency_target'"]),
        ("fixed", {"ratio": 0.5}, "ratio", ["'fixed'"]),
        ("aimd", {"ratio": 0.2}, "ratio", ["0.2", "0.5"]),
        ("aimd", {"window": float("nan")}, "window", ["nan"]),
        ("vegas", {"window": 0.01}, "window", ["0.01", "0.1"]),
        ("vegas", {"smoothing": 0.0}, "smoothing", ["0.0"]),
        ("gradient2", {"tolerance": 0.9}, "tolerance", ["0.9", "1"]),
        ("envoy-gradient", {"percentile": 0.0}, "percentile", ["0.0"]),
        ("bbr", {"buckets": 1}, "buckets", ["1", "2"]),
        ("bbr", {"saturation": 0.9}, "saturation", ["0.9"]),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_and_bound(
    algorithm: str, settings: dict[str, Any], path: str, words: list[str]
) -> None:
    with pytest.raises(PolicyError) as caught:
        create(algorithm, **settings)
    assert caught.value.path == path
    for word in words:
        assert word in caught.value.problem


def test_fixed_never_moves() -> None:
    limit = create("fixed", initial=3)
    limit.on_refuse(0.0)
    assert limit.limit == 3
