"""Why was it refused? ``loadgate explain`` reads recorded refusals and says it in words."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer

from loadgate.explain import explain as in_words
from loadgate.explain import recall
from loadgate.integrations.cli.say import FAILED, fail, why

# How a line of the decision log begins, and the shape of what is in it (`DecisionLog`).
_LOGGED: Final = "decision=refused "
_FIELD: Final = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)')
_NUMBERS: Final = frozenset({"retry_after", "observed", "bound"})


def explain(
    file: Annotated[
        str,
        typer.Argument(
            help="Refusals as `loadgate.explain.record` writes them (a JSON object, an array of "
            "them, or one on each line), the answer of /live.json, or a log with lines of "
            "decisions (others are passed over); - reads standard input.",
            show_default=False,
        ),
    ],
) -> None:
    """Say in words why recorded requests were refused."""
    try:
        # Whatever else is in a log need not be text: only our own lines count.
        given = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        fail(f"{file}: cannot be read: {why(error)}")
    text = given.decode("utf-8", "replace")
    count = 0
    for place, recorded in _records(text, file):
        try:
            refusal = recall(recorded)
        except ValueError as error:
            fail(f"{file}: {place} is not a refusal: {error}", FAILED)
        status = 429 if refusal.reason == "rate" else 503
        typer.echo(f"{status} {refusal.reason}: {in_words(refusal)}")
        count += 1
    if not count:
        fail(f"{file}: there is no refusal in it", FAILED)


def _records(text: str, file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object and where it stands; fails where there is neither JSON nor a line of ours."""
    try:
        whole: object = json.loads(text)
    except ValueError:
        parsed = list(_lines(text, file))
    else:
        if isinstance(whole, dict):
            whole = cast("dict[str, object]", whole).get("sightings", cast("object", whole))
        many = cast("list[object]", whole) if isinstance(whole, list) else [whole]
        parsed = [(f"number {n}", one) for n, one in enumerate(many, 1)]
    for place, one in parsed:
        if not isinstance(one, dict):
            fail(f"{file}: {place} is not an object: {one!r:.60}", FAILED)
        found = cast("dict[str, Any]", one)
        # JSON knows no infinity.
        infinite = {name: inf for name in ("observed", "bound") if found.get(name, 0) is None}
        yield place, found | infinite


def _lines(text: str, file: str) -> Iterator[tuple[str, object]]:
    """What lines say of decisions; a log has others, which are passed over."""
    found = False
    for number, line in enumerate(text.splitlines(), 1):
        if _LOGGED in line:
            found = True
            yield f"line {number}", _logged(line)
        elif (said := _written(line)) is not None:
            found = True
            yield f"line {number}", said
    if text.strip() and not found:
        fail(f"{file}: no line is a refusal, neither as JSON nor of the decision log", FAILED)


def _written(line: str) -> object:
    """The object of a line that `record` has written; None for any other line."""
    try:
        said: object = json.loads(line)
    except ValueError:
        return None
    # Logs in JSON have objects of their own; ours has these two whatever else is in it.
    if isinstance(said, dict) and "stage" in said and "reason" in said:
        return cast("object", said)
    return None


def _logged(line: str) -> dict[str, Any]:
    """What a line of the decision log says, as `record` would have."""
    found: dict[str, Any] = {}
    for name, text in _FIELD.findall(line[line.index(_LOGGED) :]):
        if text.startswith('"'):
            text = text[1:-1].replace('\\"', '"')
            # One that is not as we write it stays as it is.
            with suppress(UnicodeError):
                text = text.encode("ascii").decode("unicode_escape")
        found[name] = text
    for name in _NUMBERS & found.keys():
        try:
            number = float(found[name])
        except ValueError:
            continue  # `recall` says that it is none
        found[name] = None if name == "retry_after" and number == inf else number
    return found
