"""What does a head say? As much of HTTP/1.1 as the door needs to know."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

import msgspec

# What is read of a head at most; h11, and with it Hypercorn and Uvicorn, takes no more either.
MAX_HEAD: Final = 16 * 1024

# A refused body up to this size is read, so that a kept connection can go on.
MAX_BODY: Final = 64 * 1024

# HTTP/2 (RFC 9113): bytes of the preface (3.4) and of a frame's head (4.1), and one frame (6.2).
_PREFACE: Final = 24
_FRAME: Final = 9
_HEADERS: Final = 0x1
_END_HEADERS: Final = 0x4

# h11 takes bare line feeds too, so a head may end with either.
_HEAD_END: Final = re.compile(rb"\r?\n\r?\n")


class Head(msgspec.Struct, frozen=True, gc=False):
    """What the start of a request says about the bytes that follow.

    Attributes:
        length: Length of the head in bytes.
        body: Bytes of the body; -1 if it is chunked, announced by `Expect`, or not to be trusted.
        keep: Whether the connection may be kept.
    """

    length: int
    body: int
    keep: bool


def head_end(data: bytes) -> int:
    """Where the head that `data` starts with ends; 0 if it is not whole."""
    found = _HEAD_END.search(data)
    return 0 if found is None else found.end()


def read_head(head: bytes) -> Head:
    """Look at the framing of one whole head; nothing else is parsed."""
    lower = head.lower()
    keep = b" http/1.1" in lower[: lower.find(b"\n")]
    body = 0
    for line in lower.splitlines()[1:]:
        name, _, value = line.partition(b":")
        if name == b"content-length":
            value = value.strip()
            # Twice, signed or absurdly long: whoever frames like that gets no second request.
            body = int(value) if value.isdigit() and len(value) < 16 and body == 0 else -1
        elif name == b"transfer-encoding" or name == b"expect":
            body = -1
            break
        elif name == b"connection" and b"close" in value:
            keep = False
    return Head(len(head), body, keep)


def begins_with_request(data: bytes) -> bool:
    """Whether an HTTP/2 connection that starts with `data` has asked for something in it.

    A whole HEADERS frame after the preface, as RFC 9113 (3.4) lets clients send it at once.
    """
    at = _PREFACE
    while at + _FRAME <= len(data):
        length, kind, flags = int.from_bytes(data[at : at + 3]), data[at + 3], data[at + 4]
        at += _FRAME + length
        if kind == _HEADERS:
            return bool(flags & _END_HEADERS) and at <= len(data)
    return False


def target(head: bytes) -> tuple[str, str]:
    """Method and path of the request that begins with `head`."""
    method, _, rest = head[: head.find(b"\n")].partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
    return method.decode("latin-1"), unquote(path) if "%" in path else path
