"""The script on a server whose clock the test turns, used like a limiter in memory."""

from __future__ import annotations

import itertools
import math

from loadgate.decisions import Quota
from loadgate.integrations.redis.ask import CHARGE, CHARGE_ONE, GIVE_BACK, TAKE, Ask, Setting
from loadgate.integrations.redis.shares import ENFORCE, LOOK
from loadgate.integrations.redis.transport import Script
from loadgate.integrations.redis.units import LOG, scale
from loadgate.integrations.redis.wire import read, written
from loadgate.rates.spec import Rate
from tests.redis.servers import Server

_CLOCK = "local clock = redis.call('TIME')"
_TURNED = "local clock = { 0, tonumber(ARGV[2]) }"
_SLACK = "local SLACK = 1000"
_FOR_EVER = "local SLACK = 1000000000"  # keys expire by the server's own clock


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

    def run(self, now_us: int, *asks: Ask) -> list[list[int]]:
        """The answers; an ask's deadline is in seconds of the server's clock."""
        never = all(math.isinf(ask.deadline) for ask in asks)
        keys, message = written(asks, None if never else 0.0)
        told, answers = read(
            self._wire("EVALSHA", self._sha, len(keys), *keys, message, now_us), asks
        )
        assert told == now_us
        return answers

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

    def _ask(
        self, op: int, key: str, cost: float, id: str, flag: int = ENFORCE, at: int = 0
    ) -> Ask:
        numbers = self._scale
        units = numbers.units(cost)
        setting: Setting = (numbers.kind, flag, numbers.a, numbers.c, numbers.unit, units)
        keys = [f"{{{self._number}:{key}}}".encode()]
        return Ask(op, keys, [setting], math.inf, id=id, charged_at=at)

    def hit(self, key: str, now: int, cost: float, flag: int = ENFORCE) -> tuple[Quota, str]:
        id = self._turned.id()
        op = CHARGE if self._scale.kind == LOG else CHARGE_ONE
        (answer,) = self._turned.run(now, self._ask(op, key, cost, id, flag))
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
        ask = self._ask(GIVE_BACK, key, cost, id, at=at)
        assert self._turned.run(now, ask) == [[1]]

    def take(self, key: str, now: int, cost: float) -> None:
        ask = self._ask(TAKE, key, cost, self._turned.id())
        assert self._turned.run(now, ask) == [[1]]
