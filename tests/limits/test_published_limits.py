"""The published algorithms, step by step, with their quirks."""

from typing import Any

import pytest

from loadgate.decisions import Outcome
from loadgate.limits import Limit, create

OK = Outcome.SUCCESS
BUSY = Outcome.OVERLOAD


def feed(
    limit: Limit, latency: float, in_flight: int, outcome: Outcome = OK, times: int = 1
) -> list[int]:
    path: list[int] = []
    for _ in range(times):
        limit.on_finish(1.0, latency, in_flight, outcome)
        path.append(limit.limit)
    return path


def raw(algorithm: str, **settings: Any) -> Limit:
    return create(algorithm, window=None, **settings)


def test_aimd_adds_one_while_half_used() -> None:
    limit = raw("aimd", initial=20)
    assert feed(limit, 0.1, 9) == [20]
    assert feed(limit, 0.1, 10) == [21]


def test_aimd_takes_a_tenth_for_a_drop_and_for_a_timeout() -> None:
    assert feed(raw("aimd", initial=20), 0.1, 20, BUSY) == [18]
    assert feed(raw("aimd", initial=19), 5.1, 20) == [17]


def test_aimd_loses_88_percent_to_a_burst_of_20_timeouts() -> None:
    assert feed(raw("aimd", initial=100), 6.0, 100, times=20)[-1] <= 12


def test_failures_and_cancellations_are_no_samples() -> None:
    limit = raw("aimd", initial=20)
    for outcome in (Outcome.ERROR, Outcome.CANCELLED, Outcome.IGNORED):
        assert feed(limit, 0.1, 20, outcome) == [20]


def test_a_window_is_one_step_of_its_mean() -> None:
    limit = create("aimd", initial=20, window=1.0)
    limit.on_finish(0.0, 0.05, 20, OK)  # closes a window of one sample, which is thrown away
    for i in range(1, 11):
        limit.on_finish(i * 0.1, 0.05, 20, OK)
    assert limit.limit == 20
    limit.on_finish(1.1, 0.05, 20, OK)
    assert limit.limit == 21


def test_a_window_with_one_drop_counts_as_dropped() -> None:
    limit = create("aimd", initial=20, window=1.0)
    limit.on_finish(0.0, 0.05, 20, OK)
    for i in range(1, 15):
        limit.on_finish(i * 0.1, 0.05, 20, BUSY if i == 3 else OK)
    assert limit.limit == 18


def test_a_window_under_ten_samples_is_thrown_away() -> None:
    limit = create("aimd", initial=20, window=1.0)
    for i in range(100):
        limit.on_finish(i * 0.2, 0.05, 20, OK)
    assert limit.limit == 20


def test_vegas_takes_the_first_sample_as_unloaded_and_adds_six_without_a_queue() -> None:
    assert feed(raw("vegas", initial=20), 0.1, 20, times=2) == [20, 26]


def test_vegas_ramps_from_20_to_1000_in_90_updates() -> None:
    # Published probes would come in between; a huge multiplier keeps them out.
    limit = raw("vegas", initial=20, probe=1_000_000)
    path = feed(limit, 0.1, 1000, times=100)
    assert path.index(1000) in range(88, 93)


def test_vegas_steps_by_the_queue_it_sees() -> None:
    limit = raw("vegas", initial=20)
    feed(limit, 0.100, 20)
    assert feed(limit, 0.110, 20) == [21]  # 20 x (1 - 100/110) = 1.8, so 2: below alpha
    assert feed(limit, 0.125, 20) == [21]  # 4.2, so 5: between alpha and beta
    assert feed(limit, 0.160, 20) == [20]  # 7.9, so 8: above beta


def test_vegas_holds_while_less_than_half_is_used() -> None:
    limit = raw("vegas", initial=20)
    feed(limit, 0.1, 20)
    assert feed(limit, 0.1, 9) == [20]
    assert feed(limit, 0.2, 9) == [20]


def test_vegas_never_falls_below_six_by_latency_alone() -> None:
    limit = raw("vegas", initial=20, probe=1_000_000)
    feed(limit, 0.1, 20)
    assert feed(limit, 10.0, 20, times=100)[-1] == 6
    assert feed(limit, 10.0, 20, BUSY, times=100)[-1] == 1


def test_vegas_believes_an_overload_when_it_probes() -> None:
    limit = raw("vegas", initial=20)
    feed(limit, 0.1, 20)
    feed(limit, 1.0, 20, times=700)
    assert limit.explain()["unloaded_latency"] == 1.0


def test_gradient2_grows_by_at_most_four_fifths_per_update() -> None:
    limit = raw("gradient2", initial=20, min=1)
    feed(limit, 0.1, 20)
    assert limit.explain()["estimate"] == pytest.approx(20.8)


def test_gradient2_holds_while_less_than_half_is_used_but_learns() -> None:
    limit = raw("gradient2", initial=20)
    feed(limit, 0.1, 9)
    assert limit.explain()["estimate"] == 20.0
    assert limit.explain()["long_latency"] == pytest.approx(0.1)


def test_gradient2_falls_to_eight_and_no_further() -> None:
    limit = raw("gradient2", initial=100, min=1, long_window=10_000_000)
    feed(limit, 0.1, 100, times=10)
    assert feed(limit, 10.0, 100, times=300)[-1] == 8


def test_gradient2_does_not_look_at_drops() -> None:
    one, other = raw("gradient2", initial=50), raw("gradient2", initial=50)
    assert feed(one, 0.1, 50, BUSY, times=5) == feed(other, 0.1, 50, OK, times=5)


def test_gradient2_forgets_a_slow_down_in_the_end() -> None:
    limit = raw("gradient2", initial=100, min=1, max=200)
    feed(limit, 0.1, 100, times=10)
    path = feed(limit, 0.3, 200, times=500)
    assert min(path) < 15
    assert path[-1] == 200


def envoy(**settings: Any) -> Limit:
    limit = create("envoy-gradient", **{"initial": 20, "min": 3, **settings})
    for i in range(50):
        limit.on_finish(i * 0.01, 0.05, 3, OK)
    return limit


def test_envoy_pins_the_limit_until_fifty_requests_have_answered() -> None:
    limit = create("envoy-gradient", initial=20, min=3)
    for i in range(49):
        limit.on_finish(i * 0.01, 0.05, 3, OK)
        assert limit.limit == 3
    limit.on_finish(0.5, 0.05, 3, OK)
    assert limit.limit == 20


def test_envoy_grows_by_the_buffer_and_the_root() -> None:
    limit = envoy()
    limit.on_finish(0.7, 0.05, 20, OK)
    assert limit.limit == 30  # 20 x 1.25 = 25, and its root


def test_envoy_halves_at_most() -> None:
    limit = envoy()
    limit.on_finish(0.7, 5.0, 20, OK)
    assert limit.limit == 13  # 20 x 0.5 = 10, and its root


def test_envoy_measures_again_after_a_minute() -> None:
    limit = envoy()
    now = 0.7
    while now < 70.0:
        limit.on_finish(now, 0.05, 20, OK)
        now += 0.1
        if limit.limit == 3:
            break
    assert 60.0 < now < 69.8


def test_envoy_measures_again_after_five_updates_at_the_floor() -> None:
    limit = envoy(initial=3, probe=2, min=2)
    for i in range(12):
        limit.on_finish(0.7 + 0.2 * i, 50.0, 2, OK)
        limit.on_finish(60.0 + 0.2 * i, 50.0, 2, OK)
    assert limit.explain()["measuring"]


def test_envoy_does_not_count_requests_older_than_the_measurement() -> None:
    limit = envoy()
    now = 0.7
    while not limit.explain()["measuring"]:
        limit.on_finish(now, 0.05, 20, OK)
        now += 0.1
    for _ in range(60):
        limit.on_finish(now, 1.0, 20, OK)
    assert limit.explain()["measuring"]


def test_bbr_multiplies_the_busiest_bucket_by_the_fastest() -> None:
    limit = create("bbr", initial=20)
    for i in range(10):
        limit.on_finish(0.01 * i, 0.2, 5, OK)  # 100/s at 200 ms
    for i in range(5):
        limit.on_finish(0.1 + 0.01 * i, 0.1, 5, OK)  # 50/s at 100 ms
    limit.on_finish(0.2, 0.1, 5, OK)
    assert limit.explain()["product"] == 10  # 100/s times 100 ms
    assert limit.limit == 11


def test_bbr_keeps_its_start_until_a_bucket_has_ended() -> None:
    limit = create("bbr", initial=20)
    limit.on_finish(0.0, 0.2, 5, OK)
    assert limit.limit == 20


def test_bbr_forgets_after_its_window() -> None:
    limit = create("bbr", initial=20)
    for i in range(100):
        limit.on_finish(0.001 * i, 0.2, 5, OK)
    for i in range(120):
        limit.on_finish(0.1 * (i + 1) + 0.05, 0.1, 1, OK)
    assert limit.explain()["product"] <= 1


def test_bbr_limits_nothing_while_its_gate_is_open() -> None:
    busy = 0.0
    limit = create("bbr", initial=20, max=500, saturation=lambda: busy)
    for i in range(50):
        limit.on_finish(0.1 * i + 0.05, 0.1, 5, OK)
    assert limit.limit == 500
    busy = 1.0
    for i in range(50, 300):
        limit.on_finish(0.1 * i + 0.05, 0.1, 5, OK)
    assert limit.limit == 2


def test_bbr_closes_its_gate_for_a_second_after_refusals() -> None:
    busy = 1.0
    limit = create("bbr", initial=20, max=500, saturation=lambda: busy, threshold=0.04)
    limit.on_finish(0.0, 0.1, 5, OK)
    limit.on_refuse(0.1)
    busy = 0.0
    for i in range(6, 12):
        limit.on_admit(0.1 * i, 5)
        assert limit.limit == 20 or limit.explain()["saturation"] >= 0.04
    for i in range(12, 60):
        limit.on_admit(0.1 * i, 5)
    assert limit.limit == 500
