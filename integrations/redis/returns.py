"""How does a charge go back, and how is one made after the request? In the background."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from loadgate.decisions import Outcome
from loadgate.integrations.redis.ask import DONE, GIVE_BACK, REFUSED, TAKE, Ask, Setting
from loadgate.integrations.redis.denied import Denied
from loadgate.integrations.redis.link import Link
from loadgate.integrations.redis.question import Entry, Question
from loadgate.integrations.redis.shares import LOOK
from loadgate.integrations.redis.spending import unspend
from loadgate.integrations.redis.tally import Tally

# Seconds in which a charge can still be given back: after that its client has lost interest.
_GIVE_BACK: Final = 2.0


class Returns:
    """Sends what nobody waits for.

    Args:
        link: The way to the store.
        denied: Who was refused: wrong once something was given back.
        tally: Counts.
        next_id: An id for each request.
    """

    __slots__ = ("_denied", "_link", "_next_id", "_tally")

    def __init__(
        self, link: Link, denied: Denied, tally: Tally, next_id: Callable[[], str]
    ) -> None:
        self._link = link
        self._denied = denied
        self._tally = tally
        self._next_id = next_id

    def undo(self, question: Question) -> None:
        """The request does not go on: return what the store and the leases charged for it."""
        question.decided = False
        unspend(question)
        for ask, entries in question.parts:
            self.give_back(ask, entries)

    def give_back(self, ask: Ask, entries: list[Entry]) -> None:
        """Undo one part, if it was charged."""
        answer = ask.answer
        if answer is None or answer[0] != DONE:
            return
        charged = [
            entry
            for position, entry in enumerate(entries)
            if entry[0].flag != LOOK and answer[1 + 4 * position]
        ]
        ask.answer = [REFUSED]  # a receipt counts once
        if not charged:
            return
        for _, _, key, _ in charged:
            self._denied.forget(key)
        self._send(
            GIVE_BACK,
            ask.id,
            [key for _, _, key, _ in charged],
            [setting for _, _, _, setting in charged],
            ask.server_us,
        )

    def settle(self, question: Question, outcome: Outcome, status: int | None, now: float) -> None:
        """The request has ended: charge the rates that waited for its outcome.

        Args:
            question: What was asked when it arrived.
            outcome: How it ended.
            status: Its HTTP status, if it has one.
            now: The controller's monotonic seconds.
        """
        for share, subject, key, setting in question.entries:
            member = share.member
            if share.flag != LOOK:
                continue
            if outcome.value in member.outcomes or status in member.statuses:
                member.charged += 1
                member.limiter.take(subject, now, question.cost)
                self._send(TAKE, self._next_id(), [key], [setting])

    def _send(
        self,
        op: int,
        id: str,
        keys: Sequence[bytes],
        settings: Sequence[Setting],
        charged_at: int = 0,
    ) -> None:
        deadline = time.monotonic() + _GIVE_BACK
        ask = Ask(op, keys, settings, deadline, id=id, charged_at=charged_at)
        if self._link.submit(ask, waits=False):
            self._tally.given_back += op == GIVE_BACK
        else:
            self._tally.forgotten += 1
