"""How long should a client wait before it asks again?"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC
from email.utils import parsedate_to_datetime

# RFC 9110 says whole seconds; some servers send decimals and mean them.
_DELTA = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)


def full_jitter(retries: int, *, base: float, cap: float, draw: float) -> float:
    """Draw a pause uniformly from 0 to ``min(cap, base * 2**retries)`` seconds.

    "Full jitter" of the AWS Builders' Library: with plain exponential backoff the clients that
    failed together come back together.

    Args:
        retries: How many retries there were before this one, from 0.
        base: The ceiling of the first pause, in seconds.
        cap: The ceiling that no pause exceeds, in seconds.
        draw: A number in [0, 1).
    """
    # 2**64 exceeds any ratio of cap to base that means something; a larger power of an int
    # would only grow until it no longer fits a float.
    ceiling: float = min(cap, base * 2.0 ** min(retries, 64))
    return draw * ceiling


def retry_after(values: Iterable[str], date: str | None, wall: float) -> float | None:
    """Say how many seconds a server asks to wait, or None when it does not say.

    Both forms of RFC 9110, section 10.2.3, are read. A date is compared with the ``Date`` of the
    same answer when there is one, so that the clocks of client and server need not agree.
    Of several fields the longest wait counts; what cannot be read is as good as absent.

    Args:
        values: The ``Retry-After`` fields of the answer.
        date: Its ``Date`` field, None without one.
        wall: Now, in seconds since the epoch, for answers without a ``Date``.
    """
    waits = [wait for value in values if (wait := _wait(value.strip(), date, wall)) is not None]
    return max(waits, default=None)


def _wait(value: str, date: str | None, wall: float) -> float | None:
    if _DELTA.fullmatch(value):
        return float(value)
    until = _epoch(value)
    if until is None:
        return None
    sent = _epoch(date) if date is not None else None
    return max(0.0, until - (wall if sent is None else sent))


def _epoch(value: str) -> float | None:
    try:
        moment = parsedate_to_datetime(value)
        # "-0000" and the obsolete forms carry no zone; RFC 9110 says all of them are GMT.
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
