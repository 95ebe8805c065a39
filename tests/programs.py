"""What do tests share that start real programs? Where these lie, a free port, some patience.

Nothing is installed: what is not there is downloaded once, unpacked into `.servers/` and started
from there. What cannot be had makes the test fail and says what to do; nothing is skipped.
"""

from __future__ import annotations

import fcntl
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree, which
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
SERVERS: Final = ROOT / ".servers"

# Seconds. What tests start is there within two; a machine that is shared and busy takes longer.
# Nothing waits this long unless it has failed.
PATIENCE: Final = 30.0


def fetched(path: Path, make: Callable[[Path], Path]) -> Path:
    """`path`, which lies in a folder of `SERVERS` that is made when it is needed first.

    However many processes ask at once, one of them makes the folder, and it appears as a whole.

    Args:
        path: What must be there.
        make: Makes the folder somewhere below an empty directory, and returns where.
    """
    folder = SERVERS / path.relative_to(SERVERS).parts[0]
    if path.exists():
        return path
    SERVERS.mkdir(exist_ok=True)
    with open(SERVERS / f"{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=SERVERS) as scratch:
                made = make(Path(scratch))
                rmtree(folder, ignore_errors=True)
                made.rename(folder)
    return path


def debian(packages: list[str], scratch: Path, advice: str) -> Path:
    """Download packages of Debian and unpack them, without installing any.

    Args:
        packages: Their names.
        scratch: An empty directory.
        advice: What to do where this does not work.

    Returns:
        The directory that stands for the root of the file system.
    """
    need_debian(advice)
    # As a user of its own apt could not write here; it says so, and downloads nevertheless.
    run(["apt-get", "-qq", "download", *packages], advice, scratch)
    unpacked = scratch / "unpacked"
    for package in scratch.glob("*.deb"):
        run(["dpkg", "-x", str(package), str(unpacked)], advice)
    return unpacked


def need_debian(advice: str) -> None:
    """Fail with `advice` where Debian's tools are not to be had."""
    if which("apt-get") is None or which("dpkg") is None:
        pytest.fail(advice)


def run(command: list[str], advice: str, folder: Path | None = None) -> str:
    """What a command has said; the test fails with all of it, and `advice`, if it failed."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        pytest.fail(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}\n{advice}")
    return done.stdout


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def until(
    happened: Callable[[], bool],
    told: str | Callable[[], str],
    *,
    patience: float = PATIENCE,
    pause: float = 0.01,
) -> None:
    """Look again and again until something has happened.

    Args:
        happened: Whether it has.
        told: What the failure says if it does not; a function is asked only then.
        patience: Seconds until it must have happened.
        pause: Seconds between two looks.
    """
    ends = time.monotonic() + patience
    while not happened():
        if time.monotonic() >= ends:
            said = told if isinstance(told, str) else told()
            raise AssertionError(f"not within {patience:g} s: {said}")
        time.sleep(pause)
