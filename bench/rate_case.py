"""What does one limiter cost in a process of its own, beside the hand-written bucket?

`python -m bench.rate_case time NAME KEYS allow|refuse`, `... memory NAME KEYS` and `... grow NAME
KEYS` print one line of JSON. A process for each case, because some libraries leave threads and
large heaps behind; the hand-written bucket is in every one of them and takes turns with the
subject, so the ratios of different processes can be compared although their nanoseconds cannot.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Final

from bench.rate_subjects import FLOOR, PEERS, SUBJECTS, Decide, Subject

ROUNDS: Final = 7
# Peers are slower, some a hundredfold, and further from any bound: fewer and shorter rounds.
ROUNDS_OF_PEERS: Final = 3
MOST_OPERATIONS_OF_PEERS: Final = 50_000
# A round is long enough that reading the CPU clock does not show, and with many keys it visits
# each of them, so that the caches see all of the state.
LEAST_OPERATIONS: Final = 20_000
MOST_OPERATIONS: Final = 200_000


def names(keys: int) -> list[str]:
    """Keys of ordinary length."""
    return [f"client-{number}" for number in range(keys)]


def nanoseconds(decide: Decide, visits: list[str]) -> float:
    """CPU time of one decision, averaged over these visits."""
    begin = time.process_time_ns()
    decide(visits)
    return (time.process_time_ns() - begin) / len(visits)


def measure_time(subject: Subject, keys: int, allow: bool) -> dict[str, float]:
    """Median of several rounds, the subject and the hand-written bucket by turns."""
    known = names(keys)
    floor, decide = FLOOR.make(allow, keys), subject.make(allow, keys)
    floor(known)
    decide(known)
    most = MOST_OPERATIONS_OF_PEERS if subject in PEERS else MOST_OPERATIONS
    operations = min(most, max(LEAST_OPERATIONS, keys))
    floors: list[float] = []
    subjects: list[float] = []
    position = 0
    for _ in range(ROUNDS_OF_PEERS if subject in PEERS else ROUNDS):
        visits = [known[(position + step) % keys] for step in range(operations)]
        position += operations
        # What the subject finds in the caches, the floor must not have put there.
        floors.append(nanoseconds(floor, visits))
        subjects.append(nanoseconds(decide, visits))
    ratios = [one / other for one, other in zip(subjects, floors, strict=True)]
    return {
        "ns": statistics.median(subjects),
        "floor_ns": statistics.median(floors),
        "ratio": statistics.median(ratios),
    }


def resident() -> int:
    """Bytes of memory that this process occupies."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure_memory(subject: Subject, keys: int) -> dict[str, float]:
    """Bytes that each key adds to the process, the key itself not counted."""
    known = names(keys)
    decide = subject.make(False, keys)
    decide(["first"])
    gc.collect()
    before = resident()
    decide(known)
    gc.collect()
    return {"bytes": (resident() - before) / keys}


def measure_growth(subject: Subject, keys: int) -> dict[str, float]:
    """The longest single decision, in milliseconds of CPU time, while so many keys come."""
    known = names(keys)
    decide = subject.make(False, keys)
    longest = 0
    one = [""]
    for key in known:
        one[0] = key
        begin = time.thread_time_ns()
        decide(one)
        longest = max(longest, time.thread_time_ns() - begin)
    return {"longest_ms": longest / 1e6}


async def main(arguments: list[str]) -> None:
    """Measure one case. Inside an event loop, because some libraries ask for one."""
    kind, name, keys, *mode = arguments
    subject = SUBJECTS[name]
    if kind == "memory":
        result = measure_memory(subject, int(keys))
    elif kind == "grow":
        result = measure_growth(subject, int(keys))
    else:
        result = measure_time(subject, int(keys), mode == ["allow"])
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
    # Some libraries leave timers running that would keep the process alive.
    os._exit(0)
