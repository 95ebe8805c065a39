"""What if the right limit is known? Then it stays where it was put."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadgate.decisions import Outcome


class FixedLimit:
    """A limit that never moves: `initial`, whatever happens.

    The yardstick of every other algorithm: the benchmark's oracle is the best of these.
    """

    __slots__ = ("limit",)

    def __init__(self, *, initial: int, min: int, max: int) -> None:
        self.limit = initial

    def on_admit(self, now: float, in_flight: int) -> None:
        """Ignore it."""

    def on_wait(self, now: float) -> None:
        """Ignore it."""

    def on_refuse(self, now: float) -> None:
        """Ignore it."""

    def on_finish(
        self,
        now: float,
        latency: float,
        in_flight: int,
        outcome: Outcome,
        held: float | None = None,
    ) -> None:
        """Ignore it."""

    def on_stall(self, now: float, duration: float) -> None:
        """Ignore it."""

    def explain(self) -> dict[str, Any]:
        """Say the limit."""
        return {"algorithm": "fixed", "limit": self.limit}
