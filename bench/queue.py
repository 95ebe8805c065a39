"""What does a queue operation cost with 100,000 waiters?

    python -m bench.queue

Each figure is the mean of a hundred thousand operations while so many wait, for every
discipline, with tags as fair shares give them: half of the waiters are above their share.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

from loadgate.ticket import Ticket
from loadgate.waiting import Discipline, WaitingRoom

WAITERS = 100_000
BOUND = 10.0  # microseconds


def filled(discipline: Discipline, dice: random.Random) -> tuple[WaitingRoom[Ticket], list[Ticket]]:
    """A room with `WAITERS` in three classes, and they themselves."""
    room = WaitingRoom[Ticket](3, discipline)
    waiters = [Ticket(level=dice.randrange(3)) for _ in range(WAITERS)]
    for ticket in waiters:
        room.push(ticket, ticket.level, 0.0, max(0.0, dice.uniform(-1.0, 1.0)))
    return room, waiters


def measure(operations: int, discipline: Discipline) -> dict[str, float]:
    """Microseconds for each operation, mean."""
    dice = random.Random(1)
    found: dict[str, float] = {}

    def timed(name: str, work: Callable[[], None]) -> None:
        begun = time.process_time()
        work()
        found[name] = (time.process_time() - begun) / operations * 1e6

    room, _ = filled(discipline, dice)
    tickets = [Ticket(level=dice.randrange(3)) for _ in range(operations)]
    tags = [max(0.0, dice.uniform(-1.0, 1.0)) for _ in range(operations)]

    def turn_over() -> None:
        for ticket, tag in zip(tickets, tags, strict=True):
            room.push(ticket, ticket.level, 1.0, tag)
            room.pop(1.0)

    timed("push and pop", turn_over)
    room, _ = filled(discipline, dice)
    tickets = [Ticket(level=dice.randrange(3)) for _ in range(operations)]

    def replace() -> None:
        for ticket, tag in zip(tickets, tags, strict=True):
            room.evict(ticket.level, tag)
            room.push(ticket, ticket.level, 1.0, tag)

    timed("evict and push", replace)
    room, waiters = filled(discipline, dice)
    dice.shuffle(waiters)
    leaving = waiters[:operations]

    def leave() -> None:
        for ticket in leaving:
            room.remove(ticket, ticket.level)
            again = Ticket(level=ticket.level)
            room.push(again, again.level, 1.0, 0.5)

    timed("leave and push", leave)
    return found


def main() -> int:
    """Measure and print; the exit code says whether every figure is below the bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=WAITERS)
    operations = min(parser.parse_args().operations, WAITERS)
    worst = 0.0
    print(f"{'discipline':12} {'operation':16} {'µs':>7}  (bound {BOUND:g})")
    for discipline in ("default", "fifo", "fair"):
        for name, cost in measure(operations, discipline).items():
            print(f"{discipline:12} {name:16} {cost:7.2f}")
            worst = max(worst, cost)
    return 0 if worst < BOUND else 1


if __name__ == "__main__":
    raise SystemExit(main())
