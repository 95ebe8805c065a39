"""Under which key does a client's share lie in the store? Never under its own name.

A key is `prefix:v1:{subject}:rate`: the subject is a keyed BLAKE2b hash of who is counted, so
nothing personal leaves the process, no table of hashed addresses opens it, no brace in a
client's name chooses a cluster slot, and no name is longer than another. The braces make all
rates of one subject share a slot. `v1` changes when the layout of the state does.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from loadgate.rates.spec import Rate
from loadgate.rates.table import Key, SharedBucket

VERSION: Final = "v1"

# 128 bits: a billion clients collide with a chance of 1e-21.
_SUBJECT_BYTES: Final = 16
# 48 bits tell the rates of a deployment apart.
_RATE_BYTES: Final = 6

_LETTERS: Final = {
    "token-bucket": "b",
    "leaky-bucket": "b",
    "fixed-window": "f",
    "sliding-window-counter": "c",
    "sliding-window-log": "l",
}


class Keys:
    """Names keys for one deployment.

    Args:
        prefix: What all keys begin with.
        secret: The secret that all processes of the deployment share.
    """

    __slots__ = ("_hash", "_head", "prefix")

    def __init__(self, prefix: str, secret: str) -> None:
        self.prefix = prefix
        # Secrets of any length; BLAKE2b takes 64 bytes.
        key = blake2b(_bytes(secret), digest_size=64, person=b"loadgate-store").digest()
        self._hash = blake2b(key=key, digest_size=_SUBJECT_BYTES)
        self._head = f"{prefix}:{VERSION}:{{".encode()

    def tail(self, rate: Rate) -> bytes:
        """The end of every key of `rate`: its algorithm and a hash of its name."""
        digest = blake2b(_bytes(rate.name), digest_size=_RATE_BYTES).hexdigest()
        return f"}}:{_LETTERS[rate.algorithm]}{digest}".encode()

    def lease_tail(self, rate: Rate) -> bytes:
        """The same for a bucket from which processes lease."""
        digest = blake2b(_bytes(rate.name), digest_size=_RATE_BYTES).hexdigest()
        return f"}}:s{digest}".encode()

    def head(self, rate: Rate) -> bytes:
        """What is hashed before the client's key: which of its keys `rate` counts."""
        name = _bytes(rate.key)
        return len(name).to_bytes(4, "big") + name

    def key(self, head: bytes, subject: Key, tail: bytes) -> bytes:
        """The key for `subject`; text, bytes and nobody are three different things."""
        state = self._hash.copy()
        if type(subject) is str:
            state.update(head + b"s" + _bytes(subject))
        elif isinstance(subject, SharedBucket):
            state.update(head + b"n")
        else:
            assert isinstance(subject, bytes)
            state.update(head + b"b" + subject)
        return b"%b%b%b" % (self._head, state.hexdigest().encode(), tail)

    @property
    def nodes(self) -> bytes:
        """The key under which the processes of the deployment are counted."""
        return f"{self.prefix}:{VERSION}:nodes".encode()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # anything may be a name
