"""What does ``loadgate dashboards`` do? Write dashboards, rules and alerts for Grafana."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from loadgate.dashboards.export import export as write
from loadgate.integrations.cli.say import fail

commands = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Dashboards, rules and alerts for Grafana and Prometheus.",
)


@commands.command()
def export(
    folder: Annotated[
        str,
        typer.Argument(metavar="DIR", help="Where to; made if it is not there.",
                       show_default=False),
    ],
    runbooks: Annotated[
        str,
        typer.Option(metavar="URL", help="Where your copy of docs/runbooks can be read."),
    ] = "",
    grafana: Annotated[
        str, typer.Option(metavar="URL", help="Where Grafana is, for links in alerts.")
    ] = "",
) -> None:  # fmt: skip
    """Write dashboards, rules, alerts and provisioning files into a folder."""
    if not folder.strip():
        fail("the folder has no name; write . for this one")
    for option, address in (("--runbooks", runbooks), ("--grafana", grafana)):
        if address and not _is_web(address):
            fail(f"{option} {address!r}: must be an address such as https://host/path")
    try:
        files = write(Path(folder), runbooks=runbooks, grafana=grafana)
    except OSError as error:
        fail(f"cannot write to {folder}: {error.strerror or error}")
    for path in files:
        typer.echo(path)


def _is_web(address: str) -> bool:
    """Whether an alert may send a browser there; a space or a new line would also end its YAML."""
    if any(sign.isspace() or not sign.isprintable() for sign in address):
        return False
    try:
        parts = urlsplit(address)
        return parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:  # brackets that hold no address
        return False


@commands.callback()
def dashboards() -> None:
    """Keep `export` a command of its own, so that others can join it."""
