"""How many run, and who has a place? The part of admission that knows no queue.

The short way in and out, `start` and `finish`, is for those who find a free place while nobody
contends. `open` is how it is told: it is the number of places, and 0 whenever everyone must go
the long way, because shares are compared, places are being gathered, or the event loop is late.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from typing import Final

from loadgate.accounts import CONTENDED, Accounts
from loadgate.decisions import Outcome, Reason
from loadgate.entrance import Entrance
from loadgate.limits.base import Limit
from loadgate.long_lived import LongLived
from loadgate.telemetry import Telemetry
from loadgate.ticket import ENDED, RUNNING, WAITING, Note, Ticket

# Looking up a member of an enum costs as much as a comparison.
_SUCCESS: Final = Outcome.SUCCESS
_IGNORED: Final = Outcome.IGNORED

# No event loop holds this many requests: everyone is let in.
_EVERYONE: Final = 1_000_000_000


class Places(ABC):
    """Places under a moving limit.

    Args:
        limit: How many may run at once; the only thing that learns.
        entrance: Where those go who find no place.
        accounts: Fair shares, reserves and caps.
        telemetry: The counters to keep.

    Attributes:
        in_flight: Places taken, without the long-lived.
        long_lived: Those who run without a place.
        places: The limit as it is enforced now; 0 while draining.
        learned: The limit as it was last read, without brakes.
        brake: What signals leave of it, in (0, 1].
        open: Places that `start` gives without asking anything else.
        observe: Everyone is let through; what would have been refused is counted.
        draining: Nobody gets a place any more.
        bypassed: Whether everyone is let through, whatever the limit says.
        contended: Whether somebody with a name waited or was refused lately.
    """

    __slots__ = (
        "_contended_until", "_extra", "_gathering", "_running", "accounts", "brake", "bypassed",
        "contended", "drain", "draining", "entrance", "in_flight", "intake", "learned", "limit",
        "long_lived", "observe", "open", "places", "telemetry",
    )  # fmt: skip

    def __init__(
        self, limit: Limit, entrance: Entrance, accounts: Accounts, telemetry: Telemetry
    ) -> None:
        self.limit = limit
        self.entrance = entrance
        self.accounts = accounts
        self.telemetry = telemetry
        self.drain = entrance.drain
        self.intake = entrance.intake
        self.observe = False
        self.draining = False
        self.bypassed = False
        self.contended = False
        self._contended_until = 0.0
        self._gathering = False
        self._extra = 0.0
        self._running: dict[Ticket, None] = {}  # who has a place, oldest first
        self.long_lived = LongLived()
        self.brake = 1.0
        self.in_flight = 0
        self.places = self.learned = int(limit.limit)
        self.open = self.places
        entrance.follow(self.places)

    @abstractmethod
    def _moved(self, now: float) -> None:
        """Something that may let a waiter in, or shut the door, has happened."""

    def start(self, ticket: Ticket, now: float) -> bool:
        """Give a NEW ticket a place if one is free and nothing has to be compared.

        Nobody waits while a place is open, so there is no queue to jump.
        """
        in_flight = self.in_flight
        open_ = self.open
        if in_flight >= open_ or ticket.note is not None:
            return False
        self.in_flight = in_flight = in_flight + 1
        telemetry = self.telemetry
        telemetry.started += now
        telemetry.admitted[ticket.level] += 1
        if in_flight > telemetry.peak:
            telemetry.peak = in_flight
        if in_flight == open_:
            telemetry.full_since = now
        ticket.state = RUNNING
        ticket.started = now
        ticket.crowd = in_flight
        self._running[ticket] = None
        limit = self.limit
        limit.on_admit(now, in_flight)
        if limit.limit != self.learned:
            self._moved(now)
        return True

    def finish(self, ticket: Ticket, now: float, outcome: Outcome) -> bool:
        """A RUNNING ticket has ended; its place goes to whoever is next.

        Returns:
            False, and nothing happens, if the ticket does not run (any more).
        """
        try:
            del self._running[ticket]
        except KeyError:
            return self._finish_long_lived(ticket, now, outcome)
        ticket.state = ENDED
        started = ticket.started
        held = now - started
        if held < 0.0:
            held = 0.0  # The clock stepped back; nobody runs for less than no time.
        latency = ticket.answered_at - started if ticket.answered_at else held
        telemetry = self.telemetry
        if now > ticket.deadline:
            telemetry.wasted += held
            if outcome is _SUCCESS:
                outcome = Outcome.OVERLOAD  # It worked, but too late to be worth anything.
        before = self.in_flight
        self.in_flight = before - 1
        telemetry.started -= started
        telemetry.held += held
        telemetry.finished[outcome] += 1
        histogram = telemetry.latency  # `add` written out: a call costs as much as the rest
        histogram.counts[bisect_left(histogram.edges, latency)] += 1
        histogram.sum += latency
        if ticket.note is not None:
            self._settle_note(ticket, ticket.note, held, now)
        limit = self.limit
        limit.on_finish(now, latency, ticket.crowd, outcome, held)
        if now >= self.drain.due:
            self.drain.checkpoint(
                now, telemetry.held, sum(telemetry.finished.values()), self._extra
            )
            self.entrance.follow(self.places or self._braked())
            self.look(now)
        if before >= self.open or limit.limit != self.learned:
            self._moved(now)
        return True

    def running(self) -> int:
        """Places taken, and those that the long-lived would take."""
        return self.in_flight + self.long_lived.places

    def look(self, now: float) -> None:
        """Let the long-lived go on without their places, whenever it is time to look for them."""
        if now >= self.long_lived.due:
            chosen = self.long_lived.choose(self._running, self.places, self.telemetry.latency, now)
            if chosen:
                for ticket in chosen:
                    self._move_out(ticket, now)
                self._moved(now)

    def stalled(self, now: float, duration: float) -> None:
        """The event loop stood still for `duration` seconds until `now`."""
        self.telemetry.stalls += 1
        self.telemetry.stalled += duration
        self.long_lived.stalled(now, duration)
        self.limit.on_stall(now, duration)
        self._follow_limit(now)

    def brake_to(self, factor: float, now: float) -> None:
        """Signals leave this much of the limit, in (0, 1]; the limit does not learn from it."""
        if factor != self.brake:
            self.brake = factor
            self._moved(now)

    def current_limit(self) -> int:
        """The limit, less what brakes take from it; while draining, as it would be."""
        return self.places or self._braked()

    # -- the turns of the event loop ----------------------------------------------------

    def allow_lag(self, max_lag: float, now: float) -> None:
        """The event loop may be so late; infinity for as late as it likes."""
        if self.intake.follow(max_lag):
            self._pace(now)

    def step_aside(self, aside: bool, now: float) -> None:
        """A door in front of the server paces arrivals, or does so no longer."""
        if aside != self.intake.aside and self.intake.step_aside(aside):
            self._pace(now)

    def ticked(self, now: float, lag: float) -> None:
        """The watch over the event loop has ticked, `lag` seconds late."""
        if self.intake.tick(now, lag, sum(self.telemetry.admitted)):
            self._pace(now)

    def turned(self, now: float) -> bool:
        """The event loop has turned once since somebody began while it was late.

        Returns:
            Whether all who waited are in; then the next have begun.
        """
        if not self.intake.turn(now, self.telemetry.arrived(self.entrance.room.depth)):
            return False
        self._pace(now)
        return True

    def _pace(self, now: float) -> None:
        """What the event loop has room for has changed: the queue's bounds, and who may begin."""
        self.entrance.follow(self.places or self._braked())
        self._moved(now)

    # -- for admission ----------------------------------------------------------------

    def _fits(self, ticket: Ticket) -> bool:
        """Whether it may start now; one that is larger than the limit runs alone."""
        if self._rests():
            return False
        in_flight, places = self.in_flight, self.places
        return in_flight + ticket.places <= places or (in_flight == 0 and places > 0)

    def _run(self, ticket: Ticket, now: float) -> None:
        """Give its places to one that came the long way."""
        telemetry = self.telemetry
        if ticket.state == WAITING:
            wait = ticket.wait = now - ticket.arrived
            telemetry.wait.add(wait)
            entrance = self.entrance
            entrance.law.waited(now, wait)
            if entrance.observe and wait > entrance.depth.max_wait:
                telemetry.would_refuse[Reason.WAIT_TIMEOUT] += 1
        places = 1
        if (note := ticket.note) is not None:
            places = note.places
            self.accounts.begun(note, now)
        self.in_flight = in_flight = self.in_flight + places
        telemetry.started += now * places
        telemetry.admitted[ticket.level] += 1
        if in_flight > telemetry.peak:
            telemetry.peak = in_flight
        ticket.state = RUNNING
        ticket.started = now
        ticket.crowd = in_flight
        self._running[ticket] = None
        if self.intake.paced:
            self.intake.began(now)
        self.limit.on_admit(now, in_flight)
        self._read_limit(now)

    def _rests(self) -> bool:
        """Whether nobody begins until the loop has taken in who waits. With no queue all begin."""
        return self.intake.spent and self.entrance.max_queue > 0.0

    def _limit_binds(self) -> bool:
        """Whether it is the limit, as it was learned, that keeps somebody from running."""
        return self.places == self.learned and not (self.intake.spent and self._rests())

    def _move_out(self, ticket: Ticket, now: float) -> None:
        """`ticket` is long-lived: it gives its places back and runs on.

        What it has shown is heard now: an answer that began took as long as it took, and one
        that did not teaches nothing.
        """
        del self._running[ticket]
        self.long_lived.take(ticket)
        places, started = ticket.places, ticket.started
        held = now - started
        telemetry = self.telemetry
        self.in_flight -= places
        telemetry.started -= started * places
        telemetry.held += held * places
        self._extra += held * (places - 1)
        if now > ticket.deadline:
            telemetry.wasted += held * places
        if ticket.note is not None:
            self.accounts.moved_out(ticket.note, held, now)
        answered = ticket.answered_at
        self.limit.on_finish(
            now,
            answered - started if answered else held,
            ticket.crowd,
            _SUCCESS if answered else _IGNORED,
            held,
        )

    def _finish_long_lived(self, ticket: Ticket, now: float, outcome: Outcome) -> bool:
        """One that ran without a place has ended, unless it did not run (any more)."""
        if not self.long_lived.leave(ticket):
            return False
        ticket.state = ENDED
        if now > ticket.deadline and outcome is _SUCCESS:
            outcome = Outcome.OVERLOAD
        telemetry = self.telemetry
        telemetry.finished[outcome] += 1
        telemetry.latency.add(max(0.0, (ticket.answered_at or now) - ticket.started))
        if ticket.note is not None:
            self.accounts.ended(ticket.note, 0.0, now)
        return True

    def _settle_note(self, ticket: Ticket, note: Note, held: float, now: float) -> None:
        """What a request with a note leaves behind, beyond what every request does."""
        if more := note.places - 1:
            self.in_flight -= more
            self.telemetry.started -= more * ticket.started
            self.telemetry.held += more * held
            self._extra += more * held
            if now > ticket.deadline:
                self.telemetry.wasted += more * held
        self.accounts.ended(note, held, now)

    def _contend(self, now: float) -> None:
        """Somebody with a name waits or was refused: for a while everyone is compared."""
        self._contended_until = now + CONTENDED
        if not self.contended:
            self.contended = True
            self._set_open()

    def _set_open(self) -> None:
        if self.draining or self.observe:
            self.open = self.places
        elif self.bypassed:
            self.open = _EVERYONE
        elif self.contended or self._gathering or self.intake.paced or self.accounts.careful:
            self.open = 0
        else:
            self.open = self.places

    def _follow_limit(self, now: float) -> None:
        if self.limit.limit != self.learned:
            self._moved(now)

    def _braked(self) -> int:
        """The limit less what signals take from it; something always runs."""
        # Rounded: a light touch of the brake must not halve a service of two places.
        return self.learned if self.brake >= 1.0 else max(1, round(self.learned * self.brake))

    def _read_limit(self, now: float) -> None:
        # A limit of the user's own may answer anything. Whatever is not a number of at least
        # one changes nothing: the last good number stays (NaN compares false here).
        learned = self.limit.limit
        if learned >= 1:
            self.learned = int(learned)
        places = 0 if self.draining else self._braked()
        if places != self.places:
            if places and self.places:
                self.telemetry.note_limit(now, self.places, places)
            self.places = places
            self.entrance.follow(places or self._braked())
