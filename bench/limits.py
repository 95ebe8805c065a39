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

from bench.limit_judge import Score, judge
from bench.limit_oracle import best_fixed
from bench.limit_settings import Contender, contenders
from bench.limit_table import table
from loadgate.policy import Policy, Queue
from loadgate.simulation import scenario as scenarios
from loadgate.simulation.run import policy_for, requests, simulate
from loadgate.simulation.scenario import Scenario

HERE: Final = Path(__file__).parent
FOLDER: Final = HERE / "scenarios"
KEEP: Final = HERE.parent / "out" / "limits"

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
        for contender in task.contenders:
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
    queues = tuple(QUEUES) if options.queue == "both" else (options.queue,)
    chosen = contenders(options.limits)
    tasks = [
        Task(name, scenario, seed, chosen, queues)
        for name, scenario in load(options.only)
        for seed in range(options.first_seed, options.first_seed + options.seeds)
    ]
    scores = work_through(tasks, options.jobs)
    print(table(scores))
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.limits", description=__doc__)
    add: Any = parser.add_argument
    add("--seeds", type=int, default=1, help="how many seeds")
    add("--first-seed", type=int, default=1)
    add("--only", nargs="*", default=[], help="scenarios that begin with one of these")
    add("--limits", nargs="*", default=[], help="name, or name:key=value:key=value")
    add("--queue", choices=[*QUEUES, "both"], default="both")
    add("--jobs", type=int, default=2)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
