"""Where do the tests get a real Prometheus? Debian's package, unpacked here, on a free port.

Nothing is installed and no service is started: the two binaries lie in `.servers/`. What cannot
be had makes the test fail and says what to do; nothing is skipped.
"""

from __future__ import annotations

import fcntl
import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree, which
from typing import Any, Final

import pytest

SERVERS: Final = Path(__file__).parents[2] / ".servers"
FOLDER: Final = SERVERS / "prometheus"

_ADVICE: Final = (
    "The tests need Prometheus and promtool. They are unpacked from Debian's package "
    f"'prometheus' (apt-get download); on another system put both binaries into {FOLDER} "
    "(any 2.42 or newer, https://prometheus.io/download)."
)
# Seconds. Prometheus is ready after half a second; the machine may be busy.
_PATIENCE: Final = 30.0


def binary(name: str) -> Path:
    """`prometheus` or `promtool`, downloaded when one of them is needed for the first time."""
    path = FOLDER / name
    if path.exists():
        return path
    SERVERS.mkdir(exist_ok=True)
    with open(SERVERS / "prometheus.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _unpack()
    return path


def _unpack() -> None:
    if which("apt-get") is None or which("dpkg") is None:
        pytest.fail(_ADVICE)
    with tempfile.TemporaryDirectory(dir=SERVERS) as scratch:
        _run(["apt-get", "-qq", "download", "prometheus"], Path(scratch))
        (package,) = Path(scratch).glob("*.deb")
        _run(["dpkg", "-x", str(package), "unpacked"], Path(scratch))
        ready = Path(scratch, "ready")
        ready.mkdir()
        for name in ("prometheus", "promtool"):
            Path(scratch, "unpacked", "usr", "bin", name).rename(ready / name)
        rmtree(FOLDER, ignore_errors=True)
        ready.rename(FOLDER)


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        pytest.fail(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}\n{_ADVICE}")


def promtool(*arguments: str, text: str | None = None) -> str:
    """Run promtool and return what it said; fail if it was not content."""
    done = subprocess.run(
        [str(binary("promtool")), *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = done.stdout + done.stderr
    if done.returncode:
        raise AssertionError(f"promtool {' '.join(arguments)}:\n{said}")
    return said


class QueryError(Exception):
    """Prometheus did not understand the question."""


class Prometheus:
    """A running server.

    Attributes:
        url: Its address.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def instant(self, expr: str, at: float) -> list[Any]:
        """The samples at one moment."""
        return self._ask("query", {"query": expr, "time": at})

    def over(self, expr: str, start: float, end: float, step: float) -> list[Any]:
        """The series between two moments."""
        return self._ask("query_range", {"query": expr, "start": start, "end": end, "step": step})

    def targets(self) -> list[Any]:
        """What it scrapes."""
        found: list[Any] = self._get("targets", {})["activeTargets"]
        return found

    def rules(self) -> list[Any]:
        """What it evaluates."""
        return [rule for group in self._get("rules", {})["groups"] for rule in group["rules"]]

    def exemplars(self, expr: str, start: float, end: float) -> list[Any]:
        """The exemplars it holds."""
        found: list[Any] = self._get("query_exemplars", {"query": expr, "start": start, "end": end})
        return found

    def _ask(self, what: str, arguments: dict[str, Any]) -> list[Any]:
        found: list[Any] = self._get(what, arguments)["result"]
        return found

    def _get(self, what: str, arguments: dict[str, Any]) -> Any:
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url, timeout=_PATIENCE) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            said = json.load(error)
            error.close()
            raise QueryError(f"{said['error']}: {arguments.get('query')}") from None


@contextmanager
def running(folder: Path, config: str = "{}\n") -> Generator[Prometheus]:
    """A server on a free port, with its data in `folder`.

    Args:
        folder: Where the data lies, or will lie.
        config: The text of prometheus.yml.
    """
    folder.mkdir(exist_ok=True)
    (folder / "prometheus.yml").write_text(config)
    log = folder / "prometheus.log"
    port = _free_port()
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [
                str(binary("prometheus")),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--storage.tsdb.retention.time=10y",
                "--enable-feature=exemplar-storage",
            ],
            stdout=stderr,
            stderr=stderr,
        )
    try:
        server = Prometheus(f"http://127.0.0.1:{port}")
        ends = time.monotonic() + _PATIENCE
        while not _ready(server.url):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < ends, log.read_text()
            time.sleep(0.05)
        yield server
    finally:
        process.terminate()
        process.wait(_PATIENCE)


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5.0):
            return True
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
