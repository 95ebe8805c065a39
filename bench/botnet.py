"""Do real users get through while a thousand addresses ask for far more than there is?

    python -m bench.botnet                      # about two minutes
    python -m bench.botnet --virtual            # the thousandfold only, in virtual time
    python -m bench.botnet --factor 50          # how much is offered to the real server

Each of a thousand addresses stays within its own rate. In virtual time they ask for a thousand
times the capacity together, which shows the decisions and not what refusing costs. The real
server (`loadgate serve`, Hypercorn, uvloop) is offered as much as one core can refuse; the
table says how much that was. Policy and identity are those of docs/botnet.md.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import re
import tempfile
import tomllib
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np

from bench import botnet_app
from bench.botnet_who import SESSIONS
from bench.processes import processes
from loadgate.integrations.demo.servers import Launch, bare, get, guarded, serving
from loadgate.integrations.loadgen import ClientClass, Phase, Plan, run_elsewhere
from loadgate.policy import Policy
from loadgate.simulation import gate, streams
from loadgate.simulation.engine import SERVED, Engine
from loadgate.simulation.stages import Pool
from loadgate.simulation.workload import Client, Workload

POLICY: Final = Path(__file__).with_name("botnet.toml")
BOTS: Final = 1000
FACTOR: Final = 1000.0

# The service in virtual time: 100 requests a second, so that each bot asks 100 times a second,
# which is what its own rate allows.
PLACES: Final = 10
LATENCY: Final = 0.1
CAPACITY: Final = PLACES / LATENCY
# What people need: well below the capacity, so that all of them could be served.
USERS_PER_SECOND: Final = 0.4 * CAPACITY
USERS: Final = 20
SLO: Final = 0.5
QUIET: Final = 5.0  # seconds before the attack: users alone

# Where the bots are: which /24 and which operator each of them belongs to.
SPREADS: Final = {
    "in four networks": (4, 1),
    "in a thousand networks of ten operators": (1000, 10),
    "in a thousand networks of a thousand operators": (1000, 1000),
}


class Result(NamedTuple):
    """What came of one attack.

    Attributes:
        factor: Requests of the bots beside the capacity.
        users: Share of the users' requests answered within the SLO, while the attack lasted.
        latency: 99th percentile of the users' answers in seconds.
        bots_served: The bots' requests that were served, per second.
        limited: Share of the bots' requests that a rate refused (429).
        overloaded: Share of them that the service refused (503).
        refused_by: How many each rate refused.
    """

    factor: float
    users: float
    latency: float
    bots_served: float
    limited: float
    overloaded: float
    refused_by: dict[str, int]


def only(names: tuple[str, ...]) -> Policy:
    """The policy, with the rates of these names and no others."""
    settings = tomllib.loads(POLICY.read_text())
    settings["rates"] = [rate for rate in settings["rates"] if rate["name"] in names]
    return Policy.from_mapping(settings)


def attack(
    policy: Policy, spread: tuple[int, int], seconds: float, factor: float = FACTOR, seed: int = 1
) -> Result:
    """A thousand addresses against the policy, in virtual time."""
    numbers = streams.numbers(seed, "botnet")
    end = QUIET + seconds
    users = np.cumsum(
        numbers.exponential(1.0 / USERS_PER_SECOND, size=int(3 * end * USERS_PER_SECOND))
    )
    users = users[users < end]
    # Evenly spaced, each bot in its turn: its own rate has nothing against any of them.
    bots = QUIET + np.arange(int(seconds * factor * CAPACITY)) / (factor * CAPACITY)
    times = np.concatenate([users, bots])
    order = np.argsort(times, kind="stable")
    networks, operators = spread
    callers: list[dict[str, str]] = [{"account": f"user-{number}"} for number in range(USERS)]
    callers += [
        {
            "address": f"10.0.0.{number}",
            "network": f"network-{number % networks}",
            "operator": f"operator-{number % operators}",
        }
        for number in range(BOTS)
    ]
    who = np.concatenate(
        [numbers.integers(0, USERS, len(users)), USERS + np.arange(len(bots)) % BOTS]
    )[order]
    kind = np.concatenate([np.zeros(len(users), int), np.ones(len(bots), int)])[order]
    classes = tuple(
        Client(name, level=policy.priorities.index(priority), priority=priority, slo=SLO)
        for name, priority in (("users", "users"), ("bots", "anonymous"))
    )
    workload = Workload(
        times=times[order],
        client=kind.tolist(),
        sizes=[numbers.exponential(LATENCY, len(times)).tolist()],
        clients=classes,
        horizon=end,
        # Callers with several keys, which a scenario file cannot write down.
        keys=cast(Any, [callers[number] for number in who]),
    )
    rates = gate.rates(policy)
    engine = Engine(
        workload,
        [Pool(PLACES)],
        gate.admission(policy),
        gate_dice=streams.dice(seed, "gate"),
        client_dice=streams.dice(seed, "clients"),
        rates=rates,
    )
    engine.run(end + 60.0)
    served = np.asarray(engine.verdict) == SERVED
    latency = np.where(served, np.asarray(engine.ended) - workload.times, np.inf)
    during = workload.times >= QUIET
    person = during & (kind == 0)
    refused = {name: stats.refused for name, stats in rates.stats().items()} if rates else {}
    limited = sum(refused.values()) / len(bots)
    bots_served = int(served[kind == 1].sum())
    answered = latency[person & served]
    return Result(
        factor=len(bots) / seconds / CAPACITY,
        users=float((latency[person] <= SLO).mean()),
        latency=float(np.quantile(answered, 0.99)) if len(answered) else math.nan,
        bots_served=bots_served / seconds,
        limited=limited,
        overloaded=1.0 - limited - bots_served / len(bots),
        refused_by=refused,
    )


def print_virtual(seconds: float) -> None:
    """The thousandfold, for each way to spread and two policies."""
    print(
        f"virtual time: {BOTS} addresses, {FACTOR:g} x a capacity of {CAPACITY:g}/s for "
        f"{seconds:g} s, {USERS_PER_SECOND:g}/s from {USERS} signed-in users, SLO {SLO:g} s"
    )
    heads = ("the addresses are", "rates", "users", "p99 ms", "bots served/s", "429", "503")
    print("{:<48}{:<22}{:>7}{:>8}{:>15}{:>9}{:>9}".format(*heads))
    for where, spread in SPREADS.items():
        for what, names in (
            ("address only", ("account", "address")),
            ("address to operator", ("account", "address", "network", "operator")),
        ):
            result = attack(only(names), spread, seconds)
            print(
                f"{where:<48}{what:<22}{result.users:>7.3f}{result.latency * 1e3:>8.0f}"
                f"{result.bots_served:>15.1f}{result.limited:>9.2%}{result.overloaded:>9.2%}",
                flush=True,
            )


# The real service; what networks and operators get is scaled to it.
REAL_CAPACITY: Final = botnet_app.PLACES / botnet_app.SECONDS
SCALED: Final = (
    ("10/second burst 20", "2/second burst 4"),
    ("25/second burst 50", "5/second burst 10"),
    ("initial = 10 ", "initial = 2 "),
    ("min = 8 ", "min = 2 "),
)
REAL_SLO: Final = 0.5
REAL_USERS: Final = 0.4 * REAL_CAPACITY
PATIENCE: Final = 1.0
APP: Final = "bench.botnet_app:app"


async def serve(launch: Launch, factor: float, seconds: float, bot: str) -> None:
    """Offer the attack to one server and print a line."""
    rate = factor * REAL_CAPACITY
    async with serving(launch) as server:
        plan = Plan(
            phases=(Phase("quiet", 4.0), Phase("rising", 6.0), Phase("attack", seconds)),
            url=server.url,
            classes=(
                ClientClass(
                    name="users", rates=(REAL_USERS,) * 3, clients=len(SESSIONS), timeout=PATIENCE,
                    client_header="authorization", client_name="Bearer session-{index}",
                ),
                ClientClass(
                    name="bots", rates=(0.0, (0.0, rate), rate), clients=BOTS, timeout=PATIENCE,
                    client_header="x-forwarded-for", client_name=bot,
                ),
            ),
            slo=REAL_SLO,
            seed=1,
        )  # fmt: skip
        result = await run_elsewhere(plan)
        reasons = await refusals(launch)
        busy = sum(used for used, _ in processes(server.pid)) / result.elapsed
    users = result.tally(["users"], phase="attack")
    bots = result.tally(["bots"], phase="attack")
    offered = bots.offered / bots.seconds
    print(
        f"{offered / REAL_CAPACITY:>8.1f} x{users.goodput / (users.offered / users.seconds):>8.3f}"
        f"{users.p99 * 1e3:>9.0f}{bots.count(200) / bots.seconds:>13.1f}"
        f"{bots.count(429) / bots.offered:>9.1%}{bots.count(503) / bots.offered:>9.1%}"
        f"{1.0 - bots.count(200, 429, 503) / bots.offered:>10.1%}"
        f"{busy:>6.2f}{result.lag().p99 * 1e3:>8.1f}  {reasons}",
        flush=True,
    )


async def refusals(launch: Launch) -> str:
    """How many the served process refused, by reason, from its own metrics."""
    if not launch.stats.endswith("/metrics"):
        return ""
    text = await get(launch.stats)
    found = re.findall(
        r'^loadgate_requests_total\{.*?reason="(\w+)".*?\} (\S+)', text, re.MULTILINE
    )
    counts: dict[str, float] = {}
    for reason, count in found:
        counts[reason] = counts.get(reason, 0.0) + float(count)
    return ", ".join(
        f"{reason} {count:,.0f}" for reason, count in counts.items() if count and reason != "none"
    )


async def print_real(factor: float, seconds: float, policy: Path) -> None:
    """The same on a real server, as much as one core can take."""
    print(
        f"\nreal server: Hypercorn with uvloop, one process, {botnet_app.PLACES} places of "
        f"{botnet_app.SECONDS * 1e3:g} ms ({REAL_CAPACITY:g}/s), {REAL_USERS:g}/s from "
        f"{len(SESSIONS)} signed-in users, kept connections, SLO {REAL_SLO * 1e3:g} ms, "
        f"{seconds:g} s"
    )
    heads = (
        "offered",
        "users",
        "p99 ms",
        "bots 200/s",
        "429",
        "503",
        "no answer",
        "busy",
        "lag ms",
    )
    print("{:<56}{:>10}{:>8}{:>9}{:>13}{:>9}{:>9}{:>10}{:>6}{:>8}".format("", *heads))
    wide, narrow = "10.{low}.{high}.7", "10.0.{high}.{low}"
    # The door refuses before HTTP begins, so it cannot tell a user from a bot.
    options = ("--identify", "bench.botnet_who:identify", "--no-log-refusals", "--door", "off")
    # The identity function believes the load, which plays the reverse proxy.
    policed = guarded(APP, policy, options, trusting=False)
    for what, launch, bot in (
        ("bare server, a thousand networks", bare(APP, "/ready"), wide),
        ("loadgate, four networks of one operator", policed, narrow),
        ("loadgate, a thousand networks of 25 operators", policed, wide),
    ):
        print(f"{what:<56}", end="", flush=True)
        await serve(launch, factor, seconds, bot)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.botnet", description=__doc__)
    parser.add_argument("--virtual", action="store_true", help="virtual time only")
    parser.add_argument("--real", action="store_true", help="the real server only")
    parser.add_argument("--factor", type=float, default=25.0, help="for the real server")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the attack")
    chosen = parser.parse_args()
    if not chosen.real:
        print_virtual(chosen.seconds)
    if not chosen.virtual:
        text = POLICY.read_text()
        for written, scaled in SCALED:
            assert written in text
            text = text.replace(written, scaled)
        with tempfile.TemporaryDirectory() as folder:
            policy = Path(folder, "policy.toml")
            policy.write_text(text)
            asyncio.run(print_real(chosen.factor, chosen.seconds, policy))


if __name__ == "__main__":
    main()
