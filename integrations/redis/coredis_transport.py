"""How does coredis, the client library for asyncio and trio, become a transport?

Retries are switched off, and nothing here outlives its connection: coredis loses slots of its
pool when callers are cancelled, and never leaves a server that went silent. The link cancels
nothing inside it and throws the whole client away after any failure.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, ClassVar, Final

import coredis
from coredis.connection import BaseConnection, TCPLocation
from coredis.exceptions import RedisError
from coredis.retry import NoRetryPolicy

from loadgate.integrations.redis.coredis_calls import answered, created, text_of, translated
from loadgate.integrations.redis.coredis_cluster import ClusterConnection
from loadgate.integrations.redis.tls import Tls
from loadgate.integrations.redis.transport import (
    LOST,
    Connection,
    Reply,
    Script,
    StoreError,
    first_of,
)
from loadgate.integrations.redis.url import Address

# Every failed attempt is an ERROR with a traceback there; the link logs one line per incident.
_LOGGER: Final = logging.getLogger("coredis")


# The version is not needed, and asking costs every call a look.
_UNVERIFIED: Final[Any] = {"verify_version": False}

# Seconds for one of several servers that may lead to the store: the next attempt tries the next.
# A connection in a data centre is there in 2 ms, with TLS in 5.
_HASTY: Final[Any] = {"connect_timeout": 0.3, "stream_timeout": 0.3}


class CoredisTransport:
    """Connects to `address` with coredis.

    Args:
        address: Where.

    Raises:
        PolicyError: Its certificates cannot be used.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._tls = Tls(address) if address.tls else None
        # Of several that may lead to the store, the first is whichever did so last.
        self._ways = deque(TCPLocation(host, port) for host, port in address.hosts)
        self.endpoint = str(address)
        if _LOGGER.level == logging.NOTSET:
            _LOGGER.setLevel(logging.CRITICAL)

    def connect(self) -> AbstractAsyncContextManager[Connection]:
        """Open a connection; StoreError if it cannot be."""
        return self._connect()

    @asynccontextmanager
    async def _connect(self) -> AsyncGenerator[Connection]:
        made: list[Any] = []
        entered = False
        ways = {"cluster": self._cluster, "sentinel": self._primary}
        way = ways.get(self._address.kind, self._server)
        try:
            async with way(made) as connection:
                entered = True
                yield connection
        except Exception as error:
            first = first_of(error)
            if isinstance(first, StoreError):
                raise first from error
            if isinstance(first, RedisError | OSError | UnicodeError):
                raise (StoreError(LOST, str(first)) if entered else translated(first)) from error
            raise
        finally:
            _close_buffers(made)
            if not entered:
                self._ways.rotate(-1)

    def _options(self) -> dict[str, Any]:
        """What every client of coredis is told."""
        address = self._address
        return {
            "username": address.username,
            "password": address.password,
            "retry_policy": NoRetryPolicy(),
            "decode_responses": False,
            "ssl_context": self._tls.context() if self._tls is not None else None,
        }

    @asynccontextmanager
    async def _server(self, made: list[Any]) -> AsyncGenerator[Connection]:
        address = self._address
        where: dict[str, Any] = {"unix_socket_path": address.path}
        if address.kind != "socket":
            where = {"host": self._ways[0].host, "port": self._ways[0].port}
        client: Any = coredis.Redis(db=address.db, **where, **_UNVERIFIED, **self._options())
        _remember(client.connection_pool, made)
        async with client:
            yield _ServerConnection(await _leased(client))

    @asynccontextmanager
    async def _primary(self, made: list[Any]) -> AsyncGenerator[Connection]:
        """The primary that sentinels name."""
        address, options = self._address, self._options()
        sentinel = coredis.Sentinel(
            self._ways,
            # The same certificates, but passwords of their own.
            sentinel_kwargs={
                "username": address.sentinel_username,
                "password": address.sentinel_password,
                "decode_responses": False,
                "ssl_context": options["ssl_context"],
                **_HASTY,
            },
            db=address.db,
            **options,
        )
        for one in sentinel.sentinels:
            _remember(one.connection_pool, made)
        async with sentinel:
            await _ask_sentinels(sentinel, address.service)
            primary: Any = sentinel.primary_for(address.service)
            _remember(primary.connection_pool, made)
            async with primary:
                yield _ServerConnection(await _leased(primary))

    @asynccontextmanager
    async def _cluster(self, made: list[Any]) -> AsyncGenerator[Connection]:
        options = self._options()
        # Somebody must be there: looking for the nodes, coredis leaves every connection that did
        # not come up to the garbage collector, and waits for a silent one as long as it may.
        there = self._ways[0]
        visitor: Any = coredis.Redis(there.host, there.port, **_UNVERIFIED, **_HASTY, **options)
        _remember(visitor.connection_pool, made)
        async with visitor:
            await _leased(visitor)
        # Its overloads do not see through the options that it answers in bytes.
        cluster: Any = coredis.RedisCluster(
            startup_nodes=[there],
            # A slot that nobody holds is an error of those who need it, not of the start;
            # and the check would need a permission more.
            skip_full_coverage_check=True,
            **_UNVERIFIED,
            **options,
        )
        _remember(cluster.connection_pool, made)
        made.append(cluster.connection_pool.cluster_layout)
        async with cluster:
            yield ClusterConnection(cluster)


def _remember(pool: Any, made: list[Any]) -> None:
    """Put every connection that `pool` makes into `made`."""
    if not hasattr(pool, "service_name"):
        kind = pool.connection_class

        def build(self: Any, *args: Any, **options: Any) -> None:
            kind.__init__(self, *args, **options)
            made.append(self)

        pool.connection_class = type(kind.__name__, (kind,), {"__init__": build})
        return
    construct = pool._construct_connection

    async def constructed() -> Any:  # a pool behind sentinels names its class in there
        connection = await construct()
        made.append(connection)
        return connection

    pool._construct_connection = constructed


def _close_buffers(made: list[Any]) -> None:
    """Close the buffers that coredis leaves to the garbage collector, which warns about each.

    Those of connections that never came up, and of a cluster's layout.
    """
    for one in made:
        for name in ("_write_buffer", "_push_message_buffer", "_streamed_message_buffer"):
            for end in ("in", "out"):
                buffer = getattr(one, f"{name}_{end}", None)
                if buffer is not None:
                    buffer.close()
        for end in getattr(one, "_error_stream", ()):
            end.close()


async def _ask_sentinels(sentinel: Any, service: str) -> None:
    """See that some sentinel knows `service`; whose password is wrong must not be a riddle."""
    try:
        await sentinel.discover_primary(service)
    except RedisError as error:
        told = translated(error)
        if told.configuration:
            raise StoreError(told.code, f"a sentinel says: {error}") from error
        raise told from error


async def _leased(client: Any) -> BaseConnection:
    """The connection that all commands share; it stays in the pool of `client`."""
    pool = client.connection_pool
    connection: BaseConnection = await pool.get_connection()
    pool.release(connection)
    return connection


class _ServerConnection:
    """A single server. Commands go straight to its one multiplexed connection.

    The client's own way takes twice as long per command, for what is not used here: retries,
    caching, picking a connection.
    """

    # Two keep the server busy while answers travel; more would only make batches smaller.
    parallel: ClassVar[int] = 2
    split: ClassVar[bool] = False

    def __init__(self, connection: BaseConnection) -> None:
        self._connection = connection

    def probes(self, key: bytes) -> Sequence[bytes]:
        return [key]

    async def load(self, scripts: Sequence[Script]) -> None:
        for script in scripts:
            await answered(created(self._connection, b"SCRIPT LOAD", script.text))

    async def call(self, script: Script, keys: Sequence[bytes], argument: bytes) -> Reply:
        request = created(self._connection, b"EVALSHA", script.sha, len(keys), *keys, argument)
        return text_of(await answered(request)), None

    def group(self, key: bytes) -> Hashable:
        return None

    def server(self, key: bytes) -> Hashable:
        return None
