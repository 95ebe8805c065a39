"""Who may look, and what do they get? A read-only page and its numbers, for the operators' port.

The page holds no data. The numbers are given to whoever reaches a port that only this machine
can reach, and otherwise to whoever knows the token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import Any, Final

import msgspec

from loadgate.integrations.console.status import Status

Answer = tuple[int, bytes, str]
Headers = Iterable[tuple[bytes, bytes]]

PAGE: Final = "/live"
DATA: Final = "/live.json"

_TEXT: Final = "text/plain; charset=utf-8"
# Names by which a browser on this machine reaches this machine. A page on the internet whose name
# was made to point here (DNS rebinding) sends its own name, and gets nothing.
_LOCAL_NAMES: Final = {"localhost", "127.0.0.1", "[::1]", ""}


class Live:
    """Answers `/live` and `/live.json`.

    Args:
        look: Makes a status.
        local: Whether the port can be reached from this machine alone.
        token: What others must send as ``Authorization: Bearer …``; empty for none, then nobody
            else gets an answer. Given to the page behind a ``#``, where no server logs it.
    """

    def __init__(self, look: Callable[[], Status], *, local: bool, token: str = "") -> None:
        self._look = look
        self._local = local
        self._token = token
        self._page = page()
        self.page_headers = [(b"content-security-policy", _policy(self._page).encode())]

    def answer(self, path: str, headers: Headers) -> Answer:
        """Status, body and type for `path`, which is one of the two."""
        if path == PAGE:
            return 200, self._page.encode(), "text/html; charset=utf-8"
        given = {name.lower(): value for name, value in headers}
        if not self._may(given):
            return 403, self._why().encode(), _TEXT
        return 200, msgspec.json.encode(self._look()), "application/json"

    def _may(self, headers: dict[bytes, bytes]) -> bool:
        if self._token:
            sent = headers.get(b"authorization", b"")
            return hmac.compare_digest(sent, b"Bearer " + self._token.encode())
        host = headers.get(b"host", b"").decode("latin-1")
        return self._local and re.sub(r":\d+$", "", host).lower() in _LOCAL_NAMES

    def _why(self) -> str:
        if self._token:
            return "this needs the token: open /live#TOKEN, or loadgate watch URL --token TOKEN\n"
        if self._local:
            return "this is only for requests to localhost\n"
        return (
            "this port can be reached from elsewhere, so the live view needs a token: "
            "set LOADGATE_LIVE_TOKEN and start again\n"
        )


def is_local(listener: socket.socket) -> bool:
    """Whether only this machine can reach the socket."""
    if listener.family not in {socket.AF_INET, socket.AF_INET6}:
        return True
    name: Any = listener.getsockname()
    return ipaddress.ip_address(str(name[0]).partition("%")[0]).is_loopback


def page() -> str:
    """The page: one file, with its style and its program inside."""
    return files(__package__ or "").joinpath("live.html").read_text(encoding="utf-8")


def _policy(text: str) -> str:
    """Let the page do what it was written to do and nothing else."""

    def digest(tag: str) -> str:
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        return base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()

    return (
        f"default-src 'none'; script-src 'sha256-{digest('script')}'; "
        f"style-src 'sha256-{digest('style')}'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
