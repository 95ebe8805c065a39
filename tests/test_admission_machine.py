"""Whatever happens in whatever order, nobody is lost and nobody is counted twice."""

from __future__ import annotations

from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)
from msgspec import structs

from loadgate.admission import ENDED, NEW, RUNNING, WAITING, Ticket
from loadgate.decisions import ADMIT, Outcome, Refuse, Wait
from loadgate.making import make_admission, remake_admission
from loadgate.policy import Concurrency, Policy, Queue
from loadgate.telemetry import Telemetry
from loadgate.ticket import Note

CLASSES = ("critical", "default", "background")

QUEUES = st.builds(
    Queue,
    max_wait=st.sampled_from([0.0, 1.0]),
    max_queue=st.just(2.0),
    max_depth=st.just(4.0),
    discipline=st.sampled_from(["default", "fifo", "fair"]),
    rule=st.sampled_from(["survival", "ramp", "budget"]),
    fair_by=st.sampled_from(["client", "account", ""]),
    fair_slots=st.just(4),
    fair_hand=st.just(1),
    max_refused=st.sampled_from([None, None, 0.5]),
    mode=st.sampled_from(["enforce", "enforce", "observe", "off"]),
)


def _policy(**settings: Any) -> Policy | None:
    """A policy, None where the settings do not fit together."""
    try:
        return Policy(**settings)
    except ValueError:
        return None


POLICIES = st.builds(
    _policy,
    concurrency=st.builds(
        Concurrency,
        algorithm=st.just("fixed"),
        initial=st.integers(1, 4),
        mode=st.sampled_from(["enforce", "enforce", "enforce", "observe"]),
        max_share=st.sampled_from([None, None, None, 0.5]),
        long_lived=st.sampled_from(["auto", 1.0, 5.0]),
        max_long_lived=st.sampled_from([None, 0, 3]),
    ),
    queue=QUEUES,
    priorities=st.sampled_from([CLASSES, ("default",), ("background", "new", "critical")]),
    reserve=st.sampled_from([{}, {}, {}, {"background": 0.3}]),
).filter(lambda policy: policy is not None)


class Heard:
    """A limit that is moved by hand and counts what it hears."""

    def __init__(self, limit: Any) -> None:
        self.limit = limit
        self.admits = self.finishes = 0
        self.on_hearing: Any = None

    def on_admit(self, now: float, in_flight: int) -> None:
        self.admits += 1

    def on_wait(self, now: float) -> None:
        self._jump()

    def on_refuse(self, now: float) -> None:
        self._jump()

    def on_stall(self, now: float, duration: float) -> None:
        pass

    def on_finish(
        self,
        now: float,
        latency: float,
        in_flight: int,
        outcome: Outcome,
        held: float | None = None,
    ) -> None:
        self.finishes += 1

    def explain(self) -> dict[str, Any]:
        return {}

    def _jump(self) -> None:
        """A limit may move the moment it hears something."""
        if self.on_hearing is not None:
            self.limit, self.on_hearing = self.on_hearing, None


class Machine(RuleBasedStateMachine):
    tickets: Bundle[Ticket] = Bundle("tickets")

    # Without names, reserves and caps nobody goes the long way, and other bugs can show.
    @initialize(policy=POLICIES, plain=st.booleans())
    def begin(self, policy: Policy, plain: bool = False) -> None:
        if plain:
            queue = structs.replace(policy.queue, fair_by="")
            places = structs.replace(policy.concurrency, max_share=None, mode="enforce")
            policy = structs.replace(policy, queue=queue, concurrency=places, reserve={})
        self.policy = policy
        self.heard = Heard(2)
        self.gate = make_admission(policy, Telemetry(), limit=self.heard, digest=len)
        self.now = 1000.0
        self.everyone: list[Ticket] = []
        self.told: dict[int, str] = {}
        self.may_be_above = False

    def after(self) -> None:
        """Whoever's wait has ended is told once."""
        for ticket in self.gate.ended_waits:
            key = id(ticket)
            assert self.told[key] == "waits", "told without waiting, or twice"
            assert ticket.state in (RUNNING, ENDED)
            self.told[key] = "told"
        self.gate.ended_waits.clear()
        gate = self.gate
        loose = gate.observe or gate.bypassed or gate.cap is not None
        wide = any(t.state == RUNNING and t.places > 1 for t in self.everyone)
        above = gate.in_flight > gate.places and (loose or wide or self.may_be_above)
        self.may_be_above = above or self.heard.on_hearing is not None

    @rule(
        target=tickets,
        level=st.integers(0, 2),
        draw=st.floats(0, 1, exclude_max=True),
        timeout=st.sampled_from([float("inf"), 0.5, 3.0, 0.0]),
        client=st.sampled_from([None, None, "a", "bb", b"ccc", {"account": "dddd"}, {}]),
        places=st.sampled_from([1, 1, 1, 2, 5]),
        patient=st.sampled_from([True, True, True, False]),
    )
    def arrive(
        self,
        level: int,
        draw: float,
        timeout: float,
        client: Any,
        places: int,
        patient: bool,
    ) -> Ticket:
        ticket = Ticket(
            level=min(level, self.gate.room.classes - 1),
            deadline=self.now + timeout,
            client=client,
            note=Note(places) if places > 1 else None,
        )
        self.everyone.append(ticket)
        self.told[id(ticket)] = "asks"
        if patient:
            answer = self.gate.arrive(ticket, self.now, draw)
            expected = WAITING if isinstance(answer, Wait) else ENDED
            assert ticket.state == (RUNNING if answer is ADMIT else expected)
            assert (ticket.state == ENDED) == isinstance(answer, Refuse)
            if ticket.state == WAITING:
                self.told[id(ticket)] = "waits"
        elif timeout == 0.0 or not self.gate.start(ticket, self.now):
            refusal = self.gate.refuse_at_once(ticket, self.now)
            assert ticket.state == (RUNNING if refusal is None else ENDED)
        self.after()
        return ticket

    @rule(
        requests=st.lists(
            st.tuples(
                st.integers(0, 2),
                st.floats(0, 1, exclude_max=True),
                st.sampled_from([None, "a", "bb"]),
                st.sampled_from([1, 1, 1, 2, 5]),
            ),
            min_size=1,
            max_size=6,
        )
    )
    def several_arrive(self, requests: list[tuple[int, float, Any, int]]) -> None:
        for level, draw, client, places in requests:
            self.arrive(level, draw, float("inf"), client, places, patient=True)

    @rule(state=st.sampled_from([RUNNING, RUNNING, WAITING]), which=st.integers(0, 9))
    def one_ends(self, state: int, which: int) -> None:
        there = [ticket for ticket in self.everyone if ticket.state == state]
        if there:
            ticket = there[which % len(there)]
            if state == RUNNING:
                assert self.gate.finish(ticket, self.now, Outcome.SUCCESS)
            elif which % 2:
                assert self.gate.leave(ticket, self.now)
            else:
                self.gate.expire(ticket, self.now)
            self.after()

    @rule(ticket=tickets, outcome=st.sampled_from(list(Outcome)))
    def finish(self, ticket: Ticket, outcome: Outcome) -> None:
        ran = ticket.state == RUNNING
        assert self.gate.finish(ticket, self.now, outcome) == ran
        self.after()

    @rule(ticket=tickets)
    def its_answer_begins(self, ticket: Ticket) -> None:
        if ticket.state == RUNNING:
            ticket.answered_at = self.now

    @rule()
    def the_watch_ticks(self) -> None:
        self.gate.look(self.now)
        self.after()

    @rule(ticket=consumes(tickets))
    def leave(self, ticket: Ticket) -> None:
        waited = ticket.state == WAITING
        assert self.gate.leave(ticket, self.now) == waited
        if not waited:
            self.gate.finish(ticket, self.now, Outcome.CANCELLED)
        self.after()

    @rule(ticket=tickets)
    def expire(self, ticket: Ticket) -> None:
        waited = ticket.state == WAITING
        refusal = self.gate.expire(ticket, self.now)
        if waited:
            assert ticket.state == (RUNNING if refusal is None else ENDED)
        else:
            assert refusal is None
        self.after()

    @rule(limit=st.sampled_from([1, 2, 3, 10, float("nan"), 0]))
    def move_the_limit(self, limit: Any) -> None:
        self.heard.limit = limit
        self.gate.stalled(self.now, 0.0)
        self.may_be_above = self.gate.in_flight > self.gate.places
        self.after()

    @rule(limit=st.sampled_from([1, 2, 5]))
    def the_limit_will_move_when_it_hears_something(self, limit: int) -> None:
        self.heard.on_hearing = limit
        self.may_be_above = True

    @rule(factor=st.sampled_from([0.05, 0.5, 1.0]))
    def a_signal_brakes(self, factor: float) -> None:
        self.gate.brake_to(factor, self.now)
        self.may_be_above = self.gate.in_flight > self.gate.places
        self.after()

    @rule(on=st.booleans())
    def the_kill_switch(self, on: bool) -> None:
        self.gate.bypass(on, self.now)
        self.may_be_above = self.gate.in_flight > self.gate.places
        self.after()

    @rule(seconds=st.floats(0, 2))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def the_clock_steps_back(self) -> None:
        self.now -= 5.0

    @rule(policy=POLICIES)
    def the_policy_changes(self, policy: Policy) -> None:
        old, self.policy = self.policy, policy
        ours = self.gate.limit
        remake_admission(self.gate, old, policy, self.now)
        if self.gate.limit is not ours:  # go on listening
            heard = Heard(self.gate.limit.limit)
            self.gate.change(
                self.now,
                heard,
                self.gate.depth,
                observe=self.gate.observe,
                observe_queue=self.gate.entrance.observe,
                cap=self.gate.cap,
            )
            self.heard = heard
        self.gate.telemetry.classes_changed(old.priorities, policy.priorities)
        self.may_be_above = self.gate.in_flight > self.gate.places
        self.after()

    @rule()
    def the_service_closes_and_opens_again(self) -> None:
        self.gate.close(self.now)
        assert self.gate.room.depth == 0
        self.gate.reopen(self.now)
        self.may_be_above = self.gate.in_flight > self.gate.places
        self.after()

    @invariant()
    def everyone_is_somewhere(self) -> None:
        if not hasattr(self, "gate"):
            return
        told = self.gate.telemetry
        refused = sum(told.refused.values())
        admitted = sum(told.admitted)
        assert len(self.everyone) == admitted + refused + told.left + self.gate.room.depth
        running = [ticket for ticket in self.everyone if ticket.state == RUNNING]
        waiting = [ticket for ticket in self.everyone if ticket.state == WAITING]
        assert all(ticket.state != NEW for ticket in self.everyone)
        long_lived = self.gate.long_lived
        assert self.gate.in_flight + long_lived.places == sum(ticket.places for ticket in running)
        assert long_lived.places >= 0
        assert len(long_lived) <= len(running)
        assert (
            admitted
            == sum(told.finished.values()) + len(running)
            == told.running() + sum(told.finished.values())
        )
        assert self.gate.room.depth == len(waiting)
        assert told.busy(self.now, self.gate.in_flight) >= 0.0
        assert told.queued >= 0.0

    @invariant()
    def whoever_is_told_waited_and_whoever_waits_was_not_told(self) -> None:
        for ticket in getattr(self, "everyone", []):
            assert (ticket.state == WAITING) <= (self.told[id(ticket)] == "waits")

    @invariant()
    def in_flight_is_within_the_limit_unless_the_limit_shrank(self) -> None:
        if hasattr(self, "gate"):
            gate = self.gate
            loose = gate.observe or gate.bypassed or gate.cap is not None
            assert gate.in_flight <= gate.places or loose or self.may_be_above

    @invariant()
    def nobody_waits_while_a_place_is_free_for_the_next_one(self) -> None:
        if not hasattr(self, "gate"):
            return
        gate = self.gate
        if gate.room.depth and gate.in_flight < gate.places:
            wide = [t for t in self.everyone if t.state == WAITING and t.places > 1]
            assert any(t.places + gate.in_flight > gate.places for t in wide)
            assert gate.in_flight > 0

    @invariant()
    def the_limit_hears_one_finish_for_each_admit(self) -> None:
        if hasattr(self, "gate"):
            running = self.gate.telemetry.running() - len(self.gate.long_lived)
            assert self.heard.admits - self.heard.finishes == running

    @invariant()
    def the_books_agree_with_those_who_are_there(self) -> None:
        if not hasattr(self, "gate"):
            return
        accounts = self.gate.accounts
        if accounts.holders is not None:
            held = sum(
                t.places
                for t in self.everyone
                if t.state in (RUNNING, WAITING)
                and t.note is not None
                and t.note.holders is accounts.holders
            )
            assert held == accounts.holders.total()
        if accounts.reserves is not None:
            for share in accounts.reserves.classes:
                assert share.in_flight == sum(
                    t.places
                    for t in self.everyone
                    # Of the long-lived nobody is counted in a class any more.
                    if t.state == RUNNING and t.note is not None and t.note.share is share
                )


TestMachine = Machine.TestCase
TestMachine.settings = hypothesis_settings(max_examples=200, stateful_step_count=40, deadline=None)
