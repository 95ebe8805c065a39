"""Whose turn is it, and who has to go without one? The part of admission that ends waits.

Places that become free are given to those who are next, waits end in time, and every refusal is
made here, so that all of them are counted and explained alike.
"""

from __future__ import annotations

from typing import Final

from loadgate.accounts import Accounts
from loadgate.decisions import ADMIT, Admit, Reason, Refuse, Stage
from loadgate.entrance import Entrance
from loadgate.explain import LATE_LOOP
from loadgate.limits.base import Limit
from loadgate.places import Places
from loadgate.shedding.depth import DepthRule
from loadgate.shedding.laws import Law
from loadgate.shedding.refused_share import RefusedShare
from loadgate.shedding.retry import RetryAfter
from loadgate.telemetry import Telemetry
from loadgate.ticket import ENDED, WAITING, Ticket
from loadgate.waiting import WaitingRoom

_INF: Final = float("inf")
# Looking up a member of an enum costs as much as a comparison.
_LIMIT: Final = Stage.LIMIT
_SHED: Final = Stage.SHED
_DEADLINE: Final = Reason.DEADLINE

# Refusals that mean something else when it is not the limit that keeps people waiting.
_QUEUED: Final = frozenset({Reason.QUEUE_FULL, Reason.QUEUE_SHED, Reason.WAIT_TIMEOUT})


class Turns(Places):
    """Places under a moving limit, and those who wait for them.

    Args:
        limit: How many may run at once.
        depth: How deep the queue may be.
        room: Where waiters wait and in what order they leave.
        telemetry: The counters to keep.
        law: How refusals grow with the queue.
        accounts: Fair shares, reserves and caps.
        retry: When those who were refused should come back.

    Attributes:
        ended_waits: Tickets whose wait has ended (RUNNING or refused) since the caller last
            looked. The caller takes them out and wakes whoever waits for them.
        cap: A bound on the share of arrivals that may be refused, None for none.
    """

    __slots__ = ("_retry", "cap", "ended_waits", "room")

    def __init__(
        self,
        limit: Limit,
        depth: DepthRule,
        room: WaitingRoom[Ticket],
        telemetry: Telemetry,
        law: Law,
        accounts: Accounts,
        retry: RetryAfter,
    ) -> None:
        super().__init__(limit, Entrance(depth, law, room, accounts), accounts, telemetry)
        self.room = room
        self._retry = retry
        self.cap: RefusedShare | None = None
        self.ended_waits: list[Ticket] = []

    # -- leaving ----------------------------------------------------------------------

    def leave(self, ticket: Ticket, now: float) -> bool:
        """A WAITING ticket goes away by itself: it was cancelled or its client left.

        Returns:
            False, and nothing happens, if the ticket does not wait (any more); if it runs by
            now, the caller must `finish` it.
        """
        if ticket.state != WAITING:
            return False
        self._settle_queue(now)
        self.room.remove(ticket, ticket.level)
        ticket.state = ENDED
        self.telemetry.left += 1
        if ticket.note is not None:
            self.accounts.gone(ticket.note, now)
        if self._gathering:
            self._moved(now)
        return True

    def expire(self, ticket: Ticket, now: float) -> Refuse | None:
        """End the wait of a WAITING ticket whose time is up.

        Returns:
            Why it is refused; None if it runs instead or does not wait (any more).
        """
        if ticket.state != WAITING:
            return None
        self._settle_queue(now)
        self.room.remove(ticket, ticket.level)
        refusal = self._too_late(ticket, now)
        if self._gathering or self.limit.limit != self.learned:
            self._moved(now)
        return refusal

    @property
    def depth(self) -> DepthRule:
        """How deep the queue may be."""
        return self.entrance.depth

    def thresholds(self) -> tuple[float, float]:
        """`(max_queue, max_depth)` as they are now."""
        return self.entrance.max_queue, self.entrance.max_depth

    # -- refusing ---------------------------------------------------------------------

    def _let_through(self, ticket: Ticket, now: float) -> Admit:
        """Enough were refused: this one runs, above the limit if need be."""
        self.telemetry.spared += 1
        self._run(ticket, now)
        return ADMIT

    def _may_refuse(self, now: float) -> bool:
        telemetry = self.telemetry
        arrived = telemetry.arrived(self.room.depth) + 1
        return self.cap is None or self.cap.allows(now, arrived, sum(telemetry.overloaded))

    def _too_late(self, ticket: Ticket, now: float, *, hopeless: bool = False) -> Refuse | None:
        """The ticket is out of the room and its wait is over; the limit may move.

        Returns:
            Why it is refused, None if it runs instead because enough were refused.
        """
        waited, bound = now - ticket.arrived, ticket.until - ticket.arrived
        self.entrance.law.waited(now, waited)
        if hopeless:
            expected, left = self.drain.latency, ticket.deadline - now
            refusal = self._refuse(ticket, now, _SHED, _DEADLINE, expected, left)
        elif ticket.until >= ticket.deadline:
            refusal = self._refuse(ticket, now, _LIMIT, _DEADLINE, waited, bound)
        elif self.cap is not None and not self._may_refuse(now):
            self._let_through(ticket, now)
            self.ended_waits.append(ticket)
            return None
        else:
            refusal = self._refuse(ticket, now, _LIMIT, Reason.WAIT_TIMEOUT, waited, bound)
        if self._limit_binds():
            self.limit.on_refuse(now)
        return refusal

    def _told(self, refusal: Refuse, now: float) -> Refuse:
        """The limit hears that someone was turned away because the service is full.

        It does not when a brake or the event loop, and not the limit, has made it so.
        """
        limit = self.limit
        # `_limit_binds`, written out: most refusals come through here.
        if self.places == self.learned and not (self.intake.spent and self._rests()):
            limit.on_refuse(now)
        if limit.limit != self.learned:
            self._moved(now)
        return refusal

    def _refuse(
        self,
        ticket: Ticket,
        now: float,
        stage: Stage,
        reason: Reason,
        observed: float,
        bound: float,
    ) -> Refuse:
        ticket.state = ENDED
        telemetry = self.telemetry
        telemetry.refused[reason] += 1
        telemetry.overloaded[ticket.level] += 1
        if (note := ticket.note) is not None:
            if note.hand is not None:
                self._contend(now)
            self.accounts.gone(note, now)
        entrance = self.entrance
        pause = self._retry.after(now, entrance.drained_in(), entrance.rate)
        subject = LATE_LOOP if self.intake.spent and reason in _QUEUED and self._rests() else ""
        ticket.refusal = refusal = Refuse(stage, reason, pause, observed, bound, subject)
        return refusal

    # -- places that are free ---------------------------------------------------------

    def _moved(self, now: float) -> None:
        """Something that may let a waiter in, or shut the door, has happened."""
        self._read_limit(now)
        self._gathering = False
        if self.room.depth:
            self._settle_queue(now)
            self._dispatch(now)
        self._set_open()
        self.telemetry.note_fullness(now, self.in_flight >= self.places)

    def _dispatch(self, now: float) -> None:
        """Give free places to those who are next."""
        room, entrance = self.room, self.entrance
        reserves = self.accounts.reserves
        while room.depth and self.in_flight < self.places and not self.intake.spent:
            owed = reserves.next_class(room.depth_of, self.places) if reserves else None
            ticket = room.pop(now, owed)
            # If somebody else can still use the place it does not go to who cannot.
            hopeless = (
                room.depth > 0
                and ticket.deadline != _INF
                and now + self.drain.latency > ticket.deadline
                and not entrance.observe
            )
            if hopeless or ticket.until <= now:
                if self._too_late(ticket, now, hopeless=hopeless) is not None:
                    self.ended_waits.append(ticket)
                self._read_limit(now)
            elif self._fits(ticket):
                self._run(ticket, now)
                self.ended_waits.append(ticket)
            else:
                room.put_back(ticket, ticket.level)
                self._gathering = True
                return

    def _let_all_in(self, now: float) -> None:
        self._settle_queue(now)
        while (ticket := self.room.pop_any()) is not None:
            self._run(ticket, now)
            self.ended_waits.append(ticket)

    def _settle_queue(self, now: float) -> None:
        """Bring the integral of the waiters up to `now`, before their number changes."""
        telemetry = self.telemetry
        if (passed := now - telemetry.queued_at) > 0.0:
            telemetry.queued += self.room.depth * passed
        telemetry.queued_at = now
