"""Why was it refused? ``loadgate explain`` reads recorded refusals and says it in words."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from loadgate.explain import explain as in_words
from loadgate.explain import recall
from loadgate.integrations.cli.say import FAILED, fail


def explain(
    file: Annotated[
        str,
        typer.Argument(
            help="Refusals as `loadgate.explain.record` writes them: a JSON object, an array of "
            "them, or one on each line; - reads standard input.",
            show_default=False,
        ),
    ],
) -> None:
    """Say in words why recorded requests were refused."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{file} cannot be read: {error}")
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
    """Every object and where it stands; fails on anything that is no JSON."""
    try:
        whole: object = json.loads(text)
    except ValueError:
        lines = [(f"line {n}", line) for n, line in enumerate(text.splitlines(), 1)]
        parsed: list[tuple[str, object]] = []
        for place, line in lines:
            if line.strip():
                try:
                    parsed.append((place, json.loads(line)))
                except ValueError as error:
                    fail(f"{file}: {place} is not JSON: {error}", FAILED)
    else:
        many = cast("list[object]", whole) if isinstance(whole, list) else [whole]
        parsed = [(f"number {n}", one) for n, one in enumerate(many, 1)]
    for place, one in parsed:
        if not isinstance(one, dict):
            fail(f"{file}: {place} is not an object: {one!r:.60}", FAILED)
        yield place, cast("dict[str, Any]", one)
