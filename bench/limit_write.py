"""Where do the results go? Into the documentation, and raw beside the benchmark."""

from __future__ import annotations

import gzip
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from bench.limit_stats import Table

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "benchmark.md"
RAW: Final = Path(__file__).parent / "results" / "limits.json.gz"
_BEGIN: Final = "<!-- written by bench.limits: begin -->"
_END: Final = "<!-- written by bench.limits: end -->"


def write(
    table: Table,
    text: str,
    arguments: Sequence[str] | None,
    *,
    kept: int = 0,
    fresh: bool = False,
) -> None:
    """Put `text` between the marks of the page, and every score into the raw file.

    Args:
        table: The scores.
        text: What the page says.
        arguments: The words of the command, by default those of this process.
        kept: How many of the runs an earlier command made.
        fresh: Whether nothing that was kept could be used.
    """
    about: dict[str, Any] = provenance(table, arguments)
    about |= {"runs": len(table.scores), "kept": kept, "fresh": fresh}
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(_BEGIN)
    _, after = rest.split(_END)
    seeds = about["seeds"]
    head = (
        f"`{about['command']}` at commit `{about['commit']}`, "
        f"{len(seeds)} seeds ({seeds[0]} to {seeds[-1]}), Python {about['python']}.\n"
        f"{_made(len(table.scores), kept, fresh=fresh)}\n"
    )
    PAGE.write_text(f"{before}{_BEGIN}\n\n{head}\n{text}\n{_END}{after}", encoding="utf-8")
    RAW.parent.mkdir(parents=True, exist_ok=True)
    scores = [_rounded(msgspec.to_builtins(score)) for score in table.scores]
    raw = msgspec.json.encode({**about, "scores": scores})
    RAW.write_bytes(gzip.compress(raw, mtime=0))


def provenance(table: Table, arguments: Sequence[str] | None) -> dict[str, Any]:
    """What is needed to make the same figures again."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return {
        "command": f"python -m bench.limits {shlex.join(words)}".strip(),
        "commit": _commit(),
        "seeds": sorted({score.seed for score in table.scores}),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _made(runs: int, kept: int, *, fresh: bool) -> str:
    if fresh:
        return f"All {runs:,} runs and all searches were made by this command."
    return (
        f"This command made {runs - kept:,} of {runs:,} runs. The others, and searches for the "
        "best fixed limits and settings that had been made before, were found under a hash of the "
        "same code, scenario, seed and settings."
    )


def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    # What the figures depend on; notes and other people's work do not make them another's.
    paths = ("controller/loadgate", "bench")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", *paths)
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + (" + changes" if changed else "")


def _rounded(value: Any) -> Any:
    """Four digits are more than ten seeds can tell apart."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType]  # plain data
    if isinstance(value, list):
        return [_rounded(each) for each in value]  # pyright: ignore[reportUnknownVariableType]  # plain data
    return value
