"""What time is it on the server? Estimated from answers, for the not-after instant."""

from __future__ import annotations

from typing import Final

# Seconds after which a better sample is too old to beat a new one: clocks drift by 50 ppm or so,
# 0.5 ms in this time.
_LIFETIME: Final = 10.0


class ServerClock:
    """The server's clock beside ours, from the fastest recent exchange.

    The estimate is wrong by at most half the time that exchange took.

    Attributes:
        offset: Seconds that its clock is ahead of ours; None while nothing is known.
        earliest: The same, by that half less: our moments plus this are never too late.
    """

    __slots__ = ("_at", "_took", "earliest", "offset")

    def __init__(self) -> None:
        self.offset: float | None = None
        self.earliest: float | None = None
        self._took = 0.0
        self._at = 0.0

    def note(self, sent: float, received: float, server_us: int, *, anew: bool = False) -> None:
        """An answer said `server_us`, microseconds, between two of our moments, seconds.

        Args:
            sent: Monotonic seconds.
            received: Monotonic seconds.
            server_us: Microseconds of the server's clock.
            anew: Forget what was known: the server's clock has stepped.
        """
        took = received - sent
        if self.offset is None or anew or took <= self._took or received - self._at > _LIFETIME:
            self.offset = server_us / 1e6 - (sent + received) / 2.0
            self.earliest = self.offset - took / 2.0
            self._took = took
            self._at = received
