"""How do the figures of `server_overload` read? A table, a picture, and a page of the docs."""

from __future__ import annotations

import platform
from importlib import import_module
from math import isnan, nan
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.table import Table

from bench.load.report import milliseconds

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "overload-servers.md"
PICTURE: Final = ROOT / "docs" / "pictures" / "overload-servers.png"
_BEGIN: Final = "<!-- written by bench.server_overload: begin -->"
_END: Final = "<!-- written by bench.server_overload: end -->"

WORDS: Final = {"pool": "two places of 50 ms", "cpu": "20 ms of processor time"}
_KINDS: Final = {"keep": "kept connections", "new": "new connections"}

# Dark for ours, after Okabe and Ito for the others; the same in every panel.
_OURS: Final = ("#0072b2", "#003f7d", "#56b4e9", "#5e3c99")
_PEERS: Final = ("#999999", "#e69f00", "#cc79a7", "#d55e00", "#009e73", "#b8860b")

# Seconds that a client waits; the axis of latencies ends a little above.
PATIENCE: Final = 1.0


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One arm at one step.

    Attributes:
        service, arm, connection, factor: What was measured; `factor` times the capacity.
        ours: Whether loadgate is in it.
        offered: Requests per second that were due.
        goodput: Answered 200 within the SLO, per second.
        share: Of what could be had: of the capacity, or of what was offered if that is less.
        vital, rest: Good answers of what each class of clients asked for.
        answered: Answered 200 at all (within the client's second), per second.
        refused: Answered 429 or 503, per second.
        failed: Neither: given up, closed, reset, per second.
        p50, p99: Latency of the 200s in seconds.
        refusal_p50, refusal_p99: Latency of the refusals in seconds.
        answers_per_cpu: Answers of any kind for each second of the server's processor time.
        busy: Processor seconds that the server got each second. Below 1.0 at an overload with
            work on the processor, somebody else had the rest.
        memory: Peak memory of the server's largest process in the whole climb, in MB.
        lag: p99 of the generator's own lag in seconds.
    """

    service: str
    arm: str
    ours: bool
    connection: str
    factor: float
    offered: float
    goodput: float
    share: float
    vital: float
    rest: float
    answered: float
    refused: float
    failed: float
    p50: float
    p99: float
    refusal_p50: float
    refusal_p99: float
    answers_per_cpu: float
    busy: float
    memory: float
    lag: float


class Outcome(msgspec.Struct, kw_only=True):
    """A whole run.

    Attributes:
        pinned: Whether server and generator had a core each.
        seconds: Counted seconds of each step.
        load: The machine's load average before it began.
        trivial: Answers per CPU second of a bare Hypercorn that does nothing, by connection.
        slo, capacity, places: By service; `places` is what the peers' limits were set to.
        cells: Everything measured.
    """

    pinned: bool
    seconds: float
    load: float
    trivial: dict[str, float] = {}
    slo: dict[str, float] = {}
    capacity: dict[str, float] = {}
    places: dict[str, int] = {}
    cells: list[Cell] = []

    def of(self, service: str, connection: str, arm: str = "") -> list[Cell]:
        """The cells of one service and kind of connection, of all arms or of one."""
        return [
            cell
            for cell in self.cells
            if (cell.service, cell.connection) == (service, connection) and arm in ("", cell.arm)
        ]


def table(outcome: Outcome, service: str) -> Table:
    """Lay out the cells of one service."""
    drawn = Table(
        title=f"{WORDS[service]} ({outcome.capacity[service]:g}/s), SLO "
        f"{outcome.slo[service] * 1e3:.0f} ms, peers set to {outcome.places[service]}",
        title_justify="left",
    )
    for column in ("connections", "arm"):
        drawn.add_column(column, no_wrap=True)
    for column in (
        "offered", "good/s", "share", "vital", "p50", "p99", "refused/s", "p50", "p99", "failed/s",
        "/CPU s", "busy", "MB", "lag",
    ):  # fmt: skip
        drawn.add_column(column, justify="right")
    previous = ("", "")
    for cell in outcome.cells:
        if cell.service != service:
            continue
        if previous[0] and previous != (cell.connection, cell.arm):
            drawn.add_section()
        previous = (cell.connection, cell.arm)
        drawn.add_row(
            cell.connection, cell.arm, f"{cell.factor:g}x", f"{cell.goodput:.1f}",
            f"{cell.share:.0%}", _percent(cell.vital), milliseconds(cell.p50),
            milliseconds(cell.p99), f"{cell.refused:.0f}", milliseconds(cell.refusal_p50),
            milliseconds(cell.refusal_p99), f"{cell.failed:.0f}", f"{cell.answers_per_cpu:.0f}",
            f"{cell.busy:.2f}", f"{cell.memory:.0f}", milliseconds(cell.lag),
        )  # fmt: skip
    return drawn


def page(outcome: Outcome) -> str:
    """The tables as the docs have them."""
    top = max((cell.factor for cell in outcome.cells), default=nan)
    lines = [
        "![goodput, p99 and refusal latency of each server from half to many times its "
        f"capacity](pictures/{PICTURE.name})",
        "",
        f"Python {platform.python_version()}, {'one core each' if outcome.pinned else 'no pinning'}"
        f" for server and generator, load average {outcome.load:.1f} before the run, "
        f"{outcome.seconds:g} s counted at each step. A bare Hypercorn that does nothing answers "
        f"{outcome.trivial.get('keep', nan):,.0f} requests per CPU second on kept connections and "
        f"{outcome.trivial.get('new', nan):,.0f} on new ones.",
        "",
        f"Goodput as a share of what could be had at each step; then, at {top:g} times the "
        "capacity: the share of the vital clients' requests that was good, p99 of the 200s (and at "
        "the step before), refusals (median and p99), requests without any answer, answers of any "
        "kind per CPU second, and the processor time that the server got, in cores.",
        "",
    ]
    for service, slo in outcome.slo.items():
        for connection, words in _KINDS.items():
            cells = outcome.of(service, connection)
            if not cells:
                continue
            factors = sorted({cell.factor for cell in cells})
            lines += [
                f"### {WORDS[service].capitalize()}, {words}",
                "",
                f"{outcome.capacity[service]:g}/s possible, SLO {slo * 1e3:.0f} ms, the peers' "
                f"limits at {outcome.places[service]}.",
                "",
                "| | "
                + " | ".join(f"{factor:g}x" for factor in factors)
                + " | vital | p99 | refusals | no answer | per CPU s | busy |",
                "|---|" + "---|" * (len(factors) + 6),
            ]
            for arm in dict.fromkeys(cell.arm for cell in cells):
                lines.append(_row(arm, outcome.of(service, connection, arm)))
            lines.append("")
    return "\n".join(lines).rstrip()


def _row(arm: str, cells: list[Cell]) -> str:
    last = cells[-1]
    refusals = (
        f"{last.refused:.0f}/s, {milliseconds(last.refusal_p50)} / "
        f"{milliseconds(last.refusal_p99)} ms"
        if last.refused
        else "none"
    )
    p99 = " / ".join(
        "-" if isnan(cell.p99) else f"{milliseconds(cell.p99)} ms" for cell in reversed(cells[-2:])
    )
    cost = "-" if isnan(last.answers_per_cpu) else f"{last.answers_per_cpu:,.0f}"
    shares = " | ".join(f"{cell.share:.0%}" for cell in cells)
    return (
        f"| {arm} | {shares} | {_percent(last.vital)} | {p99} | {refusals} | "
        f"{last.failed:.0f}/s | {cost} | {last.busy:.2f} |"
    )


def _share(cell: Cell) -> float:
    return cell.share


def _p99(cell: Cell) -> float:
    return cell.p99 * 1e3


def _refusal(cell: Cell) -> float:
    return cell.refusal_p50 * 1e3


_DRAWN: Final = (
    ("goodput, share of what could be had", _share),
    ("p99 of the answered, ms", _p99),
    ("refusals, median, ms", _refusal),
)


def draw(outcome: Outcome, path: Path) -> None:
    """Paint the picture: a row for each service and kind of connection, three questions."""
    # Imported by name: strict checkers know its types only in part.
    matplotlib: Any = import_module("matplotlib")
    matplotlib.use("agg")
    plt: Any = import_module("matplotlib.pyplot")
    rows = [
        (service, connection)
        for service in outcome.slo
        for connection in _KINDS
        if outcome.of(service, connection)
    ]
    figure, axes = plt.subplots(
        len(rows), 3, figsize=(12, 2.7 * len(rows) + 1.0), squeeze=False, sharex=True
    )
    names = list(dict.fromkeys(cell.arm for cell in outcome.cells))
    ours = {cell.arm for cell in outcome.cells if cell.ours}
    colors: dict[str, str] = {}
    for name in names:
        palette = _OURS if name in ours else _PEERS
        taken = sum((known in ours) == (name in ours) for known in colors)
        colors[name] = palette[taken % len(palette)]
    for row, (service, connection) in enumerate(rows):
        slo = outcome.slo[service]
        for axis, (title, value) in zip(axes[row], _DRAWN, strict=True):
            for name in names:
                cells = outcome.of(service, connection, name)
                axis.plot(
                    [cell.factor for cell in cells],
                    [value(cell) for cell in cells],
                    color=colors[name],
                    linewidth=2.2 if name in ours else 1.3,
                    marker="o",
                    markersize=4 if name in ours else 3,
                    label=name,
                )
            axis.set_xscale("log")
            axis.set_xticks([0.5, 1, 2, 5, 10, 50], ["0.5", "1", "2", "5", "10", "50"])
            axis.minorticks_off()
            axis.grid(alpha=0.25)
            for side in ("top", "right"):
                axis.spines[side].set_visible(False)
            axis.set_title(title, fontsize=9, loc="left")
        axes[row][0].set_ylim(-0.03, 1.15)
        axes[row][0].set_ylabel(f"{WORDS[service]}\n{_KINDS[connection]}", fontsize=9)
        axes[row][1].axhline(slo * 1e3, color="#333333", linewidth=0.8, linestyle="--")
        axes[row][1].annotate("SLO", (0.5, slo * 1e3), fontsize=8, va="bottom", color="#333333")
        for axis in axes[row][1:]:
            axis.set_yscale("log")
            axis.set_ylim(0.3, 1.5e3 * PATIENCE)
    for axis in axes[-1]:
        axis.set_xlabel("offered, times the capacity", fontsize=9)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, ncol=4, loc="upper center", frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.55 / (2.7 * len(rows) + 1.0)))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def write(outcome: Outcome) -> None:
    """Put the tables between the marks of the page, and the picture beside it."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(_BEGIN)
    _, after = rest.split(_END)
    PAGE.write_text(f"{before}{_BEGIN}\n\n{page(outcome)}\n\n{_END}{after}", encoding="utf-8")
    draw(outcome, PICTURE)


def _percent(share: float) -> str:
    return "-" if isnan(share) else f"{share:.0%}"
