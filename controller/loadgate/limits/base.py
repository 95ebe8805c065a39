"""What does a limit see, and what does it answer?"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from loadgate.decisions import Outcome


@runtime_checkable
class Limit(Protocol):
    """How many requests may run at once, and how that number moves.

    A limit is driven by its caller and never looks at a clock: every `now` is monotonic
    seconds. The caller promises exactly one `on_finish` for each `on_admit`. A limit promises
    that no input makes it raise, become stuck, or leave its bounds.
    """

    @property
    def limit(self) -> int:
        """Requests that may run at once, enforced now; at least 1."""
        ...

    def on_admit(self, now: float, in_flight: int) -> None:
        """A request starts. `in_flight` counts it."""
        ...

    def on_wait(self, now: float) -> None:
        """Someone must wait for a place."""
        ...

    def on_refuse(self, now: float) -> None:
        """Someone was turned away because the service is full."""
        ...

    def on_finish(
        self,
        now: float,
        latency: float,
        in_flight: int,
        outcome: Outcome,
        held: float | None = None,
    ) -> None:
        """A request that was admitted has ended.

        Args:
            now: The moment its place became free.
            latency: Seconds of running until its first answer.
            in_flight: In flight as it was at its admission, itself included.
            outcome: What it showed.
            held: Seconds its place was occupied; None means as long as `latency`.
        """
        ...

    def on_stall(self, now: float, duration: float) -> None:
        """The event loop stood still for `duration` seconds until `now`."""
        ...

    def explain(self) -> dict[str, Any]:
        """The internal state, ready for JSON."""
        ...
