"""Does what a caller asks for mean anything?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_client(client: Any) -> bool:
    """Whether rates could count it: checked also where none does, so that the first may come."""
    return client is None or isinstance(client, str | bytes | Mapping)


def check_request(cost: Any, timeout: Any, places: Any = 1) -> None:
    """Refuse arguments that mean nothing.

    Raises:
        ValueError: `cost` is not a finite number above 0, `timeout` is NaN, or `places` is
            not a whole number of at least 1.
    """
    if type(places) is not int or places < 1:
        raise ValueError(f"places must be a whole number of at least 1, not {places!r}")
    if not 0.0 < cost < float("inf"):
        raise ValueError(f"cost must be a finite number above 0, not {cost!r}")
    if timeout is not None and timeout != timeout:
        raise ValueError("timeout must be a number of seconds or None, not NaN")
