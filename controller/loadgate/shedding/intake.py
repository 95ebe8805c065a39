"""How many requests may begin before the event loop sees who else has come?

While a handler computes nobody is accepted, read or refused. A loop that starts whoever has
arrived works for those who came first and have waited longest; above its capacity everybody is
answered too late. So while the loop is late requests are paced: as much work begins as a turn of
a loop on time has room for, and more only when all who wait have been taken in. Then whoever is
served was chosen among everybody who came, and the others know at once that they were not.

It is the remedy of Mogul and Ramakrishnan against the receive livelock (USENIX 1996), turned
round: there taking in starves the work, here the work starves the taking in.
"""

from __future__ import annotations

from math import inf
from typing import Final

# A loop is late from this share of the allowed lag on, 10 ms by default: two ticks of its watch.
# As much work may begin between two looks. At least one tick, as a tick may be late by chance.
_LATE: Final = 0.1
_LEAST_LATE: Final = 0.005

# Seconds on time after which everyone begins at once again: ten periods of the brakes.
_CALM: Final = 1.0

# Turns in a row without an arrival after which all who waited are in. Behind Hypercorn a request
# reaches the application four turns after it was accepted, and uvloop accepts one in each.
_QUIET: Final = 8

# More may come in each turn and never end. So taking in lasts at most this many times as long as
# the work before it, and this share of the allowed lag, 50 ms by default: as much as a service of
# 20 ms needs at five times its capacity where a refusal costs a tenth of an answer. It may always
# last for 2 ms, twenty turns of a busy loop.
_LONGER: Final = 2.5
_LONGEST: Final = 0.5
_BRIEF: Final = 0.002

# What one request weighs in the cost of the next: half in three of them. A look at many at once
# says more than one at a single request, but it is no more than one look.
_WEIGHT: Final = 0.25
_WEIGHS_MOST: Final = 4
# What one look weighs in what a turn takes without them.
_REST_WEIGHT: Final = 0.5

# Requests between two looks at most: no loop takes in as many in 10 ms.
_MOST: Final = 1000


class Intake:
    """Counts who begins while the loop is late, and the turns of the loop since.

    Args:
        max_lag: Seconds by which the event loop may be late, above 0; infinity paces never.

    Attributes:
        paced: Whether requests begin a few at a time.
        spent: Whether nobody may begin until the loop has taken in who waits.
        turning: Whether `turn` wants to be called once in each turn of the loop.
        cost: Seconds by which a request made the turn in which it began longer lately; 0.0 while
            that is nothing, not known, or nothing is paced.
        aside: Whether somebody else paces arrivals, a door; then nothing is paced here.
    """

    __slots__ = (
        "_admitted", "_arrived", "_began", "_begun", "_cost", "_follows", "_known", "_left",
        "_longest", "_max_lag", "_quiet", "_rest", "_rested", "_rests", "_started", "_turned",
        "_until", "_worked", "_works", "aside", "cost", "paced", "spent", "turning",
    )  # fmt: skip

    def __init__(self, max_lag: float = inf) -> None:
        self._max_lag = max_lag
        self._until = -inf
        self._left = 1
        self._started = self._arrived = self._admitted = self._quiet = 0
        self._began = self._turned = self._longest = 0.0
        # Turns in which some began, or in the one before, and all others.
        self._begun = self._follows = False
        self._worked = self._rested = 0.0
        self._works = self._rests = 0
        self._rest = self._cost = 0.0
        self._known = False
        self.aside = False
        self.cost = 0.0
        self.paced = False
        self.spent = False
        self.turning = False

    def follow(self, max_lag: float) -> bool:
        """Go on with another bound.

        Returns:
            Whether `paced` has changed.
        """
        self._max_lag = max_lag
        return max_lag == inf and self._end()

    def step_aside(self, aside: bool) -> bool:
        """Let somebody else pace arrivals, or pace them here again.

        Returns:
            Whether `paced` has changed.
        """
        self.aside = aside
        return aside and self._end()

    def tick(self, now: float, lag: float, admitted: int = 0) -> bool:
        """The watch over the loop has ticked, `lag` seconds late.

        Args:
            now: Monotonic seconds.
            lag: Seconds.
            admitted: Requests that have begun since the beginning of time.

        Returns:
            Whether `paced` has changed.
        """
        begun, self._admitted = max(1, admitted - self._admitted), admitted
        if lag >= max(_LEAST_LATE, _LATE * self._max_lag):
            self._until = now + _CALM
            if self.paced or self.aside:
                return False
            self.paced = True
            # Until it is known what they cost, all of it was the doing of those who began.
            self._allow(lag / begun)
            return True
        if self._until - _CALM <= now < self._until:
            return False
        return self._end()

    def began(self, now: float) -> None:
        """A request begins while they are paced."""
        if not self.turning:
            self.turning = True
            self._started = self._quiet = self._works = self._rests = 0
            self._began = self._turned = now
            self._longest = self._worked = self._rested = 0.0
            self._follows = False
        self._begun = True
        self._started += 1
        self._left -= 1
        self.spent = self._left <= 0

    def let_one_begin(self) -> None:
        """Somebody who cannot wait may begin, although as many have as may."""
        self.spent = False

    def turn(self, now: float, arrived: int) -> bool:
        """The loop has turned once more since the first of them began.

        Args:
            now: Monotonic seconds.
            arrived: Requests that have arrived since the beginning of time.

        Returns:
            Whether it has taken in all who waited, and the next may begin.
        """
        lasted = max(0.0, now - self._turned)
        self._turned = now
        self._longest = max(self._longest, lasted)
        # Whoever was let begin by the end of another computes in the turn after that.
        if self._begun or self._follows:
            self._works += 1
            self._worked += lasted
        else:
            self._rests += 1
            self._rested += lasted
        self._follows, self._begun = self._begun, False
        self._quiet = self._quiet + 1 if arrived == self._arrived else 0
        self._arrived = arrived
        took = max(0.0, now - self._began)
        # The longest turn is the one in which they computed.
        enough = min(max(_BRIEF, _LONGER * self._longest), _LONGEST * self._max_lag)
        if self.paced and self._quiet < _QUIET and took - self._longest < enough:
            return False
        self.turning = self.spent = False
        if self.paced:
            self._learn()
        return True

    def _learn(self) -> None:
        """What turns take also when nobody begins is not the doing of those who did."""
        if self._rests:
            rest = self._rested / self._rests
            self._rest += (_REST_WEIGHT if self._rest else 1.0) * (rest - self._rest)
        cost = (self._worked - self._works * self._rest) / self._started
        weight = 1.0 - (1.0 - _WEIGHT) ** min(self._started, _WEIGHS_MOST)
        self._cost += (weight if self._known else 1.0) * (cost - self._cost)
        self._known = True
        self.cost = max(0.0, self._cost)
        self._allow(self.cost)

    def _allow(self, cost: float) -> None:
        room = max(_LEAST_LATE, _LATE * self._max_lag)
        self._left = max(1, int(room / cost)) if cost * _MOST > room else _MOST

    def _end(self) -> bool:
        was = self.paced
        self.paced = self.spent = self._known = False
        self.cost = self._cost = self._rest = 0.0
        return was
