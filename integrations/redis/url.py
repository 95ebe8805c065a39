"""Where is the store? One URL for a server, a cluster or a service behind sentinels."""

from __future__ import annotations

from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from loadgate.errors import PolicyError

_SCHEMES: Final = {
    "redis": ("server", False), "rediss": ("server", True),
    "valkey": ("server", False), "valkeys": ("server", True),
    "redis+cluster": ("cluster", False), "rediss+cluster": ("cluster", True),
    "valkey+cluster": ("cluster", False), "valkeys+cluster": ("cluster", True),
    "redis+sentinel": ("sentinel", False), "rediss+sentinel": ("sentinel", True),
    "valkey+sentinel": ("sentinel", False), "valkeys+sentinel": ("sentinel", True),
    "unix": ("socket", False), "redis+unix": ("socket", False), "valkey+unix": ("socket", False),
}  # fmt: skip

_PORTS: Final = {"server": 6379, "cluster": 6379, "sentinel": 26379}
_TLS: Final = frozenset({"ca_certs", "certfile", "keyfile", "verify"})
_SENTINEL: Final = frozenset({"sentinel_username", "sentinel_password"})
_OPTIONS: Final = frozenset({"db", *_TLS, *_SENTINEL})


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A URL taken apart. Its text shows no password.

    Attributes:
        kind: `server`, `cluster`, `sentinel` or `socket`.
        hosts: Names and ports; of the sentinels if it is a service behind them.
        tls: Whether to encrypt.
        path: Of a Unix socket.
        service: The name of the primary that sentinels know.
        db: Number of the database.
        username: None for the default user.
        password: None for none.
        ca_certs: A file or folder of certificates to trust instead of the system's.
        certfile: A certificate to show to the server.
        keyfile: Its key.
        verify: Whether to check the server's certificate.
        sentinel_username: For the sentinels themselves; None for their default user.
        sentinel_password: None if the sentinels ask for none.
    """

    kind: str
    hosts: tuple[tuple[str, int], ...] = ()
    tls: bool = False
    path: str = ""
    service: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = None
    ca_certs: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    verify: bool = True
    sentinel_username: str | None = None
    sentinel_password: str | None = None

    def __str__(self) -> str:
        if self.kind == "socket":
            return f"unix:{self.path}"
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"{hosts}/{self.service}" if self.service else hosts

    __repr__ = __str__


def parse(url: str) -> Address:
    """Take `url` apart.

    `redis://host:6379/0`, `rediss://user:password@host`, `redis+cluster://a:7000,b:7000`,
    `redis+sentinel://a:26379,b:26379/service`, `unix:///run/redis.sock`; `valkey` means the same
    as `redis`. TLS verifies the server unless `?verify=no` says otherwise. Sentinels that want a
    password of their own get `?sentinel_password=`.

    Raises:
        PolicyError: It is no such URL; the message never holds the password.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise PolicyError("url", "is not a URL") from None
    scheme = parts.scheme.lower()
    if scheme not in _SCHEMES:
        known = "redis://, rediss://, redis+cluster://, redis+sentinel:// or unix://"
        raise PolicyError("url", f"scheme {scheme or '(none)'!r} is unknown; write {known}")
    kind, tls = _SCHEMES[scheme]
    if parts.fragment:
        raise PolicyError("url", "ends at a '#'; in a password or path it is written %23")
    # A plus is a plus, in passwords and paths: nobody writes spaces there.
    options = dict(parse_qsl(parts.query.replace("+", "%2B"), keep_blank_values=True))
    if unknown := sorted(set(options) - _OPTIONS):
        raise PolicyError("url", f"option {unknown[0]!r} is unknown; {', '.join(sorted(_OPTIONS))}")
    verify = options.get("verify", "yes")
    if verify not in {"yes", "no"}:
        raise PolicyError("url", "verify must be yes or no")
    if not tls and set(options) & _TLS:
        raise PolicyError("url", "TLS options need rediss://")
    if kind != "sentinel" and set(options) & _SENTINEL:
        raise PolicyError("url", "options for sentinels need redis+sentinel://")
    if "sentinel_username" in options and not options.get("sentinel_password"):
        raise PolicyError("url", "sentinel_username needs a sentinel_password")
    username, password, hosts = _authority(parts, kind)
    path = unquote(parts.path)
    service, database = "", options.get("db", "")
    if kind == "socket":
        if not path:
            raise PolicyError("url", "unix:// needs the path of a socket")
    elif kind == "sentinel":
        service = path.strip("/")
        if not service:
            raise PolicyError("url", "redis+sentinel:// needs the service's name as its path")
    elif path.strip("/"):
        database = path.strip("/")
    if database and not database.isdecimal():
        raise PolicyError("url", f"the database must be a number, not {database!r}")
    if kind == "cluster" and database not in {"", "0"}:
        raise PolicyError("url", "a cluster has only database 0")
    return Address(
        kind=kind,
        hosts=hosts,
        tls=tls,
        path=path if kind == "socket" else "",
        service=service,
        db=int(database or 0),
        username=username,
        password=password,
        ca_certs=options.get("ca_certs"),
        certfile=options.get("certfile"),
        keyfile=options.get("keyfile"),
        verify=verify == "yes",
        sentinel_username=options.get("sentinel_username") or None,
        sentinel_password=options.get("sentinel_password") or None,
    )


def _authority(
    parts: SplitResult, kind: str
) -> tuple[str | None, str | None, tuple[tuple[str, int], ...]]:
    credentials, at, places = parts.netloc.rpartition("@")
    username = password = None
    if at:
        name, colon, secret = credentials.partition(":")
        username = unquote(name) or None
        password = unquote(secret) if colon else None
    if kind == "socket":
        return username, password, ()
    hosts: list[tuple[str, int]] = []
    for place in places.split(","):
        host, colon, port = place.rpartition(":")
        if not colon or host.endswith(":") or place.endswith("]"):
            host, port = place, ""
        host = host.removeprefix("[").removesuffix("]")
        if not host or (port and not (port.isdecimal() and 0 < int(port) < 65536)):
            raise PolicyError("url", f"{place!r} is not host:port")
        hosts.append((host, int(port) if port else _PORTS[kind]))
    if kind == "server" and len(hosts) > 1:
        raise PolicyError("url", "several hosts need redis+cluster:// or redis+sentinel://")
    return username, password, tuple(hosts)
