"""What does the policy file say, or what is wrong with it and where?"""

from __future__ import annotations

import os
import re
from pathlib import Path

from loadgate.errors import PolicyError
from loadgate.integrations.cli.say import why
from loadgate.policy import Policy
from loadgate.shared import Store, secret_of

_STEP = re.compile(r"(?P<name>[^.\[\]]+)(\[(?P<index>\d+)\])?")


class PolicyFileError(Exception):
    """The policy file cannot be used; the message is one line with file, line, path and value."""


def read_policy(path: Path) -> Policy:
    """Read a policy from a TOML file, and see whether its store can be one.

    What the store reads from variables is looked at if they are set.

    Raises:
        PolicyFileError: There is no such file, or it is no policy.
    """
    try:
        policy = Policy.from_toml(path)
        if policy.store is not None:
            _check_store(policy.store)
        return policy
    except PolicyError as error:
        if not error.path and str(path) in error.problem:
            raise PolicyFileError(error.problem) from None
        line = _line_of(path.read_text(errors="replace"), error.path) if error.path else None
        place = f"{path}:{line}" if line else str(path)
        raise PolicyFileError(f"{place}: {error}") from None
    except OSError as error:
        raise PolicyFileError(f"{path}: cannot be read: {why(error)}") from None


def _check_store(store: Store) -> None:
    """See whether URL and secret mean something, as far as they are known here.

    Raises:
        PolicyError: One of them does not.
    """
    try:
        from loadgate.integrations.redis.url import parse
    except ModuleNotFoundError:
        return  # nothing here could ask a store anyway; whoever has to says what is missing
    try:
        if _is_known(store.secret):
            secret_of(store)
        if _is_known(store.url):
            parse(os.environ[store.url[4:]] if store.url.startswith("env:") else store.url)
    except PolicyError as error:
        named = getattr(store, error.path)
        problem = f"{named}: {error.problem}" if named.startswith("env:") else error.problem
        raise PolicyError(f"store.{error.path}", problem) from None


def _is_known(text: str) -> bool:
    """Whether `text` is written out, or the variable that it names is set."""
    return not text.startswith("env:") or bool(os.environ.get(text[4:]))


def _line_of(text: str, path: str) -> int | None:
    """The line on which the setting at `path` stands, or its table when it does not.

    TOML readers keep no positions; this finds what people write (tables, arrays of tables, one
    key a line) and says nothing rather than something wrong about the rest.
    """
    steps = [(found["name"], found["index"]) for found in _STEP.finditer(path)]
    if not steps:
        return None
    table, index = steps[0]
    if index is None:
        header, skip = rf"\[\s*{re.escape(table)}\s*\]", 0
    else:
        header, skip = rf"\[\[\s*{re.escape(table)}\s*\]\]", int(index)
    inside = None
    for number, line in enumerate(text.splitlines(), start=1):
        if len(steps) == 1 and index is None and inside is None and _sets(line, table):
            return number
        if re.match(rf"\s*{header}", line):
            if skip == 0:
                inside = number
            elif skip < 0:
                break
            skip -= 1
        elif inside is not None and re.match(r"\s*\[", line):
            break
        elif inside is not None and len(steps) > 1 and _sets(line, steps[-1][0]):
            return number
    return inside


def _sets(line: str, key: str) -> bool:
    return re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line) is not None
