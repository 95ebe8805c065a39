"""``loadgate serve`` as a process of its own, for tests that need the real thing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, Queue
from typing import Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests import programs
from tests.programs import PATIENCE, ROOT

APP = """
import anyio

released = None

async def app(scope, receive, send):
    global released
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                print("the app was told to shut down", flush=True)
                return
    released = released or anyio.Event()
    if scope["path"] == "/hold":
        await released.wait()
    elif scope["path"] == "/release":
        released.set()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode()})
"""


def living(app: str) -> str:
    """The text of an app that also starts and shuts down when it is told to.

    Args:
        app: The text of one for requests only.
    """
    return f"""{app}

_answer = app

async def app(scope, receive, send):
    if scope["type"] != "lifespan":
        await _answer(scope, receive, send)
        return
    while True:
        message = await receive()
        await send({{"type": message["type"] + ".complete"}})
        if message["type"] == "lifespan.shutdown":
            return
"""


class Served:
    """A served process; leaving the block kills what is left of it.

    Attributes:
        url: The app's address.
        ops: The operators' address, empty without one.
    """

    def __init__(self, directory: Path, *options: str, app: str = APP) -> None:
        (directory / "served_app.py").write_text(app)
        self._log = directory / "stderr.log"
        self._options = options
        self._directory = directory
        self._lines: Queue[str] = Queue()
        self.said: list[str] = []
        self.url = self.ops = ""

    def __enter__(self) -> Self:
        environment = os.environ | {"PYTHONPATH": str(ROOT / "controller")}
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "loadgate.integrations.cli", "serve", "served_app:app",
                 "--bind", "127.0.0.1:0", "--metrics-bind", "127.0.0.1:0", *self._options],
                cwd=self._directory, env=environment, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.ops = self.line(r"metrics and health on (http://\S+)")
            self.url = self.line(r"serving served_app:app on (http://\S+)")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                self._lines.put(line)
        except ValueError:
            pass  # closed while it was read: the test is over
        self._lines.put("")

    def line(self, pattern: str) -> str:
        """Wait for a line on stdout and return what its first group matched."""
        ends = time.monotonic() + PATIENCE
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, ends - time.monotonic()))
            except Empty:
                raise AssertionError(f"no {pattern!r} in time; {self.log()}") from None
            if not line:
                raise AssertionError(f"ended without {pattern!r}; {self.log()}")
            self.said.append(line)
            if found := re.search(pattern, line):
                return found[1] if found.re.groups else found[0]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for the end and return the exit code."""
        code = self.process.wait(PATIENCE)
        print(self.log())  # pytest shows it when the test fails
        return code

    def log(self) -> str:
        """What it has written to stderr so far."""
        return self._log.read_text()

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=PATIENCE)

    def metrics(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Every sample by name and labels (without the controller)."""
        page = httpx.get(f"{self.ops}/metrics", timeout=PATIENCE)
        assert page.status_code == 200
        found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(page.text):
            for sample in family.samples:
                labels = {key: value for key, value in sample.labels.items() if key != "controller"}
                found[sample.name, frozenset(labels.items())] = sample.value
        return found

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics()[name, frozenset(labels.items())]

    def until(self, happened: Callable[[], bool]) -> None:
        """Look again and again until something has happened."""
        programs.until(happened, self.log)
