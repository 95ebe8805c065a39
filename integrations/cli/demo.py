"""What does ``loadgate demo`` do? Run both halves and say whether they show what they should."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from loadgate.integrations.cli.say import INTERRUPTED
from loadgate.integrations.demo import report
from loadgate.integrations.demo.live import LiveView
from loadgate.integrations.demo.plain import PlainView
from loadgate.integrations.demo.record import Half
from loadgate.integrations.demo.run import run_half
from loadgate.integrations.demo.servers import ServerError, cancel_on_signals
from loadgate.integrations.demo.verdict import judge, too_busy
from loadgate.integrations.loadgen import GeneratorError

# Neither shown nor refuted: the load generator itself came too late.
TOO_BUSY = 3

# A log has no width; the table needs this much.
LOG_WIDTH = 110


def demo(
    plain: Annotated[
        bool, typer.Option("--plain", help="Lines for a log instead of the live view.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where the picture and the data go.")] = Path(
        "out/demo"
    ),
    seed: Annotated[int, typer.Option(help="Another seed, another draw of the same traffic.")] = 1,
) -> None:
    """Show in a minute what loadgate does: the same traffic, first without it and then with it.

    A sample service that can do 100 requests a second meets a greedy client, then five times its
    capacity. Exit code 0 only if the run shows what it claims, 1 if not, 2 if it could not run,
    3 if the machine was too busy to show anything.
    """
    console = Console()
    started = time.monotonic()
    lines = plain or not console.is_terminal
    if not console.is_terminal:
        console = Console(width=LOG_WIDTH)
    view = PlainView(lambda line: print(line, flush=True)) if lines else LiveView(console)
    try:
        with view:
            bare, guarded = asyncio.run(_both(view, seed))
    except (ServerError, GeneratorError, TimeoutError, OSError) as error:
        typer.echo(f"loadgate demo: could not run: {error or type(error).__name__}", err=True)
        raise typer.Exit(2) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(INTERRUPTED) from None
    claims = judge(bare, guarded)
    console.print()
    console.print(report.table(bare, guarded))
    console.print()
    console.print(report.verdict(claims))
    try:
        written = report.write(out, bare, guarded, claims)
    except OSError as error:
        typer.echo(f"loadgate demo: {out}: {error.strerror}", err=True)
        raise typer.Exit(2) from None
    console.print()
    for path in written:
        console.print(f"written: {path}", highlight=False)
    failed = sum(not claim.holds for claim in claims)
    console.print(
        f"{len(claims) - failed} of {len(claims)} claims hold "
        f"({time.monotonic() - started:.0f} s in all)",
        style="bold red" if failed else "bold green",
        highlight=False,
    )
    if too_busy(claims):
        console.print(
            "The machine was too busy to show anything: the load generator itself was late. "
            "Run it again when less is going on.",
            highlight=False,
        )
        raise typer.Exit(TOO_BUSY)
    if failed:
        raise typer.Exit(1)


async def _both(view: LiveView | PlainView, seed: int) -> tuple[Half, Half]:
    cancel_on_signals()
    return await run_half(0, seed, view), await run_half(1, seed, view)
