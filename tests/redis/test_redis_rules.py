"""What the store link decides by itself: URLs, keys, numbers, clocks, breakers, settings."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgate import AdmissionController, Policy, Rate
from loadgate.decisions import Quota
from loadgate.errors import PolicyError
from loadgate.integrations.redis.breaker import LAST_PAUSE, LEAST_OPEN, PROBES, SPREAD, Breaker
from loadgate.integrations.redis.coredis_cluster import slot_of
from loadgate.integrations.redis.denied import Denied
from loadgate.integrations.redis.keys import Keys
from loadgate.integrations.redis.offset import ServerClock
from loadgate.integrations.redis.units import scale
from loadgate.integrations.redis.url import parse
from loadgate.shared import Store

SECRET = "sixteen letters!"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost", "localhost:6379"),
        ("rediss://me:pa%3Ass@h:1/2?ca_certs=/x", "h:1"),
        ("valkey://[::1]:7000", "::1:7000"),
        ("redis+cluster://a:1,b:2", "a:1,b:2"),
        ("redis+sentinel://:pw@a,b:2/main", "a:26379,b:2/main"),
        ("redis+sentinel://a/main?sentinel_password=pw", "a:26379/main"),
        ("unix:///run/redis.sock?db=3", "unix:/run/redis.sock"),
    ],
)
def test_a_url_is_taken_apart_and_shown_without_credentials(url: str, shown: str) -> None:
    assert str(parse(url)) == repr(parse(url)) == shown


def test_credentials_and_options_are_understood() -> None:
    address = parse("rediss://me:pa%3Ass@h:1/2?ca_certs=/x&verify=no")
    assert (address.username, address.password) == ("me", "pa:ss")
    assert (address.db, address.tls, address.ca_certs, address.verify) == (2, True, "/x", False)
    address = parse("redis+sentinel://h/main?sentinel_username=gate&sentinel_password=a+b%2526")
    assert (address.sentinel_username, address.sentinel_password) == ("gate", "a+b%26")


@pytest.mark.parametrize(
    "url",
    [
        "", "localhost", "http://h", "redis://", "redis://h:x", "redis://h:99999", "redis://a,b",
        "redis://h/one", "redis+cluster://h/1", "redis+sentinel://h", "unix://",
        "redis://h?verify=no", "rediss://h?verify=maybe", "redis://h?timeout=1",
        "redis://:hunter2@h:x", "redis://:hunter2#@h", "redis://h?sentinel_password=hunter2",
        "redis+sentinel://h/main?sentinel_username=gate",
        "redis+sentinel://h/main?sentinel_password=hunter2&sentinel_name=hunter2",
    ],
)  # fmt: skip
def test_a_wrong_url_is_an_error_that_shows_no_password(url: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"url": ""}, "url"),
        ({"secret": "short"}, "secret"),
        ({"mode": "lax"}, "mode"),
        ({"on_failure": "ignore"}, "on_failure"),
        ({"budget": 0.0}, "budget"),
        ({"budget": 5.0}, "budget"),
        ({"share": 2.0}, "share"),
        ({"overdraft": -1.0}, "overdraft"),
        ({"lease": 0.01}, "lease"),
        ({"prefix": "a{b}"}, "prefix"),
    ],
)
def test_a_wrong_setting_is_an_error_with_its_path(settings: dict[str, object], path: str) -> None:
    given_: dict[str, object] = {"url": "redis://h", "secret": SECRET, **settings}
    with pytest.raises(PolicyError) as caught:
        Policy.from_mapping({"store": given_})
    assert caught.value.path == f"store.{path}"


def test_a_wrong_override_is_an_error() -> None:
    with pytest.raises(PolicyError, match="maybe"):
        Policy.from_mapping(
            {"store": {"url": "redis://h", "secret": SECRET, "overrides": {"r": "maybe"}}}
        )


def test_a_shared_rate_needs_a_store() -> None:
    with pytest.raises(PolicyError, match=r"rates\[0\].shared"):
        Policy(rates=[Rate("r", "1/second", shared=True)])


def test_a_rate_that_guards_something_must_say_what_happens_without_the_store() -> None:
    rate = Rate("logins", "3/minute", charge="401", shared=True)
    with pytest.raises(PolicyError, match="logins"):
        Policy(rates=[rate], store=Store("redis://h", SECRET))
    Policy(rates=[rate], store=Store("redis://h", SECRET, overrides={"logins": "closed"}))
    with pytest.raises(PolicyError, match="no shared rate"):
        Policy(store=Store("redis://h", SECRET, overrides={"logins": "closed"}))


def test_url_and_secret_may_stand_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy(
        rates=[Rate("r", "1/second", shared=True)],
        store=Store("env:STORE_URL", "env:STORE_SECRET"),
    )
    with pytest.raises(PolicyError, match="STORE_URL"):
        AdmissionController(policy)
    monkeypatch.setenv("STORE_URL", "redis://:hunter2@h")
    monkeypatch.setenv("STORE_SECRET", SECRET)
    assert AdmissionController(policy).shared is not None


def test_an_unknown_scheme_is_an_error_at_construction() -> None:
    policy = Policy(rates=[Rate("r", "1/second", shared=True)], store=Store("mysql://h", SECRET))
    with pytest.raises(PolicyError, match=r"store\.url: begins with no known scheme"):
        AdmissionController(policy)


def test_keys_differ_by_secret_rate_kind_and_type_and_have_one_length() -> None:
    rates = [Rate("a", "1/second"), Rate("b", "1/second"), Rate("a", "1/second", key="other")]
    found: set[bytes] = set()
    for secret in (SECRET, SECRET + "!"):
        keys = Keys("p", secret)
        for rate in rates:
            for subject in ("x", b"x", "x" * 1000, "a}{b"):
                found.add(keys.key(keys.head(rate), subject, keys.tail(rate)))
    assert len(found) == 2 * 3 * 4
    assert len({len(key) for key in found}) == 1


def test_rates_of_one_subject_share_a_cluster_slot() -> None:
    keys = Keys("p", SECRET)
    one, other = Rate("a", "1/second"), Rate("b", "5/hour")
    assert slot_of(keys.key(keys.head(one), "x", keys.tail(one))) == slot_of(
        keys.key(keys.head(other), "x", keys.tail(other))
    )
    # From the Redis cluster specification: CRC16 of "123456789" is 0x31C3.
    assert slot_of(b"123456789") == 0x31C3
    assert slot_of(b"a{123456789}b") == 0x31C3


@given(
    st.sampled_from((0.001, 0.5, 1.0, 3.0, 7.3, 100.0, 1e6, 1e9)),
    st.sampled_from((0.1, 1.0, 7.3, 60.0, 86400.0)),
    st.sampled_from((1.0, 1.5, 10.0, 1e6)),
)
def test_a_bucket_in_units_is_the_same_bucket(limit: float, per: float, burst: float) -> None:
    rate = Rate("r", limit=limit, per=per, burst=burst)
    if burst * per / limit > 1e6:  # seconds until it is full again
        return  # may be an error
    numbers = scale(rate)
    assert numbers.a >= 1
    assert 2 * numbers.c < 2**53
    assert numbers.a / numbers.unit == pytest.approx(limit / per / 1e6, rel=1e-6)
    assert numbers.c / numbers.unit == pytest.approx(burst, rel=1e-6)
    assert numbers.units(burst) <= numbers.c
    assert numbers.units(burst * 1.001 + 1e-3) > numbers.c


def test_what_cannot_be_counted_exactly_is_an_error() -> None:
    for rate in (
        Rate("r", limit=1e-9, per=86400.0, burst=1e15),
        Rate("r", limit=1, per=0.0001, algorithm="fixed-window"),
        Rate("r", limit=20_000, per=1.0, algorithm="sliding-window-log"),
    ):
        with pytest.raises(PolicyError):
            scale(rate)


def test_the_breaker_opens_on_silence_and_closes_after_probes() -> None:
    breaker = Breaker()
    assert not breaker.failed(0.0, "one")
    breaker.answered()
    assert [breaker.failed(0.0, "x") for _ in range(3)] == [False, False, True]
    assert str(breaker.state) == "open"
    assert not breaker.trip(0.1, "again")
    assert breaker.incidents == 1
    assert [breaker.probed(0.1) for _ in range(PROBES)] == [False] * PROBES
    assert str(breaker.state) == "half-open"
    assert breaker.probed(LEAST_OPEN)
    assert str(breaker.state) == "closed"
    assert breaker.away(9.0) == pytest.approx(LEAST_OPEN)


def test_pauses_between_attempts_grow_to_a_bound() -> None:
    breaker = Breaker()
    breaker.trip(0.0, "x")
    pauses = [breaker.pause(0.5) for _ in range(40)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LAST_PAUSE
    assert breaker.pause(0.0) == pytest.approx(LAST_PAUSE * (1 - SPREAD))


@given(
    st.floats(-1e6, 1e6),
    st.lists(st.tuples(st.floats(0, 0.05), st.floats(0, 0.05)), min_size=1, max_size=20),
)
def test_the_not_after_instant_is_never_later_than_the_deadline(
    offset: float, exchanges: list[tuple[float, float]]
) -> None:
    clock = ServerClock()
    assert clock.earliest is None
    now = 100.0
    for there, back in exchanges:
        clock.note(now, now + there + back, int((now + there + offset + 2e6) * 1e6))
        now += 0.2
        assert clock.earliest is not None
        assert now + clock.earliest <= now + offset + 2e6 + 2e-6


def test_a_refusal_is_believed_until_it_ends_and_at_most_for_a_second() -> None:
    denied = Denied()
    quota = Quota(False, 5.0, 0.0, 9.0, 0.4, "a", 1.0)
    denied.note(b"k", 10.0, 2.0, quota)
    assert denied.look(b"k", 10.3, 1.0) is None  # a smaller cost may pass
    found = denied.look(b"k", 10.3, 2.0)
    assert found is not None
    assert found[0] == pytest.approx(0.1)
    assert denied.look(b"k", 10.4, 2.0) is None
    denied.note(b"k", 10.0, 1.0, Quota(False, 5.0, 0.0, 9.0, math.inf, "a", 1.0))
    assert denied.look(b"k", 10.9, 1.0) is not None
    assert denied.look(b"k", 11.0, 1.0) is None
    denied.note(b"k", 10.0, 1.0, quota)
    denied.forget(b"k")
    assert denied.look(b"k", 10.1, 1.0) is None
