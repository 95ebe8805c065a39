"""Does the run show what the demo claims? Every claim with its number and its bound."""

from __future__ import annotations

from math import isnan

import msgspec

from loadgate.integrations.demo.record import Half
from loadgate.integrations.demo.story import (
    BACK,
    CALM,
    CAPACITY,
    GREEDY,
    ONE_GREEDY,
    POLITE,
    SLO,
    STORM,
)


class Claim(msgspec.Struct, frozen=True):
    """One sentence that the run has to bear out.

    Attributes:
        text: The claim, with its bound.
        seen: What was measured.
        holds: Whether it does.
        of_machine: Whether it is about the machine that measured, not about what was shown.
    """

    text: str
    seen: str
    holds: bool
    of_machine: bool = False


def too_busy(claims: list[Claim]) -> bool:
    """Whether nothing failed but the measuring: then the run shows neither one nor the other."""
    failed = [claim for claim in claims if not claim.holds]
    return bool(failed) and all(claim.of_machine for claim in failed)


def judge(bare: Half, guarded: Half) -> list[Claim]:
    """Compare both halves with what the demo claims."""
    storm = guarded.result.tally(phase=STORM)
    unguarded = bare.result.tally(phase=STORM)
    polite = guarded.result.tally([POLITE], phase=ONE_GREEDY)
    calm = guarded.result.tally([POLITE], phase=CALM)
    greedy = guarded.result.tally([GREEDY], phase=ONE_GREEDY)
    polite_overall = guarded.result.tally([POLITE])
    whole = guarded.result.tally()
    back = guarded.result.tally(phase=BACK)
    kept = polite.share / calm.share if calm.good else 0.0
    unanswered = whole.offered - whole.count(200, 429, 503)
    lag = max(bare.result.lag().p99, guarded.result.lag().p99)
    return [
        Claim(
            f"at 5x capacity, goodput without loadgate collapses (<= 0.5 of {CAPACITY:.0f}/s)",
            f"{unguarded.goodput / CAPACITY:.2f}",
            unguarded.goodput <= 0.5 * CAPACITY,
        ),
        Claim(
            f"at 5x capacity, goodput with loadgate is >= 0.85 of {CAPACITY:.0f}/s",
            f"{storm.goodput / CAPACITY:.2f}",
            storm.goodput >= 0.85 * CAPACITY,
        ),
        Claim(
            f"at 5x capacity, p99 of the admitted is within the SLO of {SLO * 1e3:.0f} ms",
            "nobody was admitted" if isnan(storm.p99) else f"{storm.p99 * 1e3:.0f} ms",
            storm.p99 <= SLO,
        ),
        Claim(
            "the greedy client gets 429s",
            f"{greedy.count(429)} of {greedy.offered}",
            greedy.count(429) > 0,
        ),
        Claim(
            "polite clients get none, in the whole run",
            f"{polite_overall.count(429)} of {polite_overall.offered}",
            polite_overall.count(429) == 0,
        ),
        Claim(
            "polite clients keep >= 0.95 of their goodput beside the greedy one",
            f"{kept:.3f}",
            kept >= 0.95,
        ),
        Claim(
            "after the storm the service is back at once (>= 0.95 of what is offered is good)",
            f"{back.share:.3f}",
            back.share >= 0.95,
        ),
        Claim("no request hangs: every one was answered", f"{unanswered} were not", not unanswered),
        Claim(
            f"the load left on time (lag p99 <= {SLO / 10 * 1e3:.0f} ms), so the figures are true",
            f"{lag * 1e3:.1f} ms",
            lag <= SLO / 10,
            of_machine=True,
        ),
    ]
