"""What is the common question, about one plain strict rate, in as few steps as possible?"""

from __future__ import annotations

from typing import cast

from loadgate.integrations.redis.ask import Ask, Setting
from loadgate.integrations.redis.question import Entry, Question
from loadgate.integrations.redis.shares import Share


class Single(Ask, kw_only=True, eq=False):
    """A request's only shared rate while the store is asked: the question and its receipt in one.

    A request that asks about more, or that gets another answer than "yes", is a `Question`; each
    object less on the way is a few percent of a decision.

    Attributes:
        share: The rate.
        subject: Who is counted, given as text.
        cost: In cost units.
        asked: Our monotonic seconds.
        now: The same moment by the controller's clock.
        decided: What the caller was told meanwhile: True if the request went on.
    """

    share: Share
    subject: str
    cost: float
    asked: float
    now: float
    decided: bool | None = None

    def question(self) -> Question:
        """The same as a `Question`, which answers for it from now on: its wait is over."""
        if self.owner is None:
            setting = cast("Setting", self.items[0])
            entries: list[Entry] = [(self.share, self.subject, self.keys[0], setting)]
            self.owner = Question(
                entries, [], self.cost, self.asked, self.now, [(self, entries)], self.decided
            )
        question: Question = self.owner
        return question
