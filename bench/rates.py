"""What does a rate decision cost, in time and memory, beside what people use otherwise?

`python -m bench.rates` prints one table; `--quick` leaves the largest sizes out, `--json FILE`
writes the figures too. Every case runs in a process of its own beside the hand-written bucket
(`rate_case.py`); x is the subject's CPU time divided by the bucket's, taken by turns.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from bench.rate_case import ROUNDS, ROUNDS_OF_PEERS
from bench.rate_spray import SPRAYED_PER_SECOND, spray
from bench.rate_subjects import FLOOR, OURS, PEERS, Subject

MODES: Final = ("allow", "refuse")
SIZES: Final = (1, 100_000, 1_000_000)
# The slow ones would need minutes for a million keys; bytes per key do not depend on it much.
MOST_KEYS_FOR_PEER_MEMORY: Final = 200_000
MOST_KEYS_FOR_PEERS: Final = 100_000
SPRAYED: Final = 10_000_000
# What must hold for the default algorithm, and what is aimed at.
BESIDE_FLOOR: Final = (2.5, 1.5)
BESIDE_PEER: Final = (0.25, 0.1)
BYTES: Final = (160.0, 100.0)
DEFAULT: Final = "loadgate token-bucket"

Figures = dict[str, dict[str, float]]


def version(package: str) -> str | None:
    """The installed release, None when there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def run_case(*arguments: str) -> dict[str, float]:
    """Measure one case in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "bench.rate_case", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"bench.rate_case {arguments} failed:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(subjects: list[Subject], sizes: tuple[int, ...]) -> Figures:
    """All cases of all subjects."""
    figures: Figures = {}
    for subject in subjects:
        row = figures[subject.name] = {}
        for keys in sizes:
            if keys > subject.most_keys or (subject in PEERS and keys > MOST_KEYS_FOR_PEERS):
                continue
            for mode in MODES:
                case = run_case("time", subject.name, str(keys), mode)
                row[f"{mode} {keys}"] = case["ratio"]
                row[f"{mode} {keys} ns"] = case["ns"]
        keys = max(sizes) if subject not in PEERS else min(max(sizes), MOST_KEYS_FOR_PEER_MEMORY)
        row["bytes"] = run_case("memory", subject.name, str(keys))["bytes"]
        if subject is FLOOR or subject.name == DEFAULT:
            row["longest"] = run_case("grow", subject.name, str(max(sizes)))["longest_ms"]
        print(f"  {subject.name}", file=sys.stderr, flush=True)
    return figures


def print_costs(figures: Figures, sizes: tuple[int, ...]) -> None:
    """One line for each subject: x for allow / refuse at each size, and bytes per key."""
    heads = [f"{keys:,} key{'s' * (keys > 1)}" for keys in sizes]
    print(f"{'x = beside the hand-written bucket, allow / refuse':<52}", end="")
    print("".join(f"{head:>18}" for head in heads), f"{'bytes/key':>10}")
    for name, row in figures.items():
        cells = [
            f"{row[f'allow {keys}']:.2f} / {row[f'refuse {keys}']:.2f}"
            if f"allow {keys}" in row
            else "-"
            for keys in sizes
        ]
        absolute = f"{row['allow 1 ns']:.0f} / {row['refuse 1 ns']:.0f} ns"
        print(f"{name:<33}{absolute:>19}", end="")
        print("".join(f"{cell:>18}" for cell in cells), f"{row['bytes']:>10.0f}")


def print_targets(figures: Figures, sizes: tuple[int, ...]) -> dict[str, Any]:
    """The targets beside what was measured, for the default algorithm."""
    ours = figures[DEFAULT]
    worst = max(ours[f"{mode} {keys}"] for keys in sizes for mode in ("allow", "refuse"))
    lines: list[tuple[str, float, tuple[float, float]]] = [
        ("decision beside a hand-written bucket, worst case", worst, BESIDE_FLOOR)
    ]
    peers = [peer for peer in PEERS if peer.name in figures]
    for what, rows in (
        (
            "beside the fastest that keeps keys itself, worst case",
            [figures[peer.name] for peer in peers if peer.keyed],
        ),
        (
            "beside the fastest, those without keys in a dict",
            [figures[peer.name] for peer in peers],
        ),
    ):
        if not rows:
            continue
        # Peers are not measured at every size, so each size is compared with those that are.
        ratios = [
            ours[case] / min(row[case] for row in rows if case in row)
            for case in (f"{mode} {keys}" for keys in sizes for mode in ("allow", "refuse"))
            if any(case in row for row in rows)
        ]
        lines.append((what, max(ratios), BESIDE_PEER))
    lines.append(("bytes per key, beside the key itself", ours["bytes"], BYTES))
    print(f"\n{DEFAULT:<52}{'measured':>10}{'must':>9}{'aim':>9}")
    for what, value, (must, aim) in lines:
        verdict = "reached" if value <= aim else "holds" if value <= must else "MISSED"
        print(f"{what:<52}{value:>10.2f}{must:>9g}{aim:>9g}  {verdict}")
    floor = figures[FLOOR.name]
    print(
        f"longest decision while {max(sizes):,} keys come: {ours['longest']:.2f} ms; of the "
        f"hand-written bucket, with one dict, {floor['longest']:.2f} ms"
    )
    return {what: value for what, value, _ in lines}


def print_spray(requests: int) -> list[dict[str, Any]]:
    """The table of what newcomers lose."""
    print(
        f"\n{requests:,} keys sprayed at {SPRAYED_PER_SECOND:,.0f}/s into a table of a million; "
        "newcomers come once each"
    )
    heads = ("rate", "keys", "evicted", "overflowed", "newcomers refused", "(expected)")
    print("{:<12}{:>10}{:>12}{:>12}{:>19}{:>12}".format(*heads), end="")
    print(f"{'victim above rate':>19}{'ns/request':>12}{'longest ms':>12}")
    rows: list[dict[str, Any]] = []
    for row in spray(requests):
        rows.append(row._asdict())
        print(
            f"{row.rate:<12}{row.keys:>10,}{row.evicted:>12,}{row.overflowed:>12,}"
            f"{row.newcomers_refused:>19.4%}{row.expected:>12.4%}{row.victim_above_its_rate:>19}"
            f"{row.ns:>12.0f}{row.longest_ms:>12.1f}",
            flush=True,
        )
    return rows


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(prog="python -m bench.rates", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="at most 100,000 keys, small spray")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--sprayed", type=int, help=f"keys to spray, else {SPRAYED:,}")
    chosen = parser.parse_args()
    sizes = SIZES[:2] if chosen.quick else SIZES
    subjects = [FLOOR, *OURS]
    versions: dict[str, str] = {}
    for peer in PEERS:
        found = version(peer.needs)
        if found is None:
            print(f"{peer.name} is left out: pip install {peer.needs}", file=sys.stderr)
            continue
        versions[peer.needs] = found
        subjects.append(peer)
    print(", ".join(f"{name} {number}" for name, number in versions.items()))
    print(
        f"peers: at most {MOST_KEYS_FOR_PEERS:,} keys, {ROUNDS_OF_PEERS} rounds instead of {ROUNDS}"
    )
    figures = measure(subjects, sizes)
    print_costs(figures, sizes)
    targets = print_targets(figures, sizes)
    sprayed = print_spray(chosen.sprayed or (200_000 if chosen.quick else SPRAYED))
    if chosen.json is not None:
        result = {
            "versions": versions,
            "beside_hand_written": figures,
            "targets": targets,
            "spray": sprayed,
        }
        chosen.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
