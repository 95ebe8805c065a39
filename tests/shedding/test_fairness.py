from __future__ import annotations

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgate.shedding.fairness import MEMORY, VAIN_CAP, FairShares, collision


def digest(client: str | bytes) -> int:
    """Names are numbers here: who shares a slot with whom is chosen by the test."""
    return int(client)


def test_a_new_client_ranks_like_one_who_asked_politely_all_the_time() -> None:
    shares = FairShares()
    polite, greedy, new = shares.deal("polite"), shares.deal("greedy"), shares.deal("new")
    now = 0.0
    for turn in range(300):
        now += 0.05
        tag = shares.ask(polite, 0.05, now)
        shares.started(polite, 0.05, now)
        for _ in range(10):
            shares.ask(greedy, 0.05, now)
        if turn > 200:
            assert tag < 0.1 * shares.level(now)
    assert shares.ask(new, 0.05, now) == 0.0
    assert shares.ask(greedy, 0.05, now) > shares.level(now)


def test_usage_fades_with_its_time_constant() -> None:
    shares = FairShares()
    hand = shares.deal("a")
    shares.ask(hand, 1.0, 10.0)
    assert shares.usage(hand, 10.0) == 1.0
    assert shares.usage(hand, 10.0 + MEMORY) == pytest.approx(exp(-1))
    assert shares.usage(hand, 5.0) == 1.0  # a clock that steps back makes nobody heavier


def test_what_was_really_held_counts_in_the_end() -> None:
    shares = FairShares()
    hand = shares.deal("a")
    shares.ask(hand, 0.5, 0.0)
    shares.correct(hand, 2.0, 0.0)
    assert shares.usage(hand, 0.0) == 2.5
    shares.correct(hand, -1.0, 0.0)
    assert shares.usage(hand, 0.0) == 1.5
    shares.correct(hand, -9.0, 0.0)
    assert shares.usage(hand, 0.0) == 0.0


def test_asking_in_vain_counts_and_is_capped() -> None:
    shares = FairShares()
    hand = shares.deal("greedy")
    for _ in range(1000):
        shares.ask(hand, 0.05, 0.0)
        shares.refused(hand, 0.05, 0.0)
    assert shares.usage(hand, 0.0) == pytest.approx(VAIN_CAP * 0.05, rel=1e-6)


def test_refusals_are_forgotten_within_seconds() -> None:
    shares = FairShares()
    polite, greedy = shares.deal("polite"), shares.deal("greedy")
    now = 0.0
    for _ in range(400):
        now += 0.01
        shares.ask(polite, 0.05, now)
        shares.started(polite, 0.05, now)
        shares.ask(greedy, 0.05, now)
        shares.refused(greedy, 0.05, now)
    assert shares.ask(greedy, 0.0, now) > 0.0
    level = shares.level(now)
    assert shares.usage(greedy, now + 2.1 * MEMORY) <= level


def test_the_level_is_the_mean_usage_of_those_who_were_started() -> None:
    shares = FairShares()
    hands = [shares.deal(name) for name in "abcd"]
    for _ in range(500):
        for hand in hands:
            shares.ask(hand, 0.01, 0.0)
            shares.started(hand, 0.01, 0.0)
    usage = [shares.usage(hand, 0.0) for hand in hands]
    assert usage == pytest.approx([5.0] * 4)
    # It lags by the starts over which it is averaged: 32 of 4 clients are 8 turns.
    assert shares.level(0.0) == pytest.approx(5.0 - 0.09, abs=0.01)


def test_one_slot_shared_with_a_heavy_client_says_nothing_about_a_light_one() -> None:
    shares = FairShares(slots=16, hand=2, digest=digest)
    light, heavy = shares.deal("0"), shares.deal(str(16 * 5))
    assert light[0] == heavy[0]
    assert light[1] != heavy[1]
    shares.ask(heavy, 100.0, 0.0)
    assert shares.usage(light, 0.0) == 0.0
    shares.ask(light, 1.0, 0.0)
    assert shares.usage(light, 0.0) == 1.0
    assert shares.usage(heavy, 0.0) == 100.0


def test_those_without_a_name_share_one_slot_that_nobody_can_name() -> None:
    shares = FairShares(slots=2, hand=1)
    nobody = shares.deal(None)
    shares.ask(nobody, 7.0, 0.0)
    assert all(shares.usage(shares.deal(str(name)), 0.0) == 0.0 for name in range(50))


def test_collisions_are_as_rare_as_published() -> None:
    # Kubernetes' documented odds that a light flow shares every queue of its hand with heavy
    # ones are of this size; its hands are drawn without repetition, ours row by row.
    assert collision(1, 1024, 2) == pytest.approx(1 / 1024**2, rel=1e-6)
    assert collision(16, 1024, 2) == pytest.approx(2.4e-4, rel=0.03)
    assert collision(32, 1024, 6) < 1e-9


def test_a_share_of_light_clients_as_computed_is_hidden_by_heavy_ones() -> None:
    shares = FairShares(slots=32, hand=2)
    for heavy in range(8):
        shares.ask(shares.deal(f"heavy {heavy}"), 10.0, 0.0)
    hidden = sum(shares.usage(shares.deal(f"light {n}"), 0.0) > 0.0 for n in range(20_000))
    rows = [
        sum(1 for slot in range(32) if shares.usage((row * 32 + slot,), 0.0) > 0.0)
        for row in range(2)
    ]
    assert hidden / 20_000 == pytest.approx(rows[0] * rows[1] / 32**2, rel=0.2)


@pytest.mark.parametrize(("slots", "hand"), [(0, 1), (3, 1), (16, 0), (1024, 7), (-4, 2)])
def test_a_table_that_cannot_be_dealt_from_is_an_error(slots: int, hand: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        FairShares(slots, hand)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from(["ask", "refused", "started", "longer", "shorter"]),
            st.floats(0.0, 10.0),
            st.floats(-5.0, 50.0),
        ),
        max_size=60,
    )
)
def test_no_usage_is_negative_whatever_happens(
    steps: list[tuple[str, str, float, float]],
) -> None:
    shares = FairShares(slots=2, hand=2)
    for name, step, amount, now in steps:
        hand = shares.deal(name)
        if step == "ask":
            assert shares.ask(hand, amount, now) >= 0.0
        elif step == "refused":
            shares.refused(hand, amount, now)
        elif step == "started":
            shares.started(hand, amount, now)
        else:
            shares.correct(hand, amount if step == "longer" else -amount, now)
        assert shares.usage(hand, now) >= 0.0
        assert shares.level(now) >= 0.0
