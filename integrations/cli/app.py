"""Which commands are there?"""

from __future__ import annotations

import importlib
from typing import Annotated, Any, NoReturn

import typer

from loadgate import __version__
from loadgate.integrations.cli.check import check
from loadgate.integrations.cli.dashboards import commands as dashboards
from loadgate.integrations.cli.options import serve
from loadgate.integrations.cli.say import fail_for_missing

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    # The tracebacks of Python say more to those who have to read one at night.
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Admission control for async Python: fair rates (429), load shedding (503).",
)

app.add_typer(dashboards, name="dashboards")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"loadgate {__version__}")
        raise typer.Exit


@app.callback()
def loadgate(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Say the version."),
    ] = False,
) -> None:
    """Take what stands before a command."""


app.command()(check)
app.command()(serve)


# These are found by name when they are called: their modules need extras that the others do not,
# and read their own options.
_PASS_ON: dict[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}


@app.command(context_settings=_PASS_ON)
def demo(context: typer.Context) -> None:
    """Show in a minute what loadgate does."""
    _delegate("demo", context.args)


@app.command(context_settings=_PASS_ON)
def simulate(context: typer.Context) -> None:
    """Play a scenario against a policy on a virtual clock."""
    _delegate("simulate", context.args)


@app.command(context_settings=_PASS_ON)
def watch(context: typer.Context) -> None:
    """Draw a served process in the terminal, live."""
    _delegate("watch", context.args)


@app.command(context_settings=_PASS_ON)
def explain(context: typer.Context) -> None:
    """Say in words why recorded requests were refused."""
    _delegate("explain", context.args)


def _delegate(name: str, arguments: list[str]) -> NoReturn:
    """Run the function `name` of the module of that name as a command of its own."""
    try:
        module = importlib.import_module(f"loadgate.integrations.cli.{name}")
    except ModuleNotFoundError as missing:
        fail_for_missing(missing, f"loadgate {name}")
    command = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    command.command(name)(getattr(module, name))
    command(args=arguments, prog_name=f"loadgate {name}")
    raise SystemExit(0)
