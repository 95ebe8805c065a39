from __future__ import annotations

import pytest

from loadgate import Overloaded, RateLimited, Reason, Refuse, Stage
from loadgate.explain import explain


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
