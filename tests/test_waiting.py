from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgate.waiting import STANDING, Discipline, WaitingRoom


def test_a_burst_is_served_first_come_first_served() -> None:
    room = WaitingRoom[str](1)
    for name in "abc":
        room.push(name, 0, 0.0)
    assert [room.pop(STANDING / 2) for _ in range(3)] == ["a", "b", "c"]


def test_a_standing_queue_is_served_newest_first() -> None:
    room = WaitingRoom[str](1)
    for name in "abc":
        room.push(name, 0, 0.0)
    assert [room.pop(STANDING) for _ in range(3)] == ["c", "b", "a"]


def test_a_queue_that_was_empty_in_between_is_a_burst_again() -> None:
    room = WaitingRoom[str](1)
    room.push("old", 0, 0.0)
    room.pop(0.05)
    room.push("a", 0, 5.0)
    room.push("b", 0, 5.0)
    assert room.pop(5.0 + STANDING / 2) == "a"


def test_fifo_stays_first_come_first_served_however_long_it_stands() -> None:
    room = WaitingRoom[str](1, "fifo")
    for name in "abc":
        room.push(name, 0, 0.0)
    assert [room.pop(60.0) for _ in range(3)] == ["a", "b", "c"]


def test_a_higher_class_is_always_next_and_the_lowest_goes_first() -> None:
    room = WaitingRoom[str](3)
    room.push("background", 2, 0.0)
    room.push("critical", 0, 0.0)
    room.push("default", 1, 0.0)
    room.push("newer background", 2, 0.0)
    assert room.evict(1, 0.0) == "newer background"
    assert room.evict(2, 0.0) is None
    assert [room.pop(0.0) for _ in range(3)] == ["critical", "default", "background"]


def test_within_a_class_the_largest_tag_goes_and_the_arrival_when_it_is_its_own() -> None:
    room = WaitingRoom[str](1)
    for name, tag in (("light", 1.0), ("heavy", 9.0), ("middle", 5.0), ("heavy too", 9.0)):
        room.push(name, 0, 0.0, tag)
    assert room.evict(0, 9.0) is None
    assert room.evict(0, 10.0) is None
    assert [room.evict(0, 4.0) for _ in range(4)] == ["heavy too", "heavy", "middle", None]


def test_those_above_their_share_stand_behind_those_within_it() -> None:
    room = WaitingRoom[str](1)
    room.push("greedy", 0, 0.0, 7.0)
    room.push("a", 0, STANDING, 0.0)
    room.push("greedy again", 0, STANDING, 8.0)
    room.push("b", 0, STANDING, 0.0)
    # Theirs stands, and its newest is first; that of the others is a burst.
    assert [room.pop(STANDING) for _ in range(4)] == ["a", "b", "greedy again", "greedy"]


def test_fifo_asks_nobody_who_has_had_how_much() -> None:
    room = WaitingRoom[str](1, "fifo")
    for name, above in (("a", True), ("b", False), ("c", True), ("d", False)):
        room.push(name, 0, 0.0, float(above))
    assert [room.pop(60.0) for _ in range(4)] == ["a", "b", "c", "d"]


def test_fair_serves_the_smallest_tag_first_and_equal_ones_in_their_order() -> None:
    room = WaitingRoom[str](1, "fair")
    for name, tag in (("a3", 3.0), ("b1", 1.0), ("a4", 4.0), ("c1", 1.0)):
        room.push(name, 0, 0.0, tag)
    room.remove("a3", 0)
    assert [room.pop(60.0) for _ in range(3)] == ["b1", "c1", "a4"]


def test_one_that_was_put_back_stays_the_next_of_its_class() -> None:
    room = WaitingRoom[str](2)
    room.push("large", 1, 0.0, 5.0)
    assert room.pop(0.0) == "large"
    room.put_back("large", 1)
    room.push("newer", 1, 0.0, 1.0)
    room.push("higher", 0, 0.0)
    assert room.depth == 3
    assert room.evict(1, 0.0) == "newer"  # never the one whose turn it is
    assert [room.pop(STANDING), room.pop(STANDING)] == ["higher", "large"]
    room.put_back("large", 1)
    room.remove("large", 1)
    assert room.depth == room.depth_of(1) == 0


def test_other_classes_leave_everyone_with_tag_and_turn() -> None:
    room = WaitingRoom[str](3, "fair")
    for name, level, tag in (("a", 0, 2.0), ("b", 1, 1.0), ("c", 2, 3.0), ("d", 2, 0.5)):
        room.push(name, level, 0.0, tag)
    assert room.pop(0.0, 2) == "d"
    room.put_back("d", 2)
    moved = dict(room.regroup(2, lambda level: min(level, 1)))
    assert moved == {"a": 0, "b": 1, "c": 1, "d": 1}
    assert room.depth == 4
    assert [room.pop(0.0) for _ in range(4)] == ["a", "d", "b", "c"]


def test_another_discipline_holds_for_those_who_wait_already() -> None:
    room = WaitingRoom[str](1, "fifo")
    for name, tag in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
        room.push(name, 0, 0.0, tag)
    room.follow("fair")
    assert room.pop(0.0) == "b"
    room.follow("fifo")
    assert [room.pop(0.0), room.pop(0.0)] == ["a", "c"]


def test_taking_someone_out_who_does_not_wait_is_an_error() -> None:
    room = WaitingRoom[str](1)
    with pytest.raises(KeyError):
        room.remove("ghost", 0)
    with pytest.raises(KeyError):
        room.pop(0.0)
    assert room.depth == 0


STEPS = st.tuples(
    st.sampled_from(["push", "pop", "remove", "evict", "put back", "regroup"]),
    st.integers(0, 2),
    st.integers(0, 3),
)


@given(st.lists(STEPS, max_size=60), st.sampled_from(["default", "fifo", "fair"]))
def test_the_room_agrees_with_a_plain_list(
    steps: list[tuple[str, int, int]], discipline: Discipline
) -> None:
    room = WaitingRoom[int](3, discipline)
    inside: dict[int, tuple[int, int]] = {}  # waiter: level, tag
    heads: dict[int, int] = {}  # level: waiter
    for serial, (step, level, tag) in enumerate(steps):
        now = serial * STANDING / 4
        if step == "push":
            room.push(serial, level, now, float(tag))
            inside[serial] = level, tag
        elif step in {"pop", "put back"} and inside:
            first = min(held for held, _ in inside.values())
            got = room.pop(now)
            assert inside[got][0] == first
            if first in heads:
                assert got == heads[first]
            elif discipline == "fair":
                assert inside[got][1] == min(t for held, t in inside.values() if held == first)
            elif discipline == "fifo":
                assert got == min(w for w, (held, _) in inside.items() if held == first)
            if step == "put back":
                room.put_back(got, first)
                heads[first] = got
            else:
                del inside[got]
                heads.pop(first, None)
        elif step == "remove" and inside:
            gone = next(iter(inside))
            held, _ = inside.pop(gone)
            room.remove(gone, held)
            if heads.get(held) == gone:
                del heads[held]
        elif step == "evict":
            able = {w: entry for w, entry in inside.items() if heads.get(entry[0]) != w}
            lost = room.evict(level, float(tag))
            lower = [entry for entry in able.values() if entry[0] > level]
            if lost is not None:
                held, weight = inside.pop(lost)
                assert held == max((entry[0] for entry in lower), default=level)
                assert weight == max(t for other, t in able.values() if other == held)
                assert held > level or weight > tag
            else:
                assert not lower
                assert all(t <= tag for held, t in able.values() if held == level)
        elif step == "regroup":
            for waiter, new in room.regroup(3, lambda old: (old + 1) % 3):
                inside[waiter] = new, inside[waiter][1]
            heads = {(old + 1) % 3: waiter for old, waiter in heads.items()}
        assert room.depth == len(inside)
        for each in range(3):
            assert room.depth_of(each) == sum(1 for held, _ in inside.values() if held == each)
    assert sorted(iter(room.pop_any, None)) == sorted(inside)


def test_who_has_gone_does_not_pile_up() -> None:
    room = WaitingRoom[int](1, "fair")
    for serial in range(10_000):
        room.push(serial, 0, 0.0, float(serial % 7))
        if serial >= 10:
            room.remove(serial - 10, 0)
    assert room.depth == 10
    assert room.size() < 300
