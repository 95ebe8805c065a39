"""What did the operator ask for? One rate, checked as soon as it is written down.

`Rate` is the settings of one limiter, readable from Python and from TOML. Whatever is wrong
with it is said at construction, with the value and the bound, never at the first request.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final, Required, TypedDict

import msgspec

from loadgate.decisions import Outcome
from loadgate.errors import PolicyError
from loadgate.limits.settings import shown

BUCKETS: Final = ("token-bucket", "leaky-bucket")
WINDOWS: Final = ("fixed-window", "sliding-window-counter", "sliding-window-log")
ALGORITHMS: Final = BUCKETS + WINDOWS
ON_MISSING: Final = ("shared", "skip", "refuse")
MODES: Final = ("enforce", "observe", "off")

# One million keys is about 100 MB of state when it is full, and it is only full under a spray:
# large enough that an attacker needs a million addresses to reach the shared overflow buckets.
DEFAULT_MAX_KEYS: Final = 1_000_000
# 256 MiB lets a million keys of ordinary length in and stops ten thousand keys of 100 kB.
DEFAULT_MAX_BYTES: Final = 256 * 1024 * 1024

_UNITS: Final = {
    "millisecond": 0.001, "ms": 0.001,
    "second": 1.0, "sec": 1.0, "s": 1.0,
    "minute": 60.0, "min": 60.0, "m": 60.0,
    "hour": 3600.0, "h": 3600.0,
    "day": 86400.0, "d": 86400.0,
}  # fmt: skip
_NUMBER: Final = r"\d+(?:_\d+)*(?:\.\d+)?(?:e[+-]?\d+)?"
_RATE: Final = re.compile(
    rf"\s*(?P<limit>{_NUMBER})\s*(?:/|per\b)\s*(?P<count>{_NUMBER})?\s*(?P<unit>[a-z]+)"
    rf"(?:[\s,]+burst\s*=?\s*(?P<burst>{_NUMBER}))?\s*",
    re.IGNORECASE,
)
_STATUS: Final = re.compile(r"[1-5](?:\d\d|xx)")
_LABELS: Final = tuple(outcome.value for outcome in Outcome)

# Absence is this very object: a NaN that somebody wrote is another one, and an error.
_ABSENT: Final = float("nan")


class Settings(TypedDict, total=False):
    """What a limiter is made with; `loadgate.rates.create` says what each of them means."""

    limit: Required[float]
    per: float
    burst: float | None
    name: str
    max_keys: int
    max_bytes: int


class _Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    rate: str = ""


class Rate(_Named, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How much each client may ask for.

    Written with numbers, `Rate("per-client", limit=100, per=1.0, burst=200)`, or as people know
    it from other limiters: `Rate("per-client", "100/second burst 200")`, `"100/minute"`,
    `"0.5/second burst 5"`, `"10 per 2 seconds"`.

    Attributes:
        name: Names the rate in refusals, metrics and headers; unique in a policy.
        rate: The text form; empty when `limit` and `per` are given.
        limit: Cost units per `per` seconds, positive; whole for window algorithms.
        per: Seconds, positive.
        burst: Cost units a client may spend at once, at least 1; `limit` (at least 1) when left
            out. Buckets only: a window's burst is its limit.
        algorithm: One of `ALGORITHMS`.
        key: Which key of the client is counted.
        on_missing: What to do when the client has no such key: "shared" (all of them share one
            bucket), "skip" (the rate does not apply) or "refuse".
        mode: "enforce", "observe" (decide and count, let through) or "off".
        charge: "arrival", or what charges it afterwards: outcomes and HTTP statuses, as in
            "error", "401 403" or "4xx overload". Such a rate is checked on arrival and charged
            when the request has ended that way ("three failed logins a minute").
        match: The rate applies only to clients whose mapping has these entries, as in
            {"route": "/search"} or {"tier": ["free", "trial"]}; to all when empty. This is how
            routes and tiers get rates of their own.
        exempt: Values of `key` to which the rate does not apply.
        shared: Whether the state lives in the shared store rather than in this process.
        max_keys: Most keys remembered, at least 1.
        max_bytes: Most bytes of state and keys remembered, at least 1024.

    After construction `limit`, `per` and `burst` always hold numbers.

    Raises:
        PolicyError: A value is wrong; `path` is the field, `problem` holds value and bound.
    """

    limit: float = _ABSENT
    per: float = 1.0
    burst: float = _ABSENT
    algorithm: str = "token-bucket"
    key: str = "client"
    on_missing: str = "shared"
    mode: str = "enforce"
    charge: str = "arrival"
    match: Mapping[str, str | Sequence[str]] = msgspec.field(
        default_factory=dict[str, str | Sequence[str]]
    )
    exempt: Sequence[str] = ()
    shared: bool = False
    max_keys: int = DEFAULT_MAX_KEYS
    max_bytes: int = DEFAULT_MAX_BYTES

    def __post_init__(self) -> None:
        _text("name", self.name)
        _text("key", self.key)
        one_of("algorithm", self.algorithm, ALGORITHMS)
        one_of("on_missing", self.on_missing, ON_MISSING)
        one_of("mode", self.mode, MODES)
        charged_by(self.charge)
        self._check_lists()
        whole("max_keys", self.max_keys, least=1)
        whole("max_bytes", self.max_bytes, least=1024)
        if type(self.shared) is not bool:
            raise PolicyError("shared", f"must be true or false, not {shown(self.shared)}")
        limit, per, burst = self.limit, self.per, self.burst
        if self.rate:
            limit, per, burst = self._from_text()
        elif limit is _ABSENT:
            raise PolicyError("rate", 'missing; write rate = "100/second" or limit and per')
        given = None if burst is _ABSENT else burst
        try:
            limit, per, burst = bounds(self.algorithm, limit, per, given)
        except PolicyError as error:
            if not self.rate or (error.path == "burst" and parse(self.rate)[2] is None):
                raise
            # Whoever wrote the text has no line for its parts.
            where = f"the {error.path} of {shown(self.rate)}"
            raise PolicyError("rate", f"{error.problem} ({where})") from None
        msgspec.structs.force_setattr(self, "limit", limit)
        msgspec.structs.force_setattr(self, "per", per)
        msgspec.structs.force_setattr(self, "burst", burst)

    def _check_lists(self) -> None:
        if not isinstance(self.match, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # from users
            raise PolicyError("match", f"must map names to values, not {shown(self.match)}")
        for name, value in self.match.items():
            _text("match", name)
            _texts(f"match.{name}", [value] if isinstance(value, str) else value)
            if not value:
                raise PolicyError(f"match.{name}", "is empty, so the rate would never apply")
        _texts("exempt", self.exempt)
        plain = {
            name: value if isinstance(value, str) else tuple(value)
            for name, value in self.match.items()
        }
        msgspec.structs.force_setattr(self, "match", plain)
        msgspec.structs.force_setattr(self, "exempt", tuple(self.exempt))

    def _from_text(self) -> tuple[float, float, float]:
        limit, per, burst = parse(self.rate)
        # A struct that is copied (msgspec.structs.replace) carries text and numbers: the text
        # holds as long as they agree.
        for path, said, given in (("limit", limit, self.limit), ("per", per, self.per)):
            absent = given is _ABSENT or (path == "per" and given == 1.0)
            if not absent and given != said:
                raise PolicyError(
                    path, f"is {shown(given)} but rate = {shown(self.rate)} says {said:.15g}"
                )
        if burst is None:
            return limit, per, self.burst
        if self.burst is not _ABSENT and self.burst != burst:
            raise PolicyError(
                "burst", f"is {shown(self.burst)} but rate = {shown(self.rate)} says {burst:.15g}"
            )
        return limit, per, burst

    @property
    def on_outcome(self) -> bool:
        """Whether the rate is charged when the request ends, not when it arrives."""
        return self.charge != "arrival"


def parse(text: str) -> tuple[float, float, float | None]:
    """Read "100/minute", "0.5/second burst 5" or "10 per 2 seconds" as limit, per and burst.

    Raises:
        PolicyError: The text is no rate; path "rate".
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # from users
        raise PolicyError("rate", f'must be text such as "100/second", not {shown(text)}')
    found = _RATE.fullmatch(text)
    if found is None:
        raise PolicyError(
            "rate",
            f'{shown(text)} is not a rate; write "100/second", "0.5/second burst 5" '
            'or "10 per 2 seconds"',
        )
    unit = found["unit"].lower()
    seconds = _UNITS.get(unit, _UNITS.get(unit.removesuffix("s")))
    if seconds is None:
        known = "millisecond (ms), second (s), minute (m), hour (h), day (d)"
        near = _nearest(unit, _UNITS)
        raise PolicyError("rate", f"{found['unit']!r} is no unit of time{near}; one of {known}")
    per = float(found["count"] or 1) * seconds
    return float(found["limit"]), per, float(found["burst"]) if found["burst"] else None


def bounds(
    algorithm: str, limit: float, per: float, burst: float | None
) -> tuple[float, float, float]:
    """Check limit, per and burst against the algorithm, and fill in the burst.

    Returns:
        `limit`, `per` and `burst` as floats.

    Raises:
        PolicyError: A value is out of bounds.
    """
    limit, per = positive("limit", limit), positive("per", per)
    if not 0.0 < limit / per < math.inf:
        raise PolicyError("limit", f"{limit:.15g} per {per:.15g} seconds is not a usable rate")
    if algorithm in WINDOWS:
        if limit != int(limit):
            raise PolicyError(
                "limit",
                f"must be whole for {algorithm}, not {limit:.15g}; "
                "use a longer per or token-bucket",
            )
        if burst is not None and burst != limit:
            raise PolicyError("burst", f"{algorithm} has none (its limit is its burst): leave out")
        return limit, per, limit
    if burst is None:
        # Less than one could never be spent: "0.5/second" means one every two seconds.
        return limit, per, max(limit, 1.0)
    burst = positive("burst", burst)
    if burst < 1.0:
        raise PolicyError(
            "burst", f"must be at least 1 (the cost of one request), not {burst:.15g}"
        )
    return limit, per, burst


def charged_by(charge: str) -> tuple[frozenset[str], frozenset[int]]:
    """Read `Rate.charge` as outcome labels and HTTP statuses; both empty for "arrival".

    Raises:
        PolicyError: A word is neither; path "charge".
    """
    _text("charge", charge)
    if charge == "arrival":
        return frozenset(), frozenset()
    outcomes: set[str] = set()
    statuses: set[int] = set()
    for word in charge.replace(",", " ").lower().split():
        if word in _LABELS:
            outcomes.add(word)
        elif _STATUS.fullmatch(word):
            first = int(word[0]) * 100
            statuses.update(range(first, first + 100) if word.endswith("xx") else (int(word),))
        else:
            raise PolicyError(
                "charge",
                f'{word!r} is neither "arrival", an outcome ({", ".join(_LABELS)}) nor an HTTP '
                f"status such as 401 or 4xx{_nearest(word, ('arrival', *_LABELS))}",
            )
    if not outcomes and not statuses:
        raise PolicyError("charge", f"{charge!r} names nothing that charges")
    return frozenset(outcomes), frozenset(statuses)


def positive(path: str, value: float) -> float:
    """`value` as a float if it is a positive, finite number; else PolicyError."""
    if type(value) is not float and type(value) is not int:
        raise PolicyError(path, f"must be a number, not {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0.0 < number < math.inf:
        raise PolicyError(path, f"must be positive and finite, not {shown(value)}")
    return number


def whole(path: str, value: int, *, least: int) -> int:
    """`value` if it is an int of at least `least`; else PolicyError."""
    if type(value) is not int or value < least:
        raise PolicyError(path, f"must be a whole number of at least {least}, not {shown(value)}")
    return value


def one_of(path: str, value: str, known: tuple[str, ...]) -> str:
    """`value` if it is known; else PolicyError, with the nearest name."""
    if value not in known:
        problem = f"{shown(value)} is unknown{_nearest(value, known)}; one of {', '.join(known)}"
        raise PolicyError(path, problem)
    return value


def _text(path: str, value: str) -> None:
    if type(value) is not str or not value.strip():
        raise PolicyError(path, f"must be text and not empty, not {shown(value)}")


def _texts(path: str, values: Sequence[str]) -> None:
    if isinstance(values, str) or not isinstance(values, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]  # from users
        raise PolicyError(path, f"must be a list of texts, not {shown(values)}")
    for value in values:
        if type(value) is not str:
            raise PolicyError(path, f"must hold texts, not {shown(value)}")


def _nearest(value: object, known: tuple[str, ...] | dict[str, float]) -> str:
    found = get_close_matches(value.lower(), known, n=1) if isinstance(value, str) else None
    return f", did you mean {found[0]!r}?" if found else ""
