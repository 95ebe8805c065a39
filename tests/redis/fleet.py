"""Many processes that lease from one store, in virtual time, with a network that fails."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import msgspec

from loadgate.integrations.redis.ask import LEASE, Ask
from loadgate.integrations.redis.leases import PARTS, Lease
from loadgate.integrations.redis.units import scale
from loadgate.rates.spec import Rate
from tests.redis.turned import Turned


class Network(msgspec.Struct):
    """How messages travel.

    Attributes:
        delay: Seconds of one way, up to one and a half times as long.
        lost: Share of questions that never arrive.
        mute: Share of answers that never arrive.
        breaks: Share of questions after which the connection breaks; they arrive all the same.
    """

    delay: float = 0.001
    lost: float = 0.0
    mute: float = 0.0
    breaks: float = 0.0


class Node:
    """One process with one client. Its clock starts anywhere and runs a little wrong."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        draw = fleet.draw
        self.fleet = fleet
        self.name = name
        self.alive = True
        self.cut_off = False
        self.misses = 0
        self.admitted = 0
        self._offset = draw.uniform(-1e6, 1e6)
        self._speed = 1.0 + draw.uniform(-5e-4, 5e-4)
        self.lease = Lease(fleet.scale, fleet.term, fleet.overdraft)

    def clock(self) -> float:
        return self._offset + self._speed * self.fleet.now

    def request(self, cost: int = 1, turned_away: float = 0.0) -> None:
        """A request arrives; it is decided at once, or after one question."""
        if not self.alive:
            return
        units = cost * self.fleet.scale.unit
        if not self._spend(units, turned_away):
            self.misses += 1
            if self.lease.may_ask(self.clock()) and self.clock() >= self.lease.denied_until:
                self.ask(units, lambda: self._spend(units, turned_away))
        if self.lease.due(self.clock()):
            self.ask(self.fleet.scale.unit)

    def _spend(self, units: int, turned_away: float) -> bool:
        if not self.alive or not self.lease.spend(units, self.clock()):
            return False
        draw = self.fleet.draw
        if turned_away and draw.random() < turned_away:
            # A 503 a little later: it never was admitted.
            at = self.clock()
            self.fleet.after(
                draw.uniform(0.0, 0.1), lambda: self.lease.unspend(units, at, self.clock())
            )
            return True
        self.admitted += 1
        self.fleet.admit(units)
        return True

    def ask(
        self, least: int, then: Callable[[], object] | None = None, *, leave: bool = False
    ) -> None:
        fleet, network, draw = self.fleet, self.fleet.network, self.fleet.draw
        item = self.lease.question(self.clock(), least, leave=leave)
        deadline = self.clock() + fleet.budget
        not_after = fleet.server_us(fleet.now + fleet.budget)
        answered = False

        broken = draw.random() < network.breaks

        def arrive() -> None:
            reply = fleet.run(self.name, item, not_after / 1e6)
            if draw.random() >= network.mute and not self.cut_off and not broken:
                fleet.after(network.delay * draw.uniform(0.5, 1.5), lambda: hear(reply))

        def hear(reply: list[int]) -> None:
            nonlocal answered
            if self.alive and self.clock() < deadline and reply[0] == 1:
                answered = True
                self.lease.heard(reply, self.clock())
                if then is not None:
                    then()

        def give_up() -> None:
            if not answered and self.alive:
                self.lease.unheard(deadline)

        if draw.random() >= network.lost and not self.cut_off:
            fleet.after(network.delay * draw.uniform(0.5, 1.5), arrive)
        fleet.after(0.0 if broken else fleet.budget, give_up)

    def sweep(self) -> None:
        if self.alive and self.lease.idle(self.clock()):
            self.ask(0, leave=True)
        self.fleet.after(self.fleet.term / PARTS, self.sweep)


class Fleet:
    """A store, its processes, and a strict bucket that judges them.

    Attributes:
        excess: The most units by which the burst was exceeded so far.
        admitted: Units admitted.
    """

    def __init__(
        self,
        turned: Turned,
        rate: Rate,
        seed: int,
        network: Network | None = None,
        overdraft: float = 0.0,
        term: float = 1.0,
        budget: float = 0.02,
    ) -> None:
        self.scale = scale(rate)
        self.overdraft = round(overdraft * self.scale.unit)
        self.term = term
        self.budget = budget
        self.network = network or Network()
        self.draw = random.Random(seed)
        self.now = 0.0
        self.nodes: list[Node] = []
        self.excess = -float("inf")
        self.admitted = 0
        self._level = 0.0
        self._at = 0.0
        self._turned = turned
        self._key = f"{{fleet {id(self)} {seed}}}"
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()
        self._start = 1_700_000_000_000_000

    def server_us(self, moment: float) -> int:
        return self._start + round(moment * 1e6)

    def run(self, process: str, item: Sequence[int], not_after: float) -> list[int]:
        ask = Ask(LEASE, [self._key.encode()], [item], not_after, id=process)
        (answer,) = self._turned.run(self.server_us(self.now), ask)
        return answer

    def forget(self) -> None:
        """The store loses its data."""
        self._turned.delete(self._key)

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), action))

    def until(self, moment: float) -> None:
        while self._events and self._events[0][0] <= moment:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = moment

    def join(self) -> Node:
        node = Node(self, f"node{len(self.nodes)}")
        self.nodes.append(node)
        self.after(self.draw.uniform(0.0, self.term / PARTS), node.sweep)
        return node

    def admit(self, units: int) -> None:
        leaked = self.scale.a * 1e6 * (self.now - self._at)
        self._level = max(0.0, self._level - leaked) + units
        self._at = self.now
        self.admitted += units
        self.excess = max(self.excess, self._level - self.scale.c)

    def load(self, node: Node, rate: float, begin: float, end: float, **how: Any) -> None:
        """Poisson arrivals at one node."""
        moment = begin
        while (moment := moment + self.draw.expovariate(rate)) < end:
            self.after(moment - self.now, lambda: node.request(**how))
