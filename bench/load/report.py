"""How does a load result read? One table, phases by classes."""

from __future__ import annotations

from math import isnan

from rich.table import Table

from loadgate.integrations.loadgen import Result, Tally


def table(result: Result) -> Table:
    """Lay out a result: a row for each phase and class, and the generator's own lag below."""
    lag = result.lag()
    drawn = Table(
        title=f"{result.plan.url}, SLO {result.plan.slo * 1e3:g} ms",
        caption=(
            f"generator: lag p50 {lag.p50 * 1e3:.1f} p99 {lag.p99 * 1e3:.1f} "
            f"max {lag.worst * 1e3:.1f} ms, {lag.unsent} unsent, "
            f"{result.cpu / max(result.elapsed, 1e-9):.0%} of a core; "
            f"connections: {result.opened} opened, {result.peak} at once, {result.resent} resent"
        ),
        caption_justify="left",
    )
    for column in ("phase", "class"):
        drawn.add_column(column)
    for column in ("offered/s", "goodput/s", "good", "p50 ms", "p99 ms", "max ms"):
        drawn.add_column(column, justify="right")
    drawn.add_column("statuses")
    for phase in result.plan.phases:
        for name in result.rows:
            tally = result.tally([name], phase=phase.name)
            if tally.offered:
                drawn.add_row(phase.name, name, *_cells(tally))
    return drawn


def _cells(tally: Tally) -> tuple[str, ...]:
    return (
        f"{tally.offered / tally.seconds:.1f}",
        f"{tally.goodput:.1f}",
        f"{tally.share:.1%}",
        milliseconds(tally.p50),
        milliseconds(tally.p99),
        milliseconds(tally.worst),
        ", ".join(f"{status}: {count}" for status, count in tally.statuses.items()),
    )


def milliseconds(value: float) -> str:
    """A latency in whole or tenth milliseconds, a dash for none."""
    if isnan(value):
        return "-"
    return f"{value * 1e3:.1f}" if value < 0.1 else f"{value * 1e3:.0f}"
