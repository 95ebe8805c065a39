"""Who is refused first, in whole runs: the claims of the overload bench on shorter ones."""

from __future__ import annotations

import numpy as np
import pytest

from bench import limits, overload_cases
from bench.limit_moved import moved
from bench.overload import main, mean, report
from bench.overload_cases import CASES, Row, five_classes, greedy_tenant, long_polls, priorities
from loadgate.limits.adaptive import AdaptiveLimit
from loadgate.simulation import results
from loadgate.simulation.run import policy_for, requests, simulate


@pytest.mark.parametrize(
    ("length", "overload", "admitted"),
    [
        (0.02, 2.0, (0.0, 0.0, 0.5, 1.0, 1.0)),
        (0.02, 1.2, (1 / 6, 1.0, 1.0, 1.0, 1.0)),
        (2.0, 2.0, (0.0, 0.0, 0.5, 1.0, 1.0)),
        (2.0, 1.2, (1 / 6, 1.0, 1.0, 1.0, 1.0)),
    ],
)
def test_priorities_are_exact_however_short_the_handlers_are(
    length: float, overload: float, admitted: tuple[float, ...]
) -> None:
    seconds = 600 * length
    record = five_classes(length, overload, seconds, seed=3)
    late = record.times > seconds / 6
    seen = [1.0 - float(record.refused[late & (record.client == 4 - n)].mean()) for n in range(5)]
    assert seen == pytest.approx(admitted, abs=0.05)
    assert float(np.nanmedian(record.wait[late])) <= 0.037 * length / 0.02


def test_one_greedy_tenant_costs_the_others_nothing() -> None:
    rows = list(greedy_tenant(2))
    kept = [row for row in rows if row.what.startswith("fixed")]
    assert kept
    assert all(row.holds for row in kept), report(kept)
    without = next(row for row in rows if "not compared" in row.what)
    assert without.value < 0.6


def test_no_lower_class_is_served_while_a_higher_one_is_refused_for_the_queue() -> None:
    rows = {row.what: row for row in priorities(4)}
    assert rows["priority inversions"].value == 0.0


# Without a pool beside the limit, polls take every place in the first two; in the last one those
# that had not moved there yet looked like a queue.
@pytest.mark.parametrize("seed", [3, 5, 8])
def test_long_polls_do_not_make_others_be_refused(seed: int) -> None:
    rows = list(long_polls(seed))
    assert all(row.holds for row in rows), report(rows)


def test_a_queue_bounded_in_time_makes_nobody_wait_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overload_cases, "_LOADS", (2.0,))
    monkeypatch.setattr(overload_cases, "_QUEUES", {"default": {}})
    rows = list(overload_cases.queue_waits(1))
    assert len(rows) == 2
    assert all(row.holds for row in rows), report(rows)


def test_the_report_says_what_fails() -> None:
    rows = [Row("B1", "share", 0.9, low=0.95), Row("B1", "wait", 0.1, high=0.2)]
    text = report(rows).splitlines()
    assert text[0].endswith(">= 0.95  FAILS")
    assert text[1].endswith("<= 0.2")
    assert mean([Row("a", "b", 1.0, low=2.0), Row("a", "b", 3.0, low=2.0)]).value == 2.0


def test_the_bench_runs_what_is_asked_for_and_tells_by_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(CASES, "B15", lambda seed: iter([Row("B15", "share", seed / 2, low=0.9)]))
    assert main(["--only", "B15"]) == 1
    assert "0.5000" in capsys.readouterr().out
    assert main(["--only", "B15", "--seeds", "3"]) == 0


def test_a_step_up_into_a_collapse_is_taken_back_before_it_is_too_late() -> None:
    # Refusals are paid by the very cores that contend, so a backlog of them is never worked off.
    scenario = moved(dict(limits.load(("b08",)))["b08-contention"], 0.3, 4)
    policy = policy_for(scenario)
    limit = AdaptiveLimit(initial=20, min=1, max=1000)
    record = simulate(scenario, policy, 4, limit=limit, workload=requests(scenario, 4, policy))
    assert float(results.goodput(record).sum()) > 15_000
    assert limit.limit < 80
