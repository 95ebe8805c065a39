"""What did the operator ask for? Typed settings, from Python, a mapping or a TOML file.

Whatever is wrong is said at construction, with the path of the setting, its value and the
bound; a policy that exists is one that works.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from math import inf
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import msgspec

from loadgate import limits
from loadgate.checks import flag, listed, named, one_of, text
from loadgate.errors import PolicyError
from loadgate.limits.settings import real, shown, whole
from loadgate.rates.spec import Rate
from loadgate.reading import read
from loadgate.shared import Store
from loadgate.shedding.laws import RuleName
from loadgate.waiting import Discipline

__all__ = ["Concurrency", "Mode", "Policy", "Queue", "Rate", "Signals", "Store"]

Mode = Literal["enforce", "observe", "off"]
"""`observe` decides and counts what would have been refused; `off` does not even ask."""

_MODES = ("enforce", "observe", "off")

# Where a limit starts when nobody says: Netflix' and Envoy's users start between 3 and 100;
# 20 is Netflix' own default for its windowed limits.
_INITIAL = 20


# What would shadow a setting of its own if it stood among the options.
_NOT_OPTIONS = (
    "algorithm", "initial", "long_lived", "max", "max_long_lived", "max_share", "min", "mode",
    "options",
)  # fmt: skip

# A few seconds: longer than any answer that is worked on in a service whose requests take
# milliseconds, short enough that those who stay cost few places.
_LONG_LIVED = 5.0

# A million slots in a row are 8 MB of table; 1,024 tell a thousand clients apart.
_MOST_SLOTS = 1 << 20


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
        max_share: The share of the places that one client may hold or wait for, in (0, 1];
            None for no such bound. Requests without a client are not bounded.
        long_lived: Seconds after which a request whose answer has begun runs on without its
            place, in a pool beside the limit; also one that has not answered, while most
            others are quick (see `loadgate.long_lived`). `auto`: 5 for `adaptive`, never for
            the other algorithms, which count as published. `never` for never.
        max_long_lived: Places that pool has; None for as many as leave `max` in all. Whoever
            finds it full stays where it is.
    """

    algorithm: str = "adaptive"
    initial: int | None = None
    min: int = 1
    max: int = 1000
    latency_target: float | None = None
    mode: Mode = "enforce"
    options: dict[str, Any] = {}  # msgspec copies it for each instance
    max_share: float | None = None
    long_lived: float | Literal["auto", "never"] = "auto"
    max_long_lived: int | None = None

    def __post_init__(self) -> None:
        text("algorithm", self.algorithm)
        for name, count in (("initial", self.initial), ("min", self.min), ("max", self.max)):
            if count is not None or name != "initial":
                whole(name, count, 1, limits.HIGHEST)
        one_of("mode", self.mode, _MODES)
        if self.max_share is not None:
            real("max_share", self.max_share, 1e-6, 1.0)
        if isinstance(self.long_lived, str):
            one_of("long_lived", self.long_lived, ("auto", "never"))
        else:
            real("long_lived", self.long_lived, 0.1, 3600.0)
        if self.max_long_lived is not None:
            whole("max_long_lived", self.max_long_lived, 0, limits.HIGHEST)
        named("options", self.options)
        for name in self.options:
            twice = name == "latency_target" and self.latency_target is not None
            if twice or name in _NOT_OPTIONS:
                raise PolicyError(
                    f"options.{name}",
                    f"{shown(self.options[name])} is no option; {name} stands beside the options",
                )
        self.create()

    def pool(self) -> tuple[float, int | None, int]:
        """What the pool of the long-lived is made from: seconds, its places, places in all."""
        after = self.long_lived
        if self.mode == "off" or after == "never":
            after = inf
        elif after == "auto":
            after = _LONG_LIVED if self.algorithm == "adaptive" else inf
        return after, self.max_long_lived, self.max

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
        max_queue: Waiters up to which everyone may wait; above it arrivals are refused with a
            probability that `rule` says. None derives it from `max_wait` and the measured
            throughput; 0 means that nobody waits.
        max_depth: Waiters at which someone must go for each arrival; None means twice
            `max_queue`.
        discipline: `default` (newest first once the queue stands), `fifo` or `fair` (across
            clients).
        rule: How refusals grow with the queue: `survival`, `ramp` or `budget`; see
            `loadgate.shedding.laws`.
        fair_by: The key of a client with several that is its account when the service is
            full: who has had more than others goes first. A client without it counts by its
            first key. Empty: clients are not compared.
        fair_slots: Slots in each row of the table that remembers what clients used, a power
            of two.
        fair_hand: Slots dealt to each client. More make it less likely that one is taken for
            another, and cost time: see `loadgate.shedding.fairness`.
        max_refused: The share of arrivals that may be refused with 503 within ten seconds,
            in (0, 1]; more are let through, which is the end of protection. None for no such
            cap.
        mode: `enforce`; `observe` lets everyone wait who finds no place, however long, and
            counts what would have been refused; `off` keeps no queue: whoever finds no place
            is refused at once.
    """

    max_wait: float = 0.1
    max_queue: float | None = None
    max_depth: float | None = None
    discipline: Discipline = "default"
    rule: RuleName = "survival"
    fair_by: str = "client"
    fair_slots: int = 1024
    fair_hand: int = 2
    max_refused: float | None = None
    mode: Mode = "enforce"

    def __post_init__(self) -> None:
        real("max_wait", self.max_wait, 0.0, 3600.0)
        one_of("discipline", self.discipline, ("default", "fifo", "fair"))
        one_of("rule", self.rule, ("survival", "ramp", "budget"))
        one_of("mode", self.mode, _MODES)
        if self.max_queue is not None:
            real("max_queue", self.max_queue, 0.0, 1e9)
        if self.max_depth is not None:
            real("max_depth", self.max_depth, 0.0, 1e9)
            if self.max_queue is not None and self.max_depth < self.max_queue:
                raise PolicyError(
                    "max_depth", f"{self.max_depth:.15g} is below max_queue {self.max_queue:.15g}"
                )
        if self.max_refused is not None:
            real("max_refused", self.max_refused, 0.0, 1.0)
            if self.max_refused == 0.0:
                raise PolicyError("max_refused", "0 would refuse nobody; use mode = 'observe'")
        text("fair_by", self.fair_by)
        for name, count in (("fair_slots", self.fair_slots), ("fair_hand", self.fair_hand)):
            if type(count) is not int:
                raise PolicyError(name, f"{shown(count)} is not a whole number")
        bits = self.fair_slots.bit_length() - 1
        if not 1 <= self.fair_slots <= _MOST_SLOTS or self.fair_slots != 1 << bits:
            raise PolicyError(
                "fair_slots",
                f"{shown(self.fair_slots)} is not a power of two from 1 to {_MOST_SLOTS}",
            )
        whole("fair_hand", self.fair_hand, 1, 60)
        if bits * self.fair_hand > 60:
            raise PolicyError(
                "fair_hand",
                f"{self.fair_hand} is too many: fair_slots ** fair_hand must be at most 2 ** 60",
            )


# What a wrong type is told.
_MEMORY: Final = 'must be a number of bytes or "container"'


class Signals(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What else says that the process is full.

    Attributes:
        max_lag: Seconds by which the event loop may be late before arrivals are refused;
            above half of it the limit is braked, from a tenth on requests begin a few at a
            time. None does nothing of it.
        max_memory: Bytes of resident memory at which arrivals are refused; above nine tenths
            of it the limit is braked. `container` takes the bound of the container (its
            cgroup), and nothing if there is none. None does neither.
        gauge_target: The pressure, in (0, 1), above which a gauge of yours brakes the limit.
        mode: `enforce`; `observe` counts what would have been refused and brakes nothing;
            `off` does not look.
    """

    max_lag: float | None = 0.1
    max_memory: Annotated[int | Literal["container"] | None, msgspec.Meta(description=_MEMORY)] = (
        None
    )
    gauge_target: float = 0.9
    mode: Mode = "enforce"

    def __post_init__(self) -> None:
        one_of("mode", self.mode, _MODES)
        if self.max_lag is not None:
            real("max_lag", self.max_lag, 0.01, 60.0)  # 0.01: two ticks of the loop's watch
        if self.max_memory is not None and self.max_memory != "container":
            if isinstance(self.max_memory, bool) or not isinstance(self.max_memory, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
                raise PolicyError("max_memory", f"{_MEMORY}, not {shown(self.max_memory)}")
            real("max_memory", self.max_memory, 1e6, 1e15)  # below a megabyte: a slip of units
        real("gauge_target", self.gauge_target, 0.01, 0.99)


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything an operator can ask for.

    Attributes:
        rates: What each client may ask for; all of them are charged, or none.
        concurrency: How many requests may run at once.
        queue: How long and how deep requests may wait.
        priorities: Names of the priority classes, the first is served first.
        signals: What else says that the process is full.
        store: Where the rates that are `shared` keep their state.
        reserve: Share of the places, in (0, 1), that a priority class can count on, by its
            name: `{"background": 0.1}`. What it does not use the others borrow.
        cancel: Whether a request is cancelled when its timeout is over, unless `admit` says
            otherwise; its block then ends with a TimeoutError.
        enabled: False admits everything, counted, as if there were no loadgate.

    Raises:
        PolicyError: A setting is wrong; its `path` says which.
    """

    rates: Sequence[Rate] = ()
    concurrency: Concurrency = Concurrency()
    queue: Queue = Queue()
    priorities: Sequence[str] = ("critical", "default", "background")
    signals: Signals = Signals()
    store: Store | None = None
    reserve: Mapping[str, float] = {}  # msgspec copies it for each instance
    cancel: bool = False
    enabled: bool = True

    def __post_init__(self) -> None:
        for path, value, kind in (
            ("concurrency", self.concurrency, Concurrency),
            ("queue", self.queue, Queue),
            ("signals", self.signals, Signals),
        ):
            if not isinstance(value, kind):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
                raise PolicyError(path, f"{shown(value)} is not a {kind.__name__}")
        flag("cancel", self.cancel)
        flag("enabled", self.enabled)
        named("reserve", self.reserve)
        msgspec.structs.force_setattr(self, "rates", listed("rates", self.rates))
        msgspec.structs.force_setattr(self, "priorities", listed("priorities", self.priorities))
        seen: set[str] = set()
        for index, rate in enumerate(self.rates):
            if not isinstance(rate, Rate):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
                raise PolicyError(f"rates[{index}]", f"{shown(rate)} is not a Rate")
            if rate.name in seen:
                raise PolicyError(f"rates[{index}].name", f"{rate.name!r} is used twice")
            if rate.shared and self.store is None:
                raise PolicyError(f"rates[{index}].shared", "needs a store: url and secret")
            seen.add(rate.name)
        if self.store is not None:
            if not isinstance(self.store, Store):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
                raise PolicyError("store", f"{shown(self.store)} is not a Store")
            try:
                self.store.check(self.rates)
            except PolicyError as error:
                raise error.under("store") from None
        if not self.priorities:
            raise PolicyError("priorities", "at least one class is needed")
        for index, name in enumerate(self.priorities):
            if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
                raise PolicyError(f"priorities[{index}]", f"{shown(name)} is not a name")
        if len(set(self.priorities)) != len(self.priorities):
            raise PolicyError("priorities", f"{list(self.priorities)} has a name twice")
        for name, share in self.reserve.items():
            if name not in self.priorities:
                raise PolicyError(f"reserve.{name}", f"none of {', '.join(self.priorities)}")
            real(f"reserve.{name}", share, 1e-6, 1.0 - 1e-6)
        if sum(self.reserve.values()) > 1.0:
            raise PolicyError("reserve", f"{sum(self.reserve.values()):.15g} in all is above 1")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Build a policy from plain data, as a TOML or JSON file holds it.

        Raises:
            PolicyError: A setting is wrong; its `path` says which (`rates[0].burst`).
        """
        return read(mapping, cls)

    @classmethod
    def from_toml(cls, path: str | PathLike[str]) -> Self:
        """Build a policy from a TOML file.

        Raises:
            OSError: The file cannot be read.
            PolicyError: It is not TOML, or a setting is wrong.
        """
        content = Path(path).read_bytes()
        try:
            mapping = tomllib.loads(content.decode())
        except ValueError as error:  # malformed, not UTF-8, a number of thousands of digits
            raise PolicyError("", f"{path} is not TOML: {error}") from error
        except RecursionError:
            raise PolicyError("", f"{path} is nested too deeply for a policy") from None
        return cls.from_mapping(mapping)
