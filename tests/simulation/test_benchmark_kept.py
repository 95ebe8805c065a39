"""A run of the benchmark is found again if nothing it depends on has changed, and only then."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench import limit_kept, limit_run, limit_tune
from bench.limit_judge import Score
from bench.limit_run import Task, run
from bench.limit_settings import contenders
from bench.limit_tune import Trial, try_out
from bench.limit_write import _made  # pyright: ignore[reportPrivateUsage]  # one sentence
from loadgate.policy import Policy, Rate
from loadgate.simulation import scenario

TINY: dict[str, Any] = {
    "title": "tiny",
    "slo": 0.25,
    "stages": [
        {"kind": "cores", "name": "cpu", "count": 2, "time": {"law": "exponential", "mean": 0.02}}
    ],
    "phases": [{"seconds": 1.5, "load": 1.5}],
}
ROOT = limit_kept._ROOT  # pyright: ignore[reportPrivateUsage]  # what is hashed is what is tested


def task(folder: Path | None, *limits: str, seed: int = 1, **changes: Any) -> Task:
    tiny = scenario.from_mapping(TINY | changes)
    return Task(
        "tiny", tiny, seed, contenders(limits or ["vegas"]), ("default",), refine=0, keep=folder
    )


def told(scores: list[Score]) -> bytes:
    return msgspec.msgpack.encode(scores)  # nan is not equal to itself, its bytes are


def test_a_kept_score_is_the_same_as_a_fresh_one(tmp_path: Path) -> None:
    first = run(task(tmp_path, "vegas", "aimd"))
    again = run(task(tmp_path, "vegas", "aimd"))
    fresh = run(msgspec.structs.replace(task(tmp_path, "vegas", "aimd"), fresh=True))
    nowhere = run(task(None, "vegas", "aimd"))
    assert [first.kept, again.kept, fresh.kept, nowhere.kept] == [0, 2, 0, 0]
    assert told(again.scores) == told(first.scores)
    assert told(fresh.scores) == told(first.scores)
    assert told(nowhere.scores) == told(first.scores)


def others(folder: Path) -> Iterator[Task]:
    same = task(folder)
    yield task(folder, seed=2)
    yield task(folder, "vegas:max=50")
    yield task(folder, "gradient2")
    yield task(folder, slo=0.2)
    yield task(folder, phases=[{"seconds": 1.5, "load": 1.6}])
    yield task(folder, bounds={"after": 1.0})
    yield task(folder, policy={"concurrency": {"initial": 7}})
    yield msgspec.structs.replace(same, refine=1)
    yield msgspec.structs.replace(same, queues=("none",))


def test_whatever_changes_a_run_makes_it_another(tmp_path: Path) -> None:
    run(task(tmp_path))
    for other in others(tmp_path):
        assert run(other).kept == 0
        assert run(other).kept == 1


def test_names_and_bounds_are_no_part_of_a_run(tmp_path: Path) -> None:
    run(task(tmp_path))
    renamed = task(tmp_path, title="other words", intent="why", bounds={"share": 0.5})
    renamed = msgspec.structs.replace(
        renamed,
        name="b99",
        contenders=(msgspec.structs.replace(renamed.contenders[0], label="vegas again"),),
    )
    found = run(renamed)
    assert found.kept == 1
    assert (found.scores[0].scenario, found.scores[0].limit) == ("b99", "vegas again")


def test_what_a_key_does_not_tell_is_not_kept() -> None:
    tiny = scenario.from_mapping(TINY)
    assert limit_kept.can_be_kept(tiny, Policy())
    assert not limit_kept.can_be_kept(tiny, Policy(rates=[Rate("r", "10/second")]))


def test_a_search_for_settings_is_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_tune, "REQUESTS", 200)
    tiny = scenario.from_mapping(TINY)
    trial = Trial("tiny", tiny, contenders(["aimd", "aimd:min=2"]), tmp_path)
    first = try_out(trial)
    monkeypatch.setattr(limit_tune, "simulate", None)  # nothing can run any more
    assert try_out(trial) == first
    with pytest.raises(TypeError):
        try_out(msgspec.structs.replace(trial, fresh=True))
    with pytest.raises(TypeError):
        try_out(msgspec.structs.replace(trial, contenders=contenders(["aimd", "aimd:min=3"])))


def hashes() -> dict[str, str]:
    for each in (limit_kept.of_runs, limit_kept.of_limit):
        each.cache_clear()
    found = {name: limit_kept.of_limit(name) for name in ("adaptive", "vegas", "fixed")}
    return found | {"runs": limit_kept.of_runs()}


@pytest.mark.parametrize(
    ("file", "touched"),
    [
        ("limits/adaptive.py", {"adaptive"}),
        ("limits/levels.py", {"adaptive"}),
        ("limits/pace.py", {"adaptive"}),
        ("limits/counts.py", {"adaptive"}),
        ("limits/knee.py", {"adaptive"}),
        ("limits/probes.py", {"adaptive"}),
        ("limits/window.py", {"adaptive"}),
        ("limits/sampled.py", {"vegas"}),
        ("limits/fixed.py", {"fixed"}),
        ("admission.py", {"runs"}),
        ("shedding/drain.py", {"runs"}),
        ("simulation/stages.py", {"runs"}),
        ("rates/token_bucket.py", set[str]()),
        ("controller.py", set[str]()),
    ],
)
def test_a_changed_source_touches_the_runs_that_go_through_it(
    file: str, touched: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = hashes()
    copy = tmp_path / "loadgate"
    for folder in ("", "limits", "shedding", "simulation", "rates"):
        for source in (ROOT / folder).glob("*.py"):
            (copy / folder).mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy / folder / source.name)
    monkeypatch.setattr(limit_kept, "_ROOT", copy)
    try:
        assert hashes() == before
        changed = copy / file
        text = changed.read_text("utf-8")
        changed.write_text(f"# A remark.\n{text}", "utf-8")
        assert hashes() == before
        changed.write_text(f"{text}\nNEW = 1\n", "utf-8")
        after = hashes()
        assert {name for name in before if after[name] != before[name]} == touched
    finally:
        monkeypatch.undo()
        hashes()


def test_docstrings_are_no_code() -> None:
    code: Callable[[str], str] = limit_kept._code  # pyright: ignore[reportPrivateUsage]  # the rule itself
    assert code('def f():\n    """Old."""\n    return 1\n') == code(
        'def f():\n\n    """New."""\n    return 1  # why\n'
    )
    assert code("def f():\n    return 1\n") != code("def f():\n    return 2\n")
    assert code("x = 'a'\n") != code("x = 'b'\n")


def test_the_page_says_whether_runs_were_kept() -> None:
    assert _made(9000, 0, fresh=True) == (
        "All 9,000 runs and all searches were made by this command."
    )
    assert _made(9000, 8000, fresh=False).startswith("This command made 1,000 of 9,000 runs.")


def test_all_tasks_tell_how_many_were_kept(tmp_path: Path) -> None:
    tasks = [task(tmp_path, seed=seed) for seed in (1, 2)]
    assert limit_run.work_through(tasks, 1, quiet=True).kept == 0
    assert limit_run.work_through(tasks, 1, quiet=True).kept == 2
