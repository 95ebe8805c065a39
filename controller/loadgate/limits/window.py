"""What is told of a window, and how sure is it?"""

from __future__ import annotations

from math import inf
from typing import Final

import msgspec

# Completions of a window: 60 are 13 % of standard error; half of it while nothing is known,
# as long as that is urgent: for the first windows, and while requests are turned away. Fewer than
# eight say nothing.
WINDOW: Final = 60
WINDOW_EARLY: Final = 30
FEWEST: Final = 8
# Where requests take equally long, a window needs few of them. The variance of a count beside
# Poisson's is that of the latencies if nobody shares, and at most so many times it as there are who
# do; twice that, because small samples look regular. It is believed down to a tenth, halved by each
# window at most, as two humps look regular while only one is seen. A window counts for no more
# completions than an ordinary one.
CAUTION: Final = 2.0
NOISE_LEAST: Final = 0.1
NOISE_FALL: Final = 0.5


class Window(msgspec.Struct, frozen=True, gc=False):
    """What was seen in a window.

    Attributes:
        now: Its end.
        level: Mean number in flight as the requests saw it, in running requests: places that
            are held beyond their latency are taken out.
        latency: Mean seconds of running.
        completed: Successes.
        blocked: How many found no place: waited or were turned away.
        refused: Share turned away.
        lost: Share of the answers that showed an overload.
        weight: Completions that the window counts for beside others.
        told: Mean seconds of running of those who have ended.
    """

    now: float
    level: float
    latency: float
    completed: int
    blocked: int
    refused: float
    lost: float
    weight: float
    told: float


def noise_of(completed: int, spent: float, squares: float, sharing: float, least: float) -> float:
    """How much a count varies beside Poisson's, from above.

    Args:
        completed: Completions of a full service.
        spent: Their seconds of running.
        squares: The squares of these.
        sharing: How many ran at once, in the mean.
        least: What is believed at least.

    Returns:
        `NOISE_LEAST` to 1, which is Poisson.
    """
    if not 0.0 < spent < inf:
        return 1.0
    variance = squares * completed / (spent * spent) - 1.0
    if not variance < inf:
        return 1.0  # a latency whose square is no number any more
    return min(max(CAUTION * variance * max(sharing, 1.0), least, NOISE_LEAST), 1.0)
