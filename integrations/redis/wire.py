"""How are questions and answers written for `decide.lua`? Flat, so that both sides do little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from loadgate.integrations.redis.ask import (
    CHARGE,
    CHARGE_ONE,
    GIVE_BACK,
    LEASE,
    STALE,
    WRONG_TYPE,
    Ask,
)
from loadgate.integrations.redis.transport import LOST, StoreError

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[int])

# A question that asks nothing: its answer is the server's time.
NOTHING: Final = _encoder.encode([[]])

# Microseconds of any server's clock that never come.
FOR_EVER: Final = 2**52

# A lease is answered by its status and five numbers.
_LEASE_ANSWER: Final = 6


def written(batch: Sequence[Ask], earliest: float | None) -> tuple[list[bytes], bytes]:
    """The keys of all questions, and the questions as one message.

    Args:
        batch: The questions.
        earliest: Seconds to add to our monotonic clock for one that the server's certainly is
            not behind; None if that is not known.
    """
    settings: list[Sequence[int]] = []
    numbers: dict[int, int] = {}  # by identity: most questions ask the very same thing
    flat: list[Any] = [settings]
    keys: list[bytes] = []
    for ask in batch:
        op = ask.op
        before = FOR_EVER if earliest is None else int((ask.deadline + earliest) * 1e6)
        if op == LEASE:
            keys.append(ask.keys[0])
            flat += (op, before, ask.id, ask.items[0])
            continue
        if op == CHARGE_ONE:
            keys.append(ask.keys[0])
            flat += (op, before)
        else:
            keys += ask.keys
            flat += (op, before, ask.id, len(ask.items))
        for item in ask.items:
            number = numbers.get(id(item))
            if number is None:
                settings.append(item)
                number = numbers[id(item)] = len(settings)
            flat.append(number)
        if op == GIVE_BACK:
            flat.append(ask.charged_at)
    return keys, _encoder.encode(flat)


def read(reply: bytes, batch: Sequence[Ask]) -> tuple[int, list[list[int]]]:
    """The server's time in microseconds, and the answer to each question.

    Raises:
        StoreError: The reply is something else.
    """
    try:
        flat = _decoder.decode(reply)
    except msgspec.MsgspecError as error:
        raise StoreError(LOST, f"an answer that cannot be read: {error}") from error
    answers: list[list[int]] = []
    first = 1
    try:
        for ask in batch:
            op, status = ask.op, flat[first]
            if status in (STALE, WRONG_TYPE):
                last = first + 1
            elif op == CHARGE_ONE:
                last = first + 5
            elif op == CHARGE:
                last = first + 1 + 4 * len(ask.items)
            else:
                last = first + (_LEASE_ANSWER if op == LEASE else 1)
            answers.append(flat[first:last])
            first = last
    except IndexError:
        first = -1
    if first != len(flat):
        raise StoreError(LOST, f"an answer of another shape: {flat!r:.100}")
    return flat[0], answers
