"""How does coredis reach a cluster, whose slots may move while we ask?

The client's own way follows a redirection by sending ASKING and the call one after the other, so
that somebody else's call on the same connection may come between; waits 50 ms and longer where a
slot is half moved, which to the link is silence; and knows no node that has no slots yet.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, ClassVar, Final

import anyio
import coredis
from coredis.connection import BaseConnection
from coredis.exceptions import AskError, MovedError, RedisError

from loadgate.integrations.redis.coredis_calls import answered, created, text_of, translated
from loadgate.integrations.redis.transport import Reply, Script, StoreError

# Redirections of one call: to whom the slot belongs by now, and on to whom it is moving.
_HOPS: Final = 2

_Place = tuple[str, int]


class ClusterConnection:
    """A cluster: keys of one call must share a slot, and every node has its own clock.

    Args:
        cluster: Entered; only its map of the cluster and its connections are used.
    """

    # One call per slot: many small ones, which the library joins on each node's connection.
    parallel: ClassVar[int] = 64
    split: ClassVar[bool] = True

    def __init__(self, cluster: coredis.RedisCluster[bytes]) -> None:
        self._pool = cluster.connection_pool
        self._scripts: Sequence[Script] = ()
        self._prepared: set[_Place] = set()
        self._preparing = anyio.Lock()

    def probes(self, key: bytes) -> Sequence[bytes]:
        """See `Connection`."""
        found: dict[Hashable, bytes] = {}
        nodes = len(self._pool.cluster_layout.primaries)
        number = 0
        # A node with very few slots may be missed; it is found out by the first request to it.
        while len(found) < nodes and number < 64 * nodes:
            probe = b"%b{%d}" % (key, number)
            found.setdefault(self.server(probe), probe)
            number += 1
        return list(found.values())

    async def load(self, scripts: Sequence[Script]) -> None:
        """See `Connection`."""
        self._scripts = scripts
        self._prepared.clear()
        for node in self._pool.cluster_layout.primaries:
            await self._reach(node)

    async def call(self, script: Script, keys: Sequence[bytes], argument: bytes) -> Reply:
        """See `Connection`."""
        layout = self._pool.cluster_layout
        try:
            node = layout.node_for_slot(slot_of(keys[0]))
        except RedisError as error:
            raise StoreError("CLUSTERDOWN", str(error)) from error
        asking = False
        for hop in range(_HOPS + 1):
            connection = await self._reach(node)
            # Both are written in one go: the permission to ask holds for the very next command.
            permission = created(connection, b"ASKING") if asking else None
            reply = created(connection, b"EVALSHA", script.sha, len(keys), *keys, argument)
            try:
                if permission is not None:
                    await answered(permission)
                return text_of(await answered(reply)), (node.host, node.port)
            except StoreError as error:
                moved = error.__cause__
                if not isinstance(moved, AskError) or hop == _HOPS:
                    raise
                asking = not isinstance(moved, MovedError)
                if not asking:
                    layout.report_errors(node, moved)
                # No host means the one that answered.
                host = moved.host or node.host
                node = type(node)(host, moved.port, server_type="primary")
        raise AssertionError  # the last hop has answered or raised

    async def _reach(self, node: Any) -> BaseConnection:
        """A connection to `node`, which knows the scripts."""
        try:
            connection = await self._pool.get_connection(node)
        except (RedisError, OSError) as error:
            raise translated(error) from error
        # Back at once: it is shared by all who ask.
        self._pool.release(connection)
        place = (node.host, node.port)
        if place not in self._prepared:
            async with self._preparing:
                if place not in self._prepared:
                    for script in self._scripts:
                        await answered(created(connection, b"SCRIPT LOAD", script.text))
                    self._prepared.add(place)
        return connection

    def group(self, key: bytes) -> Hashable:
        """See `Connection`."""
        return slot_of(key)

    def server(self, key: bytes) -> Hashable:
        """See `Connection`."""
        try:
            node = self._pool.cluster_layout.node_for_slot(slot_of(key))
        except (RedisError, KeyError):
            return None
        return (node.host, node.port)


def slot_of(key: bytes) -> int:
    """The cluster slot of `key`: CRC16 of its hash tag modulo 16384 (Redis cluster specification).

    Every key here has its tag in braces.
    """
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    crc = 0
    for byte in key:
        crc = ((crc << 8) & 0xFFFF) ^ _CRC[(crc >> 8) ^ byte]
    return crc % 16384


def _crc_table() -> tuple[int, ...]:
    table: list[int] = []
    for byte in range(256):
        crc = byte << 8
        for _ in range(8):
            crc = ((crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
        table.append(crc)
    return tuple(table)


_CRC: Final = _crc_table()
