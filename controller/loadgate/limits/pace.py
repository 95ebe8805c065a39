"""When is it time to think, and how does the limit get from one value to the next?

The half of the adaptive limit that runs for every request: it has it counted, settles after a
change, closes windows and takes the limit along a ramp. It decides nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import inf, isfinite, log
from typing import Final

from loadgate.decisions import Outcome
from loadgate.limits.counts import Counts
from loadgate.limits.window import FEWEST, WINDOW_EARLY, Window

_SUCCESS: Final = Outcome.SUCCESS
_OVERLOAD: Final = Outcome.OVERLOAD
_CANCELLED: Final = Outcome.CANCELLED

# A window of fewer completions than it needs closes after so many seconds or latencies, if it has
# the fewest at all.
PATIENCE: Final = 2.0
PATIENCE_LATENCIES: Final = 10.0
# A look at another level in which nothing ends for so many latencies (or the patience) is given up.
SILENT_LATENCIES: Final = 5.0
# After a step up of a climb: when in so many latencies (in which so many should have ended) less
# ends than this share of what ended before, contention has collapsed, and the step is taken back.
COLLAPSE_LATENCIES: Final = 2.0
COLLAPSE_COUNT: Final = 16.0
COLLAPSE: Final = 0.4
# Seconds a window lasts at least, so that a fast service pays for little thinking.
SHORTEST: Final = 0.05
# Latencies thrown away after a change of the limit: what ends too early is the short requests. As
# soon as all places have turned over that often, which in one latency they do once, it is over: the
# latency known is that of the level before, and after a long way down far too long.
SETTLE: Final = 1.5
SETTLE_SMALL: Final = 0.5
# Completions that show that at least, and how often it is looked after, in latencies.
TURNED: Final = 3
TURNING: Final = 0.2
# Weight of a new window in the smoothed latency; one more than 30 % off replaces it.
DAMPING: Final = 0.4
STRANGE: Final = 0.3
# Seconds (and ten latencies) of a window after which what was counted is thrown away.
SILENCE: Final = 60.0
# Those who were admitted while at most this share of the first limit ran, before the first window
# was over: the first glimpse of the unloaded latency.
FEW: Final = 0.25
# The fractional part of the golden ratio: its multiples modulo 1 spread evenly.
GOLDEN: Final = 0.6180339887498949
# Seconds a request is believed to take before one has ended.
FIRST_LATENCY: Final = 0.05
# The latency known may be that of an outage, and everything here waits for it. So it is looked
# after every so many seconds: when so many times the places have turned over, it is outdated.
LOOK: Final = 0.25
TURNOVERS: Final = 4.0


class Paced(Counts, ABC):
    """Counts windows and moves the limit, as whoever inherits from it decides in `_think`.

    Args:
        initial: The limit at the start.
        min: The lowest limit.
        max: The highest limit.
    """

    __slots__ = (
        "_drained",
        "_due",
        "_expected",
        "_few",
        "_first",
        "_first_spent",
        "_goal",
        "_goal_settle",
        "_heard",
        "_interrupted",
        "_latency",
        "_need",
        "_overdue",
        "_patience",
        "_phase",
        "_ramp",
        "_ramp_from",
        "_ramp_start",
        "_seen_crowd",
        "_seen_spent",
        "_settled",
        "_settling",
        "_span",
        "_steady",
        "_turns",
        "limit",
        "min",
    )

    def __init__(self, *, initial: int, min: int, max: int) -> None:
        super().__init__(max)
        self.limit = initial
        self.min = min
        self._latency = 0.0  # smoothed mean latency, 0.0 while unknown
        self._span = FIRST_LATENCY  # mean latency of the last window: the length of a ramp
        self._steady = True  # the window is no probe, so it counts for the smoothed latency
        self._few = FEW * initial
        self._first = 0  # admitted while few were running, in the first window
        self._first_spent = 0.0
        self._seen_crowd = 0  # sums as they were at the end before
        self._seen_spent = 0.0
        self._interrupted = -1  # the window that a pause has started again
        self._goal = 0  # where a ramp leads, 0 when there is none
        self._goal_settle = 0.0
        self._heard = 0  # completions when it was last looked after
        self._overdue = inf  # when a look elsewhere, in which nothing has ended, is given up
        self._ramp = 0.0
        self._ramp_from = 0
        self._ramp_start = 0.0
        self._phase = 0.5
        self._due = -inf
        self._expected = self._patience = 0.0
        self._settling = True
        self._settled = -inf
        self._need = WINDOW_EARLY

    # Decided by whoever inherits.

    @abstractmethod
    def _think(self, window: Window) -> None:
        """A window is over."""

    @abstractmethod
    def _lost_most(self, now: float) -> None:
        """More was lost than done, and the window is not over yet."""

    @abstractmethod
    def _give_up(self, now: float) -> None:
        """What was counted is worthless: a long silence, or the clock made a step."""

    @abstractmethod
    def _look_failed(self, now: float, *, collapsed: bool) -> None:
        """Nothing ends at another level; or, after a step up, far too little."""

    # What happens: a few additions each; the thinking is done when `_due` has come.

    def on_admit(self, now: float, in_flight: int) -> None:
        """A request starts. The number in flight is counted here, not taken from outside."""
        self._moments -= now
        self._in_flight += 1

    def on_wait(self, now: float) -> None:
        """Someone found the limit full; a rise on its way goes on."""
        self._waited += 1
        if now > self._overdue:
            self._late(now)
        elif self._goal:
            self._step(now)

    def on_refuse(self, now: float) -> None:
        """Someone was turned away; a rise on its way goes on."""
        self._refused += 1
        if now > self._overdue:
            self._late(now)
        elif self._goal:
            self._step(now)

    def on_finish(
        self,
        now: float,
        latency: float,
        in_flight: int,
        outcome: Outcome,
        held: float | None = None,
    ) -> None:
        """Count the end of a request; think when a window is over."""
        running = self._in_flight
        if running > 0:
            self._in_flight = running - 1
            self._moments += now
        if outcome is _SUCCESS:
            self._completed += 1
            self._crowd += in_flight
            self._spent += latency
            self._squares += latency * latency
            if held is not None and held > latency:
                self._other += held - latency
        else:
            self._teach_little(now, latency, outcome, held)
        if not self._start <= now < self._due:
            self._tick(now)

    def on_stall(self, now: float, duration: float) -> None:
        """Take the pause out of the clock, unless pauses are most of the time anyway.

        Where they are, the event loop is what is full, and its time is time of work.
        """
        span = now - self._start
        if not 0.0 < duration < SILENCE or not 0.0 <= span < inf:
            return
        pause = min(duration, span)
        self._stalled += pause
        self._area_stalled += pause * self._in_flight
        self._overdue += pause
        if self._goal:
            self._ramp_start += pause
        elif pause > self._latency > 0.0 and self._interrupted != self._windows:
            # What piled up meanwhile runs all at once; that is not how the service behaves.
            # Pauses that come faster than windows close do not start them again and again.
            self._interrupted = self._windows
            self._settle(now, SETTLE_SMALL)

    def _teach_little(
        self, now: float, latency: float, outcome: Outcome, held: float | None
    ) -> None:
        occupied = latency if held is None else held
        if not 0.0 <= occupied < inf:
            return
        if outcome is _OVERLOAD:
            self._lost += 1
            if self._lost > max(self._completed, FEWEST) and (
                now - self._start > max(self._latency, FIRST_LATENCY)
            ):
                self._lost_most(now)
        elif outcome is _CANCELLED and latency >= self._latency > 0.0:
            # Right-censored: it would have run for at least this long. Its time stays in the
            # integral without a completion, so the mean latency rises by it.
            return
        else:
            self._other += occupied

    # Windows: settle, count, conclude.

    def _settle(self, now: float, latencies: float) -> None:
        self._goal = 0
        self._settling = True
        self._settled = now + latencies * self._latency
        self._turns = latencies
        self._drained = 0
        self._due = min(self._settled, now + min(LOOK, TURNING * self._latency))
        self._open(now)

    def _outdated(self) -> bool:
        """Did far more end since the count began than can in the latency that is waited for?"""
        places = max(self._in_flight, self._opened_with)
        return self._completed > FEWEST + TURNOVERS * places

    def _expect(self, now: float, rate: float = 0.0) -> None:
        """This window is a look elsewhere: it is given up if too little ends.

        Args:
            now: The moment.
            rate: The throughput before a step up; 0.0 for a look at fewer, where anything will do.
        """
        self._expected = rate
        if rate > 0.0:
            self._patience = max(COLLAPSE_LATENCIES * self._latency, COLLAPSE_COUNT / rate)
        else:
            self._patience = max(PATIENCE, SILENT_LATENCIES * self._latency)
        self._overdue = now + self._patience
        self._heard = self._ended + self._completed

    def _late(self, now: float) -> None:
        """Look at a look: places may be held by requests that hang, or a step up was one too many.

        Neither must last until a window is full: it may never be.
        """
        done = self._ended + self._completed - self._heard
        if done > COLLAPSE * self._expected * self._patience:
            self._expect(now, self._expected)
        else:
            self._overdue = inf
            self._look_failed(now, collapsed=self._expected > 0.0)

    def _turned(self) -> bool:
        """Have those who were running before the change left, as far as counts can tell?"""
        places = self._in_flight
        if places > self.limit:
            self._drained = self._completed
            return False
        return self._completed - self._drained >= max(TURNED, self._turns * places)

    def _tick(self, now: float) -> None:
        if not isfinite(now):
            return
        if self._windows:
            self._advance(now)
            return
        # Until the first window is over every end is looked at; sums that grew by it alone say what
        # it was. Counting that for every request would be a tenth of what the limit costs.
        spent = self._spent - self._seen_spent
        if spent > 0.0 and self._crowd - self._seen_crowd <= self._few:
            self._first += 1
            self._first_spent += spent
        self._advance(now)
        self._seen_crowd = self._crowd
        self._seen_spent = self._spent
        if not self._windows:
            self._due = now

    def _advance(self, now: float) -> None:
        span = now - self._start
        if not 0.0 <= span < SILENCE + PATIENCE_LATENCIES * self._latency:
            self._give_up(now)
            return
        if self._goal:
            self._step(now)
            return
        if self._settling:
            if now < self._settled and not self._outdated() and not self._turned():
                self._due = min(self._settled, now + min(LOOK, TURNING * self._latency))
                return
            self._settling = False
            self._open(now)
            self._due = now + min(max(self._latency or FIRST_LATENCY, SHORTEST), LOOK)
            return
        completed = self._completed
        if not span > 0.0 or completed == 0:
            self._due = now
            return
        latency = self._latency
        if latency == 0.0:
            # The first to end are the short ones; wait until all places have turned over.
            if completed < max(FEWEST, SETTLE * self._area(now) / span):
                self._due = now + min(0.2 * span, LOOK)
                return
            latency = FIRST_LATENCY
        patience = max(PATIENCE, PATIENCE_LATENCIES * latency)
        need = self._need
        if completed >= FEWEST and self._noise < 1.0:
            need = max(FEWEST, int(need * self._noise_seen(completed)))
        if completed < need and (completed < FEWEST or span <= patience):
            missing = (need - completed) * span / completed
            self._due = now + min(missing, max(0.1, 2.0 * latency), LOOK)
        elif span < max(latency, SHORTEST) and not self._outdated():
            self._due = min(self._start + max(latency, SHORTEST), now + LOOK)
        else:
            self._conclude(now, span, completed)

    def _conclude(self, now: float, span: float, completed: int) -> None:
        window = self._window(now, span, completed)
        if window is None:
            self._settle(now, 0.0)
            return
        latency = window.latency
        self._windows += 1
        self._overdue = inf
        self._span = latency
        if self._steady:
            before = self._latency
            strange = before == 0.0 or abs(log(latency / before)) > STRANGE
            self._latency = latency if strange else before + DAMPING * (latency - before)
        self._think(window)

    # Movement.

    def _whole(self, level: float) -> int:
        """Places for `level` running requests, within the bounds."""
        places = int(min(level * self._occupied, 1e9) + 0.5)
        return self.min if places < self.min else self.max if places > self.max else places

    def _change(self, now: float, wanted: int, settle: float) -> None:
        limit = self.limit
        if self._latency > 0.0 and wanted > limit:
            self._goal = wanted
            self._goal_settle = settle
            self._ramp = self._span
            self._ramp_from = limit
            self._ramp_start = self._due = now
            self._phase = (self._phase + GOLDEN) % 1.0
            self._open(now)
            return
        self.limit = wanted
        self._settle(now, settle)

    def _step(self, now: float) -> None:
        """Take the limit along its ramp: one latency from where it was to where it goes."""
        way = self._goal - self._ramp_from
        done = (now - self._ramp_start) / self._ramp
        if 0.0 <= done < 1.0 and way > 0 and not self._outdated():
            self.limit = int(self._ramp_from + done * way + self._phase)
            self._due = now + min(0.5 * self._ramp / way, LOOK)
            return
        self.limit = self._goal
        self._settle(now, self._goal_settle)
