"""How does the command line speak? One line on stderr, and an exit code that means something."""

from __future__ import annotations

import sys
from typing import NoReturn

# 1: what was asked for turned out bad (a wrong policy, an app that failed). 2: it could not even
# be tried (bad arguments, no such module, a port that is taken); click and argparse use 2 alike.
FAILED = 1
CANNOT = 2
# What a shell says of a command that was interrupted: 128 + SIGINT.
INTERRUPTED = 130

# Which extra brings which module.
EXTRAS = {
    "hypercorn": "serve",
    "prometheus_client": "serve",
    "rich": "serve",
    "typer": "serve",
    "uvloop": "serve",
    "httpx": "httpx",
    "matplotlib": "simulate",
    "numpy": "simulate",
}


def fail(message: str, code: int = CANNOT) -> NoReturn:
    """End the process with one line on stderr.

    Raises:
        SystemExit: Always, with `code`.
    """
    sys.stderr.write(f"loadgate: {message}\n")
    sys.stderr.flush()
    raise SystemExit(code)


def fail_for_missing(module: ModuleNotFoundError, what: str) -> NoReturn:
    """End the process because `what` needs a module that is not installed.

    Raises:
        SystemExit: With code 2 and the extra to install.
        ModuleNotFoundError: The module belongs to no extra, so it is a fault and not a choice.
    """
    name = (module.name or "").partition(".")[0]
    extra = EXTRAS.get(name)
    if extra is None:
        raise module
    fail(f"{what} needs {name}, which is not installed; run: pip install 'loadgate[{extra}]'")


def why(error: OSError) -> str:
    """What the system says, to stand after a colon."""
    return (error.strerror or str(error)).lower()


def announce(message: str) -> None:
    """Say something on stdout that a program may wait for."""
    sys.stdout.write(f"loadgate: {message}\n")
    sys.stdout.flush()
