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

# What one look weighs in the cost of a request: half in three of them.
_WEIGHT: Final = 0.25

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
        cost: Seconds of the loop that a request took lately, with what taking in others took
            meanwhile; 0.0 while that is not known or nothing is paced.
        aside: Whether somebody else paces arrivals, a door; then nothing is paced here.
    """

    __slots__ = (
        "_arrived", "_began", "_left", "_longest", "_max_lag", "_quiet", "_shortest", "_started",
        "_turned", "_turns", "_until", "aside", "cost", "paced", "spent", "turning",
    )  # fmt: skip

    def __init__(self, max_lag: float = inf) -> None:
        self._max_lag = max_lag
        self._until = -inf
        self._left = 1
        self._started = self._arrived = 0
        self._began = self._turned = 0.0
        self._longest = self._shortest = 0.0
        self._turns = self._quiet = 0
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

    def tick(self, now: float, lag: float) -> bool:
        """The watch over the loop has ticked, `lag` seconds late.

        Returns:
            Whether `paced` has changed.
        """
        if lag >= max(_LEAST_LATE, _LATE * self._max_lag):
            self._until = now + _CALM
            if self.paced or self.aside:
                return False
            self.paced = True
            self._left = 1
            return True
        if self._until - _CALM <= now < self._until:
            return False
        return self._end()

    def began(self, now: float) -> None:
        """A request begins while they are paced."""
        if not self.turning:
            self.turning = True
            self._started = self._turns = self._quiet = 0
            self._began = self._turned = now
            self._longest, self._shortest = 0.0, inf
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
        self._turns += 1
        self._longest = max(self._longest, lasted)
        self._shortest = min(self._shortest, lasted)
        self._quiet = self._quiet + 1 if arrived == self._arrived else 0
        self._arrived = arrived
        took = max(0.0, now - self._began)
        # The longest turn is the one in which they computed.
        enough = min(max(_BRIEF, _LONGER * self._longest), _LONGEST * self._max_lag)
        if self.paced and self._quiet < _QUIET and took - self._longest < enough:
            return False
        self.turning = self.spent = False
        if self.paced:
            # What turns take also when nobody begins is not their doing.
            self._learn((took - self._turns * self._shortest) / self._started)
        return True

    def _learn(self, cost: float) -> None:
        self.cost += (_WEIGHT if self.cost else 1.0) * (cost - self.cost)
        room = max(_LEAST_LATE, _LATE * self._max_lag)
        self._left = max(1, int(room / self.cost)) if self.cost * _MOST > room else _MOST

    def _end(self) -> bool:
        was = self.paced
        self.paced = self.spent = False
        self.cost = 0.0
        return was
