"""What is one request, on its way through admission?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from loadgate.decisions import Refuse
from loadgate.plain_fields import plain_fields
from loadgate.shedding.fairness import Hand
from loadgate.shedding.shares import ClassShare, Holders

# Plain integers: the hot path compares them, and an IntEnum member costs a lookup each time.
NEW: Final = 0
WAITING: Final = 1
RUNNING: Final = 2
ENDED: Final = 3

_INF: Final = float("inf")


class Note(msgspec.Struct, eq=False, gc=False):
    """What few requests need; those who do not have none, and pay for one look.

    Attributes:
        places: Places the request occupies while it runs.
        hand: Its client's slots in the table of fair shares, None if it is not accounted.
        expected: Place-seconds its client was charged when it asked.
        tag: Its start tag.
        share: The class that it is counted in, if classes have reserves.
        holder: The client that it is counted for, if clients have a cap,
        holders: and in which books.
    """

    places: int = 1
    hand: Hand | None = None
    expected: float = 0.0
    tag: float = 0.0
    share: ClassShare | None = None
    holder: str | bytes | None = None
    holders: Holders | None = None


@plain_fields
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
        client: Who asks: a key, or a mapping of several.
        note: What few requests need, None for the others.
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
    client: str | bytes | Mapping[str, str | bytes] | None = None
    note: Note | None = None

    def runs(self) -> bool:
        """Whether it has a place."""
        return self.state == RUNNING

    @property
    def places(self) -> int:
        """Places that it occupies while it runs."""
        return 1 if self.note is None else self.note.places

    def take_note(self) -> Note:
        """Its note, made now if it has none."""
        note = self.note
        if note is None:
            note = self.note = Note()
        return note
