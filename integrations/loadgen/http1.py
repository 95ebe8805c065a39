"""What did the server answer? An HTTP/1.1 response, read piece by piece, no I/O.

Only what a load generator needs: the status, where the response ends, and whether the
connection may be used again. It costs a few microseconds for a response that comes in one
piece, where a complete parser in Python costs more than a hundred: the generator must not
be the bottleneck of what it measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from loadgate.integrations.loadgen.plan import ClientClass

# A head longer than this is no answer of a web service; h11 and nginx draw similar lines.
LONGEST_HEAD: Final = 65_536


class NotHttp(ValueError):
    """What came is not an HTTP/1.x response."""


class _Part(IntEnum):
    HEAD = 0
    LENGTH = 1
    CHUNK_SIZE = 2
    CHUNK = 3
    TRAILERS = 4
    UNTIL_CLOSE = 5
    DONE = 6


class Response:
    """One response.

    Attributes:
        status: The status code, 0 until it is known.
        reusable: Whether the connection may carry another request afterwards.
    """

    __slots__ = ("_bodyless", "_buffer", "_left", "_part", "reusable", "status")

    def __init__(self, method: str) -> None:
        self.status = 0
        self.reusable = True
        self._bodyless = method == "HEAD"
        self._buffer = b""
        self._left = 0
        self._part = _Part.HEAD

    @property
    def begun(self) -> bool:
        """Whether any byte of it has come."""
        return self._part is not _Part.HEAD or bool(self._buffer)

    def feed(self, data: bytes) -> bool:
        """Take the next bytes; True once the response is complete.

        Raises:
            NotHttp: The bytes are no HTTP/1.x response.
        """
        buffer = self._buffer + data if self._buffer else data
        while True:
            match self._part:
                case _Part.HEAD:
                    end = buffer.find(b"\r\n\r\n")
                    if end < 0:
                        return self._keep(buffer)
                    self._read_head(buffer[:end])
                    buffer = buffer[end + 4 :]
                case _Part.LENGTH | _Part.CHUNK:
                    taken = min(self._left, len(buffer))
                    self._left -= taken
                    buffer = buffer[taken:]
                    if self._left:
                        return self._keep(b"")
                    self._part = _Part.DONE if self._part is _Part.LENGTH else _Part.CHUNK_SIZE
                case _Part.CHUNK_SIZE:
                    end = buffer.find(b"\r\n")
                    if end < 0:
                        return self._keep(buffer)
                    self._read_chunk_size(buffer[:end])
                    buffer = buffer[end + 2 :]
                case _Part.TRAILERS:
                    end = buffer.find(b"\r\n")
                    if end < 0:
                        return self._keep(buffer)
                    if end == 0:
                        self._part = _Part.DONE
                    buffer = buffer[end + 2 :]
                case _Part.UNTIL_CLOSE:
                    return self._keep(b"")
                case _Part.DONE:
                    if buffer:
                        self.reusable = False  # nobody asked for more than one response
                    return True

    def end(self) -> bool:
        """The server closed; True when that completes the response."""
        self.reusable = False
        return self._part in (_Part.UNTIL_CLOSE, _Part.DONE)

    def _keep(self, rest: bytes) -> bool:
        if len(rest) > LONGEST_HEAD:
            raise NotHttp(f"no end of the head within {LONGEST_HEAD} bytes")
        self._buffer = rest
        return False

    def _read_head(self, head: bytes) -> None:
        line, *fields = head.split(b"\r\n")
        if not line.startswith(b"HTTP/1.") or not line[9:12].isdigit():
            raise NotHttp(f"no HTTP/1.x status line: {line[:40]!r}")
        status = int(line[9:12])
        if 100 <= status < 200:
            if status == 101:
                raise NotHttp("101 Switching Protocols to a request that did not ask for it")
            return  # an interim answer; the final one follows
        self.status = status
        length: bytes | None = None
        chunked = False
        connection = b""
        for field in fields:
            name, _, value = field.partition(b":")
            name = name.lower()
            if name == b"content-length":
                value = value.strip()
                if not value.isdigit() or (length is not None and length != value):
                    raise NotHttp(f"a content-length of {value[:40]!r}")
                length = value
            elif name == b"transfer-encoding":
                chunked = value.lower().rstrip().endswith(b"chunked")
            elif name == b"connection":
                connection = value.lower()
        self.reusable = b"close" not in connection and (
            line[7:8] != b"0" or b"keep-alive" in connection
        )
        if self._bodyless or status in (204, 304):
            self._part = _Part.DONE
        elif chunked:
            self._part = _Part.CHUNK_SIZE
        elif length is not None:
            self._left = int(length)
            self._part = _Part.LENGTH
        else:
            self._part = _Part.UNTIL_CLOSE
            self.reusable = False

    def _read_chunk_size(self, line: bytes) -> None:
        digits = line.partition(b";")[0].strip()
        try:
            size = int(digits, 16)
        except ValueError:
            raise NotHttp(f"a chunk size of {line[:40]!r}") from None
        if size < 0:
            raise NotHttp(f"a chunk size of {line[:40]!r}")
        self._left = size + 2  # the line end after the data
        self._part = _Part.CHUNK if size else _Part.TRAILERS


def request(one: ClientClass, host: str, client: str) -> bytes:
    """Write the request of one client, ready to be sent as it is."""
    fields: Mapping[str, str] = {name.lower(): value for name, value in one.headers}
    lines = [f"{one.method} {one.path} HTTP/1.1"]
    if "host" not in fields:
        lines.append(f"host: {host}")
    if client:
        lines.append(f"{one.client_header}: {client}")
    lines += [f"{name}: {value}" for name, value in one.headers]
    body = one.body.encode()
    if body and one.chunked:
        lines.append("transfer-encoding: chunked")
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    elif body or one.method in ("POST", "PUT", "PATCH"):
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
