"""What does ``loadgate simulate`` do? Play a scenario against policies and say who serves best."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from loadgate.errors import PolicyError
from loadgate.integrations.cli.policyfile import PolicyFileError, read_policy
from loadgate.integrations.cli.say import INTERRUPTED, fail, why
from loadgate.limits import ALGORITHMS, PUBLISHED
from loadgate.policy import Policy
from loadgate.simulation import plots, report, run
from loadgate.simulation import scenario as scenarios
from loadgate.simulation.compare import Candidate, Comparison, compare
from loadgate.simulation.scenario import Scenario
from loadgate.simulation.verdict import verdict


def simulate(
    scenario: Annotated[
        str,
        typer.Argument(
            help="A scenario in TOML, or the name of one that comes along: busy-day, overload, "
            "retry-storm, slow-database.",
            show_default=False,
        ),
    ],
    policy: Annotated[
        Path | None,
        typer.Option(help="The policy in TOML. Default: an adaptive limit, no rates."),
    ] = None,
    versus: Annotated[
        list[str] | None,
        typer.Option(
            "--compare",
            metavar="FILE|ALGORITHM|off",
            help="Another policy, or the same one with another limit, or with none; repeatable.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="How many times, each with other requests.")
    ] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="Where the seeds begin.")] = 1,
    variant: Annotated[
        str | None, typer.Option(help="Which variant of the scenario; by default the first.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("out/simulate"),
) -> None:
    """Play a scenario against a policy on a virtual clock, and write a report.

    The rules are those that run in production; the service, its clients and what happens to them
    come from the scenario. Every policy meets the very same requests, and equal seeds give equal
    reports. Exit code 0 when it ran, 2 when the scenario or a policy is wrong.
    """
    console = Console()
    chosen, name = _scenario(scenario, variant)
    candidates = _candidates(chosen, policy, versus or [])
    _make(out)
    for line in uncounted(chosen, candidates):
        typer.echo(f"warning: {line}", err=True)
    numbers = range(first_seed, first_seed + seeds)
    try:
        found = _play(console, chosen, candidates, numbers)
    except PolicyError as error:
        fail(f"{scenario}: {error}")
    except OSError as error:
        fail(f"{scenario}: {error.filename}: {why(error)}")
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    said = verdict(found)
    console.print()
    console.print(_table(chosen.title, report.COLUMNS, report.rows(found)))
    if len(chosen.clients) > 1:
        rows = report.class_rows(found)
        console.print(_table("By class of clients", report.CLASS_COLUMNS, rows, names=2))
    for paragraph in said:
        console.print()
        console.print(paragraph, highlight=False)
    about = _about(scenario, name, policy, versus or [], seeds, first_seed)
    try:
        written = report.write(out, found, plots.draw(found), said, about)
    except OSError as error:
        fail(f"{out}: {why(error)}")
    console.print()
    console.print(f"written: {written[0]} and {len(written) - 1} pictures", highlight=False)


def _scenario(given: str, variant: str | None) -> tuple[Scenario, str]:
    """Read the scenario, from a file or from those that come along."""
    file: Any = Path(given)
    if not file.exists() and file.name == given:
        packaged = files("loadgate.simulation").joinpath("examples", f"{given}.toml")
        if packaged.is_file():
            file = packaged
    try:
        read = scenarios.read(file)
        known = scenarios.variants(read)
    except PolicyError as error:
        if _is_policy(file):
            fail(f"{given}: this is a policy, not a scenario; write loadgate simulate SCENARIO "
                 f"--policy {given}, with a file or one of {', '.join(_examples())}")  # fmt: skip
        fail(f"{given}: {error}")
    except FileNotFoundError:
        fail(f"{given}: there is no such file, and no scenario of that name comes along; "
             f"these do: {', '.join(_examples())}")  # fmt: skip
    except OSError as error:
        fail(f"{given}: cannot be read: {why(error)}")
    if variant is None:
        return known[0][1], known[0][0]
    if variant not in dict(known):
        names = ", ".join(repr(name) for name, _ in known if name) or "it has none"
        fail(f"{given}: no variant {variant!r}; {names}")
    return dict(known)[variant], variant


def _examples() -> list[str]:
    """Names of the scenarios that come along."""
    folder = files("loadgate.simulation").joinpath("examples")
    return sorted(one.name[: -len(".toml")] for one in folder.iterdir() if one.name[-5:] == ".toml")


def _is_policy(file: Any) -> bool:
    """Whether a file that is no scenario is meant as a policy: all its tables are a policy's."""
    try:
        said = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(said) and said.keys() <= set(Policy.__struct_fields__)


def _candidates(scenario: Scenario, policy: Path | None, versus: list[str]) -> list[Candidate]:
    """The policies to play against, each under its own name."""
    base = _settings(policy) if policy is not None else {}
    label = policy.stem if policy is not None else "adaptive"
    if policy is None:
        algorithm = scenario.policy.get("concurrency", {}).get("algorithm")
        label = algorithm if isinstance(algorithm, str) else label
    found = [Candidate(label, _policy(scenario, base, str(policy or "the scenario's policy")))]
    for word in versus:
        if word in ALGORITHMS or word == "off":
            settings: dict[str, Any] = {"mode": "off"} if word == "off" else _published(word)
            mapping = {**base, "concurrency": settings}
            name = "no limit" if word == "off" else word
        else:
            mapping, name = _settings(Path(word)), Path(word).stem
        taken = {candidate.label for candidate in found}
        if name in taken:
            name = f"{name} ({len(taken) + 1})"
        found.append(Candidate(name, _policy(scenario, mapping, word)))
    return found


def _published(algorithm: str) -> dict[str, Any]:
    """An algorithm as it is published, as settings of a policy."""
    options = dict(PUBLISHED.get(algorithm, {}))
    settings: dict[str, Any] = {"algorithm": algorithm, "options": options}
    for key in ("initial", "min", "max"):
        if key in options:
            settings[key] = options.pop(key)
    return settings


def _settings(path: Path) -> dict[str, Any]:
    """What a policy file says, as plain data."""
    if not path.exists() and path.suffix != ".toml":
        fail(f"{path} is neither a policy file nor a limit; limits: off, {', '.join(ALGORITHMS)}")
    try:
        read_policy(path)  # says what is wrong with its line
    except PolicyFileError as error:
        fail(str(error))
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _policy(scenario: Scenario, settings: dict[str, Any], given: str) -> Policy:
    try:
        return run.policy_for(scenario, settings)
    except PolicyError as error:
        fail(f"{given}: {error}")


def _make(out: Path) -> None:
    """Make the folder of the report, which must not fail once everything has been played."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        fail(f"--out {out}: is a file, not a folder")
    except OSError as error:
        fail(f"--out {out}: cannot be made: {why(error)}")
    if not os.access(out, os.W_OK | os.X_OK):
        fail(f"--out {out}: cannot be written to")


def uncounted(scenario: Scenario, candidates: list[Candidate]) -> list[str]:
    """Rates whose key no client of the scenario has, and what becomes of them; each once."""
    named = any(client.keys is not None for client in scenario.clients)
    found: dict[str, None] = {}
    for rate in (rate for candidate in candidates for rate in candidate.policy.rates):
        missing = [key for key in (rate.key, *rate.match) if key != "client" or not named]
        if not missing or rate.mode == "off":
            continue
        has = "'client' alone" if named else "none (set keys in a class of clients)"
        if not named or (rate.on_missing == "shared" and not rate.match):
            so = "all requests share one count"
        elif rate.on_missing == "refuse" and not rate.match:
            so = "every request that says who it is from is refused"
        else:
            so = "it applies to nobody who says who it is"
        found[
            f"rate {rate.name!r} asks for the key {missing[0]!r}, which no class of clients in "
            f"this scenario has: they have {has}; {so}"
        ] = None
    return list(found)


def _play(
    console: Console, scenario: Scenario, candidates: list[Candidate], seeds: range
) -> Comparison:
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task(scenario.title, total=len(candidates) * len(seeds))

        def advance(words: str) -> None:
            bar.update(task, advance=1, description=words)

        return compare(scenario, candidates, seeds, advance)


def _table(
    title: str, columns: Sequence[str], body: Sequence[Sequence[str]], names: int = 1
) -> Table:
    """A table whose first `names` columns are words and the rest figures."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for index in (shown := report.worth_showing(columns, body)):
        words = index < names
        table.add_column(
            columns[index], justify="left" if words else "right", min_width=8 if words else 5
        )
    for row in body:
        table.add_row(*(row[index] for index in shown))
    return table


def _about(
    scenario: str, variant: str, policy: Path | None, versus: list[str], seeds: int, first: int
) -> list[str]:
    words = ["loadgate simulate", scenario]
    words += [f"--variant '{variant}'"] if variant else []
    words += [f"--policy {policy}"] if policy else []
    words += [f"--compare {word}" for word in versus]
    words += [f"--seeds {seeds}"] + ([f"--first-seed {first}"] if first != 1 else [])
    return [" ".join(words)]
