"""What is left when the demo is over? A table, the claims, and files with everything in them."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from typing import Final

import msgspec
from rich import box
from rich.table import Table
from rich.text import Text

from loadgate.integrations.demo import charts, svg
from loadgate.integrations.demo.record import Half, phase_starts
from loadgate.integrations.demo.story import (
    BACK,
    CAPACITY,
    GREEDY,
    ONE_GREEDY,
    POLITE,
    SLO,
    STORM,
)
from loadgate.integrations.demo.verdict import Claim

HEADLINE: Final = (
    f"A service that can do {CAPACITY:.0f} requests/s, SLO {SLO * 1e3:.0f} ms; "
    "the same traffic twice"
)


def table(bare: Half, guarded: Half) -> Table:
    """Both halves in numbers."""
    drawn = Table(title=HEADLINE, box=box.SIMPLE_HEAD, title_justify="left", show_edge=False)
    drawn.add_column("")
    for half in (bare, guarded):
        drawn.add_column(half.title, justify="right")

    def section(title: str, rows: list[list[str]]) -> None:
        drawn.add_row(Text(title, style="bold"))
        for name, *cells in rows:
            drawn.add_row(f"  {name}", *cells)

    def each(name: str, read: Callable[[Half], object]) -> list[str]:
        return [name, *(str(read(half)) for half in (bare, guarded))]

    section(
        "one greedy client asks for twice the capacity",
        [
            each("polite: served within the SLO", lambda h: _share(h, POLITE, ONE_GREEDY)),
            each("polite: p50 / p99", lambda h: _latency(h, [POLITE], ONE_GREEDY)),
            each("polite: 429", lambda h: h.result.tally([POLITE], phase=ONE_GREEDY).count(429)),
            each("greedy: goodput", lambda h: _per_second(h, [GREEDY], ONE_GREEDY)),
            each("greedy: 429", lambda h: h.result.tally([GREEDY], phase=ONE_GREEDY).count(429)),
        ],
    )
    section(
        "many polite clients together ask for five times the capacity",
        [
            each("goodput", lambda h: _per_second(h, [], STORM)),
            each(
                "goodput, of capacity",
                lambda h: f"{h.result.tally(phase=STORM).goodput / CAPACITY:.0%}",
            ),
            each("p50 / p99 of the admitted", lambda h: _latency(h, [], STORM)),
            each("503", lambda h: h.result.tally(phase=STORM).count(503)),
            each("a 503 takes (p50)", lambda h: _ms(h.result.tally(phase=STORM).refusal_p50)),
            each("429", lambda h: h.result.tally(phase=STORM).count(429)),
            each("clients that gave up", lambda h: _unanswered(h, STORM)),
            each("most requests inside", lambda h: f"{peak_in_flight(h):.0f}"),
        ],
    )
    section(
        "afterwards",
        [
            each("served within the SLO", lambda h: f"{h.result.tally(phase=BACK).share:.0%}"),
            each("well again after", _recovery),
        ],
    )
    return drawn


def verdict(claims: list[Claim]) -> Table:
    """The claims, each with what was seen."""
    drawn = Table(box=None, show_header=False, padding=(0, 1))
    for claim in claims:
        mark = Text("yes", style="bold green") if claim.holds else Text("NO", style="bold red")
        drawn.add_row(mark, claim.text, Text(claim.seen, style="bold"))
    return drawn


def write(folder: Path, bare: Half, guarded: Half, claims: list[Claim]) -> list[Path]:
    """Write the pictures and the data; returns what was written.

    Raises:
        OSError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    peak = max(peak_in_flight(half) for half in (bare, guarded))
    columns = [(half.title, charts.panels(half, peak)) for half in (bare, guarded)]
    phases = phase_starts()
    written = [folder / "demo.svg", folder / "demo.json"]
    written[0].write_text(svg.paint(HEADLINE, columns, phases))
    written[1].write_bytes(msgspec.json.encode(_data(bare, guarded, claims)))
    if find_spec("matplotlib") is not None:
        from loadgate.integrations.demo import png

        written.insert(0, folder / "demo.png")
        png.paint(written[0], HEADLINE, columns, phases)
    return written


def peak_in_flight(half: Half) -> float:
    """The most requests that were seen inside the service at once."""
    return max((sample.in_flight for sample in half.samples), default=0.0)


def _data(bare: Half, guarded: Half, claims: list[Claim]) -> dict[str, object]:
    return {
        "capacity": CAPACITY,
        "slo": SLO,
        "claims": claims,
        "halves": {
            half.title: {"load": half.result.summary(), "service": half.samples}
            for half in (bare, guarded)
        },
    }


def _share(half: Half, name: str, phase: str) -> str:
    return f"{half.result.tally([name], phase=phase).share:.1%}"


def _per_second(half: Half, names: list[str], phase: str) -> str:
    return f"{half.result.tally(names, phase=phase).goodput:.1f}/s"


def _latency(half: Half, names: list[str], phase: str) -> str:
    tally = half.result.tally(names, phase=phase)
    if isnan(tally.p50):
        return "nobody was served"
    return f"{_ms(tally.p50)} / {_ms(tally.p99)}"


def _ms(seconds: float) -> str:
    if isnan(seconds):
        return "-"
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.01 else f"{seconds * 1e3:.0f} ms"


def _unanswered(half: Half, phase: str) -> int:
    tally = half.result.tally(phase=phase)
    return tally.offered - tally.count(200, 429, 503)


def _recovery(half: Half) -> str:
    seconds = half.recovery()
    if seconds is None:
        start, end = half.result.interval(BACK)
        return f"not within {end - start + 1:.0f} s"
    return f"{seconds:.1f} s"
