"""Which scores does a scenario give? Every contender in turn, or as it was found before."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Final

import msgspec

from bench import limit_kept
from bench.limit_judge import Score, judge
from bench.limit_oracle import Best, best_fixed
from bench.limit_settings import Contender
from loadgate.policy import Policy, Queue
from loadgate.simulation.run import policy_for, requests, simulate
from loadgate.simulation.scenario import Scenario
from loadgate.simulation.workload import Workload

KEEP: Final = Path(__file__).parent.parent / "out" / "limits"

QUEUES: Final = {
    "default": Policy().queue,
    "none": Queue(max_wait=0.0, max_queue=0),
}


class Task(msgspec.Struct, frozen=True):
    """One scenario and one seed, for every contender and queue.

    Attributes:
        name: What the result calls the scenario.
        scenario: What happens.
        seed: The seed.
        contenders: Who runs, behind each of `queues` (of `QUEUES`).
        tuned: Who runs behind the default queue only.
        refine: How finely the best fixed limits are searched.
        keep: Folder in which results are kept, None for none.
        fresh: Make every run again, whatever is kept.
    """

    name: str
    scenario: Scenario
    seed: int
    contenders: tuple[Contender, ...]
    queues: tuple[str, ...]
    tuned: tuple[Contender, ...] = ()
    refine: int = 2
    keep: Path | None = KEEP
    fresh: bool = False


class Done(msgspec.Struct, frozen=True):
    """The scores of some tasks.

    Attributes:
        scores: All of them.
        kept: How many of them were made by an earlier command.
    """

    scores: list[Score]
    kept: int = 0


def run(task: Task) -> Done:
    """Draw the requests once, find the best fixed limits, run every contender."""
    gc.disable()  # a run leaves nothing behind that goes in circles
    base = policy_for(task.scenario)
    found: list[Score] = []
    kept = 0
    work: Workload | None = None
    for queue in task.queues:
        policy = msgspec.structs.replace(base, queue=QUEUES[queue])
        store = limit_kept.Kept(
            task.keep / "scores"
            if task.keep and limit_kept.can_be_kept(task.scenario, policy)
            else None,
            Score,
            fresh=task.fresh,
        )
        best: Best | None = None
        # The tuned ones answer one objection only, so once is enough.
        extra = task.tuned if queue == "default" else ()
        for contender in (*task.contenders, *extra):
            key = _key(task, policy, contender)
            score = store.get(key)
            if score is not None:
                kept += 1
            else:
                if work is None:
                    work = requests(task.scenario, task.seed, base)
                if best is None:
                    best = best_fixed(
                        task.scenario,
                        policy,
                        task.seed,
                        work,
                        task.keep / "oracle" if task.keep else None,
                        refine=task.refine,
                        fresh=task.fresh,
                    )
                limit = contender.create(policy.concurrency.initial)
                record = simulate(task.scenario, policy, task.seed, limit=limit, workload=work)
                score = judge(record, best, task.name, queue, contender.label)
                store.put(key, score)
            # Names are how this command calls things; they are not part of the run.
            found.append(
                msgspec.structs.replace(
                    score, scenario=task.name, queue=queue, limit=contender.label
                )
            )
    if work is not None:
        gc.collect()
    return Done(found, kept)


def _key(task: Task, policy: Policy, contender: Contender) -> str:
    return limit_kept.key_of(
        [
            limit_kept.of_runs(),
            limit_kept.of_limit("fixed"),
            limit_kept.of_limit(contender.algorithm),
            limit_kept.of_bench("limit_oracle", "limit_judge"),
        ],
        limit_kept.plain(task.scenario),
        task.scenario.bounds.after,
        msgspec.to_builtins(policy),
        contender.algorithm,
        contender.settings,
        policy.concurrency.initial,
        task.seed,
        task.refine,
    )


def work_through(tasks: Sequence[Task], jobs: int, *, quiet: bool = False) -> Done:
    """Run all tasks on `jobs` processes; the order of the result does not depend on timing."""
    begun = time.perf_counter()
    found: dict[int, Done] = {}

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
    return Done(
        [score for index in sorted(found) for score in found[index].scores],
        sum(done.kept for done in found.values()),
    )


def _weight(task: Task) -> float:
    scenario = task.scenario
    return sum(
        phase.seconds * max(phase.levels) * (scenario.capacity if phase.rate is None else 1.0)
        for phase in scenario.phases
    )
