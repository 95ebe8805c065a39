"""Who runs, who waits, who is refused? The state machine behind every door.

It is synchronous: numbers go in, decisions come out, and whoever drives it (the controller,
the simulator) does the waiting. A ticket moves NEW → RUNNING → ENDED, or NEW → WAITING →
RUNNING | ENDED, and each move happens once: whoever comes second finds the ticket elsewhere
and does nothing. That is what makes a timeout that races a grant harmless.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import msgspec

from loadgate.decisions import ADMIT, Admit, Outcome, Reason, Refuse, Stage, Wait
from loadgate.limits.base import Limit
from loadgate.shedding.depth import DepthRule, survival
from loadgate.shedding.drain import DrainRate
from loadgate.telemetry import Telemetry
from loadgate.waiting import WaitingRoom

# Plain integers: the hot path compares them, and an IntEnum member costs a lookup each time.
NEW: Final = 0
WAITING: Final = 1
RUNNING: Final = 2
ENDED: Final = 3

_INF: Final = float("inf")
_SUCCESS: Final = Outcome.SUCCESS

# Bounds in seconds of what a 503 tells the client: a browser or proxy that comes back within
# the second finds the same queue, and nobody believes a promise beyond half a minute.
_RETRY_FLOOR: Final = 1.0
_RETRY_CEILING: Final = 30.0


class Ticket(msgspec.Struct, eq=False, gc=False):
    """One request on its way through admission. Compared by identity.

    gc=False: a ticket never refers to anything that refers back to it once it has ended, so
    reference counting alone frees it; the collector would only slow the hot path.

    Attributes:
        level: Priority class, 0 is served first.
        deadline: Monotonic seconds after which the answer is worthless, inf for never.
        state: NEW, WAITING, RUNNING or ENDED.
        arrived: When it came, for one that found no free place.
        started: When it got its place.
        wait: Seconds it waited for its place.
        answered_at: When the first message of its answer left, 0.0 until then.
        until: When its wait ends at the latest.
        crowd: `in_flight` at its admission, itself included.
        refusal: Why it was refused, if it was.
    """

    level: int = 0
    deadline: float = _INF
    state: int = NEW
    arrived: float = 0.0
    started: float = 0.0
    wait: float = 0.0
    answered_at: float = 0.0
    until: float = 0.0
    crowd: int = 0
    refusal: Refuse | None = None

    def runs(self) -> bool:
        """Whether it has a place."""
        return self.state == RUNNING


class Admission:
    """Places under a moving limit, and a bounded queue in front of them.

    Args:
        limit: How many may run at once; the only thing that learns.
        depth: How deep the queue may be.
        room: Where waiters wait and in what order they leave.
        telemetry: The counters to keep.
        observe: Decide and count what would have been refused, but let everyone through.

    Attributes:
        ended_waits: Tickets whose wait has ended (RUNNING or refused) since the caller last
            looked. The caller takes them out and wakes whoever waits for them.
        places: The limit as it is enforced now; 0 while draining.
        draining: Whether `close` was called.
    """

    __slots__ = (
        "_last_places",
        "_max_depth",
        "_max_queue",
        "_rate",
        "depth",
        "drain",
        "draining",
        "ended_waits",
        "in_flight",
        "limit",
        "observe",
        "places",
        "room",
        "telemetry",
    )

    def __init__(
        self,
        limit: Limit,
        depth: DepthRule,
        room: WaitingRoom[Ticket],
        telemetry: Telemetry,
        *,
        observe: bool = False,
    ) -> None:
        self.limit = limit
        self.depth = depth
        self.room = room
        self.telemetry = telemetry
        self.observe = observe
        self.drain = DrainRate()
        self.draining = False
        self.in_flight = 0
        self.places = self._last_places = int(limit.limit)
        self.ended_waits: list[Ticket] = []
        self._follow_drain()

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

    def start(self, ticket: Ticket, now: float) -> bool:
        """Give a NEW ticket a place if one is free.

        Nobody waits while a place is free, so there is no queue to jump.
        """
        in_flight = self.in_flight
        places = self.places
        if in_flight >= places:
            return False
        self.in_flight = in_flight = in_flight + 1
        telemetry = self.telemetry
        telemetry.started += now
        telemetry.admitted[ticket.level] += 1
        if in_flight > telemetry.peak:
            telemetry.peak = in_flight
        if in_flight == places:
            telemetry.full_since = now
        ticket.state = RUNNING
        ticket.started = now
        ticket.crowd = in_flight
        limit = self.limit
        limit.on_admit(now, in_flight)
        if limit.limit != places:
            self._moved(now)
        return True

    def join(self, ticket: Ticket, now: float, draw: float) -> Admit | Wait | Refuse:
        """Decide about a NEW ticket for which `start` found no place."""
        ticket.arrived = now
        if self.draining:
            return self._refuse(ticket, Stage.SHED, Reason.DRAINING, self.in_flight, 0.0)
        if ticket.deadline <= now:
            left = ticket.deadline - now
            return self._refuse(ticket, Stage.SHED, Reason.DEADLINE, 0.0, left)
        if self.observe:
            return self._wave_through(ticket, now, draw)

        depth = self.room.depth
        if ticket.deadline != _INF:
            expected = (depth + 1) / self._rate + self.drain.latency
            if now + expected > ticket.deadline:
                left = ticket.deadline - now
                refusal = self._refuse(ticket, Stage.SHED, Reason.DEADLINE, expected, left)
                return self._told(refusal, now)
        max_queue = self._max_queue
        if depth >= self._max_depth or max_queue <= 0.0:
            reason, bound, someone_goes = Reason.QUEUE_FULL, self._max_depth, True
        else:
            reason, bound = Reason.QUEUE_SHED, max_queue
            someone_goes = draw >= survival(depth, max_queue)
        self._settle_queue(now)
        if someone_goes:
            lowest = self.room.pop_below(ticket.level)
            if lowest is None:
                refusal = self._refuse(ticket, Stage.LIMIT, reason, depth, bound)
                return self._told(refusal, now)
            self.telemetry.evicted += 1
            self._refuse(lowest, Stage.LIMIT, Reason.PRIORITY, depth, bound)
            self.ended_waits.append(lowest)

        ticket.state = WAITING
        ticket.until = min(now + self.depth.max_wait, ticket.deadline)
        self.room.push(ticket, ticket.level, now)
        self.limit.on_wait(now)
        self._follow_limit(now)
        # A limit may rise the moment it hears of a waiter; then the wait is already over.
        return ADMIT if ticket.runs() else Wait(ticket.until)

    def refuse_early(self, ticket: Ticket, now: float) -> Refuse | None:
        """Refuse a NEW ticket for which there is no hope, before it asks anything that takes time.

        Returns:
            None if it may go on; nothing has happened then.
        """
        if self.in_flight < self.places and ticket.deadline > now:
            return None
        if self.draining or ticket.deadline <= now:
            return self.refuse_at_once(ticket, now)
        if self.observe or (self.room.depth < self._max_depth and self._max_queue > 0.0):
            return None
        lower = range(ticket.level + 1, self.room.classes)
        if any(self.room.depth_of(level) for level in lower):
            return None  # one of them would make room
        depth, bound = self.room.depth, self._max_depth
        return self._told(self._refuse(ticket, Stage.LIMIT, Reason.QUEUE_FULL, depth, bound), now)

    def refuse_at_once(self, ticket: Ticket, now: float) -> Refuse:
        """Refuse a NEW ticket that cannot wait and for which `start` found no place."""
        if self.draining or ticket.deadline <= now:
            refusal = self.join(ticket, now, 0.0)
            assert isinstance(refusal, Refuse)  # it refuses both before it asks anything else
            return refusal
        depth = self.room.depth
        return self._told(self._refuse(ticket, Stage.LIMIT, Reason.QUEUE_FULL, depth, 0.0), now)

    def refuse_late_loop(self, ticket: Ticket, now: float, lag: float, bound: float) -> Refuse:
        """Refuse a NEW ticket because the event loop is `lag` seconds late."""
        return self._told(self._refuse(ticket, Stage.SHED, Reason.LOOP_LAG, lag, bound), now)

    # -- leaving ----------------------------------------------------------------------

    def finish(self, ticket: Ticket, now: float, outcome: Outcome) -> bool:
        """A RUNNING ticket has ended; its place goes to whoever is next.

        Returns:
            False, and nothing happens, if the ticket does not run (any more).
        """
        if ticket.state != RUNNING:
            return False
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
        in_flight = self.in_flight = self.in_flight - 1
        telemetry.started -= started
        telemetry.held += held
        telemetry.finished[outcome] += 1
        histogram = telemetry.latency  # `add` written out: a call costs as much as the rest
        histogram.counts[bisect_left(histogram.edges, latency)] += 1
        histogram.sum += latency
        limit = self.limit
        limit.on_finish(now, latency, ticket.crowd, outcome, held)
        if now >= self.drain.due:
            self.drain.checkpoint(now, telemetry.held, sum(telemetry.finished.values()))
            self._follow_drain()
        if in_flight + 1 >= self.places or limit.limit != self.places:
            self._moved(now)
        return True

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
        return True

    def expire(self, ticket: Ticket, now: float) -> Refuse | None:
        """End the wait of a WAITING ticket whose time is up.

        Returns:
            Why it is refused; None, and nothing happens, if it does not wait (any more).
        """
        if ticket.state != WAITING:
            return None
        self._settle_queue(now)
        self.room.remove(ticket, ticket.level)
        refusal = self._too_late(ticket, now)
        self._follow_limit(now)
        return refusal

    # -- the world --------------------------------------------------------------------

    def stalled(self, now: float, duration: float) -> None:
        """The event loop stood still for `duration` seconds until `now`."""
        self.telemetry.stalls += 1
        self.telemetry.stalled += duration
        self.limit.on_stall(now, duration)
        self._follow_limit(now)

    def change(self, now: float, limit: Limit, depth: DepthRule, *, observe: bool) -> None:
        """Go on under other rules: nobody who runs or waits is lost."""
        if limit is not self.limit:
            self.limit = limit
            for crowd in range(1, self.in_flight + 1):
                limit.on_admit(now, crowd)  # it will hear of their ends
        self.depth = depth
        self.observe = observe
        self._follow_drain()
        self._settle_queue(now)
        if observe:
            while self.room.depth:
                self._run(self.room.pop(now), now)
        self._moved(now)

    def close(self, now: float) -> None:
        """Refuse every arrival and everyone who waits; those who run go on."""
        if not self.draining:
            self._last_places = self.places
        self.draining = True
        self._moved(now)
        self._settle_queue(now)
        while (ticket := self.room.pop_any()) is not None:
            self._refuse(ticket, Stage.SHED, Reason.DRAINING, self.in_flight, 0.0)
            self.ended_waits.append(ticket)

    def reopen(self, now: float) -> None:
        """Admit again."""
        if not self.draining:
            return
        self.draining = False
        self.places = self._last_places
        self._moved(now)

    def thresholds(self) -> tuple[float, float]:
        """`(max_queue, max_depth)` as they are now."""
        return self._max_queue, self._max_depth

    # -- inside -----------------------------------------------------------------------

    def _follow_drain(self) -> None:
        """Work out what depends on how fast places become free: at each checkpoint.

        Before anything has finished each place is taken to be free again after `max_wait`:
        then half as many as run may wait, which is what the derived queue allows a service
        whose latency is just `max_wait`.
        """
        places = self.places or self._last_places
        self._rate = self.drain.rate(places) or places / max(self.depth.max_wait, 1e-3)
        self._max_queue, self._max_depth = self.depth.thresholds(self._rate)

    def _moved(self, now: float) -> None:
        """Something that may let a waiter in, or shut the door, has happened."""
        self._read_limit(now)
        if self.room.depth:
            self._settle_queue(now)
            while self.room.depth and self.in_flight < self.places:
                ticket = self.room.pop(now)
                if ticket.until <= now:
                    self._too_late(ticket, now)
                    self.ended_waits.append(ticket)
                    self._read_limit(now)
                else:
                    self._run(ticket, now)
        self.telemetry.note_fullness(now, self.in_flight >= self.places)

    def _follow_limit(self, now: float) -> None:
        if self.limit.limit != self.places:
            self._moved(now)

    def _read_limit(self, now: float) -> None:
        if self.draining:
            self.places = 0
            return
        places = self.limit.limit
        # A limit of the user's own may answer anything. Whatever is not a number of at least
        # one changes nothing: the last good number stays (NaN compares false here).
        if places >= 1 and (places := int(places)) != self.places:
            self.telemetry.note_limit(now, self.places, places)
            self.places = places
            self._follow_drain()

    def _run(self, ticket: Ticket, now: float) -> None:
        """Give a place to one that had to wait for it, and tell the caller."""
        self.in_flight += 1
        telemetry = self.telemetry
        telemetry.started += now
        telemetry.admitted[ticket.level] += 1
        if self.in_flight > telemetry.peak:
            telemetry.peak = self.in_flight
        ticket.state = RUNNING
        ticket.started = now
        ticket.wait = now - ticket.arrived
        ticket.crowd = self.in_flight
        telemetry.wait.add(ticket.wait)
        self.ended_waits.append(ticket)
        self.limit.on_admit(now, self.in_flight)
        self._read_limit(now)

    def _wave_through(self, ticket: Ticket, now: float, draw: float) -> Admit:
        """In `observe` mode those above the limit stand for the queue that is not kept."""
        depth = max(0, self.in_flight - self.places)
        if depth >= self._max_depth:
            self.telemetry.would_refuse[Reason.QUEUE_FULL] += 1
            self.limit.on_refuse(now)
        elif draw >= survival(depth, self._max_queue):
            self.telemetry.would_refuse[Reason.QUEUE_SHED] += 1
            self.limit.on_refuse(now)
        else:
            self.limit.on_wait(now)
        self._run(ticket, now)
        self.ended_waits.remove(ticket)  # it did not wait; nobody needs to be told
        return ADMIT

    def _too_late(self, ticket: Ticket, now: float) -> Refuse:
        """The ticket is out of the room and its wait is over; the limit may move."""
        reason = Reason.DEADLINE if ticket.until >= ticket.deadline else Reason.WAIT_TIMEOUT
        waited, bound = now - ticket.arrived, ticket.until - ticket.arrived
        refusal = self._refuse(ticket, Stage.LIMIT, reason, waited, bound)
        self.limit.on_refuse(now)
        return refusal

    def _told(self, refusal: Refuse, now: float) -> Refuse:
        """The limit hears that someone was turned away because the service is full."""
        limit = self.limit
        limit.on_refuse(now)
        if limit.limit != self.places:
            self._moved(now)
        return refusal

    def _refuse(
        self, ticket: Ticket, stage: Stage, reason: Reason, observed: float, bound: float
    ) -> Refuse:
        ticket.state = ENDED
        telemetry = self.telemetry
        telemetry.refused[reason] += 1
        telemetry.overloaded[ticket.level] += 1
        # What stands in the queue now will have drained by then.
        drained = (self.room.depth + 1) / self._rate
        if drained < _RETRY_FLOOR:
            drained = _RETRY_FLOOR
        elif drained > _RETRY_CEILING:
            drained = _RETRY_CEILING
        refusal = Refuse(stage, reason, drained, observed, bound)
        ticket.refusal = refusal
        return refusal

    def _settle_queue(self, now: float) -> None:
        """Bring the integral of the waiters up to `now`, before their number changes."""
        telemetry = self.telemetry
        if (passed := now - telemetry.queued_at) > 0.0:
            telemetry.queued += self.room.depth * passed
        telemetry.queued_at = now
