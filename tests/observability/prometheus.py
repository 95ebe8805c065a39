"""Where do the tests get a real Prometheus? Debian's package, unpacked here, on a free port.

Nothing is installed and no service is started: the two binaries lie in `.servers/`. What cannot
be had makes the test fail and says what to do; nothing is skipped.
"""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.programs import PATIENCE, SERVERS, debian, fetched, free_port, until

FOLDER: Final = SERVERS / "prometheus"

_ADVICE: Final = (
    "The tests need Prometheus and promtool. They are unpacked from Debian's package "
    f"'prometheus' (apt-get download); on another system put both binaries into {FOLDER} "
    "(any 2.42 or newer, https://prometheus.io/download)."
)


def binary(name: str) -> Path:
    """`prometheus` or `promtool`, downloaded when one of them is needed for the first time."""
    return fetched(FOLDER / name, _unpack)


def _unpack(scratch: Path) -> Path:
    return debian(["prometheus"], scratch, _ADVICE) / "usr" / "bin"


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
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
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
    port = free_port()
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
        until(lambda: process.poll() is not None or _ready(server.url), log.read_text)
        assert process.poll() is None, log.read_text()
        yield server
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5.0):
            return True
    except OSError:
        return False
