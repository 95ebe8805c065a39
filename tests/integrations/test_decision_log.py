from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from loadgate.decisions import Quota, Reason, Refuse, Stage
from loadgate.integrations.asgi import AdmissionMiddleware
from loadgate.integrations.decision_log import DecisionLog
from loadgate.integrations.identity import KeyHasher
from tests.integrations.asgi_client import Gate, call, controller

QUOTA = Quota(False, 200.0, 0.25, 30.0, 1.5, "client", 1.0)
RATE = Refuse(Stage.RATE, Reason.RATE, 1.5, 1.0, 0.25, "per-client", QUOTA)
FULL = Refuse(Stage.LIMIT, Reason.QUEUE_FULL, 0.5, 100.0, 100.0)
SECRET = b"0123456789abcdef"


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def texts(self) -> list[str]:
        return [record.getMessage() for record in self.records]


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def logger(lines: Lines) -> Iterator[logging.Logger]:
    logger = logging.Logger("loadgate.decisions.test", logging.DEBUG)
    logger.addHandler(lines)
    yield logger
    logger.removeHandler(lines)


def test_a_line_holds_the_decision_and_a_hash_in_place_of_the_key(
    logger: logging.Logger, lines: Lines
) -> None:
    log = DecisionLog(logger, hasher=KeyHasher(SECRET))
    log.refused(RATE, "203.0.113.7", 429, 1.0, algorithm="token-bucket", store_time=0.002)
    assert lines.texts == [
        "decision=refused stage=rate reason=rate status=429 observed=1.0 bound=0.25 "
        "retry_after=1.5 subject=per-client algorithm=token-bucket remaining=0.25 store_time=0.002 "
        f"client=client:{KeyHasher(SECRET)('203.0.113.7')}"
    ]
    assert lines.records[0].loadgate_reason == "rate"
    assert lines.records[0].loadgate_status == 429


def test_what_else_was_compared_is_named(logger: logging.Logger, lines: Lines) -> None:
    away = Refuse(Stage.RATE, Reason.STORE_UNAVAILABLE, 1.0, 0.02, 0.01, "logins")
    DecisionLog(logger).refused(away, None, 503, 1.0)
    assert " subject=logins " in lines.texts[0]
    DecisionLog(logger).refused(FULL, None, 503, 1.0)
    assert "subject" not in lines.texts[1]


def test_keys_of_several_kinds_are_told_by_name(logger: logging.Logger, lines: Lines) -> None:
    log = DecisionLog(logger)
    log.refused(FULL, {"account": "42", "address": "203.0.113.7"}, 503, 1.0)
    log.refused(FULL, None, 503, 1.0)
    assert "account:" in lines.texts[0]
    assert ",address:" in lines.texts[0]
    assert "203.0.113.7" not in "".join(lines.texts)
    assert lines.texts[1].endswith("client=anonymous")


def test_a_flood_of_refusals_writes_a_bounded_number_of_lines(
    logger: logging.Logger, lines: Lines
) -> None:
    log = DecisionLog(logger, per_second=5.0, burst=10)
    for n in range(100_000):  # ten seconds, ten thousand a second
        log.refused(FULL, "203.0.113.7", 503, n / 10_000)
    assert len(lines.records) <= 10 + 5 * 10
    told = sum(getattr(record, "loadgate_suppressed", 0) for record in lines.records)
    assert told + log.suppressed + len(lines.records) == 100_000


def test_a_clock_that_steps_back_writes_no_more(logger: logging.Logger, lines: Lines) -> None:
    log = DecisionLog(logger, per_second=1.0, burst=1)
    for now in (5.0, 1.0, 5.0, 1.0):
        log.refused(FULL, None, 503, now)
    assert len(lines.records) <= 2


def test_explanations_and_admissions_on_request(logger: logging.Logger, lines: Lines) -> None:
    log = DecisionLog(logger, explained=True, admitted_every=3)
    log.refused(FULL, None, 503, 1.0)
    assert "queue.max_depth" in lines.texts[0]
    assert "\n" not in lines.texts[0]
    for _ in range(7):
        log.admitted("k", 0.01, (QUOTA,))
    assert len(lines.records) == 3
    assert lines.texts[1].startswith("decision=admitted wait=0.01 remaining=0.25 client=client:")


def test_names_cannot_forge_a_line(logger: logging.Logger, lines: Lines) -> None:
    rate = Refuse(Stage.RATE, Reason.RATE, 1.0, 1.0, 0.0, 'a\nINFO "x" \\', QUOTA)
    DecisionLog(logger).refused(rate, None, 429, 1.0)
    assert "\n" not in lines.texts[0]
    assert 'subject="a\\nINFO \\"x\\" ' in lines.texts[0]


def test_a_level_that_is_off_costs_no_hash(lines: Lines) -> None:
    logger = logging.Logger("quiet", logging.ERROR)
    logger.addHandler(lines)

    def hasher(key: object) -> str:
        raise AssertionError("hashed for nothing")

    log = DecisionLog(logger, hasher=hasher)  # type: ignore[arg-type]  # must not be called
    log.refused(FULL, "k", 503, 1.0)
    assert lines.records == []


@pytest.mark.parametrize(
    "settings", [{"per_second": 0.0}, {"per_second": float("nan")}, {"burst": 0}]
)
def test_bounds_are_checked(settings: Any) -> None:
    with pytest.raises(ValueError, match="per_second"):
        DecisionLog(**settings)
    with pytest.raises(ValueError, match="admitted_every"):
        DecisionLog(admitted_every=-1)


@pytest.mark.anyio
async def test_the_layer_logs_its_decisions(logger: logging.Logger, lines: Lines) -> None:
    gate = controller(max_queue=0)
    app = Gate()
    app.open.set()
    layer = AdmissionMiddleware(app, gate, log=DecisionLog(logger, admitted_every=1))
    with gate.try_admit():
        await call(layer)
    await call(layer)
    assert [line.split()[0] for line in lines.texts] == ["decision=refused", "decision=admitted"]
    assert "203.0.113.7" not in "".join(lines.texts)
