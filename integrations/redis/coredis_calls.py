"""How is a command sent over one connection of coredis, and what did its errors mean?"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from coredis.connection import BaseConnection
from coredis.exceptions import RedisError

from loadgate.integrations.redis.tls import certificate_refused
from loadgate.integrations.redis.transport import LOST, StoreError

# coredis takes the code off the message for those that it has a class for.
_CODES: Final = {
    "AskError": "ASK",
    "AuthenticationFailureError": "WRONGPASS",
    "AuthenticationRequiredError": "NOAUTH",
    "AuthorizationError": "NOPERM",
    "BusyLoadingError": "LOADING",
    "ClusterCrossSlotError": "CROSSSLOT",
    "ClusterDownError": "CLUSTERDOWN",
    "CommandNotSupportedError": "UNKNOWN",
    "MovedError": "MOVED",
    "NoScriptError": "NOSCRIPT",
    "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN",
    "UnknownCommandError": "UNKNOWN",
    "WrongTypeError": "WRONGTYPE",
}

# Redis 5 and older have no HELLO; 6.2 is the oldest that is tested.
_TOO_OLD: Final = "the server lacks a command that is needed (Redis 6.2 or newer, or any Valkey)"


def text_of(reply: Any) -> bytes:
    """`reply`, if it is text as our scripts answer.

    Raises:
        StoreError: It is something else.
    """
    if isinstance(reply, bytes):
        return reply
    raise StoreError(LOST, f"an answer of type {type(reply).__name__}")


def created(connection: BaseConnection, *words: Any) -> Awaitable[Any]:
    """A command, to be written with all that is created in this turn of the loop.

    Raises:
        StoreError: The connection is gone.
    """
    try:
        return connection.create_request(*words, decode=False)
    except RedisError as error:
        raise StoreError(LOST, str(error)) from error


async def answered(request: Awaitable[Any]) -> Any:
    """What the server says to `request`.

    Raises:
        StoreError: An error, or nothing at all.
    """
    try:
        return await request
    except (RedisError, OSError) as error:
        raise translated(error) from error


def translated(error: BaseException) -> StoreError:
    """What went wrong, named by the first cause that has a name."""
    cause: BaseException | None = error
    while cause is not None:
        if certificate_refused(cause):
            return StoreError("TLS", str(cause))
        code = _CODES.get(type(cause).__name__)
        if code == "UNKNOWN":
            return StoreError(code, f"{_TOO_OLD}: {cause}")
        if code is not None:
            return StoreError(code, str(cause))
        if type(cause).__name__ == "ResponseError":
            first, _, rest = str(cause).partition(" ")
            return StoreError(first, rest) if first.isupper() else StoreError("ERR", str(cause))
        cause = cause.__cause__ or cause.__context__
    reasons = [str(error)]
    while error.__cause__ is not None:
        error = error.__cause__
        reasons.append(str(error))
    return StoreError(LOST, "; ".join(dict.fromkeys(reason for reason in reasons if reason)))
