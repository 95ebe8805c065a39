"""Examples of refusals are kept without saying who the clients are."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from loadgate import (
    AdmissionController,
    Concurrency,
    Overloaded,
    Policy,
    Queue,
    Rate,
    RateLimited,
    Reason,
)
from loadgate.decisions import Refuse, Stage
from loadgate.integrations import witness as module
from loadgate.integrations.asgi import AdmissionMiddleware
from loadgate.integrations.console.status import status_of
from loadgate.integrations.decision_timer import DecisionTimer
from loadgate.integrations.prometheus import LoadgateCollector, MetricsPage
from loadgate.integrations.witness import Witness
from loadgate.policy import Signals
from loadgate.testing import VirtualClock
from tests.integrations.asgi_client import call

RATE = Refuse(Stage.RATE, Reason.RATE, 2.0, 1.0, 0.0, "per-client")
FULL = Refuse(Stage.LIMIT, Reason.QUEUE_FULL, 1.0, 12.0, 10.0)


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(module, "current_trace_id", lambda: "ab" * 16)
    return "ab" * 16


def test_a_flood_of_one_reason_hides_no_other() -> None:
    moments = iter(range(1000))
    witness = Witness(logs=False, wall=lambda: float(next(moments)))
    witness.refused(FULL, "quiet", 503, 0.0)
    for _ in range(500):
        witness.refused(RATE, "loud", 429, 0.0)
    shown = witness.sightings()
    assert [one.reason for one in shown] == ["rate"] * 3 + ["queue_full"]
    assert [one.at for one in shown] == [500.0, 499.0, 498.0, 0.0]
    assert "12 were waiting, at most 10" in shown[-1].explanation
    assert witness.top_share(0.0) == pytest.approx(500 / 501)
    assert witness.clients(0.0) == 2


def test_what_is_shown_holds_hashes_and_no_keys() -> None:
    witness = Witness(logs=False, top=5)
    witness.refused(RATE, "secret-key", 429, 0.0)
    witness.refused(RATE, {"account": "secret-account", "address": "secret-address"}, 429, 0.0)
    witness.refused(RATE, None, 429, 0.0)
    clients = {one.client for one in witness.sightings()}
    assert len(clients) == 3
    assert "anonymous" in clients
    assert "secret" not in str(witness.sightings()) + str(witness.top(0.0))


def test_a_refusal_that_can_never_pass_has_no_time_to_return() -> None:
    witness = Witness(logs=False)
    witness.refused(Refuse(Stage.RATE, Reason.RATE, float("inf"), 9.0, 5.0, "r"), "a", 429, 0.0)
    assert witness.sightings()[0].retry_after is None


def test_it_logs_as_its_parent_does_unless_told_not_to(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    Witness(logs=False).refused(FULL, "a", 503, 0.0)
    assert not caplog.records
    Witness().refused(FULL, "a", 503, 0.0)
    assert "reason=queue_full" in caplog.text


def refuse(witness: Witness, client: str, count: int, now: float) -> None:
    for _ in range(count):
        witness.refused(RATE, client, 429, now)


def test_the_list_of_clients_is_bounded_and_adds_up() -> None:
    witness = Witness(logs=False, top=2)
    for client, count in (("a", 5), ("b", 4), ("c", 1)):
        refuse(witness, client, count, 0.0)
    first = witness.top(0.0)
    assert sorted(first.values(), reverse=True) == [5, 4, 1]
    assert first["other"] == 1


def test_a_greedy_client_comes_onto_the_list_at_once_and_a_rival_does_not() -> None:
    witness = Witness(logs=False, top=2)
    refuse(witness, "a", 5, 0.0)
    refuse(witness, "b", 4, 0.0)
    first = witness.top(0.0)
    refuse(witness, "c", 6, 10.0)  # more than either, but not by much
    assert set(witness.top(10.0)) == set(first)
    assert witness.top(10.0)["other"] == 6
    refuse(witness, "c", 100, 20.0)
    after = witness.top(20.0)
    assert max(after, key=lambda client: after[client]) not in first
    assert max(after.values()) == 106
    assert after["other"] == 4


def test_an_attacker_who_changes_its_name_makes_few_series() -> None:
    witness = Witness(logs=False, top=2)
    seen: set[str] = set()
    for number in range(100):
        refuse(witness, f"attacker-{number}", 3 * 2 ** min(number, 9), float(number))
        seen |= set(witness.top(float(number)))
    assert len(seen) <= 2 * 2 + 1  # as many in ten minutes as twice the list, and `other`
    refuse(witness, "later", 100_000, 700.0)
    assert max(witness.top(700.0).values()) == 100_000


def test_nobody_is_listed_unless_asked_for() -> None:
    witness = Witness(logs=False)
    witness.refused(RATE, "a", 429, 0.0)
    assert witness.top(0.0) == {}
    with pytest.raises(ValueError, match="top: 21 is not from 0 to 20"):
        Witness(top=21)


@pytest.mark.anyio
async def test_refused_and_slow_requests_that_are_traced_become_exemplars(trace: str) -> None:
    policy = Policy(rates=[Rate("per-client", limit=1, per=3600.0)])
    clock = VirtualClock()
    controller = AdmissionController(policy, clock=clock)
    witness = Witness(logs=False, top=3)
    timer = DecisionTimer(controller, every=1)
    registry = CollectorRegistry()
    registry.register(LoadgateCollector(controller, witness=witness, decisions=timer))
    async with controller:
        async with controller.admit("a"):
            clock.advance(2.0)
        witness.answered(2.0)
        witness.answered(0.01)  # fast ones are no examples
        with pytest.raises(RateLimited) as caught:
            await controller.admit("a").__aenter__()
        witness.refused(caught.value.refusal, "a", 429, clock())
    body, _ = await MetricsPage(registry).render("application/openmetrics-text")
    page = body.decode()
    exemplars = [line for line in page.splitlines() if " # {" in line]
    assert len(exemplars) == 2, exemplars
    for start, value in (("loadgate_requests_total", "1.0"), ("loadgate_latency_seconds", "2.0")):
        (line,) = (line for line in exemplars if line.startswith(start))
        assert f'# {{trace_id="{trace}"}} {value} ' in line
    at = {"controller": "default"}
    assert registry.get_sample_value("loadgate_top_refused_share_ratio", at) == 1.0
    assert registry.get_sample_value("loadgate_refused_clients", at) == 1.0
    assert registry.get_sample_value("loadgate_decision_duration_seconds_count", at) == 2
    assert registry.get_sample_value("loadgate_top_refused", at | {"client": "other"}) == 0


@pytest.mark.anyio
async def test_one_decision_in_many_is_timed_and_none_is_changed() -> None:
    policy = Policy(rates=[Rate("per-client", limit=50, per=3600.0)])
    controller = AdmissionController(policy, clock=VirtualClock())
    timer = DecisionTimer(controller, every=10)
    refused = 0
    async with controller:
        for _ in range(100):
            try:
                async with controller.admit("a", priority="critical") as permit:
                    assert permit.quotas[0].rate == "per-client"
            except RateLimited:
                refused += 1
        with controller.try_admit("b"):
            pass
    assert refused == 50
    assert timer.freeze().count == 10
    assert controller.snapshot().classes["critical"].admitted == 50
    with pytest.raises(ValueError, match="every: 0"):
        DecisionTimer(controller, every=0)


@pytest.mark.anyio
async def test_what_a_controller_refuses_is_seen_without_a_layer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    policy = Policy(
        rates=[Rate("per-client", limit=2, per=3600.0)],
        concurrency=Concurrency("fixed", initial=1),
        queue=Queue(max_wait=0.01),
        signals=Signals(mode="off"),
    )
    controller = AdmissionController(policy)
    witness = Witness(logs=True)
    witness.watch(controller)
    witness.watch(controller)  # twice does no harm

    def itself(who: str) -> str:
        return who

    @controller.guard(client=itself)
    async def work(who: str) -> None:
        pass

    async with controller:
        async with controller.admit("a"):
            with pytest.raises(Overloaded):
                await work("b")  # waits, and in vain
            with pytest.raises(Overloaded):
                controller.try_admit("c").begin()
        await work("a")
        with pytest.raises(RateLimited):
            await work("a")
    seen = witness.sightings()
    assert [(one.status, one.reason) for one in seen] == [
        (429, "rate"), (503, "queue_full"), (503, "wait_timeout"),
    ]  # fmt: skip
    assert len({one.client for one in seen}) == 3
    assert "raise the rate or its burst" in seen[0].explanation
    assert witness.clients(controller.clock()) == 3
    assert "reason=rate status=429" in caplog.text
    assert sum(controller.snapshot().refused.values()) == len(seen)


@pytest.mark.anyio
async def test_a_refusal_behind_the_layer_is_seen_once() -> None:
    controller = AdmissionController(Policy(rates=[Rate("per-client", limit=1, per=3600.0)]))
    witness = Witness(logs=False)
    witness.watch(controller)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    layer = AdmissionMiddleware(app, controller, log=witness)
    statuses = [(await call(layer)).status for _ in range(3)]
    assert statuses == [200, 429, 429]
    assert len(witness.sightings()) == 2


@pytest.mark.anyio
async def test_slow_requests_of_a_controller_are_examples_without_a_layer(trace: str) -> None:
    clock = VirtualClock()
    controller = AdmissionController(clock=clock)
    witness = Witness(logs=False, slow=0.5)
    witness.watch(controller)
    async with controller:
        async with controller.admit():
            clock.advance(0.4)
        assert witness.slow_examples == {}
        async with controller.admit() as permit:
            clock.advance(0.7)
            permit.answered()
            clock.advance(5.0)  # the rest of a long body is no latency
        (example,) = witness.slow_examples.values()
        assert example.trace_id == trace
        assert example.value == pytest.approx(0.7)
        await controller.apply(Policy())
        async with controller.admit():
            clock.advance(20.0)
    assert len(witness.slow_examples) == 2, "another policy does not forget who watches"


@pytest.mark.anyio
async def test_beside_the_layer_slow_requests_are_added_and_refusals_stay_the_layers(
    trace: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock = VirtualClock()
    controller = AdmissionController(
        Policy(rates=[Rate("per-client", limit=1, per=3600.0)]), clock=clock
    )
    witness = Witness()
    witness.watch_slow(controller)
    witness.watch_slow(controller)  # harmless

    async def app(scope: Any, receive: Any, send: Any) -> None:
        clock.advance(2.0)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    layer = AdmissionMiddleware(app, controller, log=witness)
    assert [(await call(layer)).status for _ in range(2)] == [200, 429]
    (example,) = witness.slow_examples.values()
    assert (example.trace_id, example.value) == (trace, 2.0)
    assert len(witness.sightings()) == 1
    assert "algorithm=token-bucket" in caplog.text  # which only the layer knows


def test_a_scrape_in_another_thread_disturbs_nothing_and_is_not_disturbed() -> None:
    controller = AdmissionController()
    witness = Witness(logs=False, top=5)
    registry = CollectorRegistry()
    registry.register(LoadgateCollector(controller, witness=witness))
    over = threading.Event()
    troubles: list[BaseException] = []
    looks = 0

    def scrape() -> None:
        nonlocal looks
        try:
            while not over.is_set():
                assert generate_latest(registry)
                share = status_of(controller, witness).top_share
                assert 0.0 <= share <= 1.0
                looks += 1
        except BaseException as error:  # it is looked at below
            troubles.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns as often as they can
    threads = [threading.Thread(target=scrape) for _ in range(2)]
    try:
        for thread in threads:
            thread.start()
        count = 0
        while looks < 40 and not troubles:
            # More clients than are told apart, in a time that runs fast.
            witness.refused(RATE, f"client-{count % 700}", 429, count / 15)
            count += 1
    finally:
        over.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert troubles == []


def test_what_is_over_is_forgotten_though_nobody_is_refused_any_more() -> None:
    witness = Witness(logs=False)
    refuse(witness, "a", 5, 0.0)
    for now, clients in ((299.0, 1), (301.0, 1), (599.0, 1), (601.0, 0), (1e6, 0)):
        assert witness.clients(now) == clients, now
    refuse(witness, "b", 5, 301.0)
    assert witness.clients(301.0) == 2, "looking into the future has forgotten nothing"
