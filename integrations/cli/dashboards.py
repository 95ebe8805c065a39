"""What does ``loadgate dashboards`` do? Write dashboards, rules and alerts for Grafana."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadgate.dashboards.export import export as write
from loadgate.integrations.cli.say import fail

commands = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Dashboards, recording rules and alerts for Grafana and Prometheus.",
)


@commands.command()
def export(
    folder: Annotated[
        Path,
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
    try:
        files = write(folder, runbooks=runbooks, grafana=grafana)
    except OSError as error:
        fail(f"cannot write to {folder}: {error.strerror or error}")
    for path in files:
        typer.echo(path)


@commands.callback()
def dashboards() -> None:
    """Keep `export` a command of its own, so that others can join it."""
