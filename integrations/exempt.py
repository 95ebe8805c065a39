"""Which requests pass without admission? Health, metrics, and CORS preflights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from loadgate.integrations.receive import Scope

DEFAULT_PATHS: Final = (
    "/health", "/healthz", "/livez", "/readyz", "/live", "/ready", "/-/healthy", "/-/ready",
    "/metrics",
)  # fmt: skip
"""The names of Kubernetes, Prometheus and common frameworks; GET and HEAD only."""


class Exemptions:
    """Decides by exact method and path.

    Args:
        exempt: ``"/path"`` (GET and HEAD), ``"METHOD /path"`` or ``"* /path"``, or a function of
            the scope; None for `DEFAULT_PATHS`.

    Raises:
        ValueError: An entry is not of this form.

    Attributes:
        paths: The paths that may be exempt, None if a function decides.
    """

    __slots__ = ("_function", "_paths", "paths")

    def __init__(self, exempt: Iterable[str] | Callable[[Scope], bool] | None) -> None:
        self._function: Callable[[Scope], bool] | None = None
        self._paths: dict[str, frozenset[str]] = {}
        self.paths: dict[str, frozenset[str]] | None = self._paths
        if exempt is None:
            exempt = DEFAULT_PATHS
        if callable(exempt):
            self._function = exempt
            self.paths = None
            return
        if isinstance(exempt, str):
            raise ValueError("exempt: give a list of paths, not one string")
        for entry in exempt:
            method, space, path = entry.rpartition(" ")
            if not path.startswith("/") or (space and not method.strip()):
                raise ValueError(f'exempt: {entry!r} is neither "/path" nor "METHOD /path"')
            methods = {method.strip().upper()} if method else {"GET", "HEAD"}
            self._paths[path] = self._paths.get(path, frozenset()) | methods

    def covers(self, scope: Scope) -> bool:
        """Whether this http or websocket scope passes."""
        if self._function is not None:
            return bool(self._function(scope))
        path: str = scope["path"]
        methods = self._paths.get(path)
        if methods is None:
            # Some servers put root_path into the path, others do not; both spellings count.
            root: str = scope.get("root_path", "")
            if not root or not path.startswith(root):
                return False
            methods = self._paths.get(path[len(root) :])
            if methods is None:
                return False
        # A websocket scope has no method; its handshake is a GET.
        return scope.get("method", "GET") in methods or "*" in methods


def is_preflight(scope: Scope) -> bool:
    """Whether this is a CORS preflight (Fetch standard): OPTIONS with its two headers."""
    if scope.get("method") != "OPTIONS":
        return False
    names = {name for name, _ in scope.get("headers", ())}
    return b"origin" in names and b"access-control-request-method" in names
