"""What does a real server deliver beyond its capacity, bare, with its own limits, behind loadgate?

    python -m bench.server_overload --write             # about thirteen minutes, on a quiet machine
    python -m bench.server_overload --services pool --connections keep --arms Granian --unloaded 5

Open-loop Poisson arrivals (latency from the intended start, patience one second), rising step by
step to 50 times the capacity, against one worker. Kept and new connections apart, because a
refusal on a new connection costs more than one on a kept connection. A quarter of the capacity is
asked for by clients that are vital. Server and generator run on cores of their own. Every figure
stands beside the others' from the same run.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from enum import StrEnum
from math import nan
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import typer
from rich.console import Console

from bench import server_overload_report as report
from bench.processes import Usage, peak
from bench.server_overload_apps import PLACES_VARIABLE, RATE_VARIABLE
from bench.server_overload_arms import APPS, KNOWN, VITAL, Arm, arms, places_for
from bench.server_overload_report import PATIENCE, Cell, Outcome
from loadgate.integrations.demo.servers import (
    Launch,
    ServerError,
    bare,
    cancel_on_signals,
    serving,
)
from loadgate.integrations.loadgen import ClientClass, Phase, Plan, Result, run_elsewhere

# Seconds at each step before anything is counted: what the step before left has lost patience, and
# the door has met two half seconds of the new one.
SETTLE: Final = 1.5

# The SLO of a service is this many times its unloaded p99: what a caller would still accept.
SLO_FACTOR: Final = 4.0

# Seconds at a tenth of the capacity from which that follows: a hundred requests and more, as the
# p99 of fewer is the slowest of them.
UNLOADED: Final = 25.0

# Share of the capacity that the vital clients ask for.
VITAL_SHARE: Final = 0.25

FACTORS: Final = (0.5, 1.0, 2.0, 10.0, 50.0)

SERVER_CORE: Final = 0
LOAD_CORE: Final = 1

Connection = Literal["keep", "new"]


class Service(StrEnum):
    """What the handler does."""

    POOL = "pool"
    CPU = "cpu"


CAPACITY: Final = {Service.POOL: 40.0, Service.CPU: 50.0}


async def offer(
    launch: Launch, connection: Connection, steps: list[float], *, vital: float, slo: float,
    seconds: float, seed: int, pin: bool, even: bool = False,
) -> tuple[Result, list[float], float]:  # fmt: skip
    """Start a server, offer it one rate after the other, stop it.

    Returns:
        What came of the requests, processor seconds of the server in each step, peak memory in MB.

    Raises:
        ServerError: It did not start.
        GeneratorError: The load did not run.
    """
    phases: list[Phase] = []
    for number in range(len(steps)):
        phases += [Phase(f"settle {number}", SETTLE), Phase(f"step {number}", seconds)]

    def client(name: str, rates: list[float], path: str) -> ClientClass:
        return ClientClass(
            name=name,
            rates=tuple(rate for rate in rates for _ in range(2)),
            spacing="even" if even else "poisson",
            timeout=PATIENCE,
            connection=connection,
            path=path,
        )

    classes = [client("rest", [rate - vital for rate in steps], "/")]
    if vital:
        classes.append(client("vital", [vital] * len(steps), VITAL))
    plan = Plan(
        url=launch.url,
        phases=tuple(phases),
        classes=tuple(classes),
        slo=slo,
        seed=seed,
        core=LOAD_CORE if pin else None,
    )
    async with serving(launch) as server:
        if pin:
            os.sched_setaffinity(0, {LOAD_CORE})  # looking at the server must not cost it anything
        usage = Usage(server.pid)
        watching = asyncio.create_task(usage.watch())
        result = await run_elsewhere(plan)
        ended = asyncio.get_running_loop().time()
        memory = peak(server.pid)
        watching.cancel()
        if pin:
            os.sched_setaffinity(0, {SERVER_CORE})  # inherited by the next server
    began = ended - result.elapsed
    used: list[float] = []
    for number in range(len(steps)):
        start, end = result.interval(f"step {number}")
        used.append(usage.between(began + start, began + end))
    return result, used, memory


async def trivial(connection: Connection, seconds: float, seed: int, pin: bool) -> float:
    """Answers per second of processor time of a bare Hypercorn that does nothing."""
    rate = 1000.0
    result, used, _ = await offer(
        bare(f"{APPS}:trivial", "/ready"), connection, [rate],
        vital=0.0, slo=1.0, seconds=seconds, seed=seed, pin=pin,
    )  # fmt: skip
    return result.tally(phase="step 0").count(200) / used[0] if used[0] else nan


async def unloaded(service: Service, seconds: float, seed: int, pin: bool) -> float:
    """The p99 of a service that is asked regularly, at a tenth of its capacity."""
    result, _, _ = await offer(
        bare(f"{APPS}:{service}", "/ready"), "keep", [CAPACITY[service] / 10],
        vital=0.0, slo=1.0, seconds=seconds, seed=seed, pin=pin, even=True,
    )  # fmt: skip
    return result.tally(phase="step 0").p99


async def climb(
    service: Service, arm: Arm, connection: Connection, factors: list[float],
    *, slo: float, seconds: float, seed: int, pin: bool,
) -> list[Cell]:  # fmt: skip
    """Measure one arm at every factor."""
    capacity = CAPACITY[service]
    vital = VITAL_SHARE * capacity
    result, used, memory = await offer(
        arm.launch(), connection, [factor * capacity for factor in factors],
        vital=vital, slo=slo, seconds=seconds, seed=seed, pin=pin,
    )  # fmt: skip
    cells: list[Cell] = []
    for number, factor in enumerate(factors):
        phase = f"step {number}"
        tally = result.tally(phase=phase)
        late = sorted(
            value
            for rows in result.rows.values()
            for at, value in zip(rows.at, rows.late, strict=True)
            if result.interval(phase)[0] <= at < result.interval(phase)[1]
        )
        answered = sum(count for status, count in tally.statuses.items() if status.isdigit())
        cells.append(
            Cell(
                service=service,
                arm=arm.name,
                ours=arm.ours,
                connection=connection,
                factor=factor,
                offered=tally.offered / tally.seconds,
                goodput=tally.goodput,
                share=tally.goodput / min(capacity, tally.offered / tally.seconds),
                vital=result.tally(["vital"], phase=phase).share,
                rest=result.tally(["rest"], phase=phase).share,
                answered=tally.count(200) / tally.seconds,
                refused=tally.count(429, 503) / tally.seconds,
                failed=(tally.offered - answered) / tally.seconds,
                p50=tally.p50,
                p99=tally.p99,
                refusal_p50=tally.refusal_p50,
                refusal_p99=tally.refusal_p99,
                answers_per_cpu=answered / used[number] if used[number] else nan,
                busy=used[number] / tally.seconds,
                memory=memory,
                lag=late[int(0.99 * (len(late) - 1))] if late else nan,
            )
        )
    return cells


async def run_all(
    services: list[Service], connections: list[Connection], names: list[str], fixed: Path,
    policies: list[Path], options: list[str],
    *, factors: list[float], seconds: float, rest: float, seed: int, pin: bool, console: Console,
) -> Outcome:  # fmt: skip
    """Measure everything."""
    cancel_on_signals()
    outcome = Outcome(pinned=pin, seconds=seconds, load=os.getloadavg()[0])
    for connection in connections:
        outcome.trivial[connection] = await trivial(connection, seconds, seed, pin)
    for service in services:
        p99 = await unloaded(service, rest, seed, pin)
        slo = outcome.slo[service] = SLO_FACTOR * p99
        capacity = outcome.capacity[service] = CAPACITY[service]
        places = outcome.places[service] = places_for(slo, capacity)
        os.environ[PLACES_VARIABLE] = str(places)
        os.environ[RATE_VARIABLE] = f"{capacity:.0f}"
        for connection in connections:
            for arm in arms(service, places, fixed, policies, options):
                if names and not any(name in arm.name for name in names):
                    continue
                try:
                    cells = await climb(
                        service, arm, connection, factors,
                        slo=slo, seconds=seconds, seed=seed, pin=pin,
                    )  # fmt: skip
                except ServerError as error:
                    console.print(f"{service} {connection} {arm.name}: {error}", markup=False)
                    continue
                outcome.cells += cells
                shares = "  ".join(f"{cell.factor:g}x {cell.share:.0%}" for cell in cells)
                console.print(
                    f"{service} {connection} {arm.name}: {shares}", highlight=False, markup=False
                )
        console.print(report.table(outcome, service))
    return outcome


def main(
    services: Annotated[
        list[Service] | None, typer.Option(help="Repeatable; default both.")
    ] = None,
    factors: Annotated[
        list[float] | None, typer.Option(help="Times the capacity, rising; repeatable.")
    ] = None,
    connections: Annotated[
        list[str] | None, typer.Option(help="keep, new; repeatable, default both.")
    ] = None,
    arms: Annotated[
        list[str] | None, typer.Option(help="Only those with this in their name; repeatable.")
    ] = None,
    policy: Annotated[
        list[Path] | None, typer.Option(help="Another arm with this policy; repeatable.")
    ] = None,
    serve_option: Annotated[
        list[str] | None, typer.Option(help="An option for loadgate serve; repeatable.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.5, help="Counted seconds of each step.")] = 2.2,
    unloaded: Annotated[
        float, typer.Option(min=1.0, help="Seconds of rest, from which the SLO follows.")
    ] = UNLOADED,
    seed: Annotated[int, typer.Option()] = 1,
    pin: Annotated[bool, typer.Option(help="A core for the server, one for the load.")] = True,
    json: Annotated[Path | None, typer.Option(help="Write every cell here.")] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write table and pictures into docs/.")
    ] = False,
) -> None:
    """Offer servers up to 50 times their capacity."""
    chosen: list[Connection] = []
    for kind in connections or ["keep", "new"]:
        if kind not in ("keep", "new"):
            raise typer.BadParameter(f"{kind!r} is neither keep nor new")
        chosen.append("new" if kind == "new" else "keep")
    steps = list(factors or FACTORS)
    if min(steps) < VITAL_SHARE:
        raise typer.BadParameter(f"a factor is below {VITAL_SHARE:g}, what the vital ask for")
    can_pin = pin and hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > LOAD_CORE
    if can_pin:
        # Inherited by the servers; the generator moves itself to its own core, and so do we then.
        os.sched_setaffinity(0, {SERVER_CORE})
    console = Console(width=150)
    with tempfile.TemporaryDirectory() as folder:
        fixed = Path(folder) / "fixed.toml"
        fixed.write_text(f'[concurrency]\nalgorithm = "fixed"\ninitial = {KNOWN}\n')
        outcome = asyncio.run(
            run_all(
                services or list(Service), chosen, arms or [], fixed,
                policy or [], serve_option or [],
                factors=steps, seconds=seconds, rest=unloaded, seed=seed, pin=can_pin,
                console=console,
            )
        )  # fmt: skip
    if json is not None:
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_bytes(msgspec.json.format(msgspec.json.encode(outcome), indent=2) + b"\n")
    if write:
        report.write(outcome)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
