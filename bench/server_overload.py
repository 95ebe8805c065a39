"""What does a real Hypercorn worker deliver beyond its capacity, bare and behind loadgate?

    python -m bench.server_overload                     # about ten minutes
    python -m bench.server_overload --factors 10 --services pool --seconds 4

Open-loop Poisson arrivals (latency from the intended start, patience one second) against one
Hypercorn worker under uvloop; kept and new connections apart, because a refusal on a new
connection costs more than one on a kept connection. Server and generator run on cores of their
own. Every figure stands beside the bare server's from the same run.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from math import isnan
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from bench.load.report import milliseconds
from loadgate.integrations.demo.servers import Launch, bare, cancel_on_signals, guarded, serving
from loadgate.integrations.loadgen import ClientClass, Phase, Plan, run_elsewhere

APPS: Final = "bench.server_overload_apps"

PATIENCE: Final = 1.0

# Before it is measured a service meets half its capacity, then the factor: the limit learns an
# unloaded latency first, as it does in a service that was there before its overload. With --cold
# it is started in the middle of the overload, which is harder and happens too.
CALM: Final = 4.0
WARM_UP: Final = 4.0

# The SLO of a service is this many times its unloaded p99: what a caller would still accept.
SLO_FACTOR: Final = 4.0

# Both services can do two things at once at most. What a fixed limit of two loses, the limit
# algorithm has no part in: that is the price of HTTP.
KNOWN: Final = 2

SERVER_CORE: Final = 0
LOAD_CORE: Final = 1


class Service(StrEnum):
    """What the handler does."""

    POOL = "pool"
    CPU = "cpu"


CAPACITY: Final = {Service.POOL: 40.0, Service.CPU: 50.0}
WORDS: Final = {
    Service.POOL: "2 places of 50 ms (40/s)",
    Service.CPU: "a handler of 20 ms of processor time (50/s)",
}


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement.

    Attributes:
        service, arm, connection, factor: What was measured; `factor` times the capacity.
        offered: Requests per second that were due.
        goodput: Answered 200 within the SLO, per second.
        share: Of what could be had: of the capacity, or of what was offered if that is less.
        in_patience: Answered 200 at all (within the client's second), per second.
        p50, p99: Latency of the 200s in seconds.
        statuses: How the requests ended.
        refusal_p50: Latency of the 503s in seconds.
        answers_per_cpu: Answers of any kind for each second of the server's processor time.
        busy: Processor time that the server got, per second. Near 1.0 at overload with work on the
            processor, or the machine was busy with something else and the figures are too low.
        of_got: Goodput as a share of what this processor time could have done; NaN if the work is
            not on the processor.
        rss: Peak memory of the server's largest process, in MB.
        lag: p99 of the generator's own lag in seconds.
    """

    service: str
    arm: str
    connection: str
    factor: float
    offered: float
    goodput: float
    share: float
    in_patience: float
    p50: float
    p99: float
    statuses: dict[str, int]
    refusal_p50: float
    answers_per_cpu: float
    busy: float
    of_got: float
    rss: float
    lag: float


Connection = Literal["keep", "new"]


async def measure(
    launch: Launch, service: str, arm: str, connection: Connection, rate: float, capacity: float,
    *, slo: float, seconds: float, seed: int, pin: bool, even: bool = False, cold: bool = True,
    on_cpu: bool = False,
) -> Cell:  # fmt: skip
    """Start a server, offer it a rate, stop it.

    Raises:
        ServerError: It did not start.
        GeneratorError: The load did not run.
    """
    async with serving(launch) as server:
        plan = Plan(
            url=server.url,
            phases=(Phase("calm", CALM), Phase("warm-up", WARM_UP), Phase("measured", seconds)),
            classes=(
                ClientClass(
                    name="client",
                    rates=(0.0 if cold else min(rate, capacity / 2), rate, rate),
                    spacing="even" if even else "poisson",
                    timeout=PATIENCE,
                    connection=connection,
                ),
            ),
            slo=slo,
            seed=seed,
            core=LOAD_CORE if pin else None,
        )
        samples: list[tuple[float, float]] = []
        watching = asyncio.create_task(_watch(server.pid, samples))
        result = await run_elsewhere(plan)
        ended = asyncio.get_running_loop().time()
        watching.cancel()
        rss = max((rss for _, rss in _processes(server.pid)), default=0.0)
    tally = result.tally(phase="measured")
    began = ended - result.elapsed + CALM + WARM_UP
    used = _at(samples, began + seconds) - _at(samples, began)
    answered = sum(count for status, count in tally.statuses.items() if status.isdigit())
    return Cell(
        service=service,
        arm=arm,
        connection=connection,
        factor=rate / capacity,
        offered=tally.offered / tally.seconds,
        goodput=tally.goodput,
        share=tally.goodput / min(capacity, tally.offered / tally.seconds),
        in_patience=tally.count(200) / tally.seconds,
        p50=tally.p50,
        p99=tally.p99,
        statuses=tally.statuses,
        refusal_p50=tally.refusal_p50,
        answers_per_cpu=answered / used if used else 0.0,
        busy=used / seconds,
        of_got=tally.goodput * seconds / (capacity * used) if on_cpu and used else float("nan"),
        rss=rss,
        lag=result.lag().p99,
    )


async def _watch(session: int, samples: list[tuple[float, float]]) -> None:
    """Note the processor time of a session, again and again."""
    loop = asyncio.get_running_loop()
    while True:
        samples.append((loop.time(), sum(used for used, _ in _processes(session))))
        await asyncio.sleep(0.1)


def _at(samples: list[tuple[float, float]], time: float) -> float:
    """The processor time at a moment, from the nearest sample."""
    return min(samples, key=lambda sample: abs(sample[0] - time))[1]


def _processes(session: int) -> Iterator[tuple[float, float]]:
    """Processor seconds and peak MB of each process of a session (Linux; empty elsewhere)."""
    ticks = os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The name may hold spaces and brackets: the fields begin after the last one.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            status = (entry / "status").read_text()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[3]) == session:
            peak = status.partition("VmHWM:")[2].split()
            yield (int(fields[11]) + int(fields[12])) / ticks, int(peak[0]) / 1e3 if peak else 0.0


def draw(cells: list[Cell], service: Service, slo: float) -> Table:
    """Lay out the cells of one service."""
    table = Table(
        title=f"{WORDS[service]}, SLO {slo * 1e3:.0f} ms ({SLO_FACTOR:g} x unloaded p99)",
        title_justify="left",
    )
    table.add_column("offered")
    table.add_column("connections")
    table.add_column("arm")
    for column in (
        "goodput/s", "of possible", "200/s", "p50 ms", "p99 ms", "503/s", "503 p50 ms",
        "gave up/s", "answers/CPU s", "busy", "of got", "MB", "lag ms",
    ):  # fmt: skip
        table.add_column(column, justify="right")
    previous = ""
    for cell in cells:
        if cell.service == service:
            total = sum(cell.statuses.values()) / cell.offered
            answered = sum(n for status, n in cell.statuses.items() if status.isdigit())
            group = f"{cell.factor:g} x"
            if previous not in ("", group):
                table.add_section()
            previous = group
            table.add_row(
                f"{group} = {cell.offered:.0f}/s",
                cell.connection,
                cell.arm,
                f"{cell.goodput:.1f}",
                f"{cell.share:.0%}",
                f"{cell.in_patience:.1f}",
                milliseconds(cell.p50),
                milliseconds(cell.p99),
                f"{cell.statuses.get('503', 0) / total:.0f}",
                milliseconds(cell.refusal_p50),
                f"{(sum(cell.statuses.values()) - answered) / total:.0f}",
                f"{cell.answers_per_cpu:.0f}",
                f"{cell.busy:.2f}",
                "-" if isnan(cell.of_got) else f"{cell.of_got:.0%}",
                f"{cell.rss:.0f}",
                f"{cell.lag * 1e3:.1f}",
            )
    return table


async def run_all(
    services: list[Service],
    factors: list[float],
    connections: list[Connection],
    fixed: Path,
    policies: list[Path],
    options: list[str],
    seconds: float,
    seed: int,
    pin: bool,
    cold: bool,
    console: Console,
) -> dict[str, object]:
    """Measure every cell; returns everything, ready for JSON."""
    cancel_on_signals()
    cells: list[Cell] = []
    slos: dict[str, float] = {}
    answers: dict[str, float] = {}
    for kind in connections:
        cell = await measure(
            bare(f"{APPS}:trivial", "/ready"), "trivial", "bare", kind,
            1000.0, 1000.0,
            slo=1.0, seconds=seconds, seed=seed, pin=pin,
        )  # fmt: skip
        answers[kind] = cell.answers_per_cpu
        console.print(
            f"a bare server that does nothing, {kind} connections: "
            f"{cell.answers_per_cpu:.0f} answers per CPU second",
            highlight=False,
        )
    for service in services:
        app = f"{APPS}:{service}"
        capacity = CAPACITY[service]
        # Regular arrivals at a tenth of the capacity never meet: nothing but the service itself.
        unloaded = await measure(
            bare(app, "/ready"), service, "bare", "keep", capacity / 10, capacity,
            slo=1.0, seconds=max(8.0, seconds), seed=seed, pin=pin, even=True,
        )  # fmt: skip
        slo = slos[service] = SLO_FACTOR * unloaded.p99
        arms: list[tuple[str, Callable[[], Launch]]] = [
            ("bare", partial(bare, app, "/ready")),
            ("adaptive", partial(guarded, app, None, options)),
            ("without door", partial(guarded, app, None, [*options, "--door", "off"])),
            (f"fixed {KNOWN}", partial(guarded, app, fixed, options)),
            *((path.stem, partial(guarded, app, path, options)) for path in policies),
        ]
        for factor in factors:
            for kind in connections:
                for name, launch in arms:
                    cell = await measure(
                        launch(), service, name, kind, factor * capacity, capacity,
                        slo=slo, seconds=seconds, seed=seed, pin=pin, cold=cold,
                        on_cpu=service is Service.CPU,
                    )  # fmt: skip
                    cells.append(cell)
                    p99 = "-" if isnan(cell.p99) else f"{cell.p99 * 1e3:.0f} ms"
                    console.print(
                        f"{service} {factor:g}x {kind} {name}: goodput {cell.goodput:.1f}/s "
                        f"({cell.share:.0%}), p99 {p99}",
                        highlight=False,
                    )
        console.print(draw(cells, service, slo))
    return {
        "cells": cells,
        "slo": slos,
        "bare_answers_per_cpu_second": answers,
        "pinned": pin,
        "cold": cold,
    }


def main(
    services: Annotated[
        list[Service] | None, typer.Option(help="Repeatable; default both.")
    ] = None,
    factors: Annotated[
        list[float] | None, typer.Option(help="Times the capacity; repeatable.")
    ] = None,
    connections: Annotated[
        list[str] | None, typer.Option(help="keep, new; repeatable, default both.")
    ] = None,
    policy: Annotated[
        list[Path] | None, typer.Option(help="Another arm with this policy; repeatable.")
    ] = None,
    serve_option: Annotated[
        list[str] | None, typer.Option(help="An option for loadgate serve; repeatable.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Measured time of a cell.")] = 6.0,
    seed: Annotated[int, typer.Option()] = 1,
    cold: Annotated[bool, typer.Option(help="Start in the middle of the overload.")] = False,
    pin: Annotated[bool, typer.Option(help="A core for the server, one for the load.")] = True,
    json: Annotated[Path | None, typer.Option(help="Write everything here.")] = None,
) -> None:
    """Offer a Hypercorn worker several times its capacity, bare and behind loadgate."""
    chosen: list[Connection] = []
    for kind in connections or ["keep", "new"]:
        if kind not in ("keep", "new"):
            raise typer.BadParameter(f"{kind!r} is neither keep nor new")
        chosen.append("new" if kind == "new" else "keep")
    can_pin = pin and hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > LOAD_CORE
    if can_pin:
        # Inherited by the servers; the generator moves itself to its own core.
        os.sched_setaffinity(0, {SERVER_CORE})
    console = Console(width=150)
    with tempfile.TemporaryDirectory() as folder:
        fixed = Path(folder) / "fixed.toml"
        fixed.write_text(f'[concurrency]\nalgorithm = "fixed"\ninitial = {KNOWN}\n')
        outcome = asyncio.run(
            run_all(
                services or list(Service),
                factors or [0.5, 0.8, 1.0, 2.0, 5.0, 10.0, 50.0],
                chosen,
                fixed,
                policy or [],
                serve_option or [],
                seconds,
                seed,
                can_pin,
                cold,
                console,
            )
        )
    if json is not None:
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_bytes(msgspec.json.format(msgspec.json.encode(outcome), indent=2) + b"\n")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
