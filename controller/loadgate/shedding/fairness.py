"""Who has had more than others lately? Start tags for those who ask while the service is full.

Every client has a usage: the seconds for which it held places, forgotten with a time constant
of `MEMORY`. A request that has to ask gets a *start tag*: what its client has used beyond the
level at which the others are, 0 for all who are not beyond it. Then the seconds it is expected
to hold are added to the usage, and corrected when it has really ended. When someone must go,
the largest tag goes, which takes from the heaviest first until all heavy ones have the same:
max-min fair shares.

This is start-time fair queueing (Goyal, Vin and Cheng, 1996) with two changes. Its virtual time
is the tag in service, which is right only if the smallest tag is always served next; here the
discipline may be another, so the level takes its place: the mean usage of those who were
started lately, which never lies above the fair share (a mean of amounts none of which is above
it). And usage fades with time instead of being overtaken by virtual time, so that one busy hour
does not follow a client for the rest of the day.

A client that nobody knows ranks no higher than one who asked politely all the time: both have
the tag 0. Asking in vain counts like being served, so asking more often never helps; but
refusals alone raise a usage to at most `VAIN_CAP` times the level, from where silence or
politeness brings it back within about two time constants (the logarithm of 8 is 2.1).

The table is bounded and shuffle-sharded (Amazon's word; Kubernetes' fair queuing deals hands
of queues in the same way): each client is dealt one slot in each of `hand` rows by a hash, and
its usage is what the least used of them says. It is counted too high only if every one of its
slots is shared with a heavier client: with `k` heavy clients that happens to a share of about
`(k / slots) ** hand` of the others, one in a million for one heavy client and the default of
1024 slots and a hand of 2 (see `collision`). Nothing is ever evicted, so nobody can be made
new by flooding the table with names.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from typing import Final

# Seconds after which a usage has fallen to 37 %. Long beside one request and beside the pause
# of a client that was told to come back in a second, short beside a person's patience.
MEMORY: Final = 2.0
# See the module's text.
VAIN_CAP: Final = 8.0
# Starts over which the level is averaged: some ten make it steady, and at 100 a second it still
# follows within a second.
_LEVEL_STARTS: Final = 32.0

Key = str | bytes
Hand = tuple[int, ...]


def collision(heavy: int, slots: int, hand: int) -> float:
    """The share of light clients that `heavy` heavy ones can hide: all of their slots are hit."""
    return float((1.0 - (1.0 - 1.0 / slots) ** heavy) ** hand)


class FairShares:
    """Usage of clients in a table of fixed size, and the tags that follow from it.

    Args:
        slots: Slots in each row, a power of two.
        hand: Slots that each client is dealt, one in each row; `slots ** hand` may not exceed
            2 ** 60, the bits of a hash.
        digest: The hash. Python's own is keyed anew in each process, which keeps an attacker
            from choosing names that collide with a victim's (unless PYTHONHASHSEED is fixed).

    Raises:
        ValueError: The table cannot be made.
    """

    __slots__ = ("_digest", "_level", "_level_at", "_mask", "_rows", "_stamps", "_usage")

    def __init__(
        self, slots: int = 1024, hand: int = 2, *, digest: Callable[[Key], int] = hash
    ) -> None:
        bits = slots.bit_length() - 1
        if slots < 1 or slots & (slots - 1) or hand < 1 or bits * hand > 60:
            raise ValueError(
                f"{slots} slots and a hand of {hand}: slots must be a power of two and "
                "slots ** hand at most 2 ** 60"
            )
        self._mask = slots - 1
        self._rows = tuple((row * bits, row * slots) for row in range(hand))
        self._digest = digest
        # One slot more, for all who have no name.
        self._usage = [0.0] * (slots * hand + 1)
        self._stamps = [0.0] * (slots * hand + 1)
        self._level = 0.0
        self._level_at = 0.0

    def deal(self, client: Key | None) -> Hand:
        """The slots of `client`; those without a name share one."""
        if client is None:
            return (len(self._usage) - 1,)
        digest, mask = self._digest(client), self._mask
        return tuple([(digest >> shift & mask) + offset for shift, offset in self._rows])

    def usage(self, hand: Hand, now: float) -> float:
        """Place-seconds that whoever has this hand used lately, at most (see the module)."""
        return min([self._faded(slot, now) for slot in hand])

    def level(self, now: float) -> float:
        """Place-seconds that a typical client of those started lately used lately."""
        # It fades only when nobody is started any more: while it follows usage, that fades itself.
        return self._level * exp(min(0.0, 1.0 - (now - self._level_at) / MEMORY))

    def ask(self, hand: Hand, expected: float, now: float) -> float:
        """The start tag of a request, which is then charged what it is expected to hold.

        Args:
            hand: Of its client (`deal`).
            expected: Place-seconds it will hold, as far as one can tell.
            now: Monotonic seconds.
        """
        used = self.usage(hand, now)
        self._raise(hand, used + expected, now)
        return max(0.0, used - self.level(now))

    def refused(self, hand: Hand, expected: float, now: float) -> None:
        """One that was charged `expected` when it asked goes in vain: it gets the excess back."""
        over = self.usage(hand, now) - VAIN_CAP * max(self.level(now), expected)
        if over > 0.0:
            self.correct(hand, -min(expected, over), now)

    def started(self, hand: Hand, expected: float, now: float) -> None:
        """One that was charged `expected` has got its place: the level follows its client."""
        before = max(0.0, self.usage(hand, now) - expected)
        level = self.level(now)
        self._level = level + (before - level) / _LEVEL_STARTS
        self._level_at = now

    def correct(self, hand: Hand, difference: float, now: float) -> None:
        """It held its places for `difference` seconds more (less) than it was charged."""
        if difference > 0.0:
            self._raise(hand, self.usage(hand, now) + difference, now)
            return
        for slot in hand:
            self._usage[slot] = max(0.0, self._faded(slot, now) + difference)
            self._stamps[slot] = now

    def _faded(self, slot: int, now: float) -> float:
        used = self._usage[slot]
        # A clock that steps back makes nobody heavier.
        return used * exp(min(0.0, (self._stamps[slot] - now) / MEMORY)) if used else 0.0

    def _raise(self, hand: Hand, to: float, now: float) -> None:
        """Raise to `to` what lies below it: a slot that others share is not charged twice."""
        for slot in hand:
            if self._faded(slot, now) < to:
                self._usage[slot] = to
                self._stamps[slot] = now
