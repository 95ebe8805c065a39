"""How much may this process let through without asking? What it has leased, and not more.

The store keeps one bucket; a lease moves units from it to a process, which spends them in memory
and asks for more in the background. What is leased counts as used, the bucket never refills above
what is not leased, and a lease that is not renewed is void. So the units in the bucket and those
leased together never exceed the burst, and grow only by the rate: over any time the processes
together let through what one strict bucket would have (`docs/redis-local-mode.md` proves it), plus
the overdraft of each, if one is allowed.

Everything here is synchronous and takes `now`; `store.py` carries the messages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from loadgate.integrations.redis.units import Scale

# Seconds by which a process stops before the store voids its lease. Both count from the same
# exchange, the process from before it; only drift matters, and 500 ppm of a minute are 30 ms.
MARGIN: Final = 0.03
# Renewals per lease: one that is lost leaves time for others.
PARTS: Final = 5.0
# Seconds that "nothing left" is believed at most.
LONGEST_DENIAL: Final = 1.0
# How much of the demand measured last counts beside what was known: two periods remember it.
_FRESH: Final = 0.5


class Lease:
    """What one process holds of one client's rate.

    Args:
        scale: The rate in units.
        term: Seconds a lease lasts.
        overdraft: Units it may let through without having them.

    Attributes:
        credit: Units that may be spent until `until`.
        until: Monotonic seconds.
        low: Below so many units, or from `renew_at` on, it is time to ask for more.
        denied_until: Until then the store is known to have nothing.
        retry_at: When it will have something.
        left: Units in the bucket as far as known.
        debt: Units let through without having them, not yet acknowledged.
        wanted: Units that requests wait for.
        asked_at: When the question under way was sent; None if there is none.
        flight: What carries it.
        spent: Units spent since the last question.
        trouble: Why the last question has no answer; empty if it has.
        used_at: When something was spent last.
    """

    __slots__ = (
        "_back", "_overdraft", "_rate", "_scale", "_seen", "_sent_debt", "_silent_until",
        "_since", "_term",
        "asked_at", "credit", "debt", "denied_until", "flight", "left", "low", "processes",
        "renew_at", "retry_at", "spent", "trouble", "until", "used_at", "wanted",
    )  # fmt: skip

    def __init__(self, scale: Scale, term: float, overdraft: int = 0) -> None:
        self._back = 0
        self._scale = scale
        self._silent_until = -math.inf
        self._term = term
        self._overdraft = overdraft
        self._rate = 0.0
        self._seen = 0
        self._sent_debt = 0
        self._since = -math.inf
        self.spent = 0
        self.trouble = ""
        self.asked_at: float | None = None
        self.flight: Any = None
        self.credit = 0
        self.debt = 0
        self.denied_until = -math.inf
        self.left = scale.c
        self.low = 0.0
        self.processes = 1
        self.renew_at = -math.inf
        self.retry_at = -math.inf
        self.until = -math.inf
        self.used_at = -math.inf
        self.wanted = 0

    def spend(self, units: int, now: float) -> bool:
        """Let `units` through if they are there, or if the overdraft covers them."""
        if now < self.until and units <= self.credit:
            self.credit -= units
        elif now >= self.denied_until and units <= self._overdraft - self.debt:
            self.debt += units
        else:
            return False
        self.spent += units
        self.used_at = now
        return True

    def unspend(self, units: int, spent_at: float, now: float) -> None:
        """The request was turned away: its units may be spent by another.

        Once the store has been told that they were spent it may have refilled them; then they
        go back to it, and it does not fill above the burst.
        """
        if spent_at < self._since:
            self._back += units
            return
        self.spent = max(0, self.spent - units)
        if now < self.until:
            self.credit += units

    def due(self, now: float) -> bool:
        """Whether it is time to ask for more, in the background."""
        if self.asked_at is not None or now < self.denied_until or now < self._silent_until:
            return False
        if self.debt > 0 or self._back > 0 or self.credit < self.low:
            return True
        return self.credit > 0 and self.renew_at <= now < self.until

    def may_ask(self, now: float) -> bool:
        """Whether a question may be asked: none is under way, or could still be executed."""
        return self.asked_at is None and now >= self._silent_until

    def idle(self, now: float) -> bool:
        """Whether it holds something that nobody has used for a while."""
        return (
            self.may_ask(now)
            and now < self.until
            and self.credit > 0
            and now - self.used_at > self._term / PARTS
        )

    def over(self, now: float) -> bool:
        """Whether nothing is lost by forgetting it."""
        return (
            self.asked_at is None
            and not self.debt
            and not self._back
            and not self.wanted
            and now >= self.until
            and now >= self.denied_until
        )

    def question(self, now: float, least: int, *, leave: bool = False) -> tuple[int, ...]:
        """The item with which to ask the store for more, or to give back everything.

        Args:
            now: Monotonic seconds.
            least: Units without which nothing helps.
            leave: Give back, ask for nothing.
        """
        period = self._term / PARTS
        if now >= self.until:
            self.credit = 0
        passed = now - self._since
        # A demand that has only begun is not in the mean yet: twice what was spent since.
        sudden = 2.0 * self.spent if passed < period else 0.0
        if passed > 0.0:
            fresh = 1.0 - (1.0 - _FRESH) ** (min(passed, self._term) / period)
            self._rate += (self.spent / max(passed, period) - self._rate) * fresh
        self._since, self.spent = now, 0
        back, self._back = self._back, 0
        if leave:
            back, self.credit = back + self.credit, 0
            self._rate = 0.0
        demand = self._rate * period
        # Enough for two periods, and two standard deviations of arrivals more.
        unit = self._scale.unit
        target = 2.0 * demand + 2.0 * math.sqrt(2.0 * demand * unit)
        target = max(target, sudden) + self.wanted
        want = 0 if leave else max(least, math.ceil(target) - self.credit)
        self.low = demand / 2.0
        self.asked_at = now
        self._sent_debt = self.debt
        scale = self._scale
        return (
            0, 0, scale.a, scale.c, unit, 0 if leave else least, self.credit, self._seen,
            min(want, scale.c), back, self.debt, round(self._term * 1e6),
        )  # fmt: skip

    def heard(self, answer: Sequence[int], now: float) -> None:
        """The store has answered the question under way."""
        asked = self.asked_at
        assert asked is not None
        self.asked_at = None
        self.trouble = ""
        _, granted, self._seen, self.left, retry, self.processes = answer
        self.debt -= self._sent_debt
        # Counted from the question: the store counts from later, so it never stops first.
        self.until = asked + self._term - MARGIN
        self.renew_at = asked + self._term / 2.0
        if now < self.until:
            self.credit += granted
        if granted:
            self.used_at = max(self.used_at, asked)  # somebody wanted it
        if retry:
            self.retry_at = asked + retry / 1e6
            self.denied_until = min(self.retry_at, asked + LONGEST_DENIAL)

    def unheard(self, deadline: float, trouble: str = "") -> None:
        """The question under way has no answer; the next one settles what it did.

        Until its deadline it may still be executed, and the next must not overtake it.
        """
        self.asked_at = None
        self.trouble = trouble
        self._silent_until = deadline
