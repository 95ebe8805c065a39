"""How is a figure written, so that nearly all is not all and next to nothing is not nothing?"""

from __future__ import annotations

from typing import Final

# Sums of shares that make one miss it by this much at most.
_ROUNDING: Final = 1e-9


def percent(share: float, digits: int = 1) -> str:
    """`share` in percent; one that would be rounded to 0 or 100 says that it is not.

    Args:
        share: 1.0 is all of it.
        digits: Behind the point.
    """
    step = 10.0 ** -(digits + 2)
    text = f"{share:.{digits}%}"
    if text == f"{1.0:.{digits}%}" and share < 1.0 - _ROUNDING:
        return f">{1.0 - step:.{digits}%}"
    if text == f"{0.0:.{digits}%}" and share > _ROUNDING:
        return f"<{step:.{digits}%}"
    return text


def points(half: float) -> str:
    """Half an interval in points of percentage, at least a tenth: there is one."""
    return f"{max(100.0 * half, 0.1):.1f}"


def seconds(value: float) -> str:
    """A time as people write it."""
    if value != value:
        return "-"
    if 0.0 < value < 0.0095:
        return f"{value * 1000:.2g} ms"
    return f"{value * 1000:.0f} ms" if value < 1.0 else f"{value:.2f} s"
