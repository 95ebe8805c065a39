"""Where does the server listen? Bound before anything starts: a taken port is said at once."""

from __future__ import annotations

import errno
import os
import socket
import stat
from typing import Any

from loadgate.integrations.cli.say import why


class BindError(Exception):
    """The address is wrong or cannot be had."""


_WHY = {
    errno.EADDRINUSE: "the port is taken",
    errno.EACCES: "not allowed (ports below 1024 need privileges)",
    errno.EADDRNOTAVAIL: "this machine has no such address",
}


def bind(spec: str) -> socket.socket:
    """Bind a stream socket to ``HOST:PORT``, ``[IPV6]:PORT``, ``:PORT`` or ``unix:PATH``.

    Port 0 takes any free one; `url` says which. The socket does not listen yet.

    Raises:
        BindError: `spec` is no address, or it cannot be had.
    """
    if spec.startswith("unix:"):
        return _bind_unix(spec.removeprefix("unix:"))
    host, port = _parse(spec)
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror:
        raise BindError(f"cannot listen on {spec}: there is no host {host!r}") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # A restart must not wait until the last connections have left TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise BindError(f"cannot listen on {spec}: {_why(error)}") from None
    listener.setblocking(False)
    return listener


def url(listener: socket.socket) -> str:
    """The address of a bound socket, as a client writes it."""
    name: Any = listener.getsockname()
    if listener.family not in {socket.AF_INET, socket.AF_INET6}:
        return f"unix:{name}"
    host, port = name[0], name[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def overlap(first: socket.socket, second: socket.socket) -> bool:
    """Whether only one of two bound sockets can listen.

    The kernel lets both be bound (SO_REUSEADDR) and says no when the second one listens.
    """
    here: Any = first.getsockname()
    there: Any = second.getsockname()
    if isinstance(here, str) or isinstance(there, str):
        return bool(here == there)
    hosts = {here[0], there[0]}
    everywhere = not hosts.isdisjoint({"0.0.0.0", "::"})
    return bool(here[1] == there[1]) and (len(hosts) == 1 or everywhere)


def clash(bind: str, metrics_bind: str) -> str:
    """What to say of two addresses that are one."""
    return (
        f"--bind {bind} and --metrics-bind {metrics_bind} are the same address: give the "
        "operators another port, or 'none'"
    )


def _parse(spec: str) -> tuple[str, int]:
    host, separator, port = spec.rpartition(":")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise BindError(
            f"{spec!r} is no address: write HOST:PORT with a port from 0 to 65535, for example "
            "127.0.0.1:8000 or [::1]:8000"
        )
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise BindError(f"{spec!r} is ambiguous: write an IPv6 address as [{host}]:{port}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _bind_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_dead_socket(path)
        listener.bind(path)
    except OSError as error:
        listener.close()
        raise BindError(f"cannot listen on unix:{path}: {_why(error)}") from None
    listener.setblocking(False)
    return listener


def _remove_dead_socket(path: str) -> None:
    """Remove what a process that died has left; one that still answers is not ours to remove."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)


def _why(error: OSError) -> str:
    return _WHY.get(error.errno or 0) or why(error)
