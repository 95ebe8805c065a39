"""What does the policy file say, or what is wrong with it and where?"""

from __future__ import annotations

import re
from pathlib import Path

from loadgate.errors import PolicyError
from loadgate.integrations.cli.say import why
from loadgate.policy import Policy

_STEP = re.compile(r"(?P<name>[^.\[\]]+)(\[(?P<index>\d+)\])?")


class PolicyFileError(Exception):
    """The policy file cannot be used; the message is one line with file, line, path and value."""


def read_policy(path: Path) -> Policy:
    """Read a policy from a TOML file.

    Raises:
        PolicyFileError: There is no such file, or it is no policy.
    """
    try:
        return Policy.from_toml(path)
    except PolicyError as error:
        if not error.path and str(path) in error.problem:
            raise PolicyFileError(error.problem) from None
        line = _line_of(path.read_text(errors="replace"), error.path) if error.path else None
        place = f"{path}:{line}" if line else str(path)
        raise PolicyFileError(f"{place}: {error}") from None
    except OSError as error:
        raise PolicyFileError(f"{path}: cannot be read: {why(error)}") from None


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
