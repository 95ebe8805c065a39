"""A compiled simulator is used only if it gives the same bytes. (Nothing is compiled here.)"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

import loadgate
from bench import limit_compiled
from loadgate.simulation import scenario

TINY = scenario.from_mapping(
    {
        "title": "tiny",
        "slo": 0.25,
        "stages": [{"kind": "cores", "time": {"law": "exponential", "mean": 0.02}}],
        "phases": [{"seconds": 2.0, "load": 1.5}],
    }
)
SOURCE = Path(str(loadgate.__file__)).parent


def test_all_that_admission_is_made_of_is_compiled() -> None:
    files = limit_compiled.modules()
    assert {"admission.py", "waiting.py", "shedding/drain.py", "simulation/engine.py"} < {*files}
    assert not {"limits/adaptive.py", "ticket.py", "policy.py"} & {*files}
    assert all((SOURCE / file).is_file() for file in files)


def test_equal_runs_have_equal_digests_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_compiled, "load", lambda: [("tiny", TINY)])
    first = limit_compiled.digest()
    assert limit_compiled.digest() == first
    other = msgspec.structs.replace(TINY, refusal_cost=0.03)
    monkeypatch.setattr(limit_compiled, "load", lambda: [("tiny", other)])
    assert limit_compiled.digest() != first


@pytest.mark.parametrize(
    ("digests", "code"), [(["a", "a"], 7), (["a", "b"], 2), (["failed: x"] * 2, 2)]
)
def test_the_benchmark_begins_only_if_both_are_the_same(
    digests: list[str], code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    started: list[list[str]] = []

    class Ended:
        returncode = 7

    def start(command: list[str], *, cwd: Path, env: Mapping[str, str], check: bool) -> Ended:
        assert env["PYTHONPATH"] == str(folder)
        started.append(command)
        return Ended()

    def told(_env: Any) -> str:
        return digests.pop()

    monkeypatch.setattr(limit_compiled, "compiled", lambda: folder)
    monkeypatch.setattr(limit_compiled, "_digest_in", told)
    monkeypatch.setattr("bench.limit_compiled.subprocess.run", start)
    assert limit_compiled.main(["--seeds", "3"]) == code
    assert [command[-4:] for command in started] == (
        [["-m", "bench.limits", "--seeds", "3"]] if code == 7 else []
    )
    assert not folder.exists()


def test_the_copy_holds_sources_only(tmp_path: Path) -> None:
    limit_compiled._copy(SOURCE, tmp_path / "loadgate")  # pyright: ignore[reportPrivateUsage]  # what is compiled
    suffixes = {file.suffix for file in tmp_path.rglob("*") if file.is_file()}
    assert ".py" in suffixes
    assert ".so" not in suffixes
    assert not (tmp_path / "loadgate" / "integrations").exists()
