"""How does a row of numbers fit into one line of text? As blocks of eight heights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from typing import Final

from rich.text import Text

BLOCKS: Final = "▁▂▃▄▅▆▇█"


def sparkline(
    values: Sequence[float | None],
    width: int,
    *,
    top: float,
    bottom: float = 0.0,
    logarithmic: bool = False,
    zero: str = "",
    style: Callable[[int, float], str] = lambda index, value: "",
) -> Text:
    """Draw values as a line of blocks.

    Args:
        values: One for each column, from the left; None leaves a gap.
        width: Columns; the rest stays empty.
        top: The value of a full block.
        bottom: The value of the lowest one; above 0 when `logarithmic`.
        logarithmic: Whether equal steps are equal ratios.
        zero: What stands for nothing at all; by default the lowest block.
        style: The style of each block, from its column and value.
    """
    text = Text()
    for index, value in enumerate(values[:width]):
        if value is None:
            text.append(" ")
            continue
        if value <= 0 and zero:
            text.append(zero, style="dim")
            continue
        inside = min(max(value, bottom), top)
        if logarithmic:
            share = log(inside / bottom) / log(top / bottom)
        else:
            share = (inside - bottom) / (top - bottom)
        text.append(BLOCKS[min(7, int(share * 8))], style=style(index, value))
    text.append(" " * max(0, width - len(values)))
    return text
