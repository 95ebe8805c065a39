"""The picture as SVG: nothing but text, so that it is there without any library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import floor, log10
from typing import Final

from loadgate.integrations.demo.charts import GREY, Area, Line, Panel

WIDTH: Final = 620
HEIGHT: Final = 170
LEFT: Final = 56
TOP: Final = 84
GAP: Final = 52

Scale = Callable[[float], float]


def paint(
    title: str,
    columns: Sequence[tuple[str, Sequence[Panel]]],
    phases: Sequence[tuple[str, float, float]],
) -> str:
    """Paint columns of panels side by side; returns the SVG document."""
    rows = max(len(panels) for _, panels in columns)
    width = len(columns) * (WIDTH + LEFT) + 30
    height = TOP + rows * (HEIGHT + GAP) + 6
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="Helvetica, Arial, sans-serif" font-size="12" '
        'fill="#222">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(LEFT, 26, title, size=16, weight="bold"),
    ]
    for number, (name, panels) in enumerate(columns):
        left = LEFT + number * (WIDTH + LEFT)
        parts.append(_text(left, 54, name, size=15, weight="bold"))
        for row, panel in enumerate(panels):
            parts += _panel(panel, left, TOP + row * (HEIGHT + GAP), phases)
    return "\n".join([*parts, "</svg>\n"])


def _panel(
    panel: Panel, left: float, top: float, phases: Sequence[tuple[str, float, float]]
) -> list[str]:
    end = phases[-1][2]

    def x(at: float) -> float:
        return left + at / end * WIDTH

    def y(value: float) -> float:
        value = min(max(value, panel.bottom), panel.top)
        if panel.log:
            share = log10(value / panel.bottom) / log10(panel.top / panel.bottom)
        else:
            share = (value - panel.bottom) / (panel.top - panel.bottom)
        return top + HEIGHT - share * HEIGHT

    parts = [_text(left, top - 8, panel.title, weight="bold")]
    for number, (name, start, stop) in enumerate(phases):
        shade = "#f4f5f7" if number % 2 else "#ffffff"
        parts.append(
            f'<rect x="{x(start):.1f}" y="{top}" width="{x(stop) - x(start):.1f}" '
            f'height="{HEIGHT}" fill="{shade}"/>'
        )
        if stop - start >= 2:
            parts.append(_text(x((start + stop) / 2), top + 13, name, color=GREY, anchor="middle"))
    for tick in _ticks(panel):
        parts.append(
            f'<path d="M{left} {y(tick):.1f}h{WIDTH}" stroke="#dfe2e6" stroke-width="0.7"/>'
        )
        parts.append(_text(left - 6, y(tick) + 4, f"{tick:g}", anchor="end", color="#555"))
    parts += [
        _text(x(second), top + HEIGHT + 15, f"{second} s", anchor="middle", color="#555")
        for second in range(0, int(end) + 1, 2)
    ]
    parts += [_area(area, x, y) for area in panel.areas]
    parts += [_line(line, x, y) for line in panel.lines]
    for mark in panel.marks:
        parts.append(
            f'<path d="M{left} {y(mark.value):.1f}h{WIDTH}" stroke="#222" stroke-width="1.1" '
            'stroke-dasharray="6 4" fill="none"/>'
        )
        parts.append(_text(left + WIDTH - 4, y(mark.value) - 4, mark.label, anchor="end"))
    parts += [
        _text(x(note.at), top + HEIGHT / 2, note.text, size=16, color="#d1495b", anchor="middle")
        for note in panel.notes
    ]
    parts.append(
        f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#555"/>'
    )
    return parts + _legend([*panel.areas, *panel.lines], left + WIDTH, top - 8)


def _legend(entries: Sequence[Area | Line], right: float, top: float) -> list[str]:
    """The legend, right of the title, where it can never lie on the data."""
    parts: list[str] = []
    widths = [32 + 6.2 * len(entry.label) for entry in entries]  # about that of the letters
    at = right - sum(widths) + 10
    for entry, width in zip(entries, widths, strict=True):
        parts.append(
            f'<rect x="{at:.0f}" y="{top - 9:.0f}" width="14" height="9" fill="{entry.color}"/>'
        )
        parts.append(_text(at + 18, top, entry.label))
        at += width
    return parts


def _area(area: Area, x: Scale, y: Scale) -> str:
    upper = [f"{x(at):.1f},{y(value):.1f}" for at, value in zip(area.xs, area.high, strict=True)]
    lower = [f"{x(at):.1f},{y(value):.1f}" for at, value in zip(area.xs, area.low, strict=True)]
    points = " ".join([*upper, *reversed(lower)])
    return f'<polygon points="{points}" fill="{area.color}" fill-opacity="0.85"/>'


def _line(line: Line, x: Scale, y: Scale) -> str:
    path: list[str] = []
    command = "M"
    for at, value in zip(line.xs, line.ys, strict=True):
        if value is None:
            command = "M"
        else:
            # A line of one point between two gaps would be invisible without this.
            path.append(f"{command}{x(at):.1f} {y(value):.1f}{'h0.1' if command == 'M' else ''}")
            command = "L"
    return (
        f'<path d="{" ".join(path)}" stroke="{line.color}" stroke-width="{line.width}" '
        'fill="none" stroke-linecap="round" stroke-linejoin="round"/>'
    )


def _ticks(panel: Panel) -> list[float]:
    if panel.log:
        powers = range(floor(log10(panel.bottom)), floor(log10(panel.top)) + 1)
        steps = (1, 2, 5) if panel.top / panel.bottom < 200 else (1,)
        values = [step * 10.0**power for power in powers for step in steps]
        return [value for value in values if panel.bottom <= value <= panel.top]
    step = 10.0 ** floor(log10(panel.top / 2))
    while panel.top / step > 6:
        step *= 2
    return [step * number for number in range(int(panel.top / step) + 1)]


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 12,
    weight: str = "normal",
    color: str = "#222",
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" '
        f'fill="{color}" text-anchor="{anchor}">{escape(text)}</text>'
    )
