"""When is a request refused before anyone reads it? When the loop is late and stays it.

Refusing inside the application is exact (it knows the client, the class, the queue), but costs an
HTTP server nearly as much as an answer. Far above capacity that cost is what fills the event
loop. The door in front of the HTTP machinery refuses for a tenth of it, but blindly. So it stays
open until windows of a fifth of a second show one of two things:

- two in a row: requests took long from the door to the application (the loop is late), and fewer
  than half of the offered ones were of any use there;
- three in a row: they took nearly as long as the loop may be late, and about as many came as
  reached the application: what stands between is not worked off.

One burst, however large, is neither.

A door that is closed lets only so many be on their way at a time that the loop works them off
within `narrow` seconds. Who was on the way when it closed and is late by then is refused on
reaching the application: its answer would be late as well. If less than half is of use, it also
lets through no more than twice what was of use lately (the adaptive throttling of Google's SRE
book, chapter 21, with the same factor, but on the server's side) and a trickle on top. So the
controller always sees at least twice what it can take, and a capacity that grows is followed
within seconds.

The door opens by itself once less than twice the useful is offered and few had to be refused for
a second, at once if the loop is on time as well. Nothing is concluded from what is over: when
nobody has come for a second and nobody is on the way, the door is open and has forgotten
everything.

Classes of requests, if the door can tell them apart, share what passes. Each leaves tokens for the
class above it, as many as pass within `narrow` seconds, and those above the usual class may have
more requests on their way: a loop that stands still meets all who came meanwhile at once, in any
order. A class above thus passes while it asks for less than what passes in all, whatever the
others ask for; the usual class is treated as if there were none.

A refusal by a rate (429) counts as use: only the application can tell a greedy client from a
modest one, and a door that closed for it would punish the modest.
"""

from __future__ import annotations

from typing import Final

from loadgate.decisions import Reason, Refuse, Stage
from loadgate.explain import DOOR_AGE, DOOR_IN_TRANSIT, DOOR_RATE

# Seconds over which use and lateness are judged: ten requests of a service of 50/s. Whoever passes
# before the door has closed must be worked off, so it is as short as these allow to tell.
_WINDOW: Final = 0.2

# What one window weighs in the useful rate when that falls: half in half a second.
_WEIGHT: Final = 0.25

# Windows in a row that must show an overload before the door closes. A burst ends within one; the
# second shows that it goes on.
_CONFIRM: Final = 2

# Windows in a row in which few were refused before it opens while the loop is still late: a second.
# Few is what a loop refuses that could just do all of it: at its full capacity a queue of two loses
# a fifth of what comes at random.
_CALM: Final = 5
_FEW: Final = 0.2

# A backlog stands when requests take this share of the allowed lag from the door to the application
# (who takes all of it is refused inside, so the mean stays below), in so many windows in a row.
_STANDS: Final = 0.75
_LASTS: Final = 3

# For each one who came in a window so many must have reached the application, or more, for the
# backlog to count as being worked off.
_SHRINKS: Final = 1.25

# Seconds without an arrival after which whatever was measured is about the past. A loop that is
# blocked sees no arrivals either, but then somebody is on the way to the application, so it is
# believed only after three times as long (should one be lost on the way, it opens all the same).
QUIET: Final = 1.0
_SILENT: Final = 3.0 * QUIET

# Mean seconds from the door to the application above which the loop is late. Hypercorn needs
# 0.3 ms when idle; CoDel's target for a standing queue is 5 ms as well (RFC 8289).
LATE: Final = 0.005

# Requests let through for each one that was of use (Google's K): whoever halves it refuses
# requests that would be served while the capacity grows, whoever doubles it pays for refusals.
_SPARE: Final = 2.0

# Requests a second that pass always, so that a service that has served nothing is seen to recover.
_TRICKLE: Final = 10.0

# Share of the allowed lag of the loop that may be on its way from the door to the application.
_NARROW: Final = 0.25

# So much more while about as many come as can be served: then a shorter queue runs empty.
_WIDER: Final = 2.0

# What a class above the usual one may have on its way beyond that, if its share of the allowed lag
# is less: at 50/s a loop that stood still for 0.1 s, the allowed lag, meets five requests at once.
# A class below may have half.
_MORE: Final = 2.0
_LESS: Final = 0.5

# Seconds after which a door that thins finds out whether the loop could refuse by itself again;
# twice as long after each time that it could not. 32 s keep that below 2 % of the time.
_FIRST_HOLD: Final = 4.0
_LONGEST_HOLD: Final = 32.0

# Seconds without a pass after which one passes, whatever is said to be on its way.
_PATIENCE: Final = 1.0

# Seconds after which a refused client may come back: the application's estimate is not asked.
_RETRY_AFTER: Final = 1.0


class DoorRule:
    """Decides at the door, from what became of those whom it let through.

    Args:
        max_lag: Seconds by which the event loop may be late, above 0.

    Attributes:
        max_lag: As given; may be changed at any time.
        classes: Priority classes that are told apart, 1 for none.
        usual: The class of ordinary requests, 0 for none.
        due: When `look` wants to be called next, monotonic seconds.
        closed: Whether arrivals are narrowed at all.
        thinned: Whether no more than the useful share passes; a closed door tries without.
        in_transit: Requests that passed and have not reached the application yet.
        delay: Mean seconds from the door to the application in the last window.
    """

    __slots__ = (
        "_allowed",
        "_calm",
        "_entered",
        "_hold",
        "_last_arrival",
        "_last_pass",
        "_narrowed",
        "_offered",
        "_offered_rate",
        "_pass_rate",
        "_retry_thinned",
        "_since",
        "_standing",
        "_strained",
        "_tokens",
        "_tokens_at",
        "_transit",
        "_use_rate",
        "_useful",
        "classes",
        "closed",
        "delay",
        "due",
        "in_transit",
        "max_lag",
        "thinned",
        "usual",
    )

    def __init__(self, max_lag: float = 0.1) -> None:
        if not 0.0 < max_lag < float("inf"):
            raise ValueError(f"max_lag: {max_lag!r} is not a finite number above 0")
        self.max_lag = max_lag
        self.classes = 1
        self.usual = 0
        self.due = float("-inf")
        self.in_transit: int = 0
        self._last_arrival = self._last_pass = float("-inf")
        self._tokens_at = 0.0
        self._since = 0.0
        self._useful = 0
        self._offered = 0
        self._entered = 0
        self._narrowed = 0
        self._transit = 0.0
        self._forget()

    def _forget(self) -> None:
        """Be as on the first day, but for those who are on their way."""
        self.closed = False
        self.thinned = False
        self.delay = 0.0
        self._strained = self._standing = self._calm = 0
        self._allowed = 1.0
        self._hold = _FIRST_HOLD
        self._retry_thinned = 0.0
        self._pass_rate = _TRICKLE
        self._offered_rate = 0.0
        self._tokens = 1.0
        self._use_rate = 0.0

    def arrive(self, now: float, level: int = 0) -> Refuse | None:
        """Decide about one request; None lets it pass.

        Args:
            now: Monotonic seconds.
            level: Its class among `classes`, 0 is served first.
        """
        self._offered += 1
        self._last_arrival = now
        if self.closed:
            allowed = self._allowed if self.thinned else _WIDER * self._allowed
            if level < self.usual:
                allowed += (self.usual - level) * max(_MORE, allowed)
            elif level > self.usual:
                allowed *= _LESS
            if self.in_transit + 1 > allowed and now - self._last_pass < _PATIENCE:
                self._narrowed += 1
                return self._refusal(self.in_transit + 1, allowed, DOOR_IN_TRANSIT)
            if self.thinned and not self._takes_token(now, level):
                offered = self._offered / max(now - self._since, _WINDOW)
                return self._refusal(max(offered, self._offered_rate), self._pass_rate, DOOR_RATE)
        self._last_pass = now
        self.in_transit += 1
        return None

    def enter(self, now: float, passed: float) -> Refuse | None:
        """A request that passed at `passed` has reached the application.

        Returns:
            None if it may go on; else it is late, while the door is closed to work that off.
        """
        self.in_transit -= 1
        took = max(0.0, now - passed)
        if self.closed and took > self.max_lag:
            return self._refusal(took, self.max_lag, DOOR_AGE)  # says nothing of the loop's pace
        self._entered += 1
        self._transit += took
        return None

    def leave(self) -> None:
        """A request that passed will never reach the application."""
        self.in_transit -= 1

    def look(self, now: float, useful: int, paced: bool = False) -> None:
        """Judge the last window; call it whenever `now >= due`, before `arrive`.

        It need not be called while nobody comes: the next call finds out how long that was.

        Args:
            now: Monotonic seconds.
            useful: Requests that were admitted or refused by a rate, since the beginning.
            paced: Whether the loop is late and takes in all who wait all the same, because
                requests begin a few at a time inside.
        """
        first = self.due == float("-inf")
        elapsed = now - self._since
        self.due = now + _WINDOW
        silence = now - self._last_arrival
        if silence >= (_SILENT if self.in_transit else QUIET):
            self._forget()
        elif not first and elapsed > 0.0:
            self._judge(now, elapsed, max(0, useful - self._useful), paced)
        self._since = now
        self._useful = useful
        self._offered = self._entered = self._narrowed = 0
        self._transit = 0.0

    def _judge(self, now: float, elapsed: float, useful: int, paced: bool) -> None:
        rate = useful / elapsed
        # A window of a slow service is a handful of requests.
        fallen = self._use_rate + _WEIGHT * (rate - self._use_rate)
        self._use_rate = max(rate, fallen)
        self._pass_rate = _SPARE * self._use_rate + _TRICKLE
        self._allowed = max(1.0, _NARROW * self.max_lag * self._entered / elapsed)
        if self._entered:
            self.delay = self._transit / self._entered
        else:
            self.delay = elapsed if self.in_transit else 0.0
        late = paced or self.delay > LATE
        self._offered_rate = self._offered / elapsed
        stands = self.delay > _STANDS * self.max_lag and self._entered <= _SHRINKS * self._offered
        self._standing = self._standing + 1 if stands and self.in_transit else 0
        if self._offered_rate <= self._pass_rate:
            self._strained = 0
            self.thinned = False
            few = self._narrowed <= _FEW * self._offered or self._offered_rate <= 2.0 * _TRICKLE
            self._calm = self._calm + 1 if few else 0
            if self._calm >= _CALM or (self._calm and not late):
                self.closed = False
            if self._standing >= _LASTS:
                self.closed = True
        elif late:
            self._calm = 0
            self._strained += 1
            if self.closed or self._strained >= _CONFIRM:
                self.closed = True
                self._thin(now)
        else:
            self._strained = self._calm = 0
        if self.thinned and now >= self._retry_thinned:
            self.thinned = False

    def _thin(self, now: float) -> None:
        if not self.thinned:
            # It was tried without, and in vain: wait longer before the next time.
            again = now < self._retry_thinned + self._hold
            self._hold = min(2.0 * self._hold, _LONGEST_HOLD) if again else _FIRST_HOLD
            self._retry_thinned = now + self._hold
            self._tokens_at = now
        self.thinned = True

    def _takes_token(self, now: float, level: int) -> bool:
        room = max(1.0, self._pass_rate * _NARROW * self.max_lag)
        earned = max(0.0, now - self._tokens_at) * self._pass_rate
        self._tokens = min(room * self.classes, self._tokens + earned)
        self._tokens_at = now
        if self._tokens < 1.0 + level * room:
            return False
        self._tokens -= 1.0
        return True

    def _refusal(self, observed: float, bound: float, subject: str) -> Refuse:
        return Refuse(Stage.SHED, Reason.LOOP_LAG, _RETRY_AFTER, observed, bound, subject)
