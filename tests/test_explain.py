from __future__ import annotations

import json

import pytest

from loadgate import Overloaded, RateLimited, Reason, Refuse, Stage
from loadgate.decisions import Quota
from loadgate.explain import LATE_LOOP, explain, recall, record


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_names_its_numbers(reason: Reason) -> None:
    text = explain(Refuse(Stage.LIMIT, reason, 1.5, observed=123.25, bound=77.5, subject="mine"))
    assert any(number in text for number in ("123.25", "123.250", "77.5", "77.500"))
    assert text.endswith((".", ")"))


def test_a_cost_that_can_never_pass_says_so() -> None:
    refusal = Refuse(Stage.RATE, Reason.RATE, float("inf"), 50.0, 10.0, "per-client")
    text = explain(refusal)
    assert "never" in text
    assert "50" in text
    assert "10" in text
    assert "per-client" in text


def test_the_exception_tells_what_the_decision_knew() -> None:
    refusal = Refuse(Stage.RATE, Reason.RATE, 2.5, 1.0, 0.25, "per-client")
    error = RateLimited(refusal)
    assert (error.status, error.reason, error.stage) == (429, Reason.RATE, Stage.RATE)
    assert error.retry_after == 2.5
    assert str(error) == error.explain() == explain(refusal)
    assert Overloaded(refusal).status == 503


def test_a_share_of_the_places_is_another_matter_than_a_share_of_the_work() -> None:
    usage = Refuse(Stage.LIMIT, Reason.FAIR_SHARE, 1.0, 12.5, 2.5)
    places = Refuse(Stage.LIMIT, Reason.FAIR_SHARE, 1.0, 3, 2, "max_share")
    assert "12.5 place-seconds" in explain(usage)
    assert "queue.fair_by" in explain(usage)
    assert "3 places, at most 2" in explain(places)
    assert "concurrency.max_share" in explain(places)


@pytest.mark.parametrize("reason", list(Reason))
def test_a_recorded_refusal_can_be_explained_again(reason: Reason) -> None:
    refusal = Refuse(Stage.LIMIT, reason, 1.5, 123.25, 77.5, "mine")
    text = json.dumps(record(refusal) | {"at": "noon"})
    again = recall(json.loads(text))
    assert again == refusal
    assert explain(again) == explain(refusal)


def test_one_that_can_never_pass_stays_so_on_record() -> None:
    refusal = Refuse(Stage.RATE, Reason.RATE, float("inf"), 50.0, 10.0, "per-client")
    again = recall(json.loads(json.dumps(record(refusal))))
    assert again == refusal
    assert "never" in explain(again)


def test_the_key_of_a_client_is_not_on_record() -> None:
    quota = Quota(False, 10.0, 10.0, 0.0, 1.0, "secret")
    refusal = Refuse(Stage.RATE, Reason.RATE, 1.0, 1.0, 0.0, "per-client", quota)
    assert "secret" not in json.dumps(record(refusal))


@pytest.mark.parametrize(
    "nonsense", [{}, {"stage": "limit", "reason": "whim", "retry_after": 1.0}, {"stage": 7}]
)
def test_what_is_no_refusal_is_a_clear_error(nonsense: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"missing required field|Invalid enum|Expected"):
        recall(nonsense)


def test_numbers_are_said_as_people_say_them() -> None:
    nearly = Refuse(Stage.RATE, Reason.RATE, 0.5, 1.0, 1.30495e-06, "a")
    assert "asked for 1 and 0 were available" in explain(nearly)
    almost = Refuse(Stage.RATE, Reason.RATE, 0.5, 1.0, 0.99999, "a")
    assert "asked for 1 and 0.999 were available" in explain(almost)
    memory = Refuse(Stage.LIMIT, Reason.MEMORY, 0.5, 5e8, 536870912.0)
    assert "500000000 bytes are used, 536870912 are allowed" in explain(memory)


def test_a_timeout_that_is_over_has_nothing_left_to_compare() -> None:
    text = explain(Refuse(Stage.LIMIT, Reason.DEADLINE, 0.5, 0.25, -1.0))
    assert "its own timeout was already over" in text
    assert "-1" not in text


def test_a_timeout_that_was_waited_out_says_so() -> None:
    text = explain(Refuse(Stage.LIMIT, Reason.DEADLINE, 0.5, 0.1004, 0.1))
    assert "it waited 0.100 s, its timeout was 0.100 s" in text
    assert "expected" not in text
    hopeless = explain(Refuse(Stage.SHED, Reason.DEADLINE, 0.5, 0.2, 0.1))
    assert "0.200 s are expected, 0.100 s remained" in hopeless


@pytest.mark.parametrize(
    "reason", [Reason.QUEUE_FULL, Reason.QUEUE_SHED, Reason.WAIT_TIMEOUT], ids=str
)
def test_a_queue_in_front_of_a_late_loop_says_what_is_full(reason: Reason) -> None:
    refusal = Refuse(Stage.LIMIT, reason, 0.5, 3.0, 2.0, LATE_LOOP)
    assert "What is full is the event loop" in explain(refusal)
    assert explain(recall(record(refusal))) == explain(refusal)
    assert "the event loop" not in explain(Refuse(Stage.LIMIT, reason, 0.5, 3.0, 2.0))


def test_the_bound_of_a_wait_is_named() -> None:
    text = explain(Refuse(Stage.LIMIT, Reason.WAIT_TIMEOUT, 0.5, 0.1, 0.1))
    assert "may wait 0.100 s (queue.max_wait;" in text
