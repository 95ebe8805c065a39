"""What every limit promises, whatever it is told."""

from math import inf, nan

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgate.decisions import Outcome
from loadgate.limits import ALGORITHMS, Limit, create

EVERY = pytest.mark.parametrize("algorithm", ALGORITHMS)
TIMES = st.one_of(st.floats(-1e3, 1e6), st.sampled_from([0.0, -1.0, 3600.0, 1e12, inf, -inf, nan]))
LATENCIES = st.one_of(
    st.floats(1e-6, 100.0), st.sampled_from([0.0, -1.0, -0.0, 1e9, 1e-300, inf, -inf, nan])
)
COUNTS = st.integers(-2, 3000)
EVENTS = st.one_of(
    st.tuples(st.just("admit"), TIMES, COUNTS),
    st.tuples(st.just("wait"), TIMES),
    st.tuples(st.just("refuse"), TIMES),
    st.tuples(st.just("stall"), TIMES, LATENCIES),
    st.tuples(
        st.just("finish"), TIMES, LATENCIES, COUNTS, st.sampled_from(Outcome),
        st.one_of(st.none(), LATENCIES),
    ),
)  # fmt: skip


def tell(limit: Limit, event: tuple[object, ...]) -> None:
    kind, *arguments = event
    getattr(limit, f"on_{kind}")(*arguments)


@EVERY
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_input_makes_a_limit_raise_or_leave_its_bounds(
    algorithm: str, data: st.DataObject
) -> None:
    low = data.draw(st.integers(1, 5))
    high = data.draw(st.integers(low, 50))
    limit = create(algorithm, initial=low, min=low, max=high)
    for event in data.draw(st.lists(EVENTS, max_size=60)):
        tell(limit, event)
        assert low <= limit.limit <= high
        assert type(limit.limit) is int
    msgspec.json.encode(limit.explain())


def run(limit: Limit, now: float, seconds: float, latency: float, load: int) -> float:
    """Keep `load` requests wanting to run; as many as the limit allows run at once."""
    running = 0
    end = now + seconds
    while now < end:
        crowd = min(load, limit.limit)
        for running in range(1, crowd + 1):
            limit.on_admit(now, running)
        if load > crowd:
            limit.on_refuse(now)
        now += latency
        for left in range(crowd):
            limit.on_finish(
                now + left * latency / crowd / 10, latency, crowd - left, Outcome.SUCCESS
            )
        now += latency / 10
    return now


@EVERY
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_no_input_leaves_a_limit_stuck_at_the_bottom(algorithm: str, data: st.DataObject) -> None:
    if algorithm == "fixed":
        return
    limit = create(algorithm, initial=4, min=1, max=64)
    clock = 0.0
    for event in data.draw(st.lists(EVENTS, max_size=40)):
        tell(limit, event)
    for outcome in (Outcome.OVERLOAD, Outcome.ERROR):
        for i in range(200):
            limit.on_admit(clock + i * 0.01, 1)
            limit.on_finish(clock + i * 0.01 + 0.005, 0.005, 1, outcome)
    # BBR's product is what was done at once, so a busy service lifts it, an idle one cannot.
    run(limit, 2e12, 60.0, 0.05, 200)
    assert limit.limit >= 2


@EVERY
def test_a_million_samples_at_one_instant_do_no_harm(algorithm: str) -> None:
    limit = create(algorithm, initial=10, min=1, max=100)
    for _ in range(20_000):
        limit.on_admit(5.0, 10)
        limit.on_finish(5.0, 0.01, 10, Outcome.SUCCESS)
    assert 1 <= limit.limit <= 100
    msgspec.json.encode(limit.explain())


@EVERY
def test_equal_bounds_pin_the_limit(algorithm: str) -> None:
    limit = create(algorithm, initial=7, min=7, max=7)
    run(limit, 0.0, 5.0, 0.05, 20)
    run(limit, 3600.0, 5.0, 0.5, 20)
    assert limit.limit == 7
