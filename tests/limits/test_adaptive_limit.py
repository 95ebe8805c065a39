"""The adaptive limit in front of small services with a known knee."""

import heapq
import random
from collections import deque
from collections.abc import Callable
from math import inf
from statistics import fmean

import msgspec
import pytest

from loadgate.decisions import Outcome
from loadgate.limits import create
from loadgate.limits.adaptive import AdaptiveLimit

OK = Outcome.SUCCESS


class Service:
    """A delay, then `servers` that work first come first served; ten may wait in front.

    Every request draws its work from one seeded stream, so a test is the same each time.
    """

    def __init__(
        self, limit: AdaptiveLimit, servers: int, work: float, delay: float = 0.0, *,
        constant: bool = False, queue: int = 10, seed: int = 1,
    ) -> None:  # fmt: skip
        self.limit = limit
        self.servers = servers
        self.work = work
        self.delay = delay
        self.constant = constant
        self.queue = queue
        self.draw = random.Random(seed)
        self.now = 0.0
        self.in_flight = self.busy = 0
        self.done = self.refused = 0
        self.waiting = 0
        self.line: deque[tuple[float, int]] = deque()
        self.events: list[tuple[float, int, str, float, int]] = []
        self.serial = 0
        self.outcome: Callable[[], Outcome] = lambda: OK
        self.arriving = False

    def at(self, when: float, kind: str, began: float = 0.0, crowd: int = 0) -> None:
        self.serial += 1
        heapq.heappush(self.events, (when, self.serial, kind, began, crowd))

    def spell(self, mean: float) -> float:
        return mean if self.constant else self.draw.expovariate(1.0 / mean) if mean else 0.0

    def admit(self) -> None:
        self.in_flight += 1
        self.limit.on_admit(self.now, self.in_flight)
        self.at(self.now + self.spell(self.delay), "ready", self.now, self.in_flight)

    def fill(self) -> None:
        while self.waiting and self.in_flight < self.limit.limit:
            self.waiting -= 1
            self.admit()

    def serve(self) -> None:
        while self.line and self.busy < self.servers:
            self.busy += 1
            began, crowd = self.line.popleft()
            self.at(self.now + self.spell(self.work), "end", began, crowd)

    def run(self, seconds: float, rate: float) -> None:
        """Let `rate` requests a second arrive for `seconds`."""
        end = self.now + seconds
        if not self.arriving:
            self.arriving = True
            self.at(self.now, "arrive")
        while self.events[0][0] < end:
            self.now, _, kind, began, crowd = heapq.heappop(self.events)
            if kind == "arrive":
                self.at(self.now + self.draw.expovariate(rate), "arrive")
                if self.in_flight < self.limit.limit and not self.waiting:
                    self.admit()
                elif self.waiting < self.queue:
                    self.waiting += 1
                    self.limit.on_wait(self.now)
                else:
                    self.refused += 1
                    self.limit.on_refuse(self.now)
            elif kind == "ready":
                self.line.append((began, crowd))
                self.serve()
            else:
                self.busy -= 1
                self.in_flight -= 1
                self.done += 1
                self.serve()
                self.limit.on_finish(self.now, self.now - began, crowd, self.outcome())
            self.fill()
        self.now = end


def adaptive(initial: int = 20, **settings: object) -> AdaptiveLimit:
    limit = create("adaptive", initial=initial, **settings)  # type: ignore[arg-type]  # a test's own settings
    assert isinstance(limit, AdaptiveLimit)
    return limit


@pytest.mark.parametrize("seed", [1, 3, 5])
def test_a_long_silence_takes_nothing_from_what_was_learned(seed: int) -> None:
    limit = adaptive()
    service = Service(limit, servers=100, work=0.05, delay=0.05, seed=seed)
    while limit.explain()["reason"] not in ("rising", "falling"):  # the climb is over
        service.run(0.05, rate=3000.0)
        assert service.now < 10.0
    learned = limit.explain()["wanted"]
    service.now += 600.0
    service.events = [  # nobody came
        (when + 600.0, serial, kind, began, crowd)
        for when, serial, kind, began, crowd in service.events
    ]
    service.run(0.01, rate=3000.0)
    assert limit.explain()["wanted"] == learned


def test_it_climbs_from_20_to_a_knee_of_200_within_seconds() -> None:
    limit = adaptive()
    service = Service(limit, servers=100, work=0.05, delay=0.05)
    service.run(6.0, rate=3000.0)
    assert 180 <= limit.limit <= 300


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_it_comes_down_to_services_of_one_to_four_places(servers: int) -> None:
    limit = adaptive()
    service = Service(limit, servers=servers, work=0.02)
    service.run(90.0, rate=servers * 75.0)
    seen: list[int] = []
    for _ in range(40):
        service.run(0.5, rate=servers * 75.0)
        seen.append(limit.limit)
    assert servers <= sorted(seen)[20] <= servers + 2.0 * servers**0.5 + 2.0


@pytest.mark.parametrize("initial", [20, 500])
def test_it_does_not_move_while_the_service_is_not_full(initial: int) -> None:
    limit = adaptive(initial)
    service = Service(limit, servers=8, work=0.02, delay=0.03)
    service.run(60.0, rate=120.0)
    assert limit.limit == initial
    assert service.refused == 0


@pytest.mark.parametrize("seed", [1, 4, 19])
def test_nobody_is_refused_at_four_fifths_of_the_capacity(seed: int) -> None:
    limit = adaptive()
    service = Service(limit, servers=8, work=0.02, delay=0.03, queue=32, seed=seed)
    service.run(30.0, rate=320.0)
    service.refused = 0
    service.run(60.0, rate=320.0)
    assert service.refused == 0


def test_it_follows_a_capacity_that_falls_and_returns() -> None:
    limit = adaptive()
    service = Service(limit, servers=16, work=0.02, delay=0.02)
    service.run(15.0, rate=1000.0)
    whole = limit.explain()["wanted"]  # not the limit, which may be at a probe just then
    service.servers = 4
    service.run(15.0, rate=1000.0)
    less = limit.explain()["wanted"]
    service.servers = 16
    service.run(15.0, rate=1000.0)
    assert less < 0.55 * whole
    assert limit.explain()["wanted"] > 0.75 * whole
    assert limit.explain()["changes"] >= 1


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5, 6, 8, 13, 17])
def test_the_latency_of_an_outage_is_not_waited_for_when_it_is_over(seed: int) -> None:
    limit = adaptive(3)
    service = Service(limit, servers=3, work=10.0, seed=seed)
    service.run(150.0, rate=1.0)
    assert limit.limit < 8
    assert limit.explain()["latency"] > 5.0
    service.work = 0.01
    service.servers = 8
    # Some of its requests last longer than half a minute more; where one place was left, such a
    # one may hold it.
    last = max(event[0] for event in service.events if event[2] == "end")
    service.run(last - service.now + 15.0, rate=1000.0)
    done = service.done
    service.run(10.0, rate=1000.0)
    assert service.done - done > 0.9 * 10 * 800
    assert limit.limit < 40


def test_a_slower_downstream_raises_the_limit() -> None:
    limit = adaptive()
    service = Service(limit, servers=8, work=0.02, delay=0.03)
    service.run(15.0, rate=500.0)
    before = limit.limit
    service.delay = 0.12
    service.run(20.0, rate=500.0)
    assert limit.limit > 1.6 * before


def test_probes_do_not_drive_constant_work_into_waves() -> None:
    limit = adaptive()
    service = Service(limit, servers=8, work=0.02, delay=0.03, constant=True, queue=30)
    service.run(10.0, rate=600.0)
    done = service.done
    service.run(20.0, rate=600.0)
    assert limit.explain()["probes"] >= 2
    assert service.done - done > 0.93 * 20.0 * 400.0


def test_fast_failures_teach_nothing() -> None:
    limit = adaptive()
    for i in range(5000):
        limit.on_admit(i * 0.01, 1)
        limit.on_finish(i * 0.01 + 0.0005, 0.0005, 1, Outcome.ERROR)
    assert limit.limit == 20
    assert limit.explain()["windows"] == 0


def test_losses_bring_it_down_and_successes_up_again() -> None:
    limit = adaptive(64)
    service = Service(limit, servers=32, work=0.02)
    service.outcome = lambda: Outcome.OVERLOAD
    service.run(5.0, rate=2000.0)
    assert limit.limit == 1
    service.outcome = lambda: OK
    service.run(10.0, rate=2000.0)
    assert limit.limit > 20


def test_young_cancellations_are_ignored_and_old_ones_count_as_at_least_their_age() -> None:
    def mean(age: float) -> float:
        limit = adaptive()
        now = 0.0
        for i in range(600):
            now += 0.01
            limit.on_admit(now, 1)
            gone = i > 100 and i % 5 == 0
            now += age if gone else 0.1
            outcome = Outcome.CANCELLED if gone else OK
            limit.on_finish(now, age if gone else 0.1, 1, outcome)
        latency = limit.explain()["latency"]
        assert isinstance(latency, float)
        return latency

    assert mean(0.001) == pytest.approx(0.1, rel=0.02)
    assert mean(0.4) == pytest.approx(0.2, rel=0.25)


def test_a_latency_target_bounds_it_and_an_impossible_one_does_not() -> None:
    def settle(target: float | None) -> float:
        limit = adaptive(latency_target=target)
        service = Service(limit, servers=50, work=0.05, delay=0.05)
        service.run(10.0, rate=2000.0)
        wanted: list[float] = []
        for _ in range(20):
            service.run(0.5, rate=2000.0)
            wanted.append(limit.explain()["wanted"])
        return fmean(wanted)

    free = settle(None)
    assert settle(0.104) < 0.95 * free
    assert settle(0.01) == free


def test_requests_of_equal_length_need_few_completions_to_find_two_places() -> None:
    limit = adaptive()
    service = Service(limit, servers=2, work=0.05, constant=True)
    service.run(6.0, rate=400.0)
    assert 2 <= limit.limit <= 4
    done = service.done
    service.run(4.0, rate=400.0)
    assert service.done - done >= 150
    assert 2 <= limit.limit <= 4


def test_where_one_request_at_a_time_is_enough_a_second_one_stands_ready() -> None:
    limit = adaptive()
    service = Service(limit, servers=1, work=0.02, constant=True)
    service.run(20.0, rate=500.0)
    assert limit.limit <= 2


def test_a_look_at_one_place_that_a_hanging_request_holds_is_given_up() -> None:
    limit = adaptive()
    service = Service(limit, servers=2, work=0.05, constant=True)
    while limit.explain()["reason"] != "probing" or limit.limit > 1:
        service.run(0.01, rate=400.0)
        assert service.now < 20.0
    service.run(0.2, rate=400.0)
    # The one that runs never ends, and keeps its server.
    service.events = [event for event in service.events if event[2] == "arrive"]
    service.run(6.0, rate=400.0)
    done = service.done
    service.run(30.0, rate=400.0)
    assert service.done - done > 0.65 * 30 * 20  # a look costs it seconds


@pytest.mark.parametrize("initial", [1, 2, 20])
def test_a_tight_latency_target_does_not_hold_the_limit_where_it_happens_to_be(
    initial: int,
) -> None:
    limit = adaptive(initial, latency_target=0.055)
    service = Service(limit, servers=16, work=0.02, delay=0.03, seed=3)
    service.run(45.0, rate=1200.0)
    done = service.done
    service.run(15.0, rate=1200.0)
    assert service.done - done > 0.85 * 15 * 800


def test_latencies_too_long_to_be_squared_are_no_fault() -> None:
    limit = adaptive(5)
    for i in range(400):
        now = 0.02 * i
        limit.on_admit(now, 1)
        limit.on_refuse(now)
        limit.on_finish(now + 0.01, 1e300 if i % 3 == 0 else 0.01, 1, OK)
    assert 1 <= limit.limit <= 1000


def test_places_held_beyond_the_answer_are_counted_as_places_not_as_queueing() -> None:
    limit = adaptive()
    now = 0.0
    running: deque[float] = deque()
    for _ in range(4000):
        while len(running) < limit.limit:
            running.append(now)
            limit.on_admit(now, len(running))
        limit.on_refuse(now)
        now = max(now, running[0] + 0.3)  # answered after 0.1 s, the body ends after 0.3 s
        running.popleft()
        limit.on_finish(now, 0.1, len(running) + 1, OK, 0.3)
    state = limit.explain()
    assert state["latency"] == pytest.approx(0.1, rel=0.1)
    assert state["places_per_running"] == pytest.approx(3.0, rel=0.1)
    assert limit.limit > 200


def test_pauses_are_taken_out_of_the_clock() -> None:
    def latency(pause: float) -> float:
        limit = adaptive()
        now = 0.0
        for i in range(400):
            limit.on_admit(now, 1)
            now += 0.05
            if i % 10 == 9 and pause:
                now += pause
                limit.on_stall(now, pause)
            limit.on_finish(now, 0.05, 1, OK)
        found = limit.explain()["latency"]
        assert isinstance(found, float)
        return found

    assert latency(0.04) == pytest.approx(latency(0.0), rel=0.01)


@pytest.mark.parametrize("step", [3600.0, -3600.0, 1e9, -1e9])
def test_silence_and_steps_of_the_clock_change_nothing_and_it_goes_on(step: float) -> None:
    limit = adaptive()
    service = Service(limit, servers=4, work=0.02)
    service.run(10.0, rate=300.0)
    before = limit.explain()["wanted"]
    service.events = [(t + step, *rest) for t, *rest in service.events]  # type: ignore[misc]  # the same tuple, moved
    service.now += step
    service.run(0.2, rate=300.0)
    assert 0.5 * before <= limit.explain()["wanted"] <= 1.5 * before
    service.servers = 32
    service.run(20.0, rate=3000.0)
    assert limit.limit > 25


def test_odd_moments_between_good_ones_do_not_stop_it() -> None:
    limit = adaptive()
    for now in (inf, -inf, float("nan")):
        limit.on_admit(now, 1)
        limit.on_finish(now, 0.1, 1, OK)
        limit.on_stall(now, 1.0)
    service = Service(limit, servers=2, work=0.02)
    service.run(30.0, rate=150.0)
    assert 2 <= limit.limit <= 12


def test_it_explains_itself_in_plain_data() -> None:
    limit = adaptive()
    service = Service(limit, servers=8, work=0.02, delay=0.03)
    service.run(10.0, rate=600.0)
    state = msgspec.json.decode(msgspec.json.encode(limit.explain()))
    assert state["limit"] == limit.limit
    assert state["knee"] == pytest.approx(20.0, rel=0.35)
    assert state["throughput"] == pytest.approx(400.0, rel=0.15)
    assert state["unloaded_latency"] == pytest.approx(0.05, rel=0.3)
    assert state["reason"]
