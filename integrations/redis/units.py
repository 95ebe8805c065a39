"""How is a rate written in whole numbers, so that Lua's doubles are exact?

Buckets count in units of which a whole number comes back in each microsecond; windows in
fractions of a cost unit, small enough for fractional costs and large enough for exact products.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

import msgspec

from loadgate.errors import PolicyError
from loadgate.rates.spec import BUCKETS, Rate

# Integers up to 2^53 are exact in a double; a bucket adds a burst to a burst.
_EXACT: Final = 2**53
_MOST_UNITS: Final = 2**52

# Finer than any sensible cost; costs are rounded to one part in a million of a cost unit.
_FINEST: Final = 10**6

# A rate that is no short fraction is kept to one part in a million: a request a year or so.
_CLOSE: Final = Fraction(1, 10**6)

# A log keeps one entry of about 100 bytes for each cost unit, and every read walks past the
# expired ones: a server is held up by larger ones.
_LONGEST_LOG: Final = 10_000

_KINDS: Final = {
    "token-bucket": 1,
    "leaky-bucket": 1,
    "fixed-window": 2,
    "sliding-window-counter": 3,
    "sliding-window-log": 4,
}
BUCKET: Final = 1
LOG: Final = 4


class Scale(msgspec.Struct, frozen=True, gc=False):
    """One rate in the numbers of `decide.lua`.

    Attributes:
        kind: Which algorithm.
        a: Units per microsecond of a bucket; microseconds of a window.
        c: Units of a full bucket or a window's limit.
        unit: Units of one cost unit.
    """

    kind: int
    a: int
    c: int
    unit: int

    def units(self, cost: float) -> int:
        """The cost in units, at least one; one more than there can be if it never fits.

        Raises:
            ValueError: The cost is not positive and finite, or a log would have to split it.
        """
        if not 0.0 < cost < math.inf:
            raise ValueError(f"cost must be positive and finite, not {cost!r}")
        if self.kind == LOG and cost != int(cost):
            raise ValueError(f"sliding-window-log counts whole costs, not {cost!r}")
        if cost * self.unit > self.c:
            # Rounding must not let in what is above the burst.
            return self.c + (Fraction(cost) * self.unit > self.c)
        return max(1, round(cost * self.unit))


def scale(rate: Rate) -> Scale:
    """The numbers of `rate`.

    Raises:
        PolicyError: They do not fit into whole numbers that a double holds.
    """
    kind = _KINDS[rate.algorithm]
    if rate.algorithm in BUCKETS:
        return _bucket(kind, rate)
    per = round(Fraction(repr(rate.per)) * 10**6)
    if per < 1000:
        raise PolicyError("per", f"a shared window must last at least 1 ms, not {rate.per:g} s")
    limit = int(rate.limit)
    if kind == LOG:
        if limit > _LONGEST_LOG:
            raise PolicyError(
                "limit",
                f"a shared sliding-window-log keeps one entry each: at most {_LONGEST_LOG}, "
                f"not {limit}; use sliding-window-counter",
            )
        return Scale(kind, per, limit, 1)
    if limit >= _MOST_UNITS:
        raise PolicyError("limit", f"must be below 2^52 in a shared store, not {limit}")
    unit = _FINEST
    while unit > 1 and limit * unit * per >= _EXACT:
        unit //= 10
    return Scale(kind, per, limit * unit, unit)


def _bucket(kind: int, rate: Rate) -> Scale:
    # repr: 0.1 means a tenth, not the double next to it.
    speed = Fraction(repr(rate.limit)) / (Fraction(repr(rate.per)) * 10**6)
    burst = Fraction(repr(rate.burst))
    most = math.floor(_MOST_UNITS / burst)
    exact = speed
    if speed.denominator > most:
        speed = speed.limit_denominator(max(1, most))
    if abs(speed - exact) > exact * _CLOSE or most < 1:
        raise PolicyError(
            "burst",
            f"{rate.burst:g} is too large beside {rate.limit:g} per {rate.per:g} seconds: a shared "
            "bucket counts to 2^52",
        )
    a, unit = speed.numerator, speed.denominator
    # As many units as fit, so that fractional costs are kept well; a whole millionth if possible.
    wanted = math.lcm(unit, _FINEST) // unit
    factor = wanted if unit * wanted <= most else max(1, min(most // unit, wanted))
    a, unit = a * factor, unit * factor
    if a >= _MOST_UNITS:
        raise PolicyError("limit", f"{rate.limit:g} per {rate.per:g} seconds is too fast to share")
    return Scale(kind, a, max(unit, math.floor(burst * unit)), unit)
