"""Which limits are there, and how is one made?

`create` is the only door; the classes behind it are found by name in `ALGORITHMS`.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

from loadgate.errors import PolicyError
from loadgate.limits.adaptive import AdaptiveLimit
from loadgate.limits.aimd import AimdLimit
from loadgate.limits.base import Limit
from loadgate.limits.bbr import BbrLimit
from loadgate.limits.envoy import EnvoyGradientLimit
from loadgate.limits.fixed import FixedLimit
from loadgate.limits.gradient2 import Gradient2Limit
from loadgate.limits.settings import real, suggestion, whole
from loadgate.limits.vegas import VegasLimit

__all__ = ["ALGORITHMS", "PUBLISHED", "Limit", "create"]

# More requests at once than any one event loop can hold; guards against a slipped digit.
HIGHEST: Final = 1_000_000

ALGORITHMS: Final[dict[str, Any]] = {
    "adaptive": AdaptiveLimit,
    "aimd": AimdLimit,
    "bbr": BbrLimit,
    "envoy-gradient": EnvoyGradientLimit,
    "fixed": FixedLimit,
    "gradient2": Gradient2Limit,
    "vegas": VegasLimit,
}

# What the sources start with where it differs from `create`'s 20, 1 and 1000; the benchmark
# and people who move over pass these: `create(name, **PUBLISHED[name])`.
PUBLISHED: Final[dict[str, dict[str, Any]]] = {
    "adaptive": {},
    "aimd": {"initial": 20, "min": 20, "max": 200, "window": 1.0},
    "bbr": {"window": 10.0},
    "envoy-gradient": {"initial": 3, "min": 3},
    "fixed": {},
    "gradient2": {"initial": 20, "min": 20, "max": 200, "window": 1.0},
    "vegas": {"initial": 20, "min": 1, "max": 1000, "window": 1.0},
}


def create(
    algorithm: str, *, initial: int = 20, min: int = 1, max: int = 1000, **options: Any
) -> Limit:
    """Make a limit by the name of its algorithm.

    Args:
        algorithm: One of `ALGORITHMS`; "adaptive" needs no setting.
        initial: The limit at the start, within [min, max].
        min: The lowest limit, 1 to 1,000,000.
        max: The highest limit, `min` to 1,000,000.
        options: The algorithm's own keyword arguments, named and explained in its class.

    Raises:
        PolicyError: The algorithm or an option is unknown, or a value is outside its bounds;
            `path` names the setting, the message the value and the bound.
    """
    made = ALGORITHMS.get(algorithm)
    if made is None:
        raise PolicyError(
            "algorithm", f"{algorithm!r} is unknown; {suggestion(str(algorithm), ALGORITHMS)}"
        )
    low = whole("min", min, 1, HIGHEST)
    high = whole("max", max, 1, HIGHEST)
    if low > high:
        raise PolicyError("min", f"{low} is above max {high}")
    first = whole("initial", initial, 1, HIGHEST)
    if not low <= first <= high:
        raise PolicyError("initial", f"{first} must be between min {low} and max {high}")
    known = set(inspect.signature(made).parameters) - {"initial", "min", "max"}
    for name in options:
        if name not in known:
            raise PolicyError(name, f"no option of {algorithm!r}; {suggestion(name, known)}")
    if options.get("window") is not None:
        real("window", options["window"], 0.1, 3600.0)  # 0.1 s: the least Netflix allows
    return made(initial=first, min=low, max=high, **options)  # type: ignore[no-any-return]  # the registry holds classes of one protocol
