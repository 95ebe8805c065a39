"""The script on a server whose clock the test turns, used like a limiter in memory."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from loadgate.decisions import Quota
from loadgate.integrations.redis.ask import CHARGE, GIVE_BACK, TAKE
from loadgate.integrations.redis.shares import ENFORCE, LOOK
from loadgate.integrations.redis.transport import Script
from loadgate.integrations.redis.units import scale
from loadgate.rates.spec import Rate
from tests.redis.servers import Server

_CLOCK = "local clock = redis.call('TIME')"
_TURNED = "local clock = { 0, tonumber(ARGV[2]) }"
_SLACK = "local SLACK = 1000"
_FOR_EVER = "local SLACK = 1000000000"  # keys expire by the server's own clock

NEVER = 2**52


def turned() -> str:
    """`decide.lua`, told the time by its second argument."""
    text = Script.read("decide.lua").text
    for old, new in ((_CLOCK, _TURNED), (_SLACK, _FOR_EVER)):
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


class Turned:
    """One server with the turned script."""

    _examples = itertools.count()

    def __init__(self, server: Server) -> None:
        self._wire = server.wire()
        self._sha = self._wire("SCRIPT", "LOAD", turned())
        self._ids = itertools.count()

    def id(self) -> str:
        return f"id{next(self._ids)}"

    def run(self, now_us: int, *requests: tuple[list[Any], list[str]]) -> list[Any]:
        message = msgspec.msgpack.encode([body for body, _ in requests])
        keys = [key for _, keys in requests for key in keys]
        reply = self._wire("EVALSHA", self._sha, len(keys), *keys, message, now_us)
        answer = msgspec.msgpack.decode(reply)
        assert answer[0] == now_us
        return list(answer[1:])

    def delete(self, key: str) -> None:
        self._wire("DEL", key)

    def limiter(self, rate: Rate) -> TurnedLimiter:
        return TurnedLimiter(self, rate, next(self._examples))

    def close(self) -> None:
        self._wire.close()


class TurnedLimiter:
    """One rate; `now` is in microseconds."""

    def __init__(self, turned: Turned, rate: Rate, number: int) -> None:
        self._turned = turned
        self._rate = rate
        self._scale = scale(rate)
        self._number = number

    def change(self, rate: Rate) -> None:
        self._rate = rate
        self._scale = scale(rate)

    def _key(self, key: str) -> str:
        return f"{{{self._number}:{key}}}"

    def _item(self, flag: int, cost: float, at: int = 0) -> list[int]:
        numbers = self._scale
        units = numbers.units(cost)
        return [numbers.kind, flag, numbers.a, numbers.c, numbers.unit, units, at]

    def hit(self, key: str, now: int, cost: float, flag: int = ENFORCE) -> tuple[Quota, str]:
        id = self._turned.id()
        (answer,) = self._turned.run(
            now, ([CHARGE, NEVER, id, self._item(flag, cost)], [self._key(key)])
        )
        assert len(answer) == 5
        assert answer[0] == answer[1]
        _, allowed, remaining, reset, retry = answer
        return Quota(
            allowed == 1,
            self._rate.burst,
            remaining / self._scale.unit,
            reset / 1e6,
            float("inf") if retry < 0 else retry / 1e6,
            key,
            cost,
            now / 1e6,
        ), id

    def peek(self, key: str, now: int, cost: float) -> Quota:
        return self.hit(key, now, cost, LOOK)[0]

    def refund(self, key: str, now: int, cost: float, at: int, id: str) -> None:
        item = self._item(ENFORCE, cost, at)
        assert self._turned.run(now, ([GIVE_BACK, NEVER, id, item], [self._key(key)])) == [[1]]

    def take(self, key: str, now: int, cost: float) -> None:
        id = self._turned.id()
        item = self._item(ENFORCE, cost)
        assert self._turned.run(now, ([TAKE, NEVER, id, item], [self._key(key)])) == [[1]]
