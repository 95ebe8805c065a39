"""Is a setting of the right kind? If not, say which value is wrong.

Whoever writes Python may give anything; a file has been checked for types. Numbers have their
bounds in `loadgate.limits.settings`.
"""

from __future__ import annotations

from typing import Any

from loadgate.errors import PolicyError
from loadgate.limits.settings import shown
from loadgate.reading import is_list, is_mapping


def one_of(path: str, value: object, known: tuple[str, ...]) -> None:
    """Refuse what is none of the `known` words."""
    if not isinstance(value, str) or value not in known:
        raise PolicyError(path, f"{shown(value)} is none of {', '.join(known)}")


def text(path: str, value: object) -> None:
    """Refuse what is not text."""
    if not isinstance(value, str):
        raise PolicyError(path, f"{shown(value)} is not text")


def flag(path: str, value: object) -> None:
    """Refuse what is neither true nor false."""
    if not isinstance(value, bool):
        raise PolicyError(path, f"{shown(value)} is neither true nor false")


def named(path: str, value: object) -> None:
    """Refuse what does not map names to values."""
    if not is_mapping(value):
        raise PolicyError(path, f"{shown(value)} does not map names to values")
    for name in value:
        if not isinstance(name, str):
            raise PolicyError(f"{path}[{shown(name)}]", "is not a name: names are text")


def listed(path: str, value: object) -> tuple[Any, ...]:
    """The items of a list; refuse what is none."""
    if not is_list(value):
        raise PolicyError(path, f"{shown(value)} is not a list")
    return tuple(value)
