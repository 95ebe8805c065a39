"""What did it look like? Pictures of a comparison, as PNG bytes.

Figures are made without pyplot: nothing global is touched, and no display is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from loadgate.decisions import Reason
from loadgate.simulation.compare import Comparison, Result
from loadgate.simulation.figures import percent
from loadgate.simulation.laws import Floats
from loadgate.simulation.results import phases
from loadgate.simulation.summary import ClassSummary, Summary

# Okabe and Ito's palette: told apart by everyone, also in grey.
_BLUE, _ORANGE, _GREEN, _RED, _PINK, _SKY, _YELLOW, _INK, _GREY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#222222",
    "#B8B8B8",
)  # fmt: skip
_LINES: Final = (_BLUE, _RED, _GREEN, _ORANGE, _PINK, _SKY, _INK)
_REASONS: Final = {
    Reason.RATE: _PINK,
    Reason.QUEUE_FULL: _RED,
    Reason.QUEUE_SHED: _ORANGE,
    Reason.WAIT_TIMEOUT: _SKY,
    Reason.DEADLINE: _BLUE,
    Reason.PRIORITY: _GREEN,
    Reason.FAIR_SHARE: _YELLOW,
}
_STYLE: Final = {
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.4,
    "lines.solid_joinstyle": "round",
}
_WIDTH: Final = 10.0  # inches; 1400 pixels at this resolution
_DPI: Final = 140
# Crowds within this factor of each other are drawn on one scale.
_ALIKE: Final = 4.0

Axes = Any


def draw(comparison: Comparison) -> dict[str, bytes]:
    """Every picture as PNG, by the name of its file without suffix."""
    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]  # matplotlib types keys one by one
        return {
            "goodput": _png(_goodput(comparison)),
            "limit": _png(
                _rows(comparison, _limit, "requests", "Limit against in-flight", share=False)
            ),
            "latency": _png(_rows(comparison, _latency, "latency", "Latency of what was answered")),
            "refusals": _png(_rows(comparison, _refusals, "per second", "Refused, by reason")),
            "clients": _png(_clients(comparison)),
        }


def _goodput(comparison: Comparison) -> Figure:
    figure = Figure(figsize=(_WIDTH, 3.4), layout="constrained")
    axes: Axes = figure.subplots()
    first = comparison.results[0].runs[0]
    middle = 0.5 * (first.edges[1:] + first.edges[:-1])
    offered = _average(comparison.results[0], lambda run: run.arrivals)
    axes.fill_between(middle, offered, color=_GREY, alpha=0.35, lw=0, label="offered")
    stretches = phases(comparison.scenario)
    for index, (stretch, possible) in enumerate(zip(stretches, comparison.possible, strict=True)):
        rate = possible / (stretch.end - stretch.start)
        axes.hlines(
            rate,
            stretch.start,
            stretch.end,
            color=_INK,
            ls=(0, (4, 2)),
            lw=1.0,
            label="possible (mean)" if index == 0 else "",
        )
    for result, colour in zip(comparison.results, _cycle(len(comparison.results)), strict=True):
        good = _average(result, lambda run: run.good)
        axes.plot(middle, good, color=colour, label=result.label)
    axes.set(xlim=(0, first.edges[-1]), ylim=(0, None), xlabel="seconds", ylabel="per second")
    axes.set_title("Answered in time", pad=_above(comparison))
    _shade(axes, comparison, names=True)
    _legend(axes)
    return figure


def _rows(
    comparison: Comparison,
    paint: Callable[[Axes, Comparison, Result], None],
    label: str,
    title: str,
    *,
    share: bool = True,
) -> Figure:
    """One row for each candidate, on one scale if they `share` it."""
    count = len(comparison.results)
    figure = Figure(figsize=(_WIDTH, 0.9 + 2.2 * count), layout="constrained")
    rows = figure.subplots(count, 1, sharex=True, sharey=share, squeeze=False)[:, 0]
    for index, (axes, result) in enumerate(zip(rows, comparison.results, strict=True)):
        paint(axes, comparison, result)
        words = f"{title}: {result.label}" if count > 1 else title
        axes.set_title(words, pad=_above(comparison) if index == 0 else 6.0)
        axes.set(xlim=(0, result.runs[0].edges[-1]), ylabel=label)
        _shade(axes, comparison, names=index == 0)
        _legend(axes)
    rows[-1].set_xlabel("seconds")
    return figure


def _limit(axes: Axes, comparison: Comparison, result: Result) -> None:
    """Only the first seed: means over seeds would show a limit that never was."""
    gauges = result.runs[0].gauges
    crowd = gauges.in_flight + gauges.waiting
    axes.fill_between(
        gauges.times, gauges.in_flight, color=_SKY, alpha=0.55, lw=0, label="in flight"
    )
    if gauges.waiting.any():
        axes.fill_between(
            gauges.times,
            gauges.in_flight,
            crowd,
            color=_ORANGE,
            alpha=0.6,
            lw=0,
            label="waiting",
        )
    if result.candidate.policy.concurrency.mode != "off":
        beyond = gauges.limit.min() > _ALIKE * crowd.max()
        name = f"limit (up to {gauges.limit.max():,.0f})" if beyond else "limit"
        axes.step(gauges.times, gauges.limit, where="post", color=_INK, lw=1.2, label=name)
    # One scale for those that are alike; who lets ten times as many run gets a scale of its own.
    tops = [_top(each) for each in comparison.results]
    mine = _top(result)
    axes.set_ylim(0, 1.08 * max(top for top in tops if top <= _ALIKE * mine))


def _top(result: Result) -> float:
    """What the picture of a limit must hold; a limit far above what ever ran is cut off."""
    gauges = result.runs[0].gauges
    highest = max(float((gauges.in_flight + gauges.waiting).max()), 1.0)
    limit = float(gauges.limit.max())
    return max(limit, highest) if limit <= _ALIKE * highest else 1.5 * highest


def _latency(axes: Axes, comparison: Comparison, result: Result) -> None:
    edges = result.runs[0].edges
    middle = 0.5 * (edges[1:] + edges[:-1])
    axes.plot(middle, _average(result, lambda run: run.p99), color=_RED, label="p99")
    axes.plot(middle, _average(result, lambda run: run.p50), color=_BLUE, label="median")
    for slo in sorted(
        {client.slo or comparison.scenario.slo for client in comparison.scenario.clients}
    ):
        axes.axhline(slo, color=_INK, ls=(0, (4, 2)), lw=1.0, label=f"SLO {slo:g} s")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(_tick))
    axes.grid(which="minor", axis="y", color="#F2F2F2", lw=0.5)


def _refusals(axes: Axes, comparison: Comparison, result: Result) -> None:
    edges = result.runs[0].edges
    middle = 0.5 * (edges[1:] + edges[:-1])
    axes.plot(
        middle,
        _average(result, lambda run: run.arrivals),
        color="#8A8A8A",
        lw=1.0,
        label="arrivals",
    )
    reasons = [reason for reason in Reason if any(reason in run.refused for run in result.runs)]
    if reasons:
        axes.stackplot(
            middle,
            [_average(result, _of_reason(reason)) for reason in reasons],
            colors=[_REASONS.get(reason, _GREY) for reason in reasons],
            labels=[reason.value for reason in reasons],
            lw=0,
            alpha=0.85,
        )
    axes.set_ylim(0, None)


def _of_reason(reason: Reason) -> Callable[[Summary], Floats]:
    return lambda run: run.refused.get(reason, np.zeros(len(run.arrivals)))


_ENDS: Final[tuple[tuple[str, str, Callable[[ClassSummary], int]], ...]] = (
    ("in time", _GREEN, lambda c: c.good),
    ("late", _YELLOW, lambda c: c.late),
    ("gave up", _INK, lambda c: c.gave_up),
    ("503", _RED, lambda c: c.overloaded),
    ("429", _PINK, lambda c: c.rate_limited),
)


def _clients(comparison: Comparison) -> Figure:
    names = [each.name for each in comparison.results[0].runs[0].classes]
    rows = [
        (index, name, result) for index, name in enumerate(names) for result in comparison.results
    ]
    figure = Figure(figsize=(_WIDTH, 1.1 + 0.36 * len(rows)), layout="constrained")
    axes: Axes = figure.subplots()
    labels: list[str] = []
    for row, (index, name, result) in enumerate(rows):
        left = 0.0
        for end, colour, part in _ENDS:
            share = 100.0 * result.mean(
                lambda run, i=index, p=part: p(run.classes[i]) / max(run.classes[i].arrivals, 1)  # type: ignore[misc]  # defaults bind them
            )
            axes.barh(
                row, share, left=left, color=colour, height=0.72, label=end if row == 0 else None
            )
            if share >= 6.0:
                dark = colour in {_GREEN, _RED, _INK}
                axes.text(
                    left + 0.5 * share,
                    row,
                    f"{percent(share / 100.0, 0)[:-1]} %",
                    ha="center",
                    va="center",
                    fontsize=8.0,
                    color="white" if dark else _INK,
                )
            left += share
        several = len(comparison.results) > 1
        labels.append(f"{name}  ·  {result.label}" if several else name)
    axes.set_yticks(range(len(rows)), labels)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    axes.set_xlabel("per cent of the requests of each class")
    axes.set_title("What clients got")
    axes.grid(axis="y", visible=False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _shade(axes: Axes, comparison: Comparison, *, names: bool) -> None:
    """Every other phase has a darker ground, and its name at the top."""
    stretches = phases(comparison.scenario)
    if len(stretches) < 2:
        return
    for index, stretch in enumerate(stretches):
        if index % 2:
            axes.axvspan(stretch.start, stretch.end, color="#000000", alpha=0.035, lw=0, zorder=0)
        if names:
            axes.annotate(
                stretch.name,
                (0.5 * (stretch.start + stretch.end), 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=8.0,
                color="#555555",
            )


def _above(comparison: Comparison) -> float:
    """Points between the axes and their title: the names of phases stand between them."""
    return 18.0 if len(comparison.scenario.phases) > 1 else 6.0


def _tick(seconds: float, _: object = None) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:g} µs"
    return f"{seconds * 1e3:g} ms" if seconds < 1.0 else f"{seconds:g} s"


def _legend(axes: Axes) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.005, 1.02), borderaxespad=0.0)


def _average(result: Result, series: Callable[[Summary], Floats]) -> Floats:
    """Mean over seeds, leaving out what is not known; nan where no seed knows."""
    table = np.stack([series(run) for run in result.runs])
    known = ~np.isnan(table)
    count = known.sum(axis=0)
    total = np.where(known, table, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _cycle(count: int) -> Sequence[str]:
    return [_LINES[index % len(_LINES)] for index in range(count)]


def _png(figure: Figure) -> bytes:
    buffer = BytesIO()
    # No version or date inside: equal figures are equal bytes.
    FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None}, pil_kwargs=None)  # type: ignore[no-untyped-call]  # untyped in matplotlib
    return buffer.getvalue()
