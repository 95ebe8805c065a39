"""Offer open-loop load: `python -m bench.load URL --rate 200 --duration 10`."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
import typer
from rich.console import Console

from bench.load.report import table
from loadgate.integrations.loadgen import ClientClass, Phase, Plan, Progress, run

# A generator later than this is a measurement of itself. The latencies of interest in this
# folder are tens of milliseconds, and uvloop's timers tick in whole ones.
TOLERABLE_LAG = 0.010


def load(
    url: Annotated[str, typer.Argument(help="http://host:port/path")] = "",
    rate: Annotated[
        list[str] | None,
        typer.Option(
            help="Requests per second; repeated, one phase each. "
            "RATE[:SECONDS[:NAME]], RATE may be FROM-TO for a ramp."
        ),
    ] = None,
    duration: Annotated[float, typer.Option(help="Seconds of a phase that names none.")] = 10.0,
    arrivals: Annotated[
        Path | None,
        typer.Option(help="A file with one arrival time (seconds) a line, instead of rates."),
    ] = None,
    even: Annotated[bool, typer.Option(help="Regular arrivals instead of Poisson ones.")] = False,
    timeout: Annotated[float, typer.Option(help="Patience of a client, seconds.")] = 1.0,
    slo: Annotated[float, typer.Option(help="A reply within this is good, seconds.")] = 0.25,
    clients: Annotated[int, typer.Option(help="Distinct clients; each names itself.")] = 0,
    client_header: Annotated[str, typer.Option(help="The header that does so.")] = "x-client",
    new_connections: Annotated[bool, typer.Option(help="One connection for each request.")] = False,
    method: Annotated[str, typer.Option()] = "GET",
    header: Annotated[
        list[str] | None, typer.Option(help="'Name: value', may be repeated.")
    ] = None,
    body: Annotated[str, typer.Option(help="Request body.")] = "",
    chunked: Annotated[bool, typer.Option(help="Send the body chunked.")] = False,
    seed: Annotated[int, typer.Option(help="Equal seeds, equal schedules.")] = 1,
    core: Annotated[int | None, typer.Option(help="CPU to run on.")] = None,
    plan: Annotated[
        Path | None,
        typer.Option(help="A whole plan (TOML or JSON, as `Plan`) instead of the options above."),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the summary here; - is stdout.")] = None,
    rows: Annotated[Path | None, typer.Option(help="Write every request here, as JSON.")] = None,
    quiet: Annotated[bool, typer.Option(help="No progress, no table.")] = False,
) -> None:
    """Offer open-loop load to a server.

    Exit code 2: the options make no sense. 1: requests could not be sent in time.
    """
    try:
        if plan is not None:
            todo = read_plan(plan, url)
        else:
            parts = urlsplit(url)
            phases, rates = read_rates(rate or ["100"], duration)
            given = read_arrivals(arrivals) if arrivals else None
            if given:
                phases = (Phase("all", max(duration, given[-1] + 1e-6)),)
            todo = Plan(
                url=f"{parts.scheme}://{parts.netloc}",
                phases=phases,
                classes=(
                    ClientClass(
                        name="client",
                        rates=() if given else rates,
                        arrivals=given,
                        spacing="even" if even else "poisson",
                        method=method,
                        path=(parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
                        headers=tuple(read_header(line) for line in header or ()),
                        body=body,
                        chunked=chunked,
                        clients=clients,
                        client_header=client_header,
                        timeout=timeout,
                        connection="new" if new_connections else "keep",
                    ),
                ),
                slo=slo,
                seed=seed,
                progress=0.0 if quiet else 1.0,
                core=core,
            )
    except (ValueError, OSError) as error:
        typer.echo(f"bench.load: {error}", err=True)
        raise typer.Exit(2) from None
    result = run(todo, None if quiet else say)
    console = Console()
    if not quiet:
        console.print(table(result))
    if json is not None:
        text = msgspec.json.format(msgspec.json.encode(result.summary()), indent=2)
        if str(json) == "-":
            sys.stdout.buffer.write(text + b"\n")
        else:
            json.write_bytes(text + b"\n")
    if rows is not None:
        rows.write_bytes(msgspec.json.encode(result))
    lag = result.lag()
    if lag.p99 > TOLERABLE_LAG:
        typer.echo(
            f"bench.load: the generator was late itself (p99 {lag.p99 * 1e3:.1f} ms): "
            "latencies below a few times that are its own",
            err=True,
        )
    if lag.unsent:
        typer.echo(f"bench.load: {lag.unsent} requests could not be sent in time", err=True)
        raise typer.Exit(1)


def read_rates(
    rates: list[str], duration: float
) -> tuple[tuple[Phase, ...], tuple[float | tuple[float, float], ...]]:
    """Read `RATE[:SECONDS[:NAME]]`, one for each phase.

    Raises:
        ValueError: It is written otherwise.
    """
    phases: list[Phase] = []
    asked: list[float | tuple[float, float]] = []
    for number, text in enumerate(rates):
        rate, _, rest = text.partition(":")
        seconds, _, name = rest.partition(":")
        low, dash, high = rate.partition("-")
        try:
            asked.append((float(low), float(high)) if dash else float(low))
            phases.append(
                Phase(name or f"{number + 1}: {rate}/s", float(seconds) if seconds else duration)
            )
        except ValueError:
            raise ValueError(f"--rate {text}: write RATE[:SECONDS[:NAME]]") from None
    return tuple(phases), tuple(asked)


def read_arrivals(path: Path) -> tuple[float, ...]:
    """Read one arrival time a line.

    Raises:
        ValueError: A line is no number, or there is none.
    """
    times = tuple(float(line) for line in path.read_text().split())
    if not times:
        raise ValueError(f"--arrivals {path}: no arrivals")
    return times


def read_header(line: str) -> tuple[str, str]:
    """Read `Name: value`.

    Raises:
        ValueError: There is no colon.
    """
    name, colon, value = line.partition(":")
    if not colon or not name.strip():
        raise ValueError(f"--header {line!r}: write 'Name: value'")
    return name.strip(), value.strip()


def read_plan(path: Path, url: str) -> Plan:
    """Read a plan from a file; a url on the command line replaces the plan's.

    Raises:
        ValueError: It is no plan; the message says where.
    """
    data = path.read_bytes()
    fields: dict[str, object] = (
        tomllib.loads(data.decode()) if path.suffix == ".toml" else msgspec.json.decode(data)
    )
    if url:
        fields["url"] = url
    return msgspec.convert(fields, Plan)


def say(progress: Progress) -> None:
    """One line for each interval."""
    parts = [
        f"{name} sent {one.sent} good {one.good} slow {one.slow} 429 {one.limited} "
        f"503 {one.refused} gave up {one.gave_up} broken {one.broken}"
        for name, one in progress.classes.items()
    ]
    typer.echo(f"{progress.at:6.1f} s  {progress.phase:<14} " + "; ".join(parts), err=True)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(load)
    app()
