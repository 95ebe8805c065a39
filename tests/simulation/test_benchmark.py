"""The benchmark judges as its rules say. (Its figures come from `bench`, never from here.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench import limits as benchmark
from bench.limit_bounds import broken
from bench.limit_judge import Score, judge
from bench.limit_moved import moved, shortened
from bench.limit_oracle import Best, best_fixed
from bench.limit_settings import contenders
from bench.limit_stats import Table, mean_of
from bench.limit_table import markdown, plain
from bench.limit_tune import best, settings_of
from loadgate.limits import create
from loadgate.simulation import run, scenario
from loadgate.simulation.scenario import Scenario

STEP: dict[str, Any] = {
    "title": "step",
    "slo": 0.25,
    "stages": [
        {"kind": "delay", "time": {"law": "exponential", "mean": 0.03}},
        {"kind": "cores", "name": "cpu", "count": 8, "time": {"law": "exponential", "mean": 0.02}},
    ],
    "phases": [
        {"seconds": 5.0, "load": 1.3},
        {"seconds": 5.0, "load": 1.3, "change": {"cpu": {"count": 2}}},
    ],
}


def found(seed: int = 1, keep: Path | None = None) -> tuple[Scenario, Best]:
    step = scenario.from_mapping(STEP)
    policy = run.policy_for(step)
    return step, best_fixed(step, policy, seed, run.requests(step, seed, policy), keep, refine=1)


def test_the_best_fixed_limit_follows_the_phases() -> None:
    _, reference = found()
    whole, less = reference.limits
    assert 12 <= whole <= 40
    assert 3 <= less <= 14
    assert reference.good == [max(good) for good in zip(*reference.tried.values(), strict=True)]


def test_the_best_fixed_limit_is_kept_on_disk(tmp_path: Path) -> None:
    first = found(keep=tmp_path)[1]
    (file,) = tmp_path.iterdir()
    assert found(keep=tmp_path)[1] == first
    assert msgspec.msgpack.decode(file.read_bytes(), type=Best) == first


def test_the_reference_judged_by_itself_is_one() -> None:
    step, reference = found()
    policy = run.policy_for(step)
    limit = create("fixed", initial=reference.limits[0])
    score = judge(run.simulate(step, policy, 1, limit=limit), reference, "step", "default", "fixed")
    assert score.phases[0].share == 1.0
    assert score.phases[1].share < 1.0
    assert score.share < 1.0
    assert score.phases[0].harder
    assert score.phases[1].harder


def test_scenario_files_are_valid_and_have_bounds() -> None:
    known = dict(benchmark.load())
    assert len(known) >= 25
    assert {name[:3] for name in known} == {f"b{number:02d}" for number in range(1, 14)}
    for name, each in known.items():
        bounds = each.bounds
        assert any(b is not None for b in (bounds.share, bounds.refused, bounds.false_refusals)), (
            name
        )
        assert each.intent, name


def test_moving_changes_numbers_within_the_amount_and_nothing_else() -> None:
    step = scenario.from_mapping(STEP)
    seen: set[int] = set()
    for seed in range(30):
        other = moved(step, 0.3, seed)
        assert other == moved(step, 0.3, seed)
        for before, after in zip(step.stages, other.stages, strict=True):
            assert after.time.average == pytest.approx(before.time.average, rel=0.31)
            assert 5 <= other.stages[1].count <= 11
        seen.add(0 if "cpu" in other.phases[0].change else 1)
        assert sum(phase.seconds for phase in other.phases) == step.seconds
    assert seen == {0, 1}


def test_shortening_keeps_the_shape() -> None:
    step = scenario.from_mapping(STEP)
    half = shortened(step, len(run.requests(step, 0)) // 2)
    assert half.seconds == pytest.approx(5.0, rel=0.01)
    assert [phase.load for phase in half.phases] == [1.3, 1.3]
    assert shortened(step, 10**9) is step


def test_random_settings_are_valid_and_the_published_ones_are_among_them() -> None:
    for algorithm in ("aimd",):
        settings = settings_of(algorithm, 20)
        assert len(settings) == 20
        assert settings[0].settings == contenders([algorithm])[0].settings
        assert settings == settings_of(algorithm, 20)
        for contender in settings:
            contender.create()
    goodput = [[0.5] * 20, [0.5] * 20]
    goodput[0][7] = 0.9
    assert best(settings_of("aimd"), goodput) == settings_of("aimd")[7]


def test_contenders_take_options_from_their_label() -> None:
    (one,) = contenders(["aimd:min=2:max=50"])
    limit = one.create(initial=400)
    assert one.label == "aimd:min=2:max=50"
    assert limit.limit == 50


def score(share: float, *, limit: str = "adaptive", seed: int = 1, **changes: Any) -> Score:
    values: dict[str, Any] = {
        "scenario": "b02 step", "queue": "default", "limit": limit, "seed": seed, "share": share,
        "false_refusals": 0.0, "refused": 0.0, "p99": 0.2, "slope": 0.0, "waste": 0.0,
        "phases": [], "cuts": {},
    }  # fmt: skip
    return Score(**(values | changes))


def test_pairs_are_compared_seed_by_seed() -> None:
    scores = [score(0.9 + 0.01 * s, seed=s) for s in range(5)]
    scores += [score(0.8 + 0.01 * s, seed=s, limit="vegas") for s in range(5)]
    table = Table(scores)
    ahead = table.ahead("b02 step", "default", "adaptive", "vegas")
    assert ahead.mean == pytest.approx(0.1)
    assert ahead.half == pytest.approx(0.0, abs=1e-9)  # they move together
    assert table.share("b02 step", "default", "vegas").half > 0.01


def test_bounds_are_judged_by_the_lower_end_of_the_interval() -> None:
    bounded = {"b02 step": scenario.from_mapping(STEP | {"bounds": {"share": 0.9, "slope": 0.1}})}
    sure = Table([score(0.95 + 0.001 * s, seed=s) for s in range(5)])
    unsure = Table([score(0.91 + 0.05 * (s % 2), seed=s) for s in range(4)])
    growing = Table([score(0.95, slope=0.2)])
    assert broken(sure, bounded, "adaptive", "default") == []
    assert "is below 0.9" in broken(unsure, bounded, "adaptive", "default")[0]
    assert broken(growing, bounded, "adaptive", "default") == [
        "b02 step: the limit grows by 20.0% a minute"
    ]


def test_a_limit_that_is_better_than_ours_is_named() -> None:
    scores = [score(0.90, seed=s) for s in range(3)]
    scores += [score(0.95, seed=s, limit="vegas") for s in range(3)]
    text = markdown(Table(scores), ["something broke"])
    assert "- `vegas` in b02 step: 0.050" in text
    assert "| `vegas` | -0.050" in text
    assert "something broke" in text
    assert "geometric mean" in plain(Table(scores))


def test_one_value_has_no_bounds_and_many_have() -> None:
    assert mean_of([0.5]).low == 0.5
    assert mean_of([0.4, 0.6, 0.5, float("nan")]).mean == pytest.approx(0.5)
    assert mean_of([0.4, 0.6]).low < 0.0
