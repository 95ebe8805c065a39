"""What must a client library be able to do? Load scripts, call them, and say why it cannot.

The link drives a `Transport`; a client library is wrapped by one adapter (`coredis.py`). A
connection is thrown away after any failure and never repaired.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from hashlib import sha1
from importlib.resources import files
from typing import ClassVar, Final, Protocol, cast

import msgspec

from loadgate.errors import LoadgateError


class Script(msgspec.Struct, frozen=True, gc=False):
    """A script and the name under which a server remembers it."""

    text: str
    sha: str

    @classmethod
    def read(cls, name: str) -> Script:
        """The script in `name`, a file beside this one."""
        text = files("loadgate.integrations.redis").joinpath(name).read_text()
        return cls(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


class StoreError(LoadgateError):
    """The store could not do what it was asked.

    Attributes:
        code: The first word of the server's message, or `LOST` when there is no answer: then
            nobody knows whether it was done.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code

    @property
    def configuration(self) -> bool:
        """Whether waiting does not help: the server must be told, or another one taken."""
        return self.code in _CONFIGURATION

    @property
    def elsewhere(self) -> bool:
        """Whether nothing was done because keys are moving to another server."""
        return self.code in _ELSEWHERE

    @property
    def lost(self) -> bool:
        """Whether the connection is of no further use."""
        return self.code in _LOST


LOST: Final = "LOST"

_CONFIGURATION: Final = frozenset({"NOAUTH", "WRONGPASS", "NOPERM", "UNKNOWN", "CROSSSLOT", "TLS"})

_ELSEWHERE: Final = frozenset({"MOVED", "ASK", "TRYAGAIN"})

# A demoted primary answers READONLY for ever: the way to the new one begins with a new connection.
_LOST: Final = frozenset(
    {
        LOST,
        "READONLY",
        "MASTERDOWN",
        "NOAUTH",
        "WRONGPASS",
        "NOPERM",
        "CLUSTERDOWN",
        "UNKNOWN",
        "TLS",
    }
)


# What a script answered, and which server it ran on.
Reply = tuple[bytes, Hashable]


class Connection(Protocol):
    """One way to the store, for as long as it works."""

    parallel: ClassVar[int]
    """Calls that may be under way at once."""

    split: ClassVar[bool]
    """Whether only keys of one group may be used in one call."""

    def probes(self, key: bytes) -> Sequence[bytes]:
        """A key on every server, all beginning with `key`."""
        ...

    async def load(self, scripts: Sequence[Script]) -> None:
        """Make every server that may be called remember `scripts`.

        Raises:
            StoreError: It could not.
        """
        ...

    async def call(self, script: Script, keys: Sequence[bytes], argument: bytes) -> Reply:
        """Run `script`, which every server remembers.

        Raises:
            StoreError: The server answered with an error, or not at all.
        """
        ...

    def group(self, key: bytes) -> Hashable:
        """Which keys may be used in one call, if it is `split`."""
        ...

    def server(self, key: bytes) -> Hashable:
        """Which server holds `key`: each has a clock of its own."""
        ...


class Transport(Protocol):
    """How to get a connection."""

    @property
    def endpoint(self) -> str:
        """Where it leads, without credentials."""
        ...

    def connect(self) -> AbstractAsyncContextManager[Connection]:
        """Open a connection.

        Raises:
            StoreError: It could not be opened.
        """
        ...


def first_of(error: BaseException) -> BaseException:
    """The first thing that went wrong, if several did."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
