"""Who is refused first? The claims about overload, with their bounds.

    python -m bench.overload                     # everything, one seed
    python -m bench.overload --seeds 5 --only B14 B15

Each figure is the mean over the seeds; the exit code says whether all bounds hold.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from bench.overload_cases import CASES, Row


def mean(rows: Sequence[Row]) -> Row:
    """The same figure of several seeds."""
    first = rows[0]
    return Row(
        first.case, first.what, sum(r.value for r in rows) / len(rows), first.low, first.high
    )


def report(rows: Sequence[Row]) -> str:
    """The figures as a table."""
    lines: list[str] = []
    for row in rows:
        bounds = " ".join(
            text
            for text, given in (
                (f">= {row.low:g}", row.low > float("-inf")),
                (f"<= {row.high:g}", row.high < float("inf")),
            )
            if given
        )
        verdict = "" if row.holds else "  FAILS"
        lines.append(f"{row.case:10} {row.what:72} {row.value:9.4f}  {bounds}{verdict}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases and print what they show."""
    parser = argparse.ArgumentParser(prog="python -m bench.overload", description=__doc__)
    add: Any = parser.add_argument
    add("--seeds", type=int, default=1, help="how many seeds")
    add("--only", nargs="*", default=[], choices=list(CASES), help="some of the cases")
    chosen = parser.parse_args(arguments)
    found: list[Row] = []
    for name in chosen.only or CASES:
        runs = [list(CASES[name](seed)) for seed in range(1, chosen.seeds + 1)]
        rows = [mean(same) for same in zip(*runs, strict=True)]
        print(report(rows), flush=True)
        found += rows
    return 0 if all(row.holds for row in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
