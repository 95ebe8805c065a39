"""What happens to which service, and who asks? A scenario, as a TOML file describes it.

A scenario is a service (stages in sequence), its clients, and phases that follow each other.
A phase says how much load arrives and what is different about the service while it lasts.
`docs/simulation.md` explains every key with examples; this module is its schema, and whatever
is wrong is said with the path of the key.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from copy import deepcopy
from difflib import get_close_matches
from math import inf
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from loadgate.errors import PolicyError
from loadgate.simulation.arrivals import Batches, Bursts, Wave
from loadgate.simulation.laws import Law, NonNegative, Positive
from loadgate.simulation.stages import Cores

_AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
_Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


def _ends(path: str, value: float | list[float]) -> tuple[float, float]:
    """One number for a whole phase, or two for its beginning and end.

    (Checked here: msgspec 0.23 crashes on a number or a tuple of numbers that have bounds.)
    """
    ends = value if isinstance(value, list) else [value, value]
    if len(ends) != 2 or not all(0.0 <= end < inf for end in ends):
        raise PolicyError(path, f"{value!r} must be a number of at least 0, or two of them")
    return ends[0], ends[1]


class StageSpec(_Table, frozen=True):
    """One step of the service's work on a request.

    Attributes:
        kind: `cores` share their time among all who are here, a `pool` serves `count` at a
            time in order of arrival, a `delay` is plain waiting.
        time: The seconds each request takes here, of one core (or place) at full speed.
        name: What phases call it; by default its kind.
        count: Cores or places; a delay has none.
        speed: 1.0 is full speed.
        contention: Serial share of the Universal Scalability Law, cores only.
        crosstalk: Its quadratic term, cores only.
    """

    kind: Literal["cores", "pool", "delay"]
    time: Law
    name: str = ""
    count: _AtLeastOne = 1
    speed: Positive = 1.0
    contention: NonNegative = 0.0
    crosstalk: NonNegative = 0.0

    @property
    def called(self) -> str:
        """The name, or the kind where none is given."""
        return self.name or self.kind

    @property
    def most(self) -> float:
        """Seconds of work that it does per second, at its best."""
        if self.kind != "cores":
            return self.count * self.speed
        cores = Cores(self.count, self.speed, self.contention, self.crosstalk)
        # Contention only takes away once every core is busy, so the best crowd is no larger.
        return max(n * cores.share(n) for n in range(1, self.count + 1))


class StageChange(_Table, frozen=True):
    """What is different about a stage during a phase.

    Attributes:
        count: Cores or places.
        speed: Replaces the stage's own.
        work: Factor on the work of requests that arrive in this phase; two numbers move
            from the first to the second.
    """

    count: _AtLeastOne | None = None
    speed: Positive | None = None
    work: float | list[float] = 1.0

    def __post_init__(self) -> None:
        _ends("work", self.work)

    @property
    def works(self) -> tuple[float, float]:
        """The factor at the beginning and at the end of the phase."""
        return _ends("work", self.work)


class Pauses(_Table, frozen=True):
    """The process stands still for `seconds`, `every` so many seconds."""

    every: Positive
    seconds: Positive

    def __post_init__(self) -> None:
        if self.seconds >= self.every:
            raise PolicyError("seconds", f"{self.seconds:g} must be below every {self.every:g}")


class Phase(_Table, frozen=True):
    """A stretch of time with its own load and service.

    Attributes:
        seconds: How long it lasts.
        load: Arrivals as a share of the service's capacity (as it is outside of phases); two
            numbers are a ramp.
        rate: Arrivals per second instead.
        name: What reports call it.
        bursts: Random jumps of the rate.
        wave: A sine on the rate.
        batches: Groups instead of single requests.
        pauses: The process stands still now and then.
        change: What is different, by the name of the stage.
        cuts: Seconds after its beginning at which its report is cut: [5, 15] reports the first
            five seconds, the next ten and the rest apart.
    """

    seconds: Positive
    load: float | list[float] | None = None
    rate: float | list[float] | None = None
    name: str = ""
    bursts: Bursts | None = None
    wave: Wave | None = None
    batches: Batches | None = None
    pauses: Pauses | None = None
    change: dict[str, StageChange] = {}  # msgspec copies it for each instance
    cuts: list[Positive] = []  # msgspec copies it for each instance

    def __post_init__(self) -> None:
        if (self.load is None) == (self.rate is None):
            raise PolicyError("", "a phase needs either `load` or `rate`")
        for path, value in (("load", self.load), ("rate", self.rate)):
            if value is not None:
                _ends(path, value)
        if self.cuts != sorted(self.cuts) or any(cut >= self.seconds for cut in self.cuts):
            raise PolicyError("cuts", f"{self.cuts} must rise and end before {self.seconds:g}")

    @property
    def levels(self) -> tuple[float, float]:
        """`load` or `rate`, whichever is given, at the beginning and at the end."""
        given = self.load if self.rate is None else self.rate
        return _ends("load", 0.0 if given is None else given)


class ClientSpec(_Table, frozen=True):
    """One class of clients.

    Attributes:
        name: What reports call it.
        share: Its part of the arrivals, relative to the other classes.
        priority: Name of the priority in the policy.
        slo: Seconds after which an answer is worth nothing; by default the scenario's.
        keys: Number of different clients in the class; None if they do not say who they are.
        skew: 0 for equally busy clients; 1 is Zipf's law: the k-th is busy as 1/k.
        deadline: Seconds the service is told of, as a law; None tells nothing.
        timeout: Seconds after which a client gives an attempt up; None waits for ever.
        cancels: Whether giving up reaches the service.
        retries: Attempts after the first.
        backoff: Seconds before the first retry, doubling with each.
        jitter: Draw the pause from [0, pause).
        budget: Retries allowed per success; None is any number.
        patient: Wait at least as long as a refusal says.
        cost: What a request costs the rates.
    """

    name: str = "clients"
    share: Positive = 1.0
    priority: str = "default"
    slo: Positive | None = None
    keys: _AtLeastOne | None = None
    skew: NonNegative = 0.0
    deadline: Law | None = None
    timeout: Positive | None = None
    cancels: bool = True
    retries: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    backoff: NonNegative = 0.05
    jitter: bool = True
    budget: NonNegative | None = None
    patient: bool = False
    cost: Positive = 1.0


class Trace(_Table, frozen=True):
    """Arrivals from a file instead of from phases' loads.

    Attributes:
        file: A CSV file or lines of a request log, relative to the scenario's folder.
        format: `csv` with a header, or `log` (common log format, or any line in which
            `pattern` finds the groups `time` and, if there, `duration` and `client`).
        time: Name of the CSV column with the moment: seconds, or ISO 8601.
        duration: Name of the column with the seconds each request took; they replace the
            times of `stage`.
        client: Name of the column that says who asked.
        stage: The stage whose times the durations replace.
        pattern: A regular expression for `log`.
        speed: 10 plays ten times as fast.
        duration_unit: Seconds per unit of `duration`: 0.001 for milliseconds.
    """

    file: str
    format: Literal["csv", "log"] = "csv"
    time: str = "time"
    duration: str | None = None
    client: str | None = None
    stage: str | None = None
    pattern: str | None = None
    speed: Positive = 1.0
    duration_unit: Positive = 1.0


class Bounds(_Table, frozen=True):
    """What the benchmark demands of the default limit in this scenario.

    Attributes:
        share: Goodput as a share of the best fixed limit for each phase, at least.
        false_refusals: Refused share of arrivals above the best fixed limit's, at most.
        refused: Refused share of the arrivals later than `after`, at most.
        after: Seconds from the beginning that `refused` and `false_refusals` leave out.
        p99: Seconds, of the requests served, at most.
        slope: Growth of the limit per minute in the last phase, as a share of its mean, at
            most: the ratchet test.
    """

    share: _Share | None = None
    false_refusals: _Share | None = None
    refused: _Share | None = None
    after: NonNegative = 0.0
    p99: Positive | None = None
    slope: float | None = None


class Variant(_Table, frozen=True):
    """The same scenario with some keys replaced, as in ``{ "phases[0].load" = 3.0 }``."""

    name: str
    set: dict[str, Any] = {}  # msgspec copies it for each instance


class Scenario(_Table, frozen=True, kw_only=True):
    """A service, its clients, and what happens.

    Attributes:
        title: A few words.
        intent: What it shows, in a sentence.
        stages: The work on a request, in sequence.
        phases: What happens, in sequence.
        clients: Who asks; by default one plain class.
        slo: Seconds after the intended start within which an answer counts.
        refusal_cost: Work of a refusal as a share of a mean request's work on the first
            `cores` stage. 0.02: measured on ASGI servers, a refusal inside the app costs
            them a few per cent of a small request.
        policy: Settings that the scenario needs, under the policy under test.
        bounds: What the benchmark demands.
        variants: The same with other numbers.
        trace: Arrivals from a file.
        folder: Where the file was read; paths in it are relative to this.
    """

    title: str
    intent: str = ""
    stages: Annotated[list[StageSpec], msgspec.Meta(min_length=1)]
    phases: Annotated[list[Phase], msgspec.Meta(min_length=1)]
    clients: Annotated[list[ClientSpec], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: [ClientSpec()]
    )
    slo: Positive = 1.0
    refusal_cost: NonNegative = 0.02
    policy: dict[str, Any] = {}  # msgspec copies it for each instance
    bounds: Bounds = Bounds()
    variants: list[Variant] = []  # msgspec copies it for each instance
    trace: Trace | None = None
    folder: str = ""

    def __post_init__(self) -> None:
        names = [stage.called for stage in self.stages]
        for path, known in (("stages", names), ("clients", [c.name for c in self.clients])):
            for index, name in enumerate(known):
                if name in known[:index]:
                    raise PolicyError(f"{path}[{index}].name", f"{name!r} is used twice")
        for index, phase in enumerate(self.phases):
            for name in phase.change:
                if name not in names:
                    raise PolicyError(
                        f"phases[{index}].change.{name}", f"no such stage; {_hint(name, names)}"
                    )
        if self.trace is not None and self.trace.duration and self.trace.stage not in names:
            raise PolicyError("trace.stage", f"must be one of {', '.join(names)}")

    @property
    def seconds(self) -> float:
        """How long all phases last together."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def capacity(self) -> float:
        """Requests per second that the service can do outside of phases, at its best."""
        rates = [
            stage.most / stage.time.average
            for stage in self.stages
            if stage.kind != "delay" and stage.time.average > 0.0
        ]
        if not rates:
            raise PolicyError("phases", "`load` needs a stage of cores or places; use `rate`")
        return min(rates)


# How msgspec says where: "... - at `$.phases[0].load`".
_PLACE = re.compile(r"(?P<what>.*) - at `(?:key in )?\$\.?(?P<path>[^`]*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`")
_TABLES: dict[str, type[msgspec.Struct]] = {
    "stages": StageSpec,
    "phases": Phase,
    "clients": ClientSpec,
    "trace": Trace,
    "bounds": Bounds,
    "variants": Variant,
    "bursts": Bursts,
    "wave": Wave,
    "batches": Batches,
    "pauses": Pauses,
    "change": StageChange,
}


def read(path: str | PathLike[str]) -> Scenario:
    """Read a scenario from a TOML file.

    Raises:
        OSError: The file cannot be read.
        PolicyError: It is not TOML, or a key is wrong; `path` says which.
    """
    file = Path(path)
    try:
        mapping = tomllib.loads(file.read_bytes().decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PolicyError("", f"{file} is not TOML: {error}") from error
    return from_mapping(mapping | {"folder": str(file.parent)})


def from_mapping(mapping: Mapping[str, Any]) -> Scenario:
    """Build a scenario from plain data.

    Raises:
        PolicyError: A key is wrong; `path` says which, as in `phases[0].load`.
    """
    try:
        return msgspec.convert(dict(mapping), Scenario)
    except msgspec.ValidationError as error:
        place = _PLACE.match(str(error))
        path, what = (place["path"], place["what"]) if place else ("", str(error))
        if isinstance(error.__cause__, PolicyError):
            raise error.__cause__.under(path) from None
        if unknown := _UNKNOWN.match(what):
            words = re.sub(r"\[.*?\]", "", path).split(".")
            tables = [_TABLES[word] for word in words if word in _TABLES]
            table: type[msgspec.Struct] = tables[-1] if tables else Scenario
            known = [field.name for field in msgspec.structs.fields(table)]
            name = unknown["name"]
            raise PolicyError(name, f"unknown key; {_hint(name, known)}").under(path) from None
        raise PolicyError(path, what) from None


def variants(scenario: Scenario) -> list[tuple[str, Scenario]]:
    """Every variant by name, or the scenario itself under an empty name if it has none."""
    if not scenario.variants:
        return [("", scenario)]
    return [(variant.name, with_keys(scenario, variant.set)) for variant in scenario.variants]


def with_keys(scenario: Scenario, keys: Mapping[str, Any]) -> Scenario:
    """The same scenario with the values at some paths replaced.

    Raises:
        PolicyError: A path leads nowhere, or a value is wrong.
    """
    mapping: dict[str, Any] = deepcopy(msgspec.to_builtins(scenario))
    mapping["variants"] = []
    for path, value in keys.items():
        _put(mapping, path, value)
    return from_mapping(mapping)


def _put(mapping: dict[str, Any], path: str, value: Any) -> None:
    steps = re.findall(r"[^.\[\]]+", path)
    *way, last = steps
    here: Any = mapping
    try:
        for step in way:
            here = _inside(here, step)
        if isinstance(here, list):
            here[int(last)] = value
        else:
            here[last] = value
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise PolicyError(path, "leads nowhere in this scenario") from error


def _inside(table: dict[str, Any] | list[Any], step: str) -> Any:
    """What stands at `step`; a table that was left out is made."""
    if isinstance(table, list):
        return table[int(step)]
    if table.get(step) is None:
        table[step] = {}
    return table[step]


def _hint(word: str, known: list[str]) -> str:
    near = get_close_matches(word, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
