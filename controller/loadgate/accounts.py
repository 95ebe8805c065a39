"""What is kept of the few who need it: fair shares, reserved places, places per client.

Nothing of this is asked on the way of a request that finds a free place while nobody was
refused or had to wait for some seconds. The admission says when; this module says what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadgate.shedding.fairness import FairShares, Key
from loadgate.shedding.shares import Holders, Reserves
from loadgate.ticket import Note, Ticket

# Seconds without a named client waiting or being refused after which the service is at ease
# again: two time constants of the fair shares, when what was accounted has faded to 14 %.
CONTENDED = 4.0


class Accounts:
    """The books of one admission.

    Args:
        shares: Usage of clients, None if fair shares are not asked for.
        fair_by: Which key of a client with several is its account; the first if it has no such.
        reserves: Reserved shares of the classes, None if there are none.
        holders: Places of each client, None if there is no cap.

    Attributes:
        careful: Whether every request must be counted, contended or not.
        named: Whether a client with a name has ever had to ask: without, all share one tag, and
            nothing has to be compared.
    """

    __slots__ = ("careful", "fair_by", "holders", "named", "reserves", "shares")

    def __init__(
        self,
        shares: FairShares | None = None,
        fair_by: str = "client",
        reserves: Reserves | None = None,
        holders: Holders | None = None,
    ) -> None:
        self.shares = shares
        self.named = False
        self.follow(fair_by, reserves, holders)

    def follow(self, fair_by: str, reserves: Reserves | None, holders: Holders | None) -> None:
        """Go on with other settings; whoever is counted already stays counted where it is."""
        self.fair_by = fair_by
        self.reserves = reserves
        self.holders = holders
        self.careful = reserves is not None or holders is not None

    def account_of(self, ticket: Ticket) -> Key | None:
        """Whose request it is, None if nobody said."""
        client = ticket.client
        if isinstance(client, Mapping):
            found = client.get(self.fair_by)
            return found if found is not None else next(iter(client.values()), None)
        return client

    # -- fair shares --------------------------------------------------------------------

    def tag(self, ticket: Ticket, expected: float, now: float) -> float:
        """The start tag of a request that has to ask; its client is charged `expected` seconds."""
        shares, account = self.shares, self.account_of(ticket)
        if shares is None or (account is None and not self.named):
            return 0.0
        self.named = True
        note = ticket.take_note()
        note.hand = shares.deal(account)
        note.expected = expected * note.places
        note.tag = shares.ask(note.hand, note.expected, now)
        return note.tag

    def level(self, now: float) -> float:
        """What a typical client of those started lately has used lately, place-seconds."""
        return self.shares.level(now) if self.shares is not None else 0.0

    # -- places -------------------------------------------------------------------------

    def enter(self, ticket: Ticket, places: int) -> tuple[int, int] | None:
        """Count a request that wants to run or wait, where every request is counted.

        Returns:
            None if it may; else what its client would hold with it, and the bound.
        """
        note = ticket.take_note()
        holders = self.holders
        if holders is not None and (account := self.account_of(ticket)) is not None:
            held, bound = holders.held(account) + note.places, holders.bound(places)
            if held > bound:
                return held, bound
            holders.take(account, note.places)
            note.holder, note.holders = account, holders
        if self.reserves is not None:
            note.share = self.reserves.of(ticket.level)
        return None

    def begun(self, note: Note, now: float) -> None:
        """A request with a note has got its places."""
        if note.share is not None:
            note.share.in_flight += note.places
        if note.hand is not None and self.shares is not None:
            self.shares.started(note.hand, note.expected, now)

    def moved_out(self, note: Note, held: float, now: float) -> None:
        """It runs on without its places after `held` seconds; a cap still counts them."""
        if note.share is not None:
            note.share.in_flight -= note.places
        if note.hand is not None and self.shares is not None:
            self.shares.correct(note.hand, held * note.places - note.expected, now)
        note.share = note.hand = None

    def ended(self, note: Note, held: float, now: float) -> None:
        """It has given them back after `held` seconds."""
        if note.share is not None:
            note.share.in_flight -= note.places
        if note.hand is not None and self.shares is not None:
            self.shares.correct(note.hand, held * note.places - note.expected, now)
        if note.holder is not None:
            self._leave(note)

    def gone(self, note: Note, now: float) -> None:
        """It goes without having run."""
        if note.hand is not None and self.shares is not None:
            self.shares.refused(note.hand, note.expected, now)
        if note.holder is not None:
            self._leave(note)

    def _leave(self, note: Note) -> None:
        if note.holder is not None and note.holders is not None:
            note.holders.give_back(note.holder, note.places)
        note.holder = note.holders = None


def reserves_for(
    names: Sequence[str], reserve: Mapping[str, float], before: Reserves | None = None
) -> Reserves | None:
    """The books of the classes that these settings need: who runs already stays counted."""
    if not reserve:
        return None
    if before is None:
        return Reserves(names, reserve)
    before.follow(names, reserve)
    return before


def holders_for(max_share: float | None, before: Holders | None = None) -> Holders | None:
    """The books of the clients that this setting needs: who holds places stays counted."""
    if max_share is None:
        return None
    if before is None:
        return Holders(max_share)
    before.max_share = max_share
    return before
