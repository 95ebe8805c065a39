"""Is a setting of a limit one that can work? If not, say which value broke which bound."""

from __future__ import annotations

import math
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from loadgate.errors import PolicyError

if TYPE_CHECKING:
    from collections.abc import Iterable


# The greatest float; ints may be greater.
_GREATEST: Final = math.nextafter(math.inf, 0.0)

# Longer values are cut in messages: what is wrong is seen in the first hundred characters.
_SHOWN: Final = 100


def shown(value: object) -> str:
    """`value` as a message says it: never long, and there is always something to say."""
    try:
        text = repr(value)
    except Exception:  # of any class, from a __repr__ that is not ours; ints of 4,300 digits too
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def real(path: str, value: object, low: float, high: float = math.inf) -> float:
    """Return `value` as a float within [low, high].

    Raises:
        PolicyError: It is no number, NaN, or outside the bounds.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PolicyError(path, f"{shown(value)} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.nan
        high = min(high, _GREATEST)
    if not low <= number <= high:  # NaN compares false with everything, so it ends here too
        bound = (
            f"at least {low:.16g}" if high == math.inf else f"between {low:.16g} and {high:.16g}"
        )
        raise PolicyError(path, f"{shown(value)} must be {bound}")
    return number


def whole(path: str, value: object, low: int, high: int) -> int:
    """Return `value` as an int within [low, high]; 20.0 counts as whole.

    Raises:
        PolicyError: It is not a whole number or outside the bounds.
    """
    number = real(path, value, low, high)
    if number != int(number):
        raise PolicyError(path, f"{value!r} is not a whole number")
    return int(number)


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return the known words, and the nearest one first where there is one."""
    words = sorted(known)
    near = get_close_matches(word, words, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}known: {', '.join(words)}" if words else "none is known"
