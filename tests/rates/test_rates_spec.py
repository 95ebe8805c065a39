"""A rate says what is wrong with it when it is written, not when it is first used."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from loadgate.errors import PolicyError
from loadgate.rates import create
from loadgate.rates.spec import Rate, parse


@pytest.mark.parametrize(
    ("text", "limit", "per", "burst"),
    [
        ("100/second", 100, 1, 100),
        ("100/minute", 100, 60, 100),
        ("0.5/second burst 5", 0.5, 1, 5),
        ("0.5/second", 0.5, 1, 1),
        ("10 per 2 seconds", 10, 2, 10),
        ("10/2s", 10, 2, 10),
        ("1_000 per day", 1000, 86400, 1000),
        ("3 / 5 minutes burst=4", 3, 300, 4),
        ("5 per 0.5 hours, burst 7.5", 5, 1800, 7.5),
        ("100 PER SECOND BURST 200", 100, 1, 200),
        ("50/500ms", 50, 0.5, 50),
        ("1e3/sec", 1000, 1, 1000),
        ("7/h", 7, 3600, 7),
    ],
)
def test_rates_are_read_as_people_write_them(
    text: str, limit: float, per: float, burst: float
) -> None:
    rate = Rate("r", text)
    assert (rate.limit, rate.per, rate.burst) == (limit, per, burst)
    assert all(type(value) is float for value in (rate.limit, rate.per, rate.burst))


def test_a_rate_may_be_given_in_numbers() -> None:
    rate = Rate("per-client", limit=100, per=1.0, burst=200, algorithm="token-bucket", key="client")
    assert (rate.limit, rate.per, rate.burst) == (100.0, 1.0, 200.0)
    assert Rate("w", limit=10, algorithm="fixed-window").burst == 10.0
    assert rate == Rate("per-client", limit=100.0, burst=200.0)


def test_a_rate_is_read_from_a_mapping_and_survives_a_round_trip() -> None:
    settings = {
        "name": "r",
        "rate": "100/second burst 200",
        "mode": "observe",
        "match": {"tier": ["free", "trial"]},
        "exempt": ["10.0.0.1"],
    }
    rate = msgspec.convert(settings, Rate)
    assert rate.burst == 200.0
    assert rate.exempt == ("10.0.0.1",)
    assert msgspec.convert(msgspec.to_builtins(rate), Rate) == rate
    assert msgspec.structs.replace(rate, mode="off").limit == 100.0


@pytest.mark.parametrize(
    ("settings", "path", "says"),
    [
        ({}, "rate", "missing"),
        ({"rate": ""}, "rate", "missing"),
        ({"rate": "fast"}, "rate", "'fast'"),
        ({"rate": "-5/second"}, "rate", "not a rate"),
        ({"rate": "5/fortnight"}, "rate", "no unit of time; one of millisecond (ms), second (s)"),
        ({"rate": "5/secnd"}, "rate", "did you mean 'second'"),
        ({"rate": ["5/second"]}, "rate", "must be text"),
        ({"rate": "5/second;10/minute"}, "rate", "not a rate"),
        ({"rate": "0/second"}, "rate", "not 0.0 (the limit of '0/second')"),
        ({"rate": "5/second", "burst": 0}, "burst", "0"),
        ({"rate": "5/second burst 0"}, "rate", "the burst of '5/second burst 0'"),
        ({"rate": "5/0 seconds"}, "rate", "the per of '5/0 seconds'"),
        ({"rate": "5/second", "limit": 6}, "limit", "says 5"),
        ({"rate": "5/second", "per": 2.0}, "per", "says 1"),
        ({"rate": "5/second burst 6", "burst": 7}, "burst", "says 6"),
        ({"limit": 0}, "limit", "positive"),
        ({"limit": -1}, "limit", "-1"),
        ({"limit": math.nan}, "limit", "nan"),
        ({"limit": math.inf}, "limit", "inf"),
        ({"limit": 10**400}, "limit", "finite"),
        ({"limit": True}, "limit", "True"),
        ({"limit": "10"}, "limit", "'10'"),
        ({"limit": 5, "per": 0}, "per", "positive"),
        ({"limit": 5, "per": -1.0}, "per", "-1.0"),
        ({"limit": 5, "per": math.nan}, "per", "nan"),
        ({"limit": 5, "per": math.inf}, "per", "inf"),
        ({"limit": 1e308, "per": 1e-10}, "limit", "usable"),
        ({"limit": 1e-300, "per": 1e300}, "limit", "usable"),
        ({"limit": 5, "burst": 0}, "burst", "positive"),
        ({"limit": 5, "burst": 0.5}, "burst", "at least 1"),
        ({"limit": 5, "burst": math.nan}, "burst", "nan"),
        ({"limit": 5, "burst": math.inf}, "burst", "inf"),
        ({"limit": 1.5, "algorithm": "fixed-window"}, "limit", "whole"),
        ({"limit": 0.5, "algorithm": "sliding-window-log"}, "limit", "whole"),
        ({"limit": 5, "burst": 6, "algorithm": "sliding-window-counter"}, "burst", "leave out"),
        ({"limit": 5, "algorithm": "tokn-bucket"}, "algorithm", "did you mean 'token-bucket'"),
        ({"limit": 5, "algorithm": "leaky-bucket-shaper"}, "algorithm", "leaky-bucket"),
        ({"limit": 5, "algorithm": None}, "algorithm", "None"),
        ({"limit": 5, "key": ""}, "key", "empty"),
        ({"limit": 5, "on_missing": "share"}, "on_missing", "did you mean 'shared'"),
        ({"limit": 5, "mode": "dry-run"}, "mode", "observe"),
        ({"limit": 5, "charge": "failure"}, "charge", "'failure'"),
        ({"limit": 5, "charge": "600"}, "charge", "status"),
        ({"limit": 5, "charge": " , "}, "charge", "nothing"),
        ({"limit": 5, "max_keys": 0}, "max_keys", "at least 1"),
        ({"limit": 5, "max_keys": 1.5}, "max_keys", "1.5"),
        ({"limit": 5, "max_bytes": 10}, "max_bytes", "1024"),
        ({"limit": 5, "shared": "yes"}, "shared", "'yes'"),
        ({"limit": 5, "exempt": "10.0.0.1"}, "exempt", "list"),
        ({"limit": 5, "exempt": [1]}, "exempt", "texts"),
        ({"limit": 5, "match": "tier"}, "match", "map"),
        ({"limit": 5, "match": {"tier": []}}, "match.tier", "empty"),
        ({"limit": 5, "match": {"tier": [1]}}, "match.tier", "texts"),
        ({"limit": 5, "match": {"": "x"}}, "match", "empty"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(
    settings: dict[str, Any], path: str, says: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        Rate("r", **settings)
    assert caught.value.path == path
    assert says in caught.value.problem


@pytest.mark.parametrize("name", ["", "  ", None, 5])
def test_a_rate_needs_a_name(name: Any) -> None:
    with pytest.raises(PolicyError) as caught:
        Rate(name, "5/second")
    assert caught.value.path == "name"


def test_a_mapping_keeps_the_policy_error_as_its_cause() -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({"name": "r", "rate": "5/second burst 0.1"}, Rate)
    cause = caught.value.__cause__
    assert isinstance(cause, PolicyError)
    assert cause.path == "rate"
    with pytest.raises(msgspec.ValidationError, match="brust"):
        msgspec.convert({"name": "r", "rate": "5/second", "brust": 3}, Rate)


def test_parse_leaves_an_unsaid_burst_open() -> None:
    assert parse("5/minute") == (5.0, 60.0, None)


@pytest.mark.parametrize(
    ("algorithm", "settings", "path"),
    [
        ("token-buket", {"limit": 5}, "algorithm"),
        ("token-bucket", {"limit": 0}, "limit"),
        ("token-bucket", {"limit": 5, "burst": 0.2}, "burst"),
        ("leaky-bucket", {"limit": 5, "per": 0}, "per"),
        ("fixed-window", {"limit": 5, "burst": 9}, "burst"),
        ("sliding-window-log", {"limit": 2.5}, "limit"),
        ("sliding-window-counter", {"limit": math.nan}, "limit"),
        ("leaky-bucket-shaper", {"limit": -1}, "limit"),
        ("token-bucket", {"limit": 5, "max_keys": 0}, "max_keys"),
        ("token-bucket", {"limit": 5, "max_bytes": 0}, "max_bytes"),
    ],
)
def test_create_refuses_what_a_policy_refuses(
    algorithm: str, settings: dict[str, Any], path: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        create(algorithm, **settings)
    assert caught.value.path == path


HUGE = 10**5000  # Python refuses to print it


@pytest.mark.parametrize(
    "settings",
    [
        {"limit": HUGE},
        {"limit": 1, "per": HUGE},
        {"limit": 1, "burst": HUGE},
        {"limit": 1, "key": HUGE},
        {"limit": 1, "mode": HUGE},
        {"limit": 1, "algorithm": HUGE},
        {"limit": 1, "match": HUGE},
        {"limit": 1, "match": {"tier": HUGE}},
        {"limit": 1, "exempt": HUGE},
        {"limit": 1, "exempt": [HUGE]},
        {"limit": 1, "shared": HUGE},
        {"limit": 1, "charge": HUGE},
        {"rate": HUGE},
    ],
)
def test_values_that_cannot_be_printed_are_refused_as_clearly(settings: dict[str, Any]) -> None:
    with pytest.raises(PolicyError) as caught:
        Rate("a", **settings)
    assert len(str(caught.value)) < 300


def test_large_numbers_are_said_without_exponents() -> None:
    with pytest.raises(PolicyError, match=r"not 2000000\.5;"):
        Rate("a", limit=2_000_000.5, algorithm="fixed-window")
