"""What does ``loadgate watch`` do? Look at a served process again and again, and draw or tell."""

from __future__ import annotations

import os
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
import typer
from rich.console import Console
from rich.live import Live

from loadgate.integrations.cli.say import FAILED, fail
from loadgate.integrations.console.lines import Lines
from loadgate.integrations.console.status import FORMAT, Status
from loadgate.integrations.console.terminal import Watch

# Seconds after which a process that does not answer is said not to.
_TIMEOUT = 5.0

# How the operators' port begins when it says what it has (`ops.OpsApp`).
_OPERATORS = b"loadgate: /metrics"


class LookError(Exception):
    """There was no answer, or none that can be read."""


def watch(
    url: Annotated[
        str,
        typer.Argument(
            metavar="HOST:PORT",
            help="The operators' port of a served process (--metrics-bind), or its URL.",
        ),
    ] = "127.0.0.1:9464",
    every: Annotated[
        float, typer.Option(min=0.1, max=60.0, help="Seconds between two looks.")
    ] = 1.0,
    token: Annotated[
        str,
        typer.Option(
            envvar="LOADGATE_LIVE_TOKEN", help="What a port that others can reach asks for."
        ),
    ] = "",
    looks: Annotated[
        int, typer.Option(min=0, help="End after so many looks and leave the last; 0 never ends.")
    ] = 0,
) -> None:
    """Draw a served process: limit, queue, latency, refusals and their reasons.

    Where there is no terminal it writes one line for each look.
    """
    address = address_of(url)
    try:
        first = look(address, token)
    except LookError as error:
        fail(f"{url} shows nothing: {error}", FAILED)
    looks_after = _again(address, token, every, looks)
    console = Console()
    try:
        if console.is_terminal:
            _draw(console, first, looks_after, whole=not looks)
        else:
            _write(first, looks_after)
    except KeyboardInterrupt:
        pass  # that is how one leaves
    except BrokenPipeError:
        # Whoever read has gone, as `head` does. Python would complain once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _again(address: str, token: str, every: float, looks: int) -> Iterator[Status | str]:
    """Look again and again; a look that failed is told as text."""
    count = 1
    while count != looks:
        time.sleep(every)
        try:
            yield look(address, token)
        except LookError as error:
            yield str(error)
        count += 1


def _draw(console: Console, first: Status, looks: Iterator[Status | str], *, whole: bool) -> None:
    """Draw in the terminal, on the whole screen or below what stands there."""
    drawn = Watch()
    drawn.add(first)
    with Live(drawn.screen(), console=console, screen=whole, auto_refresh=False) as screen:
        for seen in looks:
            trouble = seen if isinstance(seen, str) else ""
            if not isinstance(seen, str):
                drawn.add(seen)
            screen.update(drawn.screen(trouble), refresh=True)


def _write(first: Status, looks: Iterator[Status | str]) -> None:
    """Write a line for each look."""
    lines = Lines()
    print(lines.add(first), flush=True)
    for seen in looks:
        print(lines.trouble(seen) if isinstance(seen, str) else lines.add(seen), flush=True)


def address_of(given: str) -> str:
    """Where the numbers are, from HOST:PORT, :PORT, a URL, or the URL of the page."""
    if "://" not in given:
        given = f"http://127.0.0.1{given}" if given.startswith(":") else f"http://{given}"
    return given.rstrip("/").removesuffix("/live") + "/live.json"


def look(address: str, token: str = "") -> Status:
    """Ask once.

    Raises:
        LookError: There was no answer, or none that can be read.
    """
    request = urllib.request.Request(address)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        # An address that the user has typed.
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
            body = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(500).decode("utf-8", "replace").strip()
        _must_be_operators(address)
        raise LookError(f"{error.code}: {said}") from None
    except (OSError, ValueError, HTTPException) as error:
        raise LookError(_in_words(getattr(error, "reason", error), address)) from None
    try:
        status = msgspec.json.decode(body, type=Status)
    except msgspec.DecodeError:
        _must_be_operators(address)
        status = None
    if status is None or status.format != FORMAT:
        raise LookError(
            f"what it says is not of format {FORMAT}: is it another version of loadgate?"
        )
    return status


def _in_words(reason: object, address: str) -> str:
    """Why there was no answer, as one who has mistyped the address wants to read it."""
    where = urlsplit(address).netloc or address
    if isinstance(reason, ConnectionRefusedError):
        return f"nothing answers at {where}"
    if isinstance(reason, TimeoutError):
        return f"nothing answered at {where} within {_TIMEOUT:g} s"
    if isinstance(reason, socket.gaierror):
        return f"there is no host of the name in {where}"
    return str(getattr(reason, "strerror", None) or reason) or type(reason).__name__


def _must_be_operators(address: str) -> None:
    """Ask a port whose answer makes no sense what it is.

    Raises:
        LookError: It is some app's.
    """
    try:
        root = address.removesuffix("live.json")
        with urllib.request.urlopen(root, timeout=_TIMEOUT) as answer:
            said = answer.read(len(_OPERATORS))
    except (OSError, ValueError, HTTPException):
        said = b""
    if said != _OPERATORS:
        raise LookError(
            "that is the app's port; watch the metrics port (loadgate serve --metrics-bind, "
            "127.0.0.1:9464 by default)"
        )
