"""Who may wait when no place is free, and who must go instead?

The thresholds of the queue, the rule by which refusals grow with it, the start tags that say
who has had the most, and what the drain of the queue says about time: all that `Admission`
asks about one that found no free place.
"""

from __future__ import annotations

from typing import Final

from loadgate.accounts import Accounts
from loadgate.decisions import Reason
from loadgate.shedding.depth import DepthRule
from loadgate.shedding.drain import DrainRate
from loadgate.shedding.intake import Intake
from loadgate.shedding.laws import Law
from loadgate.ticket import Ticket
from loadgate.waiting import WaitingRoom

# Looking up a member of an enum costs as much as a comparison.
_FULL: Final = Reason.QUEUE_FULL
_TOO_LONG: Final = Reason.QUEUE_SHED
_UNFAIR: Final = Reason.FAIR_SHARE
_OUTRANKED: Final = Reason.PRIORITY

# Who must go, why, and the numbers compared.
Verdict = tuple[Ticket, Reason, float, float]


class Entrance:
    """The way in to a queue in front of the places.

    Args:
        depth: How deep the queue may be.
        law: How refusals grow with it.
        room: Where waiters wait and in what order they leave.
        accounts: Fair shares, reserves and caps.

    Attributes:
        drain: How fast places become free.
        intake: How many may begin before a late event loop takes in who waits.
        rate: Requests a second that get a place while all are taken.
        max_queue: Waiters up to which everyone may wait, now.
        max_depth: Waiters at which someone must go for each arrival, now.
        observe: The queue refuses nobody; what it would have refused is counted.
    """

    __slots__ = (
        "accounts", "depth", "drain", "intake", "law", "max_depth", "max_queue", "observe", "rate",
        "room",
    )  # fmt: skip

    def __init__(
        self, depth: DepthRule, law: Law, room: WaitingRoom[Ticket], accounts: Accounts
    ) -> None:
        self.depth = depth
        self.law = law
        self.room = room
        self.accounts = accounts
        self.observe = False
        self.drain = DrainRate()
        self.intake = Intake()
        self.rate = 0.0
        self.max_queue = self.max_depth = 0.0

    def follow(self, places: int) -> None:
        """Work out what depends on how fast places become free: at each checkpoint.

        Before anything has finished each place is taken to be free again after `max_wait`:
        then half as many as run may wait, which is what the derived queue allows a service
        whose latency is just `max_wait`.
        """
        self.rate = self.drain.rate(places) or places / max(self.depth.max_wait, 1e-3)
        if self.intake.cost > 0.0:
            self.rate = min(self.rate, 1.0 / self.intake.cost)
        self.max_queue, self.max_depth = self.depth.thresholds(self.rate)

    # -- time ---------------------------------------------------------------------------

    def held(self) -> float:
        """Seconds that a request holds its place, as far as one can tell."""
        return self.drain.latency or self.depth.max_wait

    def answer_in(self, level: int, now: float) -> float:
        """Seconds until an arrival of class `level` would be answered: wait and service."""
        room = self.room
        return (room.ahead_of(level, now) + 1) / self.rate + self.drain.latency

    def drained_in(self) -> float:
        """Seconds until those who wait now, and one more, will have got their places."""
        return (self.room.depth + 1) / self.rate

    # -- who must go ----------------------------------------------------------------------

    def pressed(self, draw: float, now: float) -> tuple[Reason, float] | None:
        """Whether someone must go for an arrival to wait: the reason and its bound, or None."""
        depth = self.room.depth
        max_queue, max_depth = self.max_queue, self.max_depth
        if depth >= max_depth or max_queue <= 0.0:
            return _FULL, max_depth
        if draw >= self.law.chance(depth, max_queue, max_depth, self.rate, now):
            return _TOO_LONG, max_queue
        return None

    def may_wait(self, ticket: Ticket) -> bool:
        """Whether there is a chance that an arrival may wait, without deciding anything."""
        room = self.room
        if self.observe or (room.depth < self.max_depth and self.max_queue > 0.0):
            return True
        # Somebody who waits may have to go instead.
        compared = self.accounts.named or self.accounts.reserves is not None
        return room.depth > 0 and (compared or room.waits_below(ticket.level))

    def tag(self, ticket: Ticket, now: float) -> float:
        """Compare the client of an arrival with the others, if any of them has a name."""
        if ticket.client is None and not self.accounts.named:
            return 0.0
        return self.accounts.tag(ticket, self.held(), now)

    def loser(
        self, ticket: Ticket, reason: Reason, bound: float, places: int, now: float
    ) -> Verdict:
        """Who must go: the arrival, or someone who waits and is taken out of the room now.

        Of the lowest class the largest tag goes. A class whose reserved places are not taken
        keeps its waiters, and its arrival may take the wait of anyone else.

        Args:
            ticket: The arrival.
            reason: Why someone must go.
            bound: The depth that was passed.
            places: The limit, for the reserves.
            now: Monotonic seconds.
        """
        room, accounts = self.room, self.accounts
        depth = room.depth
        tag = self.tag(ticket, now)
        level = ticket.level
        if (reserves := accounts.reserves) is None:
            goes = room.evict(level, tag)
        else:

            def spared(lower: int, waiting: int) -> bool:
                return reserves.protects(lower, waiting, places)

            owed = spared(level, room.depth_of(level) + 1)
            goes = room.evict(0, -1.0, spared) if owed else room.evict(level, tag, spared)
        typical = accounts.level(now)
        if goes is None:
            # Above twice the level that is the reason, and not the length of the queue; below,
            # the difference says nothing: a lone client is its own level.
            if tag > typical > 0.0:
                return ticket, _UNFAIR, tag + typical, typical
            return ticket, reason, depth, bound
        if goes.level == level and goes.note is not None:
            return goes, _UNFAIR, goes.note.tag + typical, typical
        return goes, _OUTRANKED, depth, bound

    def push(self, ticket: Ticket, now: float) -> None:
        """Let `ticket` wait."""
        note = ticket.note
        if note is None or note.hand is None:
            self.room.push(ticket, ticket.level, now)
        else:
            self.room.push(ticket, ticket.level, now, note.tag)
