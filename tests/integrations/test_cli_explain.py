from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadgate import Reason, Refuse, Stage
from loadgate.explain import explain, record
from loadgate.integrations.cli.app import app
from loadgate.integrations.cli.words import warnings
from loadgate.policy import Policy, Queue, Signals

FULL = Refuse(Stage.LIMIT, Reason.QUEUE_FULL, 1.5, 40.0, 40.0)
RATE = Refuse(Stage.RATE, Reason.RATE, float("inf"), 50.0, 10.0, "per-client")


def run(*arguments: str, given: str | None = None) -> tuple[int, str]:
    ended = CliRunner().invoke(app, ["explain", *arguments], input=given)
    return ended.exit_code, ended.output


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([record(FULL), record(RATE)]),
        json.dumps(record(FULL)) + "\n\n" + json.dumps(record(RATE)) + "\n",
    ],
)
def test_recorded_refusals_are_explained_as_they_were(tmp_path: Path, text: str) -> None:
    file = tmp_path / "refusals.json"
    file.write_text(text)
    code, said = run(str(file))
    assert code == 0
    assert said == f"503 queue_full: {explain(FULL)}\n429 rate: {explain(RATE)}\n"
    assert run("-", given=text) == (0, said)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "line 1 is not JSON"),
        ("[1]", "number 1 is not an object"),
        ('{"stage": "limit"}', "number 1 is not a refusal"),
        ("", "no refusal"),
        ("[]", "no refusal"),
    ],
)
def test_what_is_no_refusal_is_one_line_and_an_exit_code(text: str, says: str) -> None:
    code, said = run("-", given=text)
    assert code == 1
    assert said.count("\n") == 1
    assert says in said


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    code, said = run(str(tmp_path / "none"))
    assert code == 2
    assert "cannot be read" in said


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (Policy(queue=Queue(max_refused=0.3)), "30% of the arrivals"),
        (Policy(queue=Queue(max_refused=0.3)), "disables protection"),
        (Policy(queue=Queue(mode="observe")), "The queue only observes"),
        (Policy(signals=Signals(mode="off")), "signals are in mode 'off'"),
        (Policy(enabled=False), "everyone is admitted"),
    ],
)
def test_check_says_what_disables_protection(policy: Policy, says: str) -> None:
    assert any(says in sentence for sentence in warnings(policy))
