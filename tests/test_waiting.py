from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgate.waiting import STANDING, WaitingRoom


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
    assert room.pop_below(1) == "newer background"
    assert room.pop_below(2) is None
    assert [room.pop(0.0) for _ in range(3)] == ["critical", "default", "background"]


def test_taking_someone_out_who_does_not_wait_is_an_error() -> None:
    room = WaitingRoom[str](1)
    with pytest.raises(KeyError):
        room.remove("ghost", 0)
    with pytest.raises(KeyError):
        room.pop(0.0)
    assert room.depth == 0


@given(st.lists(st.tuples(st.sampled_from(["push", "pop", "remove", "below"]), st.integers(0, 2))))
def test_depth_is_the_number_of_those_who_wait(steps: list[tuple[str, int]]) -> None:
    room = WaitingRoom[int](3)
    inside: dict[int, int] = {}
    for serial, (step, level) in enumerate(steps):
        if step == "push":
            room.push(serial, level, float(serial))
            inside[serial] = level
        elif step == "pop" and inside:
            first = min(inside.values())
            assert inside.pop(room.pop(float(serial))) == first
        elif step == "remove" and inside:
            gone = next(iter(inside))
            room.remove(gone, inside.pop(gone))
        elif step == "below":
            below = room.pop_below(level)
            if below is None:
                assert all(held <= level for held in inside.values())
            else:
                assert inside.pop(below) > level
        assert room.depth == len(inside)
        assert room.depth == sum(room.depth_of(level) for level in range(3))
