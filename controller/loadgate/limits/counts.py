"""What was seen since the window began?

The sums of a window and what follows from them by Little's law. Whoever inherits counts each
request into them (written out there, as every call would cost as much as the counting) and says
when a window is over.
"""

from __future__ import annotations

from math import inf
from typing import Final

from loadgate.limits.window import NOISE_FALL, WINDOW, Window, noise_of

# Share of the time integral up to which requests that teach nothing are just subtracted.
SUBTRACTED: Final = 0.25
# That share is averaged over some ten windows, of long-lived requests one ends now and then; but
# over no more seconds than these, or an outage would be remembered too long.
APART_WEIGHT: Final = 0.1
APART_SECONDS: Final = 10.0
# Weight of a new window in the seconds that a place is held: less where it is held less, because
# those who hold places for long come in bunches, and the next ones find the places that these had.
HELD_MORE: Final = 0.3
HELD_LESS: Final = 0.1
# A window in which so many per completion came to be in flight is one of a rising level. It counts
# for no more completions than this, as one of the early windows.
RISING: Final = 0.3
RISEN: Final = 30.0
# How regular they are can be seen of a full service only. Where fewer than this share of the
# completions found no place, the count shows how irregularly requests come.
NOISE_BLOCKED: Final = 0.25


class Counts:
    """The sums of the window under way, and what the windows before have shown.

    Args:
        max: The highest limit: more than some such windows full cannot be true.
    """

    __slots__ = (
        "_apart",
        "_area_stalled",
        "_completed",
        "_crowd",
        "_ended",
        "_in_flight",
        "_lost",
        "_moments",
        "_noise",
        "_occupied",
        "_opened_with",
        "_other",
        "_queued",
        "_refused",
        "_spent",
        "_squares",
        "_stalled",
        "_start",
        "_waited",
        "_windows",
        "max",
    )

    def __init__(self, max: int) -> None:
        self.max = max
        self._apart: float = 0.0  # share of the time held by what teaches nothing, smoothed
        self._occupied: float = 1.0  # seconds a place is held, in latencies
        self._queued: bool = True  # those who find no place may wait
        self._noise: float = 1.0  # variance of a window's count beside Poisson's, from above
        self._windows: int = 0
        self._in_flight: int = 0
        self._ended: int = 0  # completions before this window
        self._completed: int = 0  # and in it
        self._open(0.0)

    def _open(self, now: float) -> None:
        self._start: float = now
        self._opened_with: int = self._in_flight
        self._moments: float = 0.0
        self._ended += self._completed
        self._area_stalled: float = 0.0
        self._stalled: float = 0.0
        self._completed = 0
        self._crowd: int = 0
        self._spent: float = 0.0
        self._squares: float = 0.0
        self._other: float = 0.0
        self._lost: int = 0
        self._waited: int = 0
        self._refused: int = 0

    def _area(self, now: float) -> float:
        """Time integral of the number in flight since the window began.

        Each request adds the moment of its end and takes away that of its start; those that
        were running at the beginning or still are count from there and until now.
        """
        return self._in_flight * now - self._opened_with * self._start + self._moments

    def _noise_seen(self, completed: int) -> float:
        if self._waited + self._refused < NOISE_BLOCKED * completed:
            return 1.0
        sharing = self._crowd / completed
        return noise_of(completed, self._spent, self._squares, sharing, self._noise)

    def _window(self, now: float, span: float, completed: int) -> Window | None:
        """What the sums say; None where that cannot be true."""
        area = self._area(now)
        if self._stalled <= 0.5 * span:
            area -= self._area_stalled
        # Little's law, with the mean of arrivals and departures as the throughput.
        turnover = max(completed + 0.5 * (self._in_flight - self._opened_with), 0.5 * completed)
        occupied = area / turnover
        latency = occupied - self._other / turnover
        share = min(self._other / area, 1.0) if area > 0.0 else 0.0
        newest = min(max(APART_WEIGHT, span / APART_SECONDS), 1.0)
        self._apart += newest * (share - self._apart)
        if max(share, self._apart) > SUBTRACTED:
            # Mostly places held longer than latency lasts, or by requests that teach nothing. Not
            # every window sees one of these end, but all of them see them hold their places.
            latency = min(occupied, self._spent / completed)
        if not 0.0 < latency < inf or area > span * 4.0 * max(self.max, self._in_flight):
            return None
        held = min(occupied / latency, 1e6)
        self._occupied += (HELD_MORE if held > self._occupied else HELD_LESS) * (
            held - self._occupied
        )
        if self._waited:
            self._queued = True
        elif self._refused > 3:
            self._queued = False
        crowd = self._crowd / completed
        noise = self._noise_seen(completed)
        self._noise = NOISE_FALL * noise
        weight = max(float(completed), min(completed / noise, float(WINDOW)))
        rose = self._in_flight - self._opened_with > RISING * completed
        if rose:
            # Many more came than went, so the mean of both says little of the throughput.
            weight = min(weight, RISEN)
        if rose or self._windows == 0:
            # Those who have ended saw the level of before; the first ones saw an empty service.
            crowd = max(crowd, area / span)
        return Window(
            now,
            max(crowd * latency / occupied, 1.0),
            latency,
            completed,
            self._waited + self._refused,
            self._refused / (completed + self._refused),
            self._lost / (completed + self._lost),
            weight,
            self._spent / completed,
        )
