from __future__ import annotations

import json
import logging
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from loadgate import AdmissionController, Reason, Refuse, Stage
from loadgate.explain import explain, record
from loadgate.integrations.cli.app import app
from loadgate.integrations.cli.words import warnings
from loadgate.integrations.console.status import status_of
from loadgate.integrations.decision_log import DecisionLog
from loadgate.integrations.witness import Witness
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


def test_the_last_refusals_of_the_live_view_are_explained() -> None:
    controller = AdmissionController()
    witness = Witness(logs=False)
    never = Refuse(Stage.LIMIT, Reason.QUEUE_FULL, 1.5, float("inf"), 40.0)
    for refusal, status in ((FULL, 503), (RATE, 429), (never, 503)):
        witness.refused(refusal, "a", status, 0.0)
    text = msgspec.json.encode(status_of(controller, witness)).decode()
    code, said = run("-", given=text)
    assert code == 0
    assert sorted(said.splitlines()) == sorted(
        [f"503 queue_full: {explain(FULL)}", f"429 rate: {explain(RATE)}",
         f"503 queue_full: {explain(never)}"]
    )  # fmt: skip


@pytest.mark.parametrize("explained", [True, False])
def test_lines_of_the_log_are_explained(caplog: pytest.LogCaptureFixture, explained: bool) -> None:
    caplog.set_level(logging.INFO)
    log = DecisionLog(explained=explained)
    odd = Refuse(Stage.RATE, Reason.RATE, 1.5, 1.0, 0.25, 'per "client"\n\\é')
    for refusal in (FULL, RATE, odd):
        log.refused(refusal, "a", 503, 0.0)
    lines = [
        f"2026-11-30 03:00:00 INFO {record.name}: {record.message}" for record in caplog.records
    ]
    code, said = run("-", given="\n".join(lines))
    assert code == 0
    assert said.splitlines() == [
        f"503 queue_full: {explain(FULL)}", f"429 rate: {explain(RATE)}",
        f"429 rate: {explain(odd)}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("decision=refused stage=limit reason=queue_full retry_after=soon", "is not a refusal"),
        ("decision=refused nonsense", "line 1 is not a refusal"),
        ('{"sightings": []}', "no refusal"),
        ("{", "no line is a refusal"),
        ("starting\n{}\n[1]\n7", "no line is a refusal"),
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
    assert said == f"loadgate: {tmp_path / 'none'}: cannot be read: no such file or directory\n"


def test_a_whole_log_is_explained_and_other_lines_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    log = DecisionLog()
    log.refused(FULL, "a", 503, 0.0)
    (ours,) = (record.message for record in caplog.records)
    lines = [
        "INFO: Started server process [7]",
        '{"level": "info", "message": "ready"}',
        f"2026-11-30 03:00:00 INFO loadgate: {ours}",
        "7",
        "Traceback (most recent call last):",
        json.dumps(record(RATE)),
    ]
    file = tmp_path / "app.log"
    file.write_bytes(b"\xff\xfe not text\n" + "\n".join(lines).encode())
    code, said = run(str(file))
    assert code == 0
    assert said == f"503 queue_full: {explain(FULL)}\n429 rate: {explain(RATE)}\n"


def test_a_name_in_the_log_that_is_not_as_we_write_it_stays_as_it_is() -> None:
    line = 'decision=refused stage=rate reason=rate subject="é\\x" retry_after=1 observed=1 bound=0'
    code, said = run("-", given=line)
    assert code == 0
    assert repr("é\\x") in said


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
