"""What did the operator ask for? Typed settings, from Python, a mapping or a TOML file.

Whatever is wrong is said at construction, with the path of the setting, its value and the
bound; a policy that exists is one that works.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import msgspec

from loadgate import limits
from loadgate.errors import PolicyError
from loadgate.limits.settings import real
from loadgate.rates.spec import Rate
from loadgate.shared import Store
from loadgate.waiting import Discipline

__all__ = ["Concurrency", "Mode", "Policy", "Queue", "Rate", "Signals", "Store"]

Mode = Literal["enforce", "observe", "off"]
"""`observe` decides and counts what would have been refused; `off` does not even ask."""

# Where a limit starts when nobody says: Netflix' and Envoy's users start between 3 and 100;
# 20 is Netflix' own default for its windowed limits.
_INITIAL = 20


def _one_of(path: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise PolicyError(path, f"{value!r} is none of {', '.join(known)}")


def _nearest(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))


class Concurrency(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How many requests may run at once.

    Attributes:
        algorithm: How the limit moves: `adaptive` needs no setting; see `loadgate.limits`.
        initial: The limit at the start; by default 20, or the nearest bound.
        min: The lowest limit, at least 1.
        max: The highest limit.
        latency_target: Seconds; an absolute objective for `adaptive`, None to learn alone.
        mode: `enforce`, `observe` or `off`.
        options: Further keyword arguments of the algorithm.
    """

    algorithm: str = "adaptive"
    initial: int | None = None
    min: int = 1
    max: int = 1000
    latency_target: float | None = None
    mode: Mode = "enforce"
    options: dict[str, Any] = {}  # msgspec copies it for each instance

    def __post_init__(self) -> None:
        _one_of("mode", self.mode, ("enforce", "observe", "off"))
        self.create()

    def create(self, initial: int | None = None) -> limits.Limit:
        """Make the limit that these settings describe.

        Args:
            initial: Where it starts, moved to the nearest bound; by default `self.initial`.
        """
        options = dict(self.options)
        if self.latency_target is not None:
            options["latency_target"] = self.latency_target
        if initial is None:
            initial = self.initial
            if initial is None:
                initial = _nearest(_INITIAL, self.min, self.max)
        else:
            initial = _nearest(initial, self.min, self.max)
        try:
            return limits.create(
                self.algorithm, initial=initial, min=self.min, max=self.max, **options
            )
        except PolicyError as error:
            raise (error.under("options") if error.path in self.options else error) from None


class Queue(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How long and how deep requests may wait for a place.

    Attributes:
        max_wait: Longest wait in seconds, 0 for none.
        max_queue: Waiters up to which everyone may wait; above it an arrival survives with
            probability `max_queue / depth`. None derives it from `max_wait` and the
            measured throughput; 0 means that nobody waits.
        max_depth: Waiters at which every arrival is refused; None means twice `max_queue`.
        discipline: `default` (newest first once the queue stands) or `fifo`.
    """

    max_wait: float = 0.1
    max_queue: float | None = None
    max_depth: float | None = None
    discipline: Discipline = "default"

    def __post_init__(self) -> None:
        real("max_wait", self.max_wait, 0.0, 3600.0)
        _one_of("discipline", self.discipline, ("default", "fifo"))
        if self.max_queue is not None:
            real("max_queue", self.max_queue, 0.0, 1e9)
        if self.max_depth is not None:
            real("max_depth", self.max_depth, 0.0, 1e9)
            if self.max_queue is not None and self.max_depth < self.max_queue:
                raise PolicyError(
                    "max_depth", f"{self.max_depth:g} is below max_queue {self.max_queue:g}"
                )


class Signals(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What else says that the process is full.

    Attributes:
        max_lag: Seconds by which the event loop may be late before arrivals are refused;
            None never refuses for it.
    """

    max_lag: float | None = 0.1

    def __post_init__(self) -> None:
        if self.max_lag is not None:
            real("max_lag", self.max_lag, 0.01, 60.0)  # 0.01: two ticks of the loop's watch


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything an operator can ask for.

    Attributes:
        rates: What each client may ask for; all of them are charged, or none.
        concurrency: How many requests may run at once.
        queue: How long and how deep requests may wait.
        priorities: Names of the priority classes, the first is served first.
        signals: What else says that the process is full.
        store: Where the rates that are `shared` keep their state.

    Raises:
        PolicyError: A setting is wrong; its `path` says which.
    """

    rates: Sequence[Rate] = ()
    concurrency: Concurrency = Concurrency()
    queue: Queue = Queue()
    priorities: Sequence[str] = ("critical", "default", "background")
    signals: Signals = Signals()
    store: Store | None = None

    def __post_init__(self) -> None:
        for path, value, kind in (
            ("concurrency", self.concurrency, Concurrency),
            ("queue", self.queue, Queue),
            ("signals", self.signals, Signals),
        ):
            if not isinstance(value, kind):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
                raise PolicyError(path, f"{value!r} is not a {kind.__name__}")
        msgspec.structs.force_setattr(self, "rates", tuple(self.rates))
        msgspec.structs.force_setattr(self, "priorities", tuple(self.priorities))
        seen: set[str] = set()
        for index, rate in enumerate(self.rates):
            if not isinstance(rate, Rate):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
                raise PolicyError(f"rates[{index}]", f"{rate!r} is not a Rate")
            if rate.name in seen:
                raise PolicyError(f"rates[{index}].name", f"{rate.name!r} is used twice")
            if rate.shared and self.store is None:
                raise PolicyError(f"rates[{index}].shared", "needs a store: url and secret")
            seen.add(rate.name)
        if self.store is not None:
            if not isinstance(self.store, Store):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
                raise PolicyError("store", f"{self.store!r} is not a Store")
            try:
                self.store.check(self.rates)
            except PolicyError as error:
                raise error.under("store") from None
        if not self.priorities:
            raise PolicyError("priorities", "at least one class is needed")
        for index, name in enumerate(self.priorities):
            if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
                raise PolicyError(f"priorities[{index}]", f"{name!r} is not a name")
        if len(set(self.priorities)) != len(self.priorities):
            raise PolicyError("priorities", f"{list(self.priorities)} has a name twice")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Build a policy from plain data, as a TOML or JSON file holds it.

        Raises:
            PolicyError: A setting is wrong; its `path` says which (`rates[0].burst`).
        """
        return _convert(mapping, cls)

    @classmethod
    def from_toml(cls, path: str | PathLike[str]) -> Self:
        """Build a policy from a TOML file.

        Raises:
            OSError: The file cannot be read.
            PolicyError: It is not TOML, or a setting is wrong.
        """
        text = Path(path).read_bytes()
        try:
            mapping = tomllib.loads(text.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise PolicyError("", f"{path} is not TOML: {error}") from error
        return cls.from_mapping(mapping)


_Struct = TypeVar("_Struct", bound=msgspec.Struct)

# How msgspec says where: "... - at `$.rates[0].burst`".
_PLACE = re.compile(r"(?P<what>.*) - at `\$\.?(?P<path>[^`]*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`")


def _convert(mapping: Mapping[str, Any], kind: type[_Struct]) -> _Struct:
    try:
        return msgspec.convert(dict(mapping), kind)
    except msgspec.ValidationError as error:
        place = _PLACE.match(str(error))
        path, what = (place["path"], place["what"]) if place else ("", str(error))
        if isinstance(error.__cause__, PolicyError):
            raise error.__cause__.under(path) from None
        if unknown := _UNKNOWN.match(what):
            name = unknown["name"]
            known = [field.name for field in msgspec.structs.fields(_kind_at(kind, path))]
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise PolicyError(name, f"unknown setting; {hint}").under(path) from None
        raise PolicyError(path, f"{what}; it is {_value_at(mapping, path)!r}") from None


def _kind_at(kind: type[msgspec.Struct], path: str) -> type[msgspec.Struct]:
    """The struct that describes the place `path` of a policy."""
    first = path.split(".")[0].split("[")[0]
    parts: dict[str, type[msgspec.Struct]] = {
        "rates": Rate,
        "concurrency": Concurrency,
        "queue": Queue,
        "signals": Signals,
        "store": Store,
    }
    return parts.get(first, kind)


def _value_at(mapping: Any, path: str) -> Any:
    """What the operator wrote at `path`."""
    found: Any = mapping
    for step in re.findall(r"[^.\[\]]+", path):
        try:
            found = found[int(step) if step.isdigit() else step]
        except (KeyError, IndexError, TypeError):
            return None
    return found
