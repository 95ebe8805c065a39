"""Leased shares: what all processes let through together stays within the derived bound."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from loadgate.rates.spec import Rate
from tests.redis.fleet import Fleet, Network
from tests.redis.servers import Server
from tests.redis.turned import Turned

SEEDS = range(3)

# Cost units: clocks drift.
SLACK = 0.01


@pytest.fixture(scope="module")
def turned(server: Server) -> Generator[Turned]:
    made = Turned(server)
    yield made
    made.close()


def within_bound(fleet: Fleet) -> None:
    """The bound of docs/redis-local-mode.md; what is granted takes effect one way later."""
    unit = fleet.scale.unit
    rate = fleet.scale.a * 1e6 / unit
    transit = 1.5 * fleet.network.delay
    allowed = len(fleet.nodes) * fleet.overdraft / unit + rate * transit + SLACK
    assert fleet.excess / unit <= allowed


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("overdraft", [0.0, 3.0])
def test_ten_processes_under_twice_the_rate(turned: Turned, seed: int, overdraft: float) -> None:
    rate = Rate("r", limit=500, per=1.0, burst=100)
    fleet = Fleet(turned, rate, seed, overdraft=overdraft)
    for _ in range(10):
        fleet.load(fleet.join(), 100, 0.0, 4.0)
    fleet.until(5.0)
    within_bound(fleet)
    assert fleet.admitted / fleet.scale.unit >= 0.9 * (100 + 500 * 4)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_processes_at_once_after_a_rest(turned: Turned, seed: int) -> None:
    rate = Rate("r", limit=100, per=1.0, burst=50)
    fleet = Fleet(turned, rate, seed, overdraft=1.0)
    nodes = [fleet.join() for _ in range(20)]
    for begin in (0.0, 2.0, 4.0):
        for node in nodes:
            fleet.load(node, 200, begin, begin + 0.3)
    fleet.until(5.0)
    within_bound(fleet)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_network_that_loses_questions_and_answers(turned: Turned, seed: int) -> None:
    rate = Rate("r", limit=200, per=1.0, burst=40)
    network = Network(delay=0.008, lost=0.1, mute=0.2, breaks=0.2)
    fleet = Fleet(turned, rate, seed, network, overdraft=2.0)
    for _ in range(6):
        fleet.load(fleet.join(), 80, 0.0, 5.0)
    fleet.until(6.0)
    within_bound(fleet)
    assert fleet.admitted / fleet.scale.unit >= 0.4 * 200 * 5  # and it still works


@pytest.mark.parametrize("seed", SEEDS)
def test_processes_come_go_and_crash(turned: Turned, seed: int) -> None:
    rate = Rate("r", limit=200, per=1.0, burst=60)
    fleet = Fleet(turned, rate, seed, overdraft=1.0)
    for number in range(30):
        begin = 0.2 * number
        fleet.until(begin)
        node = fleet.join()
        fleet.load(node, 100, begin, begin + 1.0)

        def stop(node=node, crash=number % 2 == 0) -> None:  # type: ignore[no-untyped-def]
            if not crash and node.lease.may_ask(node.clock()):
                node.ask(0, leave=True)
            node.alive = False

        fleet.after(0.9, stop)
    fleet.until(8.0)
    within_bound(fleet)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_process_that_is_cut_off_spends_what_it_has_and_no_more(
    turned: Turned, seed: int
) -> None:
    rate = Rate("r", limit=300, per=1.0, burst=90)
    fleet = Fleet(turned, rate, seed)
    nodes = [fleet.join() for _ in range(3)]
    for node in nodes:
        fleet.load(node, 200, 0.0, 6.0)
    fleet.until(2.0)
    nodes[0].cut_off = True
    before = nodes[0].admitted
    fleet.until(4.0)
    assert nodes[0].admitted - before <= 90
    nodes[0].cut_off = False
    before = nodes[0].admitted
    fleet.until(6.0)
    assert nodes[0].admitted > before
    within_bound(fleet)


@pytest.mark.parametrize("seed", SEEDS)
def test_requests_turned_away_give_back_without_raising_the_burst(
    turned: Turned, seed: int
) -> None:
    rate = Rate("r", limit=100, per=1.0, burst=30)
    fleet = Fleet(turned, rate, seed)
    for _ in range(5):
        fleet.load(fleet.join(), 60, 0.0, 5.0, turned_away=0.5)
    fleet.until(6.0)
    within_bound(fleet)


def test_what_was_turned_away_after_the_store_refilled_does_not_come_on_top(
    turned: Turned,
) -> None:
    fleet = Fleet(turned, Rate("r", limit=100, per=1.0, burst=10), 1)
    node = fleet.join()
    unit = fleet.scale.unit
    node.ask(10 * unit)
    fleet.until(0.1)
    spent_at = node.clock()
    assert all(node.lease.spend(unit, node.clock()) for _ in range(10))
    fleet.until(0.15)
    node.ask(unit)  # tells that ten were spent, and the bucket begins to refill
    fleet.until(0.4)
    node.ask(9 * unit)  # the bucket is full again, and is had once more
    fleet.until(0.45)
    node.lease.unspend(10 * unit, spent_at, node.clock())
    while node.lease.spend(unit, node.clock()):
        fleet.admit(unit)
    assert 8 * unit <= fleet.admitted <= 10 * unit


def test_a_lease_is_void_before_the_store_gives_it_to_others(turned: Turned) -> None:
    fleet = Fleet(turned, Rate("r", limit=100, per=1.0, burst=100), 1)
    silent, other = fleet.join(), fleet.join()
    unit = fleet.scale.unit
    silent.ask(80 * unit)
    fleet.until(0.1)
    silent.cut_off = True
    fleet.load(other, 300, 0.1, 4.0)
    for number in range(1, 40):  # often enough to keep it
        fleet.after(number * 0.1, silent.request)
    fleet.until(0.95)
    assert silent.lease.credit > 50 * unit
    before = silent.admitted
    fleet.until(4.5)
    assert silent.admitted == before
    within_bound(fleet)


def test_a_lone_process_after_idle_ones_gets_everything(turned: Turned) -> None:
    rate = Rate("r", limit=100, per=1.0, burst=100)
    fleet = Fleet(turned, rate, 1)
    idle = [fleet.join() for _ in range(9)]
    busy = fleet.join()
    for node in idle:
        fleet.load(node, 20, 0.0, 1.0)
    fleet.until(1.5)  # they have given back
    fleet.load(busy, 300, 1.5, 4.5)
    fleet.until(5.0)
    assert busy.admitted >= 0.95 * 100 * 3
    within_bound(fleet)


def test_many_clients_with_small_rates_behave_as_in_strict_mode(turned: Turned) -> None:
    rate = Rate("r", limit=2, per=1.0, burst=4)
    fleet = Fleet(turned, rate, 1)
    for _ in range(4):
        fleet.load(fleet.join(), 2, 0.0, 10.0)
    fleet.until(11.0)
    within_bound(fleet)
    assert fleet.admitted / fleet.scale.unit >= 0.85 * (4 + 2 * 10)


def test_a_store_that_forgets_everything_grants_one_burst_more(turned: Turned) -> None:
    rate = Rate("r", limit=100, per=1.0, burst=50)
    fleet = Fleet(turned, rate, 1)
    for _ in range(4):
        fleet.load(fleet.join(), 100, 0.0, 4.0)
    fleet.until(2.0)
    fleet.forget()
    fleet.until(5.0)
    assert 0 < fleet.excess / fleet.scale.unit <= 50 + 1
