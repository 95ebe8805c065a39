"""Which level is right above a knee, and for which knee is a level right?"""

from __future__ import annotations

from math import sqrt
from typing import Final

# Headroom above the knee in roots of it. A number in flight that fluctuates like a Poisson
# variable needs about two to keep every place of the knee busy; behind a queue less is enough,
# because a free place is taken at once.
HEADROOM_QUEUED: Final = 1.6
HEADROOM_BARE: Final = 2.5
HEADROOM_LEAST: Final = 0.2


def room(*, queued: bool) -> float:
    """Headroom in roots of the knee: `queued` where those who find no place may wait."""
    return HEADROOM_QUEUED if queued else HEADROOM_BARE


def above(knee: float, *, queued: bool) -> float:
    """The level that is right for a knee."""
    return knee + room(queued=queued) * sqrt(knee) + HEADROOM_LEAST


def of(level: float, *, queued: bool) -> float:
    """The knee for which `level` would be right: the inverse of `above`."""
    roots = room(queued=queued)
    root = (sqrt(roots * roots + 4.0 * max(level - HEADROOM_LEAST, 0.3)) - roots) / 2.0
    return root * root
