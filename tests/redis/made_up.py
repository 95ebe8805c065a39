"""A transport that needs no server: what a test does not care about."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Self

import msgspec

from loadgate.integrations.redis.transport import Reply, Script


class MadeUp:
    """Connects to nobody and knows all scripts; its keys lie on one server."""

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Self]:
        yield self

    def probes(self, key: bytes) -> Sequence[bytes]:
        return [key]

    async def load(self, scripts: Sequence[Script]) -> None:
        del scripts

    def group(self, key: bytes) -> Hashable:
        return None

    def server(self, key: bytes) -> Hashable:
        return None


def reply(numbers: Sequence[int]) -> Reply:
    """As the script packs it: the server's time, then the answers."""
    return msgspec.msgpack.encode([int(time.time() * 1e6), *numbers]), None
