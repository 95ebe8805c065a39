"""What does the log say when the store goes and comes? One line each, and no flood."""

from __future__ import annotations

import logging
from typing import Final

_logger: Final = logging.getLogger("loadgate.store")

# Seconds in which a flapping store is written down once.
_QUIET: Final = 60.0


class Incidents:
    """Writes one WARNING when the store goes away and one INFO when it is back.

    Args:
        endpoint: Where it is, without credentials.
    """

    __slots__ = ("_endpoint", "_last", "_silent", "_told")

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._last = -_QUIET
        self._silent = 0
        self._told = False

    def lost(self, now: float, cause: str, policy: str) -> None:
        """The store went away."""
        self._told = now - self._last >= _QUIET
        if not self._told:
            self._silent += 1
            return
        more = f" (and {self._silent} times more since the last such line)" if self._silent else ""
        self._last, self._silent = now, 0
        _logger.warning(
            "shared store %s is away: %s; until it is back: %s%s",
            self._endpoint, cause, policy, more,
        )  # fmt: skip

    def found(self, seconds: float, decisions: str) -> None:
        """It is back."""
        if self._told:
            _logger.info(
                "shared store %s is back after %.2f s; meanwhile: %s",
                self._endpoint, seconds, decisions,
            )  # fmt: skip

    def wrong_type(self, name: str, key: bytes) -> None:
        """A key of ours holds something that is not ours."""
        _logger.warning(
            "shared store %s: rate %r finds something else under %s; its failure policy decides. "
            "Remove that key, or give this deployment a prefix of its own",
            self._endpoint, name, key.decode(errors="replace"),
        )  # fmt: skip
