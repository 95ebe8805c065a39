"""Which class is a request of? Told by its path, so that the door can know it as well.

The layer takes any function of the scope; the door in front of HTTP has no scope, only the first
line of a request. A path is also what a client chooses freely: give a class above the others only
to paths that are bounded by something else (a rate, a login), or every flood will ask for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self


class PathClasses:
    """Priority classes by path: ``PathClasses({"/checkout": "critical"})``.

    An entry covers its path and everything below it, by whole segments; the longest that fits
    decides. It is a function of the scope, for `AdmissionMiddleware` (``priority=``), and `Door`
    takes the same object, so that the two agree.

    Args:
        classes: Path to class.
        otherwise: The class of all other requests.

    Raises:
        ValueError: A path does not begin with a slash, or a class has no name.
    """

    def __init__(self, classes: Mapping[str, str], otherwise: str = "default") -> None:
        found: dict[str, str] = {}
        for path, name in classes.items():
            if not path.startswith("/"):
                raise ValueError(f"priority: {path!r} is no path: it does not begin with /")
            found[path.rstrip("/")] = name
        if not all(found.values()) or not otherwise:
            raise ValueError("priority: a class has no name")
        self.otherwise = otherwise
        self._classes = sorted(found.items(), key=lambda item: -len(item[0]))
        self._paths = tuple(found)

    @classmethod
    def read(cls, entries: Iterable[str], known: Iterable[str]) -> Self:
        """Make one of entries such as ``/checkout=critical``.

        Raises:
            ValueError: An entry is not of this form, or names none of the classes `known`.
        """
        found: dict[str, str] = {}
        for entry in entries:
            path, equals, name = (part.strip() for part in entry.rpartition("="))
            if not equals:
                raise ValueError(f"priority: {entry!r} is not of the form /path=class")
            found[path] = name
        classes = cls(found)
        if unknown := classes.unknown(known):
            raise ValueError(
                f"priority: {unknown[0]!r} is none of the policy's classes: {', '.join(known)}"
            )
        return classes

    def __call__(self, scope: Mapping[str, Any]) -> str:
        """The class of a request or handshake."""
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        # Some servers put root_path into the path, others do not; both spellings count.
        if root and path.startswith(root):
            path = path[len(root) :]
        return self.of(path)

    def of(self, path: str) -> str:
        """The class of a path, decoded and without its query."""
        if path.startswith(self._paths):
            for prefix, name in self._classes:
                if path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", "/"):
                    return name
        return self.otherwise

    def unknown(self, known: Iterable[str]) -> list[str]:
        """The classes named here that are none of `known`, as a policy lists them."""
        names = {name for _, name in self._classes} | {self.otherwise}
        # "default" is always understood: without a class of this name it is the lowest.
        return sorted(names - {*known, "default"})
