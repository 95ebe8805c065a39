"""The picture as PNG, if matplotlib is installed."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any

from loadgate.integrations.demo.charts import GREY, Panel


def paint(
    path: Path,
    title: str,
    columns: Sequence[tuple[str, Sequence[Panel]]],
    phases: Sequence[tuple[str, float, float]],
) -> None:
    """Paint columns of panels side by side into a file.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = max(len(panels) for _, panels in columns)
    # Without pyplot: no global state, no display, a third of the import.
    figure: Any = Figure(figsize=(7.0 * len(columns), 2.9 * rows), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=13, fontweight="bold")
    grid: Any = figure.subplots(rows, len(columns), squeeze=False)
    for number, (name, panels) in enumerate(columns):
        for row, panel in enumerate(panels):
            axes = grid[row][number]
            _panel(axes, panel, phases)
            prefix = f"{name.upper()}\n" if row == 0 else ""
            axes.set_title(prefix + panel.title, loc="left", fontsize=10, fontweight="bold")
    figure.savefig(path)


def _panel(axes: Any, panel: Panel, phases: Sequence[tuple[str, float, float]]) -> None:
    for number, (name, start, stop) in enumerate(phases):
        if number % 2:
            axes.axvspan(start, stop, color="#f4f5f7", zorder=0)
        if stop - start >= 2:
            axes.text(
                (start + stop) / 2, 0.96, name, transform=axes.get_xaxis_transform(),
                ha="center", va="top", fontsize=8, color=GREY,
            )  # fmt: skip
    for area in panel.areas:
        axes.fill_between(
            area.xs, area.low, area.high, color=area.color, alpha=0.85, label=area.label, lw=0
        )
    for line in panel.lines:
        ys = [nan if value is None else value for value in line.ys]
        axes.plot(line.xs, ys, color=line.color, lw=line.width, label=line.label, marker=".", ms=2)
    for mark in panel.marks:
        axes.axhline(mark.value, color="#222222", lw=1, ls="--")
        axes.text(
            0.995, mark.value, mark.label, transform=axes.get_yaxis_transform(),
            ha="right", va="bottom", fontsize=8,
        )  # fmt: skip
    if panel.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylim(panel.bottom, panel.top)
    axes.set_xlim(0, phases[-1][2])
    axes.xaxis.set_major_formatter("{x:g} s")
    axes.grid(axis="y", color="#dfe2e6", lw=0.6)
    axes.tick_params(labelsize=8)
    for note in panel.notes:
        axes.text(
            note.at, 0.5, note.text, transform=axes.get_xaxis_transform(),
            ha="center", va="center", fontsize=12, color="#d1495b", style="italic",
        )  # fmt: skip
    # Beside the title, where it can never lie on the data.
    axes.legend(
        fontsize=8, loc="lower right", bbox_to_anchor=(1.01, 0.99), frameon=False,
        ncols=6, columnspacing=0.9, handlelength=1.0, handletextpad=0.4,
    )  # fmt: skip
