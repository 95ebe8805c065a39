"""Several rates at once: all are charged, or none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgate.decisions import Outcome, Quota, Reason, Refuse, Stage
from loadgate.rates.group import Client, RateSet
from loadgate.rates.spec import ALGORITHMS, Rate


def charge(rates: RateSet, client: Client, now: float = 0.0, cost: float = 1.0) -> list[str]:
    """The names of the rates that were charged; empty when refused."""
    answer = rates.charge(client, cost, now)
    return [] if isinstance(answer, Refuse) else [quota.rate for quota in answer]


def refusal(rates: RateSet, client: Client, now: float = 0.0, cost: float = 1.0) -> Refuse:
    answer = rates.charge(client, cost, now)
    assert isinstance(answer, Refuse)
    return answer


def receipts(rates: RateSet, client: Client, now: float = 0.0) -> Sequence[Quota]:
    answer = rates.charge(client, 1.0, now)
    assert not isinstance(answer, Refuse)
    return answer


def left(rates: RateSet, name: str, key: str, now: float = 0.0) -> float:
    member = rates._members[name]  # pyright: ignore[reportPrivateUsage]  # to look without charging
    return round(member.limiter.peek(key, now).remaining, 6) + 1.0


BOTH = {"account": "42", "address": "203.0.113.7"}


def two() -> RateSet:
    return RateSet(
        [
            Rate("per-account", limit=10, key="account"),
            Rate("per-address", limit=3, key="address"),
        ]
    )


def test_each_rate_counts_its_own_key() -> None:
    rates = two()
    for _ in range(3):
        assert charge(rates, BOTH) == ["per-account", "per-address"]
    assert charge(rates, BOTH) == []
    assert charge(rates, {**BOTH, "address": "203.0.113.8"}) == ["per-account", "per-address"]
    assert charge(rates, {**BOTH, "account": "43"}) == []


def test_a_refused_request_is_charged_to_no_rate() -> None:
    rates = two()
    for _ in range(3):
        charge(rates, BOTH)
    for _ in range(50):
        assert refusal(rates, BOTH).subject == "per-address"
    assert left(rates, "per-account", "42") == 7.0
    stats = rates.stats()
    assert (stats["per-account"].allowed, stats["per-account"].refused) == (3, 0)
    assert (stats["per-address"].allowed, stats["per-address"].refused) == (3, 50)


def test_a_refusal_waits_for_the_slowest_rate() -> None:
    rates = RateSet([Rate("fast", "2/second"), Rate("slow", "2/minute"), Rate("wide", "9/second")])
    for _ in range(2):
        charge(rates, "a")
    answer = refusal(rates, "a")
    assert answer.subject == "slow"
    assert answer.retry_after == pytest.approx(30.0)
    assert charge(rates, "a", answer.retry_after - 0.001) == []
    assert charge(rates, "a", answer.retry_after) == ["fast", "slow", "wide"]


def test_a_refusal_carries_the_numbers_compared() -> None:
    rates = RateSet([Rate("per-client", limit=10, burst=20)])
    charge(rates, "a", cost=15)
    answer = refusal(rates, "a", cost=7)
    assert (answer.stage, answer.reason) == (Stage.RATE, Reason.RATE)
    assert (answer.observed, answer.bound) == (7, 5)
    assert answer.retry_after == pytest.approx(0.2)
    assert answer.quota is not None
    assert (answer.quota.rate, answer.quota.key) == ("per-client", "a")


@pytest.mark.parametrize("extra", [[], [Rate("other", limit=1000)]])
def test_a_cost_above_the_burst_says_that_it_can_never_pass(extra: list[Rate]) -> None:
    rates = RateSet([Rate("per-client", limit=10, burst=20), *extra])
    answer = refusal(rates, "a", cost=21)
    assert answer.retry_after == math.inf
    assert (answer.observed, answer.bound) == (21, 20)


def test_text_counts_as_the_key_client() -> None:
    rates = RateSet([Rate("per-client", limit=1), Rate("wide", limit=9)])
    assert charge(rates, "a") == ["per-client", "wide"]
    assert charge(rates, {"client": "a"}) == []
    assert charge(rates, b"a") == ["per-client", "wide"]
    single = RateSet([Rate("per-client", limit=1)])
    assert charge(single, "a") == ["per-client"]
    assert charge(single, {"client": "a"}) == []
    assert charge(single, b"a") == ["per-client"]


@pytest.mark.parametrize("extra", [[], [Rate("other", limit=1000)]])
def test_nobody_shares_one_bucket_that_no_name_reaches(extra: list[Rate]) -> None:
    rates = RateSet([Rate("per-client", limit=2), *extra])
    assert charge(rates, None)
    assert charge(rates, None)
    assert not charge(rates, None)
    for name in ("", "None", "anonymous", b"", b"anonymous"):
        assert charge(rates, cast(str, name))
    assert rates.stats()["per-client"].missing == 3


def test_the_anonymous_bucket_is_given_back_to_as_any_other() -> None:
    rates = RateSet([Rate("per-client", limit=1)])
    for _ in range(5):
        rates.refund(receipts(rates, None), 0.0)
    assert charge(rates, None)
    assert not charge(rates, None)
    assert left(rates, "per-client", "") == 1.0


@pytest.mark.parametrize(
    ("on_missing", "charged"),
    [("shared", ["per-account"]), ("skip", []), ("refuse", None)],
)
def test_a_missing_key_follows_the_setting(on_missing: str, charged: list[str] | None) -> None:
    rates = RateSet([Rate("per-account", limit=1, key="account", on_missing=on_missing)])
    answer = rates.charge({"address": "x"}, 1.0, 0.0)
    if charged is None:
        assert isinstance(answer, Refuse)
        assert answer.subject == "per-account"
        assert answer.retry_after == math.inf
    else:
        assert not isinstance(answer, Refuse)
        assert [quota.rate for quota in answer] == charged
    assert rates.stats()["per-account"].missing == 1
    # Text counts only as the key "client", so here it is missing too.
    rates.charge("somebody", 1.0, 0.0)
    assert rates.stats()["per-account"].missing == 2


def test_a_missing_key_that_refuses_charges_nobody() -> None:
    rates = RateSet(
        [
            Rate("per-client", limit=2),
            Rate("per-account", limit=2, key="account", on_missing="refuse"),
        ]
    )
    for _ in range(5):
        assert refusal(rates, {"client": "a"}).subject == "per-account"
    assert left(rates, "per-client", "a") == 2.0
    charge(rates, {"client": "a", "account": "1"})
    charge(rates, {"client": "a", "account": "1"})
    assert refusal(rates, {"client": "a"}).retry_after == math.inf


def test_observe_decides_and_counts_and_lets_through() -> None:
    rates = RateSet([Rate("watched", limit=2, mode="observe"), Rate("enforced", limit=5)])
    assert [charge(rates, "a") for _ in range(5)] == [
        ["watched", "enforced"],
        ["watched", "enforced"],
        ["enforced"],
        ["enforced"],
        ["enforced"],
    ]
    assert refusal(rates, "a").subject == "enforced"
    stats = rates.stats()
    assert (stats["watched"].allowed, stats["watched"].refused) == (2, 0)
    assert stats["watched"].would_refuse == 4
    assert (stats["enforced"].allowed, stats["enforced"].refused) == (5, 1)
    lone = RateSet([Rate("watched", limit=1, mode="observe", key="x", on_missing="refuse")])
    assert charge(lone, {}) == []
    assert not isinstance(lone.charge({}, 1.0, 0.0), Refuse)
    assert lone.stats()["watched"].would_refuse == 2


def test_an_observed_rate_never_delays_a_refusal() -> None:
    rates = RateSet([Rate("enforced", "1/second"), Rate("watched", "1/hour", mode="observe")])
    charge(rates, "a")
    assert refusal(rates, "a").retry_after == pytest.approx(1.0)


def test_off_neither_counts_nor_refuses() -> None:
    rates = RateSet([Rate("off", limit=1, mode="off")])
    for _ in range(5):
        assert rates.charge("a", 1.0, 0.0) == ()
    assert rates.stats()["off"].allowed == 0
    assert RateSet([]).charge("a", 1.0, 0.0) == ()


def test_exempt_keys_pass_uncounted() -> None:
    rates = RateSet([Rate("per-address", limit=1, key="address", exempt=["10.0.0.1"])])
    for _ in range(5):
        assert rates.charge({"address": "10.0.0.1"}, 1.0, 0.0) == ()
    assert charge(rates, {"address": "10.0.0.2"})
    assert not charge(rates, {"address": "10.0.0.2"})
    assert rates.stats()["per-address"].exempt == 5


def test_routes_and_tiers_have_rates_of_their_own() -> None:
    rates = RateSet(
        [
            Rate("gold", limit=3, key="account", match={"tier": "gold"}),
            Rate("others", limit=1, key="account", match={"tier": ["free", "trial"]}),
            Rate("search", limit=2, key="account", match={"route": "/search"}),
        ]
    )
    gold = {"account": "1", "tier": "gold", "route": "/items/{id}"}
    free = {"account": "2", "tier": "free", "route": "/items/{id}"}
    assert [charge(rates, gold) for _ in range(4)] == [["gold"], ["gold"], ["gold"], []]
    assert [charge(rates, free) for _ in range(2)] == [["others"], []]
    assert charge(rates, {"account": "3", "tier": "trial", "route": "/search"}) == [
        "others",
        "search",
    ]
    # Without the entry it does not apply, nor to a client given as text.
    assert rates.charge({"account": "4"}, 1.0, 0.0) == ()
    assert rates.charge("4", 1.0, 0.0) == ()


LOGINS = Rate("failed-logins", "3/minute", key="account", charge="error 401")


def test_failed_logins_are_charged_by_their_outcome() -> None:
    rates = RateSet([LOGINS])
    client = {"account": "42"}
    for number in range(10):
        rates.settle(receipts(rates, client, float(number)), float(number), Outcome.SUCCESS)
    for number in range(10, 13):
        rates.settle(receipts(rates, client, float(number)), float(number), Outcome.ERROR)
    answer = refusal(rates, client, 13.0)
    assert answer.subject == "failed-logins"
    assert not charge(rates, client, 13.0 + answer.retry_after - 0.01)
    assert charge(rates, client, 13.0 + answer.retry_after)
    assert charge(rates, {"account": "43"}, 13.0)
    stats = rates.stats()["failed-logins"]
    assert (stats.allowed, stats.refused, stats.charged) == (15, 2, 3)


def test_a_response_status_may_charge() -> None:
    rates = RateSet([LOGINS, Rate("broken", limit=1, key="account", charge="5xx")])
    client = {"account": "42"}
    for _ in range(3):
        rates.settle(receipts(rates, client), 0.0, Outcome.SUCCESS, status=200)
        rates.settle(receipts(rates, client), 0.0, Outcome.SUCCESS, status=401)
    assert refusal(rates, client).subject == "failed-logins"
    rates.settle(receipts(rates, {"account": "7"}), 0.0, Outcome.SUCCESS, status=503)
    assert refusal(rates, {"account": "7"}).subject == "broken"


def test_many_failures_at_once_leave_an_empty_bucket_not_a_debt() -> None:
    rates = RateSet([LOGINS])
    running = [receipts(rates, {"account": "42"}) for _ in range(50)]
    for quotas in running:
        rates.settle(quotas, 0.0, Outcome.ERROR)
    assert refusal(rates, {"account": "42"}).retry_after == pytest.approx(20.0)


def test_a_refund_gives_nothing_back_that_only_an_outcome_would_have_charged() -> None:
    rates = RateSet([LOGINS, Rate("per-account", limit=5, key="account")])
    client = {"account": "42"}
    rates.settle(receipts(rates, client), 0.0, Outcome.ERROR)
    before = left(rates, "failed-logins", "42"), left(rates, "per-account", "42")
    for _ in range(10):
        rates.refund(receipts(rates, client), 0.0)
    assert (left(rates, "failed-logins", "42"), left(rates, "per-account", "42")) == before


def test_nobody_is_charged_by_outcome_too() -> None:
    rates = RateSet([Rate("failures", limit=1, charge="error")])
    rates.settle(receipts(rates, None), 0.0, Outcome.ERROR)
    assert not charge(rates, None)
    assert charge(rates, "somebody")


def test_a_live_change_keeps_what_was_used_and_what_was_counted() -> None:
    rates = RateSet([Rate("a", limit=10), Rate("gone", limit=1)])
    quotas = receipts(rates, "x")
    for _ in range(4):
        rates.charge("y", 1.0, 0.0)
    rates.update([Rate("a", limit=20, burst=5), Rate("new", limit=3)], 0.0)
    assert left(rates, "a", "x") == 4.0
    assert charge(rates, "x") == ["a", "new"]
    # The receipt of a rate that is gone is worth nothing, and harms nothing.
    rates.refund(quotas, 0.0)
    assert left(rates, "a", "x") == 4.0
    assert rates.stats()["a"].allowed == 3
    assert list(rates.stats()) == ["a", "new"]
    assert rates.rate("gone") is None
    assert rates.rate("new") == Rate("new", limit=3)


@pytest.mark.parametrize(
    ("algorithm", "kept"), [("leaky-bucket", True), ("sliding-window-log", False)]
)
def test_a_change_of_algorithm_keeps_state_where_it_means_the_same(
    algorithm: str, kept: bool
) -> None:
    rates = RateSet([Rate("a", limit=2)])
    charge(rates, "x")
    charge(rates, "x")
    rates.update([Rate("a", limit=2, algorithm=algorithm)], 0.0)
    assert (charge(rates, "x") == []) is kept
    assert rates.stats()["a"].allowed >= 2


def test_switching_between_observe_and_enforce_keeps_both_counts_apart() -> None:
    rates = RateSet([Rate("a", limit=1, mode="observe")])
    charge(rates, "x")
    charge(rates, "x")
    rates.update([Rate("a", limit=1)], 0.0)
    assert not charge(rates, "x")
    stats = rates.stats()["a"]
    assert (stats.allowed, stats.refused, stats.would_refuse) == (1, 1, 1)


@pytest.mark.parametrize("extra", [[], [Rate("other", limit=1000)]])
@pytest.mark.parametrize("client", [1, 1.5, ("a",), ["a"], object()])
def test_a_client_of_another_type_is_an_error(extra: list[Rate], client: Any) -> None:
    rates = RateSet([Rate("per-client", limit=1), *extra])
    with pytest.raises(TypeError, match="client"):
        rates.charge(client, 1.0, 0.0)


def test_a_wrong_key_or_cost_charges_no_rate() -> None:
    rates = RateSet(
        [
            Rate("first", limit=5, key="account"),
            Rate("second", limit=5, key="address", algorithm="sliding-window-log"),
        ]
    )
    with pytest.raises(TypeError):
        rates.charge(cast(Client, {"account": "a", "address": 5}), 1.0, 0.0)
    with pytest.raises(ValueError, match="whole"):
        rates.charge({"account": "a", "address": "b"}, 0.5, 0.0)
    assert left(rates, "first", "a") == 5.0
    assert rates.stats()["first"].allowed == 0
    for cost in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="cost"):
            rates.charge({"account": "a", "address": "b"}, cost, 0.0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("options", [{}, {"exempt": ["a"]}, {"mode": "observe"}])
@pytest.mark.parametrize(("key", "kind"), [(7, "int"), ({"id": 7}, "dict"), (["a"], "list")])
def test_a_key_that_is_neither_text_nor_bytes_is_named_with_its_type(
    algorithm: str, options: dict[str, Any], key: Any, kind: str
) -> None:
    rates = RateSet([Rate("a", limit=1, key="account", algorithm=algorithm, **options)])
    with pytest.raises(TypeError, match=f"a rate counts str or bytes keys, not {kind}: "):
        rates.charge({"account": key}, 1.0, 0.0)


def test_a_value_to_match_that_has_no_hash_is_named_with_its_type() -> None:
    rates = RateSet([Rate("a", limit=1, match={"tier": "free"})])
    client = cast(Client, {"client": "a", "tier": {"name": "free"}})
    with pytest.raises(TypeError, match="a rate counts str or bytes keys, not dict"):
        rates.charge(client, 1.0, 0.0)


def test_composed_keys_are_not_confused() -> None:
    rates = RateSet([Rate("a", limit=1, key="a"), Rate("b", limit=1, key="b")])
    assert charge(rates, {"a": "x/y", "b": "z"})
    assert charge(rates, {"a": "x", "b": "y/z"})


names = st.sampled_from(["p", "q", "r"])
rate_lists = st.lists(
    st.tuples(
        st.sampled_from(
            ["token-bucket", "fixed-window", "sliding-window-counter", "sliding-window-log"]
        ),
        st.integers(1, 6),
        st.sampled_from(["account", "address"]),
        st.sampled_from(["enforce", "enforce", "observe"]),
    ),
    min_size=1,
    max_size=4,
)
requests = st.lists(
    st.tuples(names, names, st.integers(1, 4), st.floats(0.0, 0.7)), min_size=1, max_size=40
)


@settings(deadline=None, max_examples=80)
@given(rate_lists, requests)
def test_a_refusal_leaves_every_rate_as_it_was(
    shapes: list[tuple[str, int, str, str]], requests: list[tuple[str, str, int, float]]
) -> None:
    rates = RateSet(
        [
            Rate(f"rate-{number}", limit=limit, algorithm=algorithm, key=key, mode=mode)
            for number, (algorithm, limit, key, mode) in enumerate(shapes)
        ]
    )
    now = 1000.0
    admitted = 0
    for account, address, cost, gap in requests:
        now += gap
        client = {"account": account, "address": address}
        before = [
            left(rates, rate.name, client[rate.key], now)
            for rate in rates.rates
            if rate.mode == "enforce"
        ]
        answer = rates.charge(client, float(cost), now)
        after = [
            left(rates, rate.name, client[rate.key], now)
            for rate in rates.rates
            if rate.mode == "enforce"
        ]
        if isinstance(answer, Refuse):
            assert after == pytest.approx(before, abs=1e-6)
            if answer.retry_after < math.inf:
                later = rates.charge(client, float(cost), now + answer.retry_after)
                assert not isinstance(later, Refuse)
                rates.refund(later, now + answer.retry_after)
        else:
            admitted += 1
            rates.refund(answer, now)
            given_back = [
                left(rates, rate.name, client[rate.key], now)
                for rate in rates.rates
                if rate.mode == "enforce"
            ]
            assert given_back == pytest.approx(before, abs=1e-6)
            assert not isinstance(rates.charge(client, float(cost), now), Refuse)
    for stats in rates.stats().values():
        assert stats.allowed >= admitted or stats.mode == "observe"


@pytest.mark.parametrize("client", ["k", {"client": "k", "address": "a"}, b"k"])
@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_whichever_rate_is_asked_first_the_answers_are_the_same(client: Any, mode: str) -> None:
    # Whoever refused last is asked first. No receipt, name or count may depend on it.
    rates = [
        Rate("loose", limit=100, per=60.0),
        Rate("watched", limit=1, per=60.0, mode=mode),
        Rate("tight", limit=2, per=60.0),
        Rate("equal", limit=2, per=60.0),
    ]
    used = RateSet(rates)
    for _ in range(3):
        used.charge("somebody", 1.0, 0.0)
    for step in range(12):
        now = step * 17.0
        again = RateSet(rates)
        for earlier in range(step):
            again.charge(client, 1.0, earlier * 17.0)
        expected = again.charge(client, 1.0, now)
        assert used.charge(client, 1.0, now) == expected
    refused = {name: stats.refused for name, stats in used.stats().items()}
    assert refused["equal"] == 0
    assert refused["loose"] == 0
    assert sum(refused.values()) > 1


def test_a_refused_request_leaves_no_trace_in_rates_that_were_asked_later() -> None:
    rates = RateSet([Rate("first", limit=3, per=60.0), Rate("second", limit=1, per=60.0)])
    for _ in range(10):
        rates.charge("k", 1.0, 0.0)
    stats = rates.stats()
    assert (stats["first"].allowed, stats["first"].refused) == (1, 0)
    assert (stats["second"].allowed, stats["second"].refused) == (1, 9)
    quotas = rates.charge("other", 1.0, 0.0)
    assert isinstance(quotas, tuple)
    assert [quota.rate for quota in quotas] == ["first", "second"]
    assert quotas[0].remaining == 2.0


def test_the_refusal_counts_for_the_rate_that_it_names() -> None:
    rates = RateSet([Rate("short", limit=1, per=1.0), Rate("long", limit=1, per=60.0)])
    rates.charge("k", 1.0, 0.0)
    refusal = rates.charge("k", 1.0, 0.5)
    assert isinstance(refusal, Refuse)
    assert refusal.subject == "long"
    stats = rates.stats()
    assert (stats["short"].refused, stats["long"].refused) == (0, 1)


def test_missing_keys_are_counted_once_for_each_request_that_passes() -> None:
    rates = RateSet(
        [
            Rate("account", limit=9, key="account", on_missing="skip"),
            Rate("address", limit=9, key="address"),
            Rate("network", limit=9, key="network", on_missing="skip"),
        ]
    )
    for client, charged in (
        ({"address": "a"}, ["address"]),
        ({"account": "1"}, ["account", "address"]),
        ({"account": "1", "address": "a", "network": "n"}, ["account", "address", "network"]),
    ):
        quotas = rates.charge(client, 1.0, 0.0)
        assert isinstance(quotas, tuple)
        assert [quota.rate for quota in quotas] == charged
    assert [stats.missing for stats in rates.stats().values()] == [1, 1, 2]
    assert [stats.allowed for stats in rates.stats().values()] == [2, 3, 1]
