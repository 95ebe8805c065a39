"""How does coredis, the client library for asyncio and trio, become a transport?

Retries are switched off, and nothing here outlives its connection: coredis loses slots of its
pool when callers are cancelled, and never leaves a server that went silent. The link cancels
nothing inside it and throws the whole client away after any failure.
"""

from __future__ import annotations

import logging
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
        self.endpoint = str(address)
        if _LOGGER.level == logging.NOTSET:
            _LOGGER.setLevel(logging.CRITICAL)

    def connect(self) -> AbstractAsyncContextManager[Connection]:
        """Open a connection; StoreError if it cannot be."""
        return self._connect()

    @asynccontextmanager
    async def _connect(self) -> AsyncGenerator[Connection]:
        address = self._address
        options: dict[str, Any] = {
            "username": address.username,
            "password": address.password,
            "retry_policy": NoRetryPolicy(),
            "decode_responses": False,
            # The version is not needed, and asking costs every call a look.
            "verify_version": False,
        }
        made: list[Any] = []
        entered = False
        try:
            if self._tls is not None:
                options["ssl_context"] = self._tls.context()
            if address.kind == "cluster":
                nodes = [TCPLocation(host, port) for host, port in address.hosts]
                # Its overloads do not see through the options that it answers in bytes.
                cluster: Any = coredis.RedisCluster(
                    startup_nodes=nodes,
                    # A slot that nobody holds is an error of those who need it, not of the start;
                    # and the check would need a permission more.
                    skip_full_coverage_check=True,
                    **options,
                )
                _remember(cluster.connection_pool, made)
                made.append(cluster.connection_pool.cluster_layout)
                async with cluster:
                    entered = True
                    yield ClusterConnection(cluster)
            elif address.kind == "sentinel":
                options.pop("verify_version")
                sentinel = coredis.Sentinel(
                    [TCPLocation(host, port) for host, port in address.hosts],
                    # The same certificates, but passwords of their own.
                    sentinel_kwargs={
                        "username": address.sentinel_username,
                        "password": address.sentinel_password,
                        "decode_responses": False,
                        "ssl_context": options.get("ssl_context"),
                    },
                    db=address.db,
                    **options,
                )
                for one in sentinel.sentinels:
                    _remember(one.connection_pool, made)
                async with sentinel:
                    primary: Any = sentinel.primary_for(address.service)
                    _remember(primary.connection_pool, made)
                    async with primary:
                        connection = await _leased(primary)
                        entered = True
                        yield _ServerConnection(connection)
            else:
                if address.kind == "socket":
                    options["unix_socket_path"] = address.path
                else:
                    options["host"], options["port"] = address.hosts[0]
                client: Any = coredis.Redis(db=address.db, **options)
                _remember(client.connection_pool, made)
                async with client:
                    connection = await _leased(client)
                    entered = True
                    yield _ServerConnection(connection)
        except Exception as error:
            first = first_of(error)
            if isinstance(first, StoreError):
                raise first from error
            if isinstance(first, RedisError | OSError | UnicodeError):
                raise (StoreError(LOST, str(first)) if entered else translated(first)) from error
            raise
        finally:
            _close_buffers(made)


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
