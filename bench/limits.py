"""Which limit is best? All of them on the same requests, beside the best fixed limit.

    python -m bench.limits --seeds 10            # the table of docs/benchmark.md
    python -m bench.limits --only b03 b08 --limits adaptive vegas --seeds 2
    python -m bench.limits --smoke               # two minutes; fails below the bounds

Every run is judged beside the best fixed limit of each phase on the very same requests
(`limit_oracle`), behind the default queue and without one.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import limit_tune
from bench.limit_bounds import KNOWN_MISSES, ONE_SEED, broken
from bench.limit_judge import Score, judge
from bench.limit_moved import moved, shortened
from bench.limit_oracle import best_fixed
from bench.limit_settings import Contender, contenders
from bench.limit_stats import JUDGED, Table
from bench.limit_table import OURS, markdown, plain
from bench.limit_write import write
from loadgate.limits import ALGORITHMS
from loadgate.policy import Policy, Queue
from loadgate.simulation import scenario as scenarios
from loadgate.simulation.run import policy_for, requests, simulate
from loadgate.simulation.scenario import Scenario

HERE: Final = Path(__file__).parent
FOLDER: Final = HERE / "scenarios"
KEEP: Final = HERE.parent / "out" / "limits"

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

QUEUES: Final = {
    "default": Policy().queue,
    "none": Queue(max_wait=0.0, max_queue=0),
}


class Task(msgspec.Struct, frozen=True):
    """One scenario and one seed, for every contender and queue."""

    name: str
    scenario: Scenario
    seed: int
    contenders: tuple[Contender, ...]
    queues: tuple[str, ...]
    tuned: tuple[Contender, ...] = ()
    refine: int = 2


def run(task: Task) -> list[Score]:
    """Draw the requests once, find the best fixed limits, run every contender."""
    gc.disable()  # what a run leaves behind is collected between runs instead
    base = policy_for(task.scenario)
    work = requests(task.scenario, task.seed, base)
    initial = base.concurrency.initial
    found: list[Score] = []
    for queue in task.queues:
        policy = msgspec.structs.replace(base, queue=QUEUES[queue])
        best = best_fixed(
            task.scenario, policy, task.seed, work, KEEP / "oracle", refine=task.refine
        )
        # The tuned ones answer one objection only, so once is enough.
        extra = task.tuned if queue == "default" else ()
        for contender in (*task.contenders, *extra):
            limit = contender.create(initial)
            record = simulate(task.scenario, policy, task.seed, limit=limit, workload=work)
            found.append(judge(record, best, task.name, queue, contender.label))
            gc.collect()
    return found


def load(only: Sequence[str] = ()) -> Iterator[tuple[str, Scenario]]:
    """Every scenario and variant, by name; `only` keeps those that begin with one of these."""
    for file in sorted(FOLDER.glob("*.toml")):
        for name, scenario in scenarios.variants(scenarios.read(file)):
            full = f"{file.stem} {name}".strip()
            if not only or any(full.startswith(word) for word in only):
                yield full, scenario


def work_through(tasks: Sequence[Task], jobs: int, *, quiet: bool = False) -> list[Score]:
    """Run all tasks on `jobs` processes; the order of the result does not depend on timing."""
    begun = time.perf_counter()
    found: dict[int, list[Score]] = {}

    def told(done: int, task: Task) -> None:
        if not quiet:
            passed = time.perf_counter() - begun
            print(
                f"\r{done}/{len(tasks)} {passed:5.0f} s  {task.name} seed {task.seed}\x1b[K",
                end="",
                file=sys.stderr,
                flush=True,
            )

    if jobs == 1:
        for index, task in enumerate(tasks):
            found[index] = run(task)
            told(len(found), task)
    else:
        with ProcessPoolExecutor(jobs) as pool:
            # The longest first, so that no process is left alone with one of them at the end.
            order = sorted(range(len(tasks)), key=lambda i: -_weight(tasks[i]))
            futures = {pool.submit(run, tasks[index]): index for index in order}
            for future in as_completed(futures):
                index = futures[future]
                found[index] = future.result()
                told(len(found), tasks[index])
    if not quiet:
        print(file=sys.stderr)
    return [score for index in sorted(found) for score in found[index]]


def _weight(task: Task) -> float:
    scenario = task.scenario
    return sum(
        phase.seconds * max(phase.levels) * (scenario.capacity if phase.rate is None else 1.0)
        for phase in scenario.phases
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code says whether the bounds hold."""
    options = _options().parse_args(arguments)
    if options.smoke:
        return smoke(options.jobs)
    known = dict(load(options.only))
    if not known:
        print(f"no scenario begins with {' or '.join(options.only)}", file=sys.stderr)
        return 2
    whole = not options.only and not options.limits and not options.moved
    queues = tuple(QUEUES) if options.queue == "both" else (options.queue,)
    chosen = contenders(options.limits)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    tasks = [
        Task(
            name,
            moved(scenario, options.moved, seed) if options.moved else scenario,
            seed,
            chosen,
            queues,
            tuned(known, options.jobs) if options.tuned or (whole and not options.quick) else (),
        )
        for name, scenario in known.items()
        for seed in seeds
    ]
    table = Table(work_through(tasks, options.jobs))
    print(plain(table))
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
    print("\n".join(faults) if faults else f"{OURS} holds every bound")
    if options.write or (whole and not options.quick):
        write(table, markdown(table, faults), arguments)
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
    table = Table(work_through(tasks, jobs, quiet=not sys.stderr.isatty()))
    print(plain(table))
    faults = broken(table, known, OURS, "default", slack=ONE_SEED, known=KNOWN_MISSES)
    missed = ", ".join(
        f"{name} {what} up to {most:g}" for (name, what), most in KNOWN_MISSES.items()
    )
    print("\n".join(faults) if faults else f"{OURS} is no worse than known (missed: {missed})")
    return 1 if faults else 0


def tuned(known: dict[str, Scenario], jobs: int) -> tuple[Contender, ...]:
    """The best of twenty random settings of every limit but ours and `fixed`; kept on disk."""
    file = KEEP / f"tuned-{limit_tune.fingerprint(list(known))}.json"
    if file.exists():
        return msgspec.json.decode(file.read_bytes(), type=tuple[Contender, ...])
    found: list[Contender] = []
    for algorithm in sorted(ALGORITHMS):
        if algorithm in {OURS, "fixed"}:
            continue
        settings = limit_tune.settings_of(algorithm)
        trials = [
            limit_tune.Trial(name, scenario, settings)
            for name, scenario in known.items()
            if name.startswith(JUDGED)
        ]
        with ProcessPoolExecutor(jobs) as pool:
            goodput = list(pool.map(limit_tune.try_out, trials))
        found.append(limit_tune.best(settings, goodput))
        print(f"best of {len(settings)} settings: {found[-1]}", file=sys.stderr)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.encode(found))
    return tuple(found)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.limits", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add: Any = parser.add_argument
    add("--seeds", type=int, default=1, help="how many seeds")
    add("--first-seed", type=int, default=1)
    add("--only", nargs="*", default=[], help="scenarios that begin with one of these")
    add("--limits", nargs="*", default=[], help="name, or name:key=value:key=value")
    add("--queue", choices=[*QUEUES, "both"], default="both")
    add("--jobs", type=int, default=2, help="processes")
    add("--moved", type=float, default=0.0, help="0.3 moves every number by up to 30 %%")
    add("--tuned", action="store_true", help="add the best of 20 random settings of each")
    add("--quick", action="store_true", help="all limits, but no tuning and nothing written")
    add("--write", action="store_true", help="write docs/benchmark.md and bench/results")
    add("--smoke", action="store_true", help="one seed, short; fails below the bounds")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
