"""Where do the tests get a real browser? Debian's Chromium, unpacked here, talked to over a pipe.

Nothing is installed: the package and whatever libraries this machine lacks lie in `.servers/`.
A Chromium or Chrome that is installed is taken instead. What cannot be had makes the test
fail and says what to do; nothing is skipped.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from shutil import which
from typing import Any, Final, Self

from tests.programs import SERVERS, debian, fetched, need_debian, run

FOLDER: Final = SERVERS / "chromium"
_INSTALLED: Final = ("chromium", "chromium-browser", "google-chrome")
_FLAGS: Final = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
_ADVICE: Final = (
    "The live page is tested in Chromium. It is unpacked from Debian's package 'chromium' "
    "(apt-get download); on another system install Chromium or Chrome."
)
# Chromium reads from descriptor 3 and writes to 4, wherever ours lie.
_PLACED: Final = """
import fcntl, os, sys
given = [fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3]]
for one, place in zip(given, (3, 4)):
    os.dup2(one, place)
os.execv(sys.argv[3], sys.argv[3:])
"""
# Seconds. Chromium starts within two; the machine may be busy.
PATIENCE: Final = 60.0


def _chromium() -> tuple[str, dict[str, str]]:
    """The program, and the environment that it needs."""
    for name in _INSTALLED:
        if found := which(name):
            return found, {}
    program = fetched(FOLDER / "usr/lib/chromium/chromium", _unpack)
    libraries = sorted({str(path.parent) for path in FOLDER.rglob("*.so*")})
    return str(program), {"LD_LIBRARY_PATH": ":".join(libraries)}


def _unpack(scratch: Path) -> Path:
    need_debian(_ADVICE)
    plan = run(["apt-get", "-s", "install", "--no-install-recommends", "chromium"], _ADVICE)
    packages = re.findall(r"^Inst (\S+)", plan, re.MULTILINE)
    return debian(packages, scratch, _ADVICE)


class Browser:
    """A browser with one page; leaving the block ends it.

    Args:
        folder: Where it may write.
        size: Width and height of the window.

    Attributes:
        complaints: What the page's console has said: errors, exceptions, broken policies.
    """

    def __init__(self, folder: Path, size: tuple[int, int] = (1280, 1000)) -> None:
        self._folder = folder
        self._size = size
        self._number = 0
        self._session: str | None = None
        self._buffer = b""
        self._last_error = ""
        self.complaints: list[str] = []

    def __enter__(self) -> Self:
        program, more = _chromium()
        from_us, self._to = os.pipe()
        self._from, to_us = os.pipe()
        wide, high = self._size
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PLACED, str(from_us), str(to_us), program, *_FLAGS,
             f"--window-size={wide},{high}", f"--user-data-dir={self._folder / 'profile'}"],
            pass_fds=(from_us, to_us), env=os.environ | more,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(from_us)
        os.close(to_us)
        os.set_blocking(self._from, False)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def open(self, url: str) -> None:
        """Go there."""
        self._call("Page.navigate", url=url)

    def value(self, script: str) -> Any:
        """What an expression is worth in the page."""
        result = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in result:
            raise AssertionError(result["exceptionDetails"])
        return result["result"].get("value")

    def until(self, script: str, holds: Callable[[Any], bool] = bool) -> Any:
        """Wait until an expression is worth something; before the page is there, none is."""
        ends = time.monotonic() + PATIENCE
        while True:
            try:
                found = self.value(script)
            except AssertionError as error:
                found = None
                self._last_error = str(error)
            if holds(found):
                return found
            assert time.monotonic() < ends, (script, found, self._last_error, self.complaints)
            time.sleep(0.05)

    def picture(self, path: Path) -> None:
        """Write what is seen, the whole page, as PNG."""
        shot = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            said = self._read()
            if said.get("id") == self._number:
                if "error" in said:
                    raise AssertionError(f"{method}: {said['error']}")
                return said["result"]
            self._note(said)

    def _read(self) -> dict[str, Any]:
        ends = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            assert time.monotonic() < ends, "the browser says nothing"
            assert self._process.poll() is None, f"the browser has ended. {_ADVICE}"
            try:
                self._buffer += os.read(self._from, 1 << 20)
            except BlockingIOError:
                time.sleep(0.005)
        line, _, self._buffer = self._buffer.partition(b"\0")
        said: dict[str, Any] = json.loads(line)
        return said

    def _note(self, said: dict[str, Any]) -> None:
        parameters = said.get("params", {})
        match said.get("method"):
            case "Log.entryAdded" if parameters["entry"]["level"] in {"error", "warning"}:
                self.complaints.append(parameters["entry"]["text"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(parameters["exceptionDetails"]))
            case _:
                pass
