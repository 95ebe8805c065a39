"""Which requests does a class have on its way? Its schedule, its open calls, its columns."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from typing import TYPE_CHECKING

from loadgate.integrations.loadgen.http1 import request
from loadgate.integrations.loadgen.plan import ClientClass, Plan, client_name
from loadgate.integrations.loadgen.result import Rows
from loadgate.integrations.loadgen.schedule import arrivals, stream

if TYPE_CHECKING:
    from loadgate.integrations.loadgen.engine import Connection


class Call:
    """One request on its way."""

    __slots__ = (
        "connecting", "connection", "group", "intended", "over", "payload", "row", "second",
    )  # fmt: skip

    def __init__(self, group: Group, row: int, intended: float, payload: bytes) -> None:
        self.group = group
        self.row = row
        self.intended = intended
        self.payload = payload
        self.over = False
        self.second = False
        self.connection: Connection | None = None
        self.connecting: asyncio.Task[None] | None = None


class Group:
    """The clients of one class: their schedule, their open calls, their columns."""

    def __init__(self, one: ClientClass, plan: Plan, host: str) -> None:
        self.one = one
        self.name = one.name
        self.method = one.method
        self.timeout = one.timeout
        self.kept = one.connection == "keep"
        self.due = arrivals(one, plan.phases, plan.seed)
        self.payloads = [
            request(one, host, client_name(one, index) if one.clients else "")
            for index in range(max(1, one.clients))
        ]
        self.dice = stream(one, plan.seed, "clients")
        size = len(self.due)
        self.latency = array("d", bytes(8 * size))
        self.status = array("h", bytes(2 * size))
        self.late = array("d", bytes(8 * size))
        self.open: deque[Call] = deque()  # in the order of their deadlines

    def payload(self) -> bytes:
        """The request of one client of the class, drawn at random."""
        if len(self.payloads) == 1:
            return self.payloads[0]
        return self.payloads[int(self.dice.random() * len(self.payloads))]

    def rows(self) -> Rows:
        """The columns, as they go into the result."""
        return Rows(
            at=self.due.tolist(),
            latency=self.latency.tolist(),
            status=self.status.tolist(),
            late=self.late.tolist(),
        )
