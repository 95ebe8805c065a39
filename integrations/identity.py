"""Who is asking? From an ASGI scope to the client key (or keys) that rates count by.

The default is the peer of the socket, because it is the only thing a client cannot choose freely.
Headers count only when the operator names the proxies that write them. Everything doubtful falls
back to the last hop that is trusted, never to text that the client sent: a fresh key per forged
header would be a free pass.

An identity function takes the scope and returns a string, a mapping of key name to string, None
(the shared anonymous client) or a `Caller` that also says cost, priority and timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from ipaddress import IPv4Address, IPv6Address, ip_network
from secrets import token_bytes
from typing import Any, Final, Literal

import msgspec

from loadgate.integrations.forwarded import (
    MAX_ADDRESS_CHARS,
    IPAddress,
    forwarded_from_right,
    list_from_right,
    parse_address,
)

Scope = Mapping[str, Any]
Client = str | Mapping[str, str] | None
ForwardedHeader = Literal["x-forwarded-for", "forwarded", "x-real-ip"]

# A new IPv6 address costs about 10 µs, a hit in this cache 0.1 µs (bench/asgi.py). 4,096 clients
# are about 1 MB; beyond that the cache only becomes useless, not wrong. What is remembered is cut
# to the length of an address or a host name first, so that junk cannot make it more than a few MB.
_CACHED_ADDRESSES: Final = 4096

# A host name is at most 253 characters (RFC 1035); servers put nothing longer in a scope.
MAX_HOST_CHARS: Final = 253

# Tokens and API keys beyond this are no credentials that anyone issues; 8,190 is also the most
# that Apache accepts for one header line.
_MAX_CREDENTIAL_BYTES: Final = 8190


class Caller(msgspec.Struct, frozen=True, gc=False):
    """Everything that is asked of a request before it is admitted.

    Attributes:
        client: The client key, a mapping of key name to key, or None.
        cost: What the request costs, in units of the rates; None means the layer's own.
        priority: One of the policy's priorities; None means the layer's own.
        timeout: Seconds from now until the answer is worthless; None means the layer's own.
    """

    client: str | dict[str, str] | None = None
    cost: float | None = None
    priority: str | None = None
    timeout: float | None = None


Identify = Callable[[Scope], "Client | Caller"]


def header_values(scope: Scope, name: bytes) -> list[bytes]:
    """Return the values of the header `name` (lower case) in the order received."""
    return [value for key, value in scope.get("headers", ()) if key == name]


class Address:
    """The client's address, folded so that one client has one key.

    IPv4-mapped and NAT64 addresses count as IPv4, IPv6 by its /64 (what one customer gets at
    least, so that nobody rotates through 2**64 keys), ports and zone ids not at all.

    With `keys` it returns several keys of different sizes at once, for rates that each name
    theirs: ``keys={"address": (32, 64), "network": (24, 48)}``.

    Args:
        trusted: The proxies whose header is believed: addresses, networks in CIDR notation, or
            ``"unix"`` for a peer that is connected through a unix socket.
        header: The one header that they write. There is no silent fallback to another one.
        hops: How many proxies stand in front, instead of (or on top of) their addresses: with 1
            the last entry is the client. Without `trusted` this believes whoever can connect, so
            the port must be reachable through the proxies only.
        keys: Key name to (IPv4 prefix length, IPv6 prefix length).
        ipv4_prefix: Prefix length when `keys` is not given.
        ipv6_prefix: Likewise; ISPs hand out /64 to /48.
        max_header_bytes: How much of the header is read, from its right end.
        max_header_entries: How many entries are read, from the right.

    Attributes:
        by_peer: From the peer's host, of at most `MAX_HOST_CHARS`, to its keys; None if a header
            counts as well. It saves the layer a call.

    Raises:
        ValueError: A setting is out of bounds, a network is malformed, or headers and trust do
            not go together.
    """

    def __init__(
        self,
        *,
        trusted: Iterable[str] = (),
        header: ForwardedHeader | None = None,
        hops: int | None = None,
        keys: Mapping[str, tuple[int, int]] | None = None,
        ipv4_prefix: int = 32,
        ipv6_prefix: int = 64,
        max_header_bytes: int = 8192,
        max_header_entries: int = 32,
    ) -> None:
        networks, self._trusts_unix = _parse_trusted(trusted)
        if header not in (None, "x-forwarded-for", "forwarded", "x-real-ip"):
            raise ValueError(
                f"header: {header!r} is none of 'x-forwarded-for', 'forwarded', 'x-real-ip'"
            )
        trusts_somebody = bool(networks) or self._trusts_unix
        if header is None and (trusts_somebody or hops is not None):
            raise ValueError("header: name the one header that the trusted proxies write")
        if header is not None and not trusts_somebody and hops is None:
            raise ValueError(
                f"trusted: {header!r} is believed only from declared proxies; "
                "give their addresses, or the number of hops"
            )
        if hops is not None and not 1 <= hops <= max_header_entries:
            raise ValueError(f"hops: {hops} is not in 1..{max_header_entries}")
        if hops is not None and header == "x-real-ip":
            raise ValueError("hops: 'x-real-ip' holds a single address, there is nothing to count")
        if max_header_bytes < 1 or max_header_entries < 1:
            raise ValueError("max_header_bytes and max_header_entries must be at least 1")
        _check_prefixes({"": (ipv4_prefix, ipv6_prefix)} if keys is None else keys)
        self._keys = None if keys is None else dict(keys)
        self._header = header
        self._header_name = (header or "").encode()
        self._hops = hops
        self._max_bytes = max_header_bytes
        self._max_entries = max_header_entries
        self._any_peer = not trusts_somebody

        @lru_cache(_CACHED_ADDRESSES)
        def look_up(text: str) -> tuple[str, bool] | None:
            address = parse_address(text)
            if address is None:
                return None
            return str(address), any(
                version == address.version and int(address) >> shift == prefix
                for version, shift, prefix in networks
            )

        @lru_cache(_CACHED_ADDRESSES)
        def keys_of(host: str) -> str | dict[str, str] | None:
            if not host:
                return None
            address = parse_address(host)
            if self._keys is None:
                return _network_key(host, address, ipv4_prefix, ipv6_prefix)
            return {
                name: _network_key(host, address, ipv4, ipv6)
                for name, (ipv4, ipv6) in self._keys.items()
            }

        # text -> (folded address, whether it is a trusted proxy), None for what is no address
        self._look_up = look_up
        self._keys_of = keys_of
        self.by_peer = keys_of if header is None else None

    def tell(self, keys: Mapping[str, tuple[int, int]] | None) -> None:
        """Tell other keys from now on, as a policy may ask for that is read while all runs.

        Args:
            keys: As at construction; None for the one key.

        Raises:
            ValueError: There is none, or a prefix is out of its range.
        """
        if keys is not None:
            _check_prefixes(keys)
        self._keys = None if keys is None else dict(keys)
        self._keys_of.cache_clear()

    def __call__(self, scope: Scope) -> str | dict[str, str] | None:
        """Return the key or keys; None for a unix socket without a trusted proxy.

        A mapping is shared between the requests of one client and must not be changed.
        """
        client = scope.get("client")
        host = client[0] if client else ""
        if self._header is not None:
            host = self._told_by_proxies(host, scope)
        if host and len(host) > MAX_HOST_CHARS:
            host = host[:MAX_HOST_CHARS]
        return self._keys_of(host)

    def _told_by_proxies(self, peer: str, scope: Scope) -> str:
        """Return the host to count: the client if trusted proxies tell it, else the last hop."""
        if not self._any_peer:
            if not peer:
                if not self._trusts_unix:
                    return peer
            else:
                known = self._look_up(peer) if len(peer) <= MAX_ADDRESS_CHARS else None
                if known is None or not known[1]:
                    return peer
        lines = header_values(scope, self._header_name)
        if not lines:
            return peer
        if self._header == "x-real-ip":
            values = {line.strip() for line in lines}
            told = self._parsed(values.pop()) if len(values) == 1 else None
            return peer if told is None else told[0]
        return self._walk(peer, self._entries(lines))

    def _parsed(self, entry: bytes) -> tuple[str, bool] | None:
        # Too long for an address: neither parsed nor remembered.
        return self._look_up(_text(entry)) if len(entry) <= MAX_ADDRESS_CHARS else None

    def _entries(self, lines: list[bytes]) -> Iterator[bytes | None]:
        if self._header == "forwarded":
            return forwarded_from_right(lines, self._max_bytes, self._max_entries)
        return list_from_right(lines, self._max_bytes, self._max_entries)

    def _walk(self, peer: str, entries: Iterator[bytes | None]) -> str:
        last_trusted = peer
        for hop, entry in enumerate(entries, start=1):
            known = None if entry is None else self._parsed(entry)
            if known is None:
                # "unknown", an obfuscated name or junk. Not the entry itself: who can make one up
                # can make up a new one for each request.
                return last_trusted
            last_trusted, is_trusted = known
            if self._hops is not None:
                if hop == self._hops:
                    return last_trusted
            elif not is_trusted:
                return last_trusted
        # The chain is shorter than declared: it did not come through all of the proxies.
        return peer if self._hops is not None else last_trusted


def _check_prefixes(prefixes: Mapping[str, tuple[int, int]]) -> None:
    if not prefixes:
        raise ValueError("keys: at least one key is needed")
    for name, (ipv4, ipv6) in prefixes.items():
        if not (0 <= ipv4 <= 32 and 0 <= ipv6 <= 128):
            raise ValueError(f"keys[{name!r}]: prefixes are 0..32 and 0..128, not {ipv4, ipv6}")


def _parse_trusted(trusted: Iterable[str]) -> tuple[list[tuple[int, int, int]], bool]:
    """Return (version, shift, prefix) of each network, and whether unix peers are trusted."""
    if isinstance(trusted, str):
        raise ValueError("trusted: give a list of addresses, not one string")
    networks: list[tuple[int, int, int]] = []
    trusts_unix = False
    for text in trusted:
        if text == "unix":
            trusts_unix = True
            continue
        try:
            network = ip_network(text)
        except ValueError as error:
            raise ValueError(f"trusted: {error}") from None
        first, prefixlen, version = network.network_address, network.prefixlen, network.version
        # Peers are compared after folding, so mapped networks must be folded as well.
        if isinstance(first, IPv6Address) and prefixlen >= 96:
            folded = parse_address(str(first))
            if isinstance(folded, IPv4Address):
                first, prefixlen, version = folded, prefixlen - 96, 4
        shift = (32 if version == 4 else 128) - prefixlen
        networks.append((version, shift, int(first) >> shift))
    return networks, trusts_unix


def _network_key(host: str, address: IPAddress | None, ipv4: int, ipv6: int) -> str:
    if address is None:
        return host
    width, prefix = (32, ipv4) if address.version == 4 else (128, ipv6)
    if prefix == width:
        return str(address)
    shift = width - prefix
    first = type(address)(int(address) >> shift << shift)
    return f"{first}/{prefix}"


def _text(value: bytes) -> str:
    # latin-1 maps every byte to one character, so nothing raises; parsing refuses what is not ASCII
    return value.decode("latin-1")


class ApiKey:
    """The account behind an API key, or whatever `otherwise` says.

    The layer runs before the application authenticates anybody. A header that nobody has checked
    must not become a key of its own: one client could have a fresh bucket for each request, or
    spend the share of a stranger. So `verify` is required, and a key that it does not know counts
    as no key at all.

    Args:
        verify: Returns the account of an API key, None if there is no such key. It runs on the
            event loop for each request: a dictionary or a cache, not a query.
        header: The header that carries it.
        otherwise: Who it is when there is no valid key; default the address.
    """

    def __init__(
        self,
        verify: Callable[[str], str | None],
        *,
        header: str = "x-api-key",
        otherwise: Callable[[Scope], Client] | None = None,
    ) -> None:
        self._verify = verify
        self._header = header.lower().encode("ascii")
        self._otherwise = Address() if otherwise is None else otherwise

    def __call__(self, scope: Scope) -> Client:
        """Return ``account:NAME``, which no address can equal."""
        values = header_values(scope, self._header)
        # Two keys in one request are two claims; neither is believed.
        if len(values) == 1 and len(values[0]) <= _MAX_CREDENTIAL_BYTES:
            credential = self._credential(values[0])
            account = self._verify(credential) if credential else None
            if account:
                return f"account:{account}"
        return self._otherwise(scope)

    def _credential(self, value: bytes) -> str:
        return _text(value.strip())


class Bearer(ApiKey):
    """The subject of a verified bearer token (RFC 6750), or whatever `otherwise` says.

    Args:
        verify: Returns the subject of a token whose signature and expiry it has checked, else None.
        otherwise: Who it is when there is no valid token; default the address.
    """

    def __init__(
        self,
        verify: Callable[[str], str | None],
        *,
        otherwise: Callable[[Scope], Client] | None = None,
    ) -> None:
        super().__init__(verify, header="authorization", otherwise=otherwise)

    def _credential(self, value: bytes) -> str:
        scheme, _, token = value.strip().partition(b" ")
        return _text(token.strip()) if scheme.lower() == b"bearer" else ""


def combine(**functions: Callable[[Scope], Client]) -> Callable[[Scope], dict[str, str]]:
    """Give each request several keys, one from each function, for rates on independent keys.

    ``combine(account=ApiKey(accounts.get), address=Address())`` lets one rate count by account
    and another by address, both of which must have something left. A function that returns None
    leaves its key out; one that returns a mapping adds its keys as they are.
    """

    def identify(scope: Scope) -> dict[str, str]:
        keys: dict[str, str] = {}
        for name, function in functions.items():
            client = function(scope)
            if isinstance(client, str):
                keys[name] = client
            elif client is not None:
                keys.update(client)
        return keys

    return identify


class KeyHasher:
    """Hash client keys before they leave the process (logs, metrics, shared stores).

    Keyed BLAKE2b with 128 bits: addresses are few enough to be found by trying all of them, so a
    hash without a secret hides nothing.

    Args:
        secret: At least 16 bytes, the same in all processes whose hashes are to be compared;
            None draws one for this process.

    Raises:
        ValueError: The secret is too short to withstand guessing.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        if secret is None:
            secret = token_bytes(32)
        if len(secret) < 16:
            raise ValueError(f"secret: {len(secret)} bytes, at least 16 are needed")
        # BLAKE2b takes at most 64 bytes of key.
        self._secret = secret if len(secret) <= 64 else blake2b(secret).digest()

    def __call__(self, key: str | bytes) -> str:
        """Return 32 hexadecimal digits; a string and the bytes that spell it differ."""
        if isinstance(key, str):
            data, person = key.encode("utf-8", "surrogatepass"), b"loadgate text"
        else:
            data, person = key, b"loadgate bytes"
        return blake2b(data, digest_size=16, key=self._secret, person=person).hexdigest()
