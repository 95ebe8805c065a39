"""Which limit is best? All of them on the same requests, beside the best fixed limit.

    python -m bench.limits --seeds 10            # the table of docs/benchmark.md
    python -m bench.limits --only b03 b08 --limits adaptive vegas --seeds 2
    python -m bench.limits --smoke               # two minutes; fails below the bounds

Every run is judged beside the best fixed limit of each phase on the very same requests
(`limit_oracle`), behind the default queue and without one. Runs whose code, scenario, seed and
settings have not changed are not made again (`limit_kept`) unless `--fresh` asks for it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

from bench import limit_kept, limit_tune
from bench.limit_bounds import KNOWN_MISSES, ONE_SEED, broken
from bench.limit_moved import moved, shortened
from bench.limit_run import KEEP, QUEUES, Task, work_through
from bench.limit_settings import Contender, contenders
from bench.limit_stats import JUDGED, Table
from bench.limit_table import OURS, markdown, plain
from bench.limit_write import write
from loadgate.limits import ALGORITHMS
from loadgate.simulation import scenario as scenarios
from loadgate.simulation.scenario import Scenario

HERE: Final = Path(__file__).parent
FOLDER: Final = HERE / "scenarios"

# One variant of each kind.
SMOKE: Final = (
    "b01-below 0.8", "b02-steady 1.5x", "b02-steady 10x", "b03-cold-start from 20",
    "b04-flash-crowd sudden", "b05-capacity-step cores", "b06", "b07", "b08",
    "b09-pauses 150 ms", "b10-heavy-tails two humps", "b11-mix-drift step", "b12",
    "b13-giving-up heard",
)  # fmt: skip
SMOKE_REQUESTS: Final = 40_000

# What the moved scenarios must reach in every single run.
MOVED_BOUND: Final = 0.90


def load(only: Sequence[str] = ()) -> Iterator[tuple[str, Scenario]]:
    """Every scenario and variant, by name; `only` keeps those that begin with one of these."""
    for file in sorted(FOLDER.glob("*.toml")):
        for name, scenario in scenarios.variants(scenarios.read(file)):
            full = f"{file.stem} {name}".strip()
            if not only or any(full.startswith(word) for word in only):
                yield full, scenario


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code says whether the bounds hold."""
    limit_kept.hash_now()
    options = _options().parse_args(arguments)
    if options.smoke:
        return smoke(options.jobs)
    known = dict(load(options.only))
    if not known:
        print(f"no scenario begins with {' or '.join(options.only)}", file=sys.stderr)
        return 2
    whole = not (options.only or options.limits or options.skip or options.moved)
    queues = tuple(QUEUES) if options.queue == "both" else (options.queue,)
    chosen = tuple(each for each in contenders(options.limits) if each.label not in options.skip)
    asked = options.tuned or (whole and not options.quick)
    stars = tuned(known, options.jobs, fresh=options.fresh) if asked else ()
    stars = tuple(each for each in stars if each.label not in options.skip)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    tasks = [
        Task(
            name,
            moved(scenario, options.moved, seed) if options.moved else scenario,
            seed,
            chosen,
            queues,
            stars,
            fresh=options.fresh,
        )
        for name, scenario in known.items()
        for seed in seeds
    ]
    done = work_through(tasks, options.jobs)
    table = Table(done.scores)
    print(plain(table))
    print(f"{done.kept} of {len(done.scores)} runs were kept from earlier commands")
    if options.moved:
        worst = {
            limit: min(
                (score.share, f"{score.scenario}, seed {score.seed}, queue {score.queue}")
                for score in table.scores
                if score.limit == limit
            )
            for limit in table.limits
        }
        for limit, (share, where) in worst.items():
            print(f"worst single run of {limit}: {share:.3f} in {where}")
        return 0 if worst[table.limits[0]][0] >= MOVED_BOUND else 1
    faults = broken(table, known, OURS, "default")
    if OURS in table.limits:
        print("\n".join(faults) if faults else f"{OURS} holds every bound")
    if options.write or (whole and not options.quick):
        write(table, markdown(table, faults), arguments, kept=done.kept, fresh=options.fresh)
    return 1 if faults else 0


def smoke(jobs: int) -> int:
    """One seed of the shorter scenarios, in about two minutes; fails below the bounds."""
    known = {
        # A cold start is a matter of seconds; in a shorter run it would be all there is.
        name: scenario if name.startswith("b03") else shortened(scenario, SMOKE_REQUESTS)
        for name, scenario in load(SMOKE)
    }
    ours = contenders([OURS])
    tasks = [
        Task(name, scenario, 1, ours, ("default",), refine=1) for name, scenario in known.items()
    ]
    table = Table(work_through(tasks, jobs, quiet=not sys.stderr.isatty()).scores)
    print(plain(table))
    faults = broken(table, known, OURS, "default", slack=ONE_SEED, known=KNOWN_MISSES)
    missed = ", ".join(
        f"{name} {what} up to {most:g}" for (name, what), most in KNOWN_MISSES.items()
    )
    print("\n".join(faults) if faults else f"{OURS} is no worse than known (missed: {missed})")
    return 1 if faults else 0


def tuned(known: dict[str, Scenario], jobs: int, *, fresh: bool = False) -> tuple[Contender, ...]:
    """The best of twenty random settings of every limit but ours and `fixed`."""
    settings = {
        algorithm: limit_tune.settings_of(algorithm)
        for algorithm in sorted(ALGORITHMS)
        if algorithm not in {OURS, "fixed"}
    }
    judged = [(name, scenario) for name, scenario in known.items() if name.startswith(JUDGED)]
    trials = [
        limit_tune.Trial(name, scenario, drawn, KEEP / "tuned", fresh)
        for drawn in settings.values()
        for name, scenario in judged
    ]
    goodput: list[list[float]] = []
    with ProcessPoolExecutor(jobs) as pool:
        for trial, found in zip(trials, pool.map(limit_tune.try_out, trials), strict=True):
            goodput.append(found)
            of = trial.contenders[0].algorithm
            print(
                f"\r{len(goodput)}/{len(trials)} settings of {of}: {trial.name}\x1b[K",
                end="",
                file=sys.stderr,
                flush=True,
            )
    print(file=sys.stderr)
    stars: list[Contender] = []
    for index, drawn in enumerate(settings.values()):
        tried = goodput[index * len(judged) : (index + 1) * len(judged)]
        stars.append(limit_tune.best(drawn, tried))
        print(f"best of {len(drawn)} settings: {stars[-1]}", file=sys.stderr)
    return tuple(stars)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.limits", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add: Any = parser.add_argument
    add("--seeds", type=int, default=1, help="how many seeds")
    add("--first-seed", type=int, default=1)
    add("--only", nargs="*", default=[], help="scenarios that begin with one of these")
    add("--limits", nargs="*", default=[], help="name, or name:key=value:key=value")
    add("--skip", nargs="*", default=[], help="all limits but these")
    add("--queue", choices=[*QUEUES, "both"], default="both")
    add("--jobs", type=int, default=2, help="processes")
    add("--moved", type=float, default=0.0, help="0.3 moves every number by up to 30 %%")
    add("--tuned", action="store_true", help="add the best of 20 random settings of each")
    add("--quick", action="store_true", help="all limits, but no tuning and nothing written")
    add("--write", action="store_true", help="write docs/benchmark.md and bench/results")
    add("--fresh", action="store_true", help="make every run again, whatever is kept")
    add("--smoke", action="store_true", help="one seed, short; fails below the bounds")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
