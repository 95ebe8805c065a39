from __future__ import annotations

import json
import math
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgate.decisions import Quota, Reason, Refuse, Stage
from loadgate.integrations.http import (
    Answer,
    Contract,
    Pressure,
    http_date,
    limit_item,
    policy_item,
    problem,
    quota_headers,
    refusal_answer,
    sf_string,
    spread_seconds,
    whole_seconds,
)
from loadgate.rates.spec import Rate

EPOCH = 1_800_000_000.0
RATE = Rate("per-client", "100/second burst 200")


def rate_refusal(retry_after: float = 11.2, remaining: float = 0.4) -> Refuse:
    quota = Quota(False, 200.0, remaining, 30.0, retry_after, "client", 1.0, 0.0, "per-client")
    return Refuse(Stage.RATE, Reason.RATE, retry_after, 1.0, remaining, "per-client", quota)


def overload(reason: Reason = Reason.QUEUE_FULL, retry_after: float = 0.4) -> Refuse:
    return Refuse(Stage.LIMIT, reason, retry_after, 100.0, 50.0)


def answer(refusal: Refuse, *, draw: float = 0.0, pressure: float = 0.0, **settings: Any) -> Answer:
    contract = Contract(**settings)
    return refusal_answer(refusal, contract, pressure=pressure, draw=draw, epoch=EPOCH, rate=RATE)


def headers_of(reply: Answer) -> dict[bytes, bytes]:
    assert len({name for name, _ in reply.headers}) == len(reply.headers)
    return dict(reply.headers)


def test_a_429_says_when_to_return_and_what_the_policy_is() -> None:
    reply = answer(rate_refusal())
    headers = headers_of(reply)
    assert reply.status == 429
    assert headers == {
        b"content-type": b"application/problem+json",
        b"content-length": b"%d" % len(reply.body),
        b"cache-control": b"no-store",
        b"retry-after": b"12",
        b"ratelimit-policy": b'"per-client";q=200;w=2',
        b"ratelimit": b'"per-client";r=0;t=12',
    }
    document = json.loads(reply.body)
    assert document["status"] == 429
    assert document["reason"] == "rate"
    assert document["type"].endswith("#quota-exceeded")
    assert document["violated-policies"] == ["per-client"]


def test_a_503_tells_the_reason_and_no_internals() -> None:
    reply = answer(overload())
    headers = headers_of(reply)
    assert reply.status == 503
    assert set(headers) == {b"content-type", b"content-length", b"cache-control", b"retry-after"}
    assert headers[b"retry-after"] == b"1"
    document = json.loads(reply.body)
    assert document["reason"] == "queue_full"
    assert set(document) == {"type", "title", "status", "reason"}


@pytest.mark.parametrize("reason", list(Reason))
def test_documents_are_small(reason: Reason) -> None:
    assert len(problem(reason, 503, "n" * 1000, never=True)) <= 330
    assert len(problem(reason, 503, "per-client")) <= 300


def test_the_same_document_is_serialised_once() -> None:
    assert problem(Reason.RATE, 429, "a") is problem(Reason.RATE, 429, "a")
    for n in range(3000):
        problem(Reason.RATE, 429, f"name-{n}")
    assert json.loads(problem(Reason.RATE, 429, "a"))["violated-policies"] == ["a"]


def test_statuses_are_configurable() -> None:
    assert answer(rate_refusal(), rate_status=403).status == 403
    reply = answer(overload(), overload_status=429)
    assert reply.status == 429
    assert json.loads(reply.body)["status"] == 429


def test_retry_after_can_be_a_date() -> None:
    told = headers_of(answer(rate_refusal(11.2), retry_after="date"))[b"retry-after"]
    assert parsedate_to_datetime(told.decode()).timestamp() == EPOCH + 12
    assert told.endswith(b" GMT")


def test_a_date_is_rounded_up() -> None:
    assert http_date(784111776.2) == b"Sun, 06 Nov 1994 08:49:37 GMT"


def test_what_can_never_pass_has_no_retry_after() -> None:
    reply = answer(rate_refusal(math.inf))
    assert b"retry-after" not in headers_of(reply)
    assert b"inf" not in b"".join(value for _, value in reply.headers)
    assert "detail" in json.loads(reply.body)


def test_x_ratelimit_fields_on_request() -> None:
    headers = headers_of(answer(rate_refusal(), x_ratelimit="delta", ratelimit=False))
    assert headers[b"x-ratelimit-limit"] == b"200"
    assert headers[b"x-ratelimit-remaining"] == b"0"
    assert headers[b"x-ratelimit-reset"] == b"12"
    assert b"ratelimit" not in headers
    headers = headers_of(answer(rate_refusal(), x_ratelimit="epoch"))
    assert headers[b"x-ratelimit-reset"] == b"%d" % (EPOCH + 12)
    assert b"ratelimit" in headers


def test_fields_of_an_admitted_answer_list_every_rate_and_the_tightest_one() -> None:
    hourly = Rate("hourly", "1000/hour", algorithm="fixed-window")
    fast = Quota(True, 200, 150.7, 0.49, 0.0, rate="per-client")
    slow = Quota(True, 1000, 10, 1800.5, 0.0, rate="hourly")
    pairs = [(RATE, fast), (hourly, slow)]
    headers = dict(quota_headers(pairs, Contract(x_ratelimit="delta"), epoch=EPOCH))
    assert headers[b"ratelimit-policy"] == b'"per-client";q=200;w=2, "hourly";q=1000;w=3600'
    assert headers[b"ratelimit"] == b'"per-client";r=150;t=1, "hourly";r=10;t=1801'
    assert headers[b"x-ratelimit-limit"] == b"1000"
    assert headers[b"x-ratelimit-reset"] == b"1801"
    assert quota_headers([], Contract(x_ratelimit="delta"), epoch=EPOCH) == []


def test_further_headers_and_a_renderer_of_ones_own() -> None:
    cors = (b"access-control-allow-origin", b"*")
    assert cors in answer(overload(), headers=[cors]).headers

    def html(refusal: Refuse, reply: Answer) -> Answer:
        return Answer(reply.status, ((b"content-type", b"text/html"),), refusal.reason.encode())

    reply = answer(overload(), render=html)
    assert reply == Answer(503, ((b"content-type", b"text/html"),), b"queue_full")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate_status": 200}, "rate_status: 200"),
        ({"overload_status": 600}, "overload_status: 600"),
        ({"retry_after": "ms"}, "retry_after: 'ms'"),
        ({"max_retry_after": 0}, "max_retry_after: 0"),
        ({"x_ratelimit": "yes"}, "x_ratelimit: 'yes'"),
    ],
)
def test_wrong_settings_are_refused_with_their_name(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Contract(**settings)


@pytest.mark.parametrize(
    ("seconds", "whole"),
    [(0.0, 1), (0.2, 1), (1.0, 1), (1.001, 2), (60.000000001, 60), (86400.0, 86400)],
)
def test_seconds_are_rounded_up_and_at_least_one(seconds: float, whole: int) -> None:
    assert whole_seconds(seconds) == whole


@pytest.mark.parametrize(
    ("text", "serialised"),
    [
        ("plain", b'"plain"'),
        ('a"b\\c', b'"a\\"b\\\\c"'),
        ("zürich", b'"z%C3%BCrich"'),
        ("tab\t", b'"tab%09"'),
        ("", b'""'),
    ],
)
def test_names_become_structured_field_strings(text: str, serialised: bytes) -> None:
    assert sf_string(text) == serialised


@pytest.mark.parametrize(
    ("rate", "item"),
    [
        (Rate("r", "100/minute"), b'"r";q=100;w=60'),
        (Rate("r", "0.5/second burst 5"), b'"r";q=5;w=10'),
        (Rate("r", "0.5/second"), b'"r";q=1;w=2'),
        (Rate("r", "1000/second"), b'"r";q=1000;w=1'),
        (Rate("r", limit=10, per=0.1), b'"r";q=10;w=1'),
        (Rate("r", "10/day", algorithm="sliding-window-log"), b'"r";q=10;w=86400'),
    ],
)
def test_a_rate_is_told_as_quota_and_window(rate: Rate, item: bytes) -> None:
    assert policy_item(rate) == item


@given(st.floats(0, 1e9))
def test_a_client_that_waits_as_told_never_comes_early(seconds: float) -> None:
    whole = whole_seconds(seconds)
    assert whole is not None
    assert seconds - 1e-6 <= whole < seconds + 1 + 1e-6 or whole == 1


@given(
    st.floats(0, 1e6),
    st.floats(0, 1e9),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 3600),
)
def test_retry_after_of_an_overload_stays_in_bounds(
    estimate: float, pressure: float, draw: float, most: int
) -> None:
    seconds = spread_seconds(estimate, pressure, draw, most)
    assert 1 <= seconds <= max(most, 1)


def test_returning_clients_are_spread_by_how_overloaded_the_service_is() -> None:
    def seen(pressure: float) -> set[int]:
        return {spread_seconds(1.0, pressure, n / 100, 30) for n in range(100)}

    assert seen(0.0) == {1, 2}
    assert seen(9.0) == set(range(1, 11))
    assert seen(1000.0) == set(range(1, 31))


def test_pressure_grows_while_an_overload_lasts_and_fades_after_it() -> None:
    pressure = Pressure()
    admitted = [0]
    ratios: list[float] = []
    for n in range(1000):  # ten refusals for each request served, 100 refusals a second
        if n % 10 == 0:
            admitted[0] += 1
        ratios.append(pressure.refused(n / 100, lambda: admitted[0]))
    assert ratios[0] == 0.0
    assert ratios == sorted(ratios)
    assert 9.0 < ratios[-1] < 11.0
    assert pressure.refused(20.0, lambda: admitted[0]) < 0.02


@given(
    st.floats(0, allow_infinity=True),
    st.floats(0, allow_infinity=True),
    st.floats(0, allow_infinity=True),
)
def test_any_quota_can_be_told(limit: float, remaining: float, reset: float) -> None:
    quota = Quota(True, limit, remaining, reset, 0.0, rate="r")
    item = limit_item(quota)
    assert item.startswith(b'"r";r=')
    assert len(item) < 60
    fields = quota_headers([(None, quota)], Contract(x_ratelimit="epoch"), epoch=EPOCH)
    assert all(value.isdigit() for name, value in fields if name.startswith(b"x-"))
