"""A scenario file says what happens, or what is wrong with it and where."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgate.errors import PolicyError
from loadgate.simulation import build, run, scenario, streams
from loadgate.simulation.arrivals import Batches, Bursts, Wave, times_of_phase
from loadgate.simulation.laws import (
    Constant,
    Exponential,
    Gamma,
    Law,
    Lognormal,
    Mixture,
    Pareto,
    Points,
    Weibull,
    scaled,
    two_humps,
)
from loadgate.simulation.traces import read_trace

SIMPLE: dict[str, Any] = {
    "title": "simple",
    "stages": [
        {"kind": "delay", "name": "io", "time": {"law": "constant", "mean": 0.1}},
        {"kind": "cores", "name": "cpu", "count": 4, "time": {"law": "exponential", "mean": 0.02}},
    ],
    "phases": [{"seconds": 10.0, "load": 0.5}, {"seconds": 10.0, "rate": 50.0}],
}


def wrong(**changes: Any) -> PolicyError:
    mapping = deepcopy(SIMPLE) | changes
    with pytest.raises(PolicyError) as caught:
        scenario.from_mapping(mapping)
    return caught.value


MISTAKES: list[tuple[dict[str, Any], str, str]] = [
    ({"tile": "x"}, "tile", "did you mean 'title'?"),
    ({"stages": []}, "stages", "length >= 1"),
    ({"slo": 0}, "slo", "> 0"),
    ({"phases": [{"seconds": 1}]}, "phases[0]", "either `load` or `rate`"),
    ({"phases": [{"seconds": 1, "load": 1, "rate": 2}]}, "phases[0]", "either"),
    ({"phases": [{"seconds": 1, "load": -1}]}, "phases[0].load", "at least 0"),
    ({"phases": [{"seconds": 1, "load": [1, 2, 3]}]}, "phases[0].load", "two of them"),
    ({"phases": [{"seconds": 1, "load": 1, "lod": 1}]}, "phases[0].lod", "'load'"),
    (
        {"phases": [{"seconds": 1, "load": 1, "change": {"cpus": {"count": 1}}}]},
        "phases[0].change.cpus",
        "did you mean 'cpu'?",
    ),
    (
        {"phases": [{"seconds": 1, "load": 1, "cuts": [2.0]}]},
        "phases[0].cuts",
        "end before 1",
    ),
    (
        {"stages": [{"kind": "core", "time": {"law": "constant", "mean": 1}}]},
        "stages[0].kind",
        "core",
    ),
    ({"stages": [{"kind": "delay", "time": {"law": "normal"}}]}, "stages[0].time.law", "norm"),
    ({"stages": SIMPLE["stages"][:1] * 2}, "stages[1].name", "used twice"),
    ({"clients": [{}, {}]}, "clients[1].name", "used twice"),
    ({"clients": [{"retries": -1}]}, "clients[0].retries", ">= 0"),
    ({"trace": {"file": "x", "duration": "d"}}, "trace.stage", "io, cpu"),
]


@pytest.mark.parametrize(("changes", "path", "words"), MISTAKES)
def test_a_mistake_is_named_with_its_place(changes: Any, path: str, words: str) -> None:
    error = wrong(**changes)
    assert error.path == path
    assert words in error.problem


def test_a_file_that_is_not_toml_says_so(tmp_path: Path) -> None:
    file = tmp_path / "broken.toml"
    file.write_text("title = ")
    with pytest.raises(PolicyError, match=r"broken\.toml is not TOML"):
        scenario.read(file)


def test_load_without_cores_asks_for_a_rate() -> None:
    waiting = scenario.from_mapping(SIMPLE | {"stages": SIMPLE["stages"][:1]})
    with pytest.raises(PolicyError, match="use `rate`"):
        run.requests(waiting, 1)


def test_a_priority_that_the_policy_does_not_know_is_named() -> None:
    odd = scenario.from_mapping(SIMPLE | {"clients": [{"priority": "vip"}]})
    with pytest.raises(PolicyError, match=r"clients\[0\].priority: 'vip' is none of"):
        run.requests(odd, 1)


def test_variants_replace_values_at_paths() -> None:
    mapping = SIMPLE | {
        "variants": [
            {"name": "more", "set": {"phases[0].load": 2.0, "policy.concurrency.initial": 50}},
            {"name": "wider", "set": {"stages[1].count": 8}},
        ]
    }
    (more, first), (wider, second) = scenario.variants(scenario.from_mapping(mapping))
    assert (more, wider) == ("more", "wider")
    assert first.phases[0].load == 2.0
    assert run.policy_for(first).concurrency.initial == 50
    assert second.capacity == 2 * first.capacity == 400.0


@pytest.mark.parametrize("path", ["phases[7].load", "title.x", "stages.x.count"])
def test_a_variant_whose_path_leads_nowhere_is_named(path: str) -> None:
    with pytest.raises(PolicyError) as caught:
        scenario.with_keys(scenario.from_mapping(SIMPLE), {path: 1})
    assert caught.value.path == path


def test_capacity_is_that_of_the_narrowest_stage_at_its_best() -> None:
    contended = deepcopy(SIMPLE)
    contended["stages"][1] |= {"contention": 0.1}
    assert scenario.from_mapping(SIMPLE).capacity == 200.0
    assert scenario.from_mapping(contended).capacity == pytest.approx(200.0 / 1.3)


LAWS: list[Law] = [
    Constant(mean=0.2),
    Exponential(mean=0.2),
    Gamma(mean=0.2, shape=2.0),
    Lognormal(mean=0.2, sigma=1.0),
    Pareto(mean=0.2, shape=2.5),
    Weibull(mean=0.2, shape=0.7),
    Points(values=[0.1, 0.6], weights=[4, 1]),
    Mixture(means=[0.1, 0.6], weights=[4, 1]),
    two_humps(0.2, 50.0),
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)
def test_a_law_has_the_mean_it_states(law: Law) -> None:
    times = law.draw(streams.numbers(1, "law"), 200_000)
    assert law.average == pytest.approx(0.2)
    assert times.min() >= 0.0
    assert times.mean() == pytest.approx(0.2, rel=0.02)
    assert scaled(law, 3.0).average == pytest.approx(0.6)


def test_a_ramp_has_its_arrivals_where_the_rate_is_high() -> None:
    times = times_of_phase(streams.numbers(1, "a"), 5.0, 100.0, (0.0, 200.0))
    assert len(times) == pytest.approx(10_000, rel=0.04)
    assert times.min() >= 5.0
    assert times.max() <= 105.0
    assert (times > 55.0).mean() == pytest.approx(0.75, abs=0.015)


def test_poisson_arrivals_are_as_scattered_as_they_should_be() -> None:
    times = times_of_phase(streams.numbers(1, "a"), 0.0, 2000.0, (20.0, 20.0))
    counts = np.bincount(times.astype(int), minlength=2000)
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.1)


def test_bursts_keep_the_mean_rate_and_scatter_more() -> None:
    bursts = Bursts(factor=5.0, on=1.0, off=9.0)
    counts = np.zeros(4000)
    times = times_of_phase(
        streams.numbers(1, "a"),
        0.0,
        4000.0,
        (20.0, 20.0),
        bursts=bursts,
        burst_numbers=streams.numbers(1, "b"),
    )
    counts += np.bincount(times.astype(int), minlength=4000)
    assert counts.mean() == pytest.approx(20.0, rel=0.06)
    assert counts.var() / counts.mean() > 3.0


def test_a_wave_swings_around_the_rate() -> None:
    times = times_of_phase(
        streams.numbers(1, "a"), 0.0, 400.0, (50.0, 50.0), wave=Wave(swing=0.8, period=10.0)
    )
    crest = ((times % 10.0) < 5.0).mean()
    assert len(times) == pytest.approx(20_000, rel=0.03)
    assert crest == pytest.approx(0.5 + 0.8 / np.pi, abs=0.01)


def test_batches_come_at_one_instant() -> None:
    times = times_of_phase(
        streams.numbers(1, "a"), 0.0, 100.0, (50.0, 50.0), batches=Batches(size=10)
    )
    assert len(times) % 10 == 0
    assert (times.reshape(-1, 10) == times[::10, None]).all()


def test_work_that_drifts_follows_the_moment_of_arrival() -> None:
    mapping = deepcopy(SIMPLE)
    mapping["phases"] = [
        {"seconds": 10.0, "rate": 100.0},
        {"seconds": 10.0, "rate": 100.0, "change": {"io": {"work": [1.0, 3.0]}}},
    ]
    work = build.workload(scenario.from_mapping(mapping), 1)
    sizes = np.asarray(work.sizes[0])
    assert sizes[work.times < 10.0] == pytest.approx(0.1)
    expected = 0.1 * (1.0 + 0.2 * (work.times[work.times > 10.0] - 10.0))
    assert sizes[work.times > 10.0] == pytest.approx(expected)


def test_keys_follow_the_law_of_zipf() -> None:
    mapping = SIMPLE | {"clients": [{"name": "c", "keys": 10, "skew": 1.0}]}
    mapping["phases"] = [{"seconds": 100.0, "rate": 100.0}]
    keys = build.workload(scenario.from_mapping(mapping), 1).keys
    assert keys is not None
    first, second = (keys.count(f"c-{k}") for k in (0, 1))
    assert first / second == pytest.approx(2.0, rel=0.1)


# -- traces ------------------------------------------------------------------------------


def traced(folder: Path, text: str, **trace: Any) -> Any:
    (folder / "trace.txt").write_text(text)
    mapping = SIMPLE | {"trace": {"file": "trace.txt"} | trace, "folder": str(folder)}
    return read_trace(scenario.from_mapping(mapping))


def test_a_csv_file_gives_times_durations_and_clients(tmp_path: Path) -> None:
    text = "at,who,ms\n2026-01-01T00:00:02,b,30\n2026-01-01T00:00:00,a,10\n"
    found = traced(
        tmp_path, text, time="at", duration="ms", client="who", stage="io", duration_unit=0.001
    )
    assert found.times.tolist() == [0.0, 2.0]
    assert found.durations.tolist() == [0.01, 0.03]
    assert found.clients == ["a", "b"]


def test_a_log_spreads_the_requests_of_one_second(tmp_path: Path) -> None:
    line = '203.0.113.7 - - [10/Oct/2025:13:55:{:02d} +0000] "GET / HTTP/1.1" 200 23 0.250\n'
    text = "".join(line.format(second) for second in (36, 36, 37))
    found = traced(tmp_path, text, format="log", duration="duration", client="client", stage="cpu")
    assert found.times.tolist() == [0.0, 0.5, 1.0]
    assert found.durations.tolist() == [0.25] * 3
    assert found.clients == ["203.0.113.7"] * 3


def test_any_log_can_be_read_with_a_pattern_of_its_own(tmp_path: Path) -> None:
    found = traced(
        tmp_path, "t=1.5 ok\nt=4.0 ok\n", format="log", pattern=r"t=(?P<time>[\d.]+)", speed=5.0
    )
    assert found.times.tolist() == [0.0, 0.5]


@pytest.mark.parametrize(
    ("text", "trace", "words"),
    [
        ("time\n", {}, "holds no request"),
        ("when\n1\n", {}, "has no column 'time'; it has: when"),
        ("time\n1\nsoon\n", {}, "line 3: 'soon' is neither seconds nor"),
        ("time,d\n1,-2\n", {"duration": "d", "stage": "io"}, "line 2: '-2' is not a number"),
        ("nonsense\n", {"format": "log"}, "line 1: not a request"),
        ("x\n", {"format": "log", "pattern": "("}, "no regular expression"),
        ("x\n", {"format": "log", "pattern": "x"}, "needs a group"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(
    tmp_path: Path, text: str, trace: Any, words: str
) -> None:
    with pytest.raises(PolicyError, match=words):
        traced(tmp_path, text, **trace)


def test_a_trace_drives_a_run(tmp_path: Path) -> None:
    rows = "".join(f"{0.01 * i},{0.05}\n" for i in range(500))
    (tmp_path / "t.csv").write_text("time,took\n" + rows)
    mapping = SIMPLE | {
        "trace": {"file": "t.csv", "duration": "took", "stage": "io"},
        "folder": str(tmp_path),
    }
    record = run.simulate(
        scenario.from_mapping(mapping), run.policy_for(scenario.from_mapping(mapping)), 1
    )
    assert len(record.times) == 500
    assert record.latency.min() >= 0.05
