"""A door that is told when to be closed."""

from __future__ import annotations

from loadgate.decisions import Reason, Refuse, Stage
from loadgate.shedding.door import DoorRule

REFUSAL = Refuse(Stage.SHED, Reason.LOOP_LAG, 1.0, 0.25, 0.005)


class Script(DoorRule):
    """A rule that refuses while it is told to.

    Attributes:
        asked: How often.
        levels: The classes of those who asked.
        late: Whether whoever reaches the application is refused there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.late = False
        self.levels: list[int] = []

    def shut(self, shut: bool = True) -> None:
        self.closed = shut

    def arrive(self, now: float, level: int = 0) -> Refuse | None:
        self.asked += 1
        self.levels.append(level)
        if self.closed:
            return REFUSAL
        self.in_transit += 1
        return None

    def enter(self, now: float, passed: float) -> Refuse | None:
        self.in_transit -= 1
        return REFUSAL if self.late else None

    def look(self, now: float, useful: int, paced: bool = False) -> None:
        pass
