"""What did the proxies in front say, read from the right? Text only; trust is decided elsewhere.

`X-Forwarded-For`, `Forwarded` (RFC 7239) and `X-Real-IP` are lists that every proxy extends at
its right end. The right end was therefore written by the proxy that is connected to us, and
everything left of the first untrusted address may be the client's invention. Entries are cut off
the right end one by one and nothing further left is looked at, so that an unbalanced quote or
64 kB of commas sent by a client cannot change what its own proxy appended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Final

IPAddress = IPv4Address | IPv6Address

# The well-known prefix of RFC 6052. Prefixes of 64:ff9b:1::/48 (RFC 8215) are local choices with
# the IPv4 address at a place that only their network knows, so they stay IPv6.
_NAT64: Final = IPv6Network("64:ff9b::/96")

# "[ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255%zone]:65535" needs 60 and a zone name of at most
# 16 (IFNAMSIZ); longer text is no address and is not worth parsing.
MAX_ADDRESS_CHARS: Final = 96

# An element of `Forwarded` names up to two addresses, a host and a protocol: 96, 96, 253 (RFC 1035)
# and a few characters of each name. Longer ones come from no proxy and are not worth parsing.
MAX_ELEMENT_BYTES: Final = 512

_SPACE: Final = b" \t"

# One parameter and what separates it from the next. RFC 7239 allows no space around "=". Bare IPv6
# and ports need quotes by the RFC; proxies forget them, and ":[]" are unambiguous here. Every
# repetition is possessive: nothing is tried twice.
_PAIR: Final = re.compile(
    rb"[ \t]*+([!#$%&'*+\-.^_`|~0-9A-Za-z]++)="
    rb'(?:"((?:[^"\\]|\\.)*+)"|([!#$%&\'*+\-.^_`|~0-9A-Za-z:\[\]]*+))'
    rb"[ \t]*+(?:;|\Z)",
    re.DOTALL,
)
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)


def parse_address(text: str) -> IPAddress | None:
    """Read an address as proxies write it, or return None.

    Brackets, a port (also an obfuscated one, ``_name``) and an IPv6 zone id are dropped;
    IPv4-mapped (``::ffff:0:0/96``) and NAT64 (``64:ff9b::/96``) addresses become IPv4.
    """
    if not text or len(text) > MAX_ADDRESS_CHARS or not text.isascii():
        return None
    if text[0] == "[":
        inside, bracket, after = text[1:].partition("]")
        if not bracket or (after and not (after[0] == ":" and _is_port(after[1:]))):
            return None
        return _parse_ipv6(inside)
    if text.count(":") == 1:
        text, _, port = text.partition(":")
        if not _is_port(port):
            return None
    if ":" in text:
        return _parse_ipv6(text)
    try:
        return IPv4Address(text)
    except ValueError:
        return None


def _parse_ipv6(text: str) -> IPAddress | None:
    address_text, percent, zone = text.partition("%")
    if percent and not zone:
        return None
    try:
        address = IPv6Address(address_text)
    except ValueError:
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _is_port(text: str) -> bool:
    if text.isdigit():
        return len(text) <= 5 and int(text) <= 65535
    return len(text) > 1 and text[0] == "_" and all(c.isalnum() or c in "._-" for c in text[1:])


def list_from_right(lines: Sequence[bytes], max_bytes: int, max_entries: int) -> Iterator[bytes]:
    """Yield the entries of a plain comma-separated header, last one first.

    Args:
        lines: The field's values in the order in which they were received.
        max_bytes: How many bytes are read at most, counted from the right end.
        max_entries: How many entries are yielded at most. Empty ones count, but are not yielded.
    """
    for line in reversed(lines):
        end = len(line)
        while end >= 0:
            comma = line.rfind(b",", 0, end)
            max_bytes -= end - comma
            max_entries -= 1
            if max_bytes < 0 or max_entries < 0:
                return
            entry = line[comma + 1 : end].strip(_SPACE)
            if entry:
                yield entry
            if comma < 0:
                break
            end = comma


def forwarded_from_right(
    lines: Sequence[bytes], max_bytes: int, max_entries: int
) -> Iterator[bytes | None]:
    """Yield the ``for`` parameter of each element of RFC 7239 `Forwarded`, last one first.

    An element that is malformed or longer than `MAX_ELEMENT_BYTES`, has no ``for`` or has several
    yields None; what is left of one that is too long is not looked at. The other limits are those
    of `list_from_right`.
    """
    for line in reversed(lines):
        end = len(line)
        while end >= 0:
            comma = _last_comma_outside_quotes(line, end)
            max_bytes -= end - comma
            max_entries -= 1
            if max_entries < 0:
                return
            if end - comma - 1 > MAX_ELEMENT_BYTES:
                yield None
                return
            if max_bytes < 0:
                return
            element = line[comma + 1 : end].strip(_SPACE)
            if element:
                yield _for_parameter(element)
            if comma < 0:
                break
            end = comma


def _last_comma_outside_quotes(line: bytes, end: int) -> int:
    """Find the comma before the last element, -1 if there is none.

    Scanned from the right: a quoted string ends at the first quote met and begins at the next one
    that no backslash escapes. Beyond `MAX_ELEMENT_BYTES` nothing is searched for.
    """
    start = max(end - MAX_ELEMENT_BYTES - 1, 0)
    at = line.rfind(b",", start, end)
    if line.find(b'"', max(at, start), end) < 0:
        # No quote in it, as almost always. Without a comma either, it begins the line or is too
        # long, and -1 says both.
        return at
    quoted = False
    for at in range(end - 1, start - 1, -1):
        char = line[at]
        if char == 0x22:  # "
            if not quoted:
                quoted = True
            else:
                first = at
                while first > start and line[first - 1] == 0x5C:
                    first -= 1
                quoted = (at - first) % 2 == 1
        elif char == 0x2C and not quoted:  # ,
            return at
    return -1


def _for_parameter(element: bytes) -> bytes | None:
    found: bytes | None = None
    at = 0
    while at < len(element):
        pair = _PAIR.match(element, at)
        if pair is None:
            return None
        at = pair.end()
        if pair[1].lower() == b"for":
            quoted, plain = pair[2], pair[3]
            value = plain if quoted is None else _ESCAPED.sub(rb"\1", quoted)
            if found is not None or not value:
                return None
            found = value
    return found
