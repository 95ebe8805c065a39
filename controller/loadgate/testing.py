"""How do users test theirs? A clock turned by hand, loaded dice, a scripted service.

    clock = VirtualClock()
    controller = AdmissionController(policy, clock=clock, draw=Draws(0.5))
    service = ScriptedService(clock, [0.05, 0.2, TimeoutError()])
    async with controller.admit(client="a"):
        await service()                      # the clock is 0.05 s further now

Nothing sleeps: a rate refills, a latency passes, a wait expires because the test says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final


class VirtualClock:
    """Monotonic seconds that pass only when told.

    Args:
        now: Where it starts, seconds.
    """

    __slots__ = ("now",)

    virtual: Final = True
    """Tells a controller that its time says nothing about the event loop."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """The time it shows, as `AdmissionController(clock=...)` asks for it."""
        return self.now

    def advance(self, seconds: float) -> float:
        """Let `seconds` pass, and return the new time.

        Raises:
            ValueError: `seconds` is negative or NaN; use `step` for a clock that jumps back.
        """
        if not seconds >= 0.0:
            raise ValueError(f"time passes forward; {seconds!r} is not at least 0")
        self.now += seconds
        return self.now

    def step(self, seconds: float) -> float:
        """Jump by `seconds`, backwards too, as a broken clock does."""
        self.now += seconds
        return self.now


class Draws:
    """Loaded dice: the given numbers in turn, over and over.

    Args:
        numbers: Each in [0, 1); in a survival test the smaller survives.

    Raises:
        ValueError: There is none, or one is outside [0, 1).
    """

    __slots__ = ("_next", "numbers")

    def __init__(self, *numbers: float) -> None:
        if not numbers or not all(0.0 <= number < 1.0 for number in numbers):
            raise ValueError(f"draws are numbers in [0, 1), not {numbers!r}")
        self.numbers = numbers
        self._next = 0

    def __call__(self) -> float:
        """The next draw, as `AdmissionController(draw=...)` asks for it."""
        number = self.numbers[self._next % len(self.numbers)]
        self._next += 1
        return number


class ScriptedService:
    """A service that takes as long, or fails, as the script says, in virtual time.

    Args:
        clock: The clock it turns.
        script: What each call does in turn: a latency in seconds, or an exception to raise at
            once. After the last entry it starts again.

    Attributes:
        calls: How often it was called.
    """

    __slots__ = ("_clock", "_script", "calls")

    def __init__(self, clock: VirtualClock, script: Iterable[float | BaseException]) -> None:
        self._clock = clock
        self._script: Sequence[float | BaseException] = tuple(script)
        if not self._script:
            raise ValueError("a script needs at least one entry")
        self.calls = 0

    async def __call__(self) -> float:
        """Play the next entry; returns its latency in seconds."""
        entry = self._script[self.calls % len(self._script)]
        self.calls += 1
        if isinstance(entry, BaseException):
            raise entry
        self._clock.advance(entry)
        return entry
