"""Who runs, who waits, who is refused? The state machine behind every door.

It is synchronous: numbers go in, decisions come out, and whoever drives it (the controller,
the simulator) does the waiting. A ticket moves NEW → RUNNING → ENDED, or NEW → WAITING →
RUNNING | ENDED, and each move happens once: whoever comes second finds the ticket elsewhere
and does nothing. That is what makes a timeout that races a grant harmless.
"""

from __future__ import annotations

from typing import Final, cast

import msgspec

from loadgate.accounts import CONTENDED, Accounts
from loadgate.decisions import ADMIT, Admit, Reason, Refuse, Stage, Wait
from loadgate.limits.base import Limit
from loadgate.shedding.depth import DepthRule
from loadgate.shedding.laws import Law, Survival
from loadgate.shedding.refused_share import RefusedShare
from loadgate.shedding.retry import RetryAfter
from loadgate.telemetry import Telemetry
from loadgate.ticket import ENDED, NEW, RUNNING, WAITING, Ticket
from loadgate.turns import Turns
from loadgate.waiting import WaitingRoom

__all__ = ["ENDED", "NEW", "RUNNING", "WAITING", "Admission", "Ticket"]

_INF: Final = float("inf")
# Looking up a member of an enum costs as much as a comparison.
_LIMIT: Final = Stage.LIMIT
_SHED: Final = Stage.SHED
_DEADLINE: Final = Reason.DEADLINE
_FULL: Final = Reason.QUEUE_FULL


class Admission(Turns):
    """Places under a moving limit, and a bounded queue in front of them.

    Args:
        limit: How many may run at once; the only thing that learns.
        depth: How deep the queue may be.
        room: Where waiters wait and in what order they leave.
        telemetry: The counters to keep.
        observe: Decide and count what would have been refused, but let everyone through.
        rule: How refusals grow with the queue, the survival rule unless given.
        accounts: Fair shares, reserves and caps; by default there are none.
        retry: When those who were refused should come back.
    """

    __slots__ = ()

    def __init__(
        self,
        limit: Limit,
        depth: DepthRule,
        room: WaitingRoom[Ticket],
        telemetry: Telemetry,
        *,
        observe: bool = False,
        rule: Law | None = None,
        accounts: Accounts | None = None,
        retry: RetryAfter | None = None,
    ) -> None:
        super().__init__(
            limit,
            depth,
            room,
            telemetry,
            rule if rule is not None else Survival(),
            accounts if accounts is not None else Accounts(),
            retry if retry is not None else RetryAfter(),
        )
        self.observe = observe
        self._set_open()

    # -- arriving ---------------------------------------------------------------------

    def arrive(self, ticket: Ticket, now: float, draw: float) -> Admit | Wait | Refuse:
        """Decide about a NEW ticket.

        Args:
            ticket: The request.
            now: Monotonic seconds.
            draw: A number in [0, 1); smaller ones survive.
        """
        if ticket.deadline > now and self.start(ticket, now):
            return ADMIT
        return self.join(ticket, now, draw)

    def join(self, ticket: Ticket, now: float, draw: float) -> Admit | Wait | Refuse:
        """Decide about a NEW ticket that `start` did not let in."""
        ticket.arrived = now
        if self.draining:
            return self._refuse(ticket, now, _SHED, Reason.DRAINING, self.in_flight, 0.0)
        if ticket.deadline <= now:
            return self._refuse(ticket, now, _SHED, _DEADLINE, 0.0, ticket.deadline - now)
        if now >= self.long_lived.due:
            self.look(now)
        if not self.open or self.in_flight < self.open or self.observe:
            answer = self._long_way(ticket, now, draw)
            if answer is not None:
                return answer

        entrance = self.entrance
        if (
            entrance.max_queue <= 0.0
            and not self.room.depth
            and self.cap is None
            and not entrance.observe
        ):
            # There is no queue: nobody waits, and nobody is compared.
            return self._told(self._refuse(ticket, now, _LIMIT, _FULL, 0, entrance.max_depth), now)
        pressed = entrance.pressed(draw, now)
        if entrance.observe:
            if pressed is not None:
                self.telemetry.would_refuse[pressed[0]] += 1
            entrance.tag(ticket, now)
            return self._wait(ticket, now, _INF)
        if (
            ticket.deadline != _INF
            and now + (expected := entrance.answer_in(ticket.level, now)) > ticket.deadline
        ):
            left = ticket.deadline - now
            return self._told(self._refuse(ticket, now, _SHED, _DEADLINE, expected, left), now)
        if pressed is None:
            entrance.tag(ticket, now)
            return self._wait(ticket, now, entrance.depth.max_wait)
        if self.cap is not None and not self._may_refuse(now):
            return self._let_through(ticket, now)
        reason, bound = pressed
        self._settle_queue(now)
        loser, reason, observed, bound = entrance.loser(ticket, reason, bound, self.places, now)
        refusal = self._refuse(loser, now, _LIMIT, reason, observed, bound)
        if loser is ticket:
            return self._told(refusal, now)
        self.telemetry.evicted += 1
        self.ended_waits.append(loser)
        return self._wait(ticket, now, entrance.depth.max_wait)

    def refuse_early(self, ticket: Ticket, now: float) -> Refuse | None:
        """Refuse a NEW ticket for which there is no hope, before it asks anything that takes time.

        Returns:
            None if it may go on; nothing has happened then.
        """
        if self.draining or ticket.deadline <= now:
            return self.refuse_at_once(ticket, now)
        self.look(now)
        if self.in_flight < self.places or self.observe or self.bypassed or self.cap is not None:
            return None
        if self.entrance.may_wait(ticket):
            return None
        depth, bound = self.room.depth, self.entrance.max_depth
        return self._told(self._refuse(ticket, now, _LIMIT, _FULL, depth, bound), now)

    def refuse_at_once(self, ticket: Ticket, now: float) -> Refuse | None:
        """Refuse a NEW ticket that cannot wait and that `start` did not let in.

        Returns:
            None if it runs after all.
        """
        if self.draining or ticket.deadline <= now:
            return cast("Refuse", self.join(ticket, now, 0.0))
        self.look(now)
        if not self.open or self.in_flight < self.open or self.observe:
            rests = self._rests()
            self.intake.let_one_begin()
            answer = self._long_way(ticket, now, 0.0)
            if answer is None and rests and self._fits(ticket):
                # Those who wait do so for the loop alone, and not for this place.
                self._run(ticket, now)
                self.telemetry.note_fullness(now, self.in_flight >= self.places)
                return None
        else:
            answer = None
        if answer is not None:
            return answer if isinstance(answer, Refuse) else None
        if self.cap is not None and not self._may_refuse(now):
            self._let_through(ticket, now)
            return None
        return self._told(self._refuse(ticket, now, _LIMIT, _FULL, self.room.depth, 0.0), now)

    def refuse_for(
        self, ticket: Ticket, now: float, reason: Reason, value: float, bound: float
    ) -> Refuse | None:
        """Refuse a NEW ticket because of a signal of the process (lag, memory).

        Returns:
            None if enough were refused lately: then it goes its way.
        """
        if self.cap is not None and not self._may_refuse(now):
            self.telemetry.spared += 1
            return None
        return self._told(self._refuse(ticket, now, _SHED, reason, value, bound), now)

    # -- the world --------------------------------------------------------------------

    def change(
        self,
        now: float,
        limit: Limit,
        depth: DepthRule,
        *,
        observe: bool,
        rule: Law | None = None,
        observe_queue: bool = False,
        cap: RefusedShare | None = None,
    ) -> None:
        """Go on under other rules: nobody who runs or waits is lost."""
        if limit is not self.limit:
            self.limit = limit
            for crowd in range(1, len(self._running) + 1):
                limit.on_admit(now, crowd)  # it will hear of their ends
        self.observe = observe
        self.cap = cap
        entrance = self.entrance
        entrance.depth = depth
        entrance.observe = observe_queue
        if rule is not None:
            entrance.law = rule
        entrance.follow(self.places or self._braked())
        if observe:
            self._let_all_in(now)
        self._moved(now)

    def bypass(self, on: bool, now: float) -> None:
        """Let everyone through, or enforce the limit again."""
        self.bypassed = on
        if on:
            self._let_all_in(now)
        self._moved(now)

    def close(self, now: float) -> None:
        """Refuse every arrival and everyone who waits; those who run go on."""
        self.draining = True
        self._settle_queue(now)
        while (ticket := self.room.pop_any()) is not None:
            self._refuse(ticket, now, _SHED, Reason.DRAINING, self.in_flight, 0.0)
            self.ended_waits.append(ticket)
        self._moved(now)

    def reopen(self, now: float) -> None:
        """Admit again."""
        if self.draining:
            self.draining = False
            self._moved(now)

    # -- inside: in -------------------------------------------------------------------

    def _long_way(self, ticket: Ticket, now: float, draw: float) -> Admit | Refuse | None:
        """Decide about one that is compared or counted; None if it has to ask for a wait."""
        if self.observe or self.bypassed:
            return self._wave_through(ticket, now, draw)
        accounts = self.accounts
        if accounts.careful and (passed := accounts.enter(ticket, self.places)) is not None:
            held, bound = passed
            refusal = self._refuse(ticket, now, _LIMIT, Reason.FAIR_SHARE, held, bound)
            return msgspec.structs.replace(refusal, subject="max_share")
        if self.contended and not self._contended_until - CONTENDED <= now < self._contended_until:
            self.contended = False
            self._set_open()
        if not self._fits(ticket):
            return None
        first = self.room.first()
        if first is not None and first <= ticket.level:
            return None
        if self.contended:
            self.entrance.tag(ticket, now)
        self._run(ticket, now)
        self.telemetry.note_fullness(now, self.in_flight >= self.places)
        return ADMIT

    def _wave_through(self, ticket: Ticket, now: float, draw: float) -> Admit | None:
        """In `observe` mode those above the limit stand for the queue that is not kept."""
        if not self.bypassed and (over := self.in_flight + ticket.places - self.places) > 0:
            entrance = self.entrance
            chance = entrance.law.chance(
                over - 1, entrance.max_queue, entrance.max_depth, entrance.rate, now
            )
            if over - 1 >= entrance.max_depth or draw >= chance:
                full = over - 1 >= entrance.max_depth
                self.telemetry.would_refuse[_FULL if full else Reason.QUEUE_SHED] += 1
                self.limit.on_refuse(now)
            else:
                self.limit.on_wait(now)
        self._run(ticket, now)
        self.telemetry.note_fullness(now, self.in_flight >= self.places)
        return ADMIT

    def _wait(self, ticket: Ticket, now: float, seconds: float) -> Admit | Wait | Refuse:
        self._settle_queue(now)
        ticket.state = WAITING
        ticket.until = min(now + seconds, ticket.deadline)
        self.entrance.push(ticket, now)
        if ticket.note is not None and ticket.note.hand is not None:
            self._contend(now)
        if self._limit_binds():
            self.limit.on_wait(now)
        if self.in_flight < self.places or self.limit.limit != self.learned:
            self._moved(now)  # places are gathered for it, or the limit heard of it and rose
        if ticket.state == WAITING:
            return Wait(ticket.until)
        # The wait is over before it began.
        self.ended_waits.remove(ticket)
        return ADMIT if ticket.refusal is None else ticket.refusal
