"""What does the controller ask of a store that several processes share?

A store answers for the rates marked as shared. The controller knows only what is written here;
which store it is, and how it is reached, an integration knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, Final, Literal, Protocol

import msgspec

from loadgate.checks import one_of
from loadgate.decisions import Outcome, Quota, Refuse
from loadgate.errors import PolicyError, UsageError
from loadgate.limits.settings import real, shown
from loadgate.rates.group import Client, RateStats
from loadgate.rates.spec import Rate
from loadgate.telemetry import HistogramSnapshot

OnFailure = Literal["emergency", "open", "closed"]
ON_FAILURE: Final = ("emergency", "open", "closed")

StoreMode = Literal["strict", "local"]
_MODES: Final = ("strict", "local")

# Seconds a decision may take. Ten times a round trip in a data centre, and an eighth of what a
# person notices; a busy event loop alone is late by a few milliseconds.
_BUDGET: Final = 0.01

# Shorter ones could be guessed, and with them the clients behind hashed keys.
_LEAST_SECRET: Final = 16

# Every key begins with it.
_LONGEST_PREFIX: Final = 100

# Cost units; more is no bound.
_MOST_OVERDRAFT: Final = 1e9

# Which integration speaks to which URL.
_REDIS: Final = "loadgate.integrations.redis:RedisStore"
_OPENERS: Final[dict[str, str]] = dict.fromkeys(
    ("redis", "rediss", "valkey", "valkeys", "unix"), _REDIS
)


class Store(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where shared rates keep their state, and what happens when it is away.

    Attributes:
        url: `redis://host:6379/0`, `rediss://user:password@host`, `redis+cluster://a:7000,b:7000`,
            `redis+sentinel://a:26379/service`, `unix:///run/redis.sock`; or `env:NAME` to read it
            from the environment, where passwords belong.
        secret: What all processes of the deployment share and nobody else knows, at least 16
            characters; keys leave the process only hashed with it. Or `env:NAME`.
        mode: "strict" asks the store for each request; "local" decides in memory against shares
            leased from it.
        on_failure: What happens while the store does not answer: "emergency" (each process
            grants its part of the rate), "open" (everybody passes) or "closed" (503).
            "emergency" when left out; rates that are charged by outcome guard something, so
            with them it must be written down.
        overrides: Other choices for single rates, by their names.
        budget: Seconds a decision may take, 0.001 to 1.
        share: The part of each rate that one process grants in an emergency, above 0 and at most
            1; None divides by the processes that were there last.
        overdraft: Local mode: cost units that each process may admit of each key beyond what it
            has leased. The store's own bound grows by this much for each process, and no more.
        lease: Local mode: seconds after which an unused share returns, 0.2 to 60.
        prefix: What all keys in the store begin with.

    Raises:
        PolicyError: A value is wrong.
    """

    url: str
    secret: str
    mode: StoreMode = "strict"
    on_failure: OnFailure | None = None
    overrides: Mapping[str, OnFailure] = {}
    budget: float = _BUDGET
    share: float | None = None
    overdraft: float = 0.0
    lease: float = 1.0
    prefix: str = "loadgate"

    def __post_init__(self) -> None:
        # Whoever writes Python may give anything; a file has been checked for types.
        _text("url", self.url)
        if not self.url:
            raise PolicyError("url", "is empty; write redis://host:6379")
        _text("secret", self.secret)
        if not self.secret.startswith("env:"):
            _long_enough(self.secret)
        one_of("mode", self.mode, _MODES)
        if self.on_failure is not None:
            one_of("on_failure", self.on_failure, ON_FAILURE)
        if not isinstance(self.overrides, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # from users
            raise PolicyError("overrides", f"{shown(self.overrides)} does not map rates to choices")
        for name, choice in self.overrides.items():
            if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # from users
                raise PolicyError(f"overrides[{shown(name)}]", "is not the name of a rate")
            one_of(f"overrides.{name}", choice, ON_FAILURE)
        real("budget", self.budget, 0.001, 1.0)
        real("lease", self.lease, 0.2, 60.0)
        if self.share is not None and not real("share", self.share, 0.0, 1.0):
            raise PolicyError("share", "must be above 0; nobody would be let through in an outage")
        real("overdraft", self.overdraft, 0.0, _MOST_OVERDRAFT)
        _text("prefix", self.prefix)
        plain = self.prefix.isascii() and self.prefix.isprintable()
        if (
            not 0 < len(self.prefix) <= _LONGEST_PREFIX
            or not plain
            or set(self.prefix) & set("{} ")
        ):
            raise PolicyError(
                "prefix",
                f"must be 1 to {_LONGEST_PREFIX} plain ASCII characters without braces and spaces, "
                f"not {shown(self.prefix)}",
            )

    def check(self, rates: Sequence[Rate]) -> None:
        """Refuse what does not fit the rates of the policy.

        Raises:
            PolicyError: A rate that guards something does not say what happens without the store,
                or an override names none.
        """
        names = {rate.name for rate in rates if rate.shared}
        for name in self.overrides:
            if name not in names:
                raise PolicyError(f"overrides.{name}", "is the name of no shared rate")
        for rate in rates:
            silent = self.on_failure is None and rate.name not in self.overrides
            if rate.shared and rate.on_outcome and silent:
                raise PolicyError(
                    "on_failure",
                    f"must be chosen, because {rate.name!r} is charged by outcome and so guards "
                    f"something: {', '.join(ON_FAILURE)}",
                )

    def failure(self, name: str) -> OnFailure:
        """What happens to the rate `name` while the store is away."""
        return self.overrides.get(name) or self.on_failure or "emergency"

    def __repr__(self) -> str:
        """Without what is secret."""
        return f"Store(url={self._shown!r}, mode={self.mode!r}, on_failure={self.on_failure!r})"

    @property
    def _shown(self) -> str:
        scheme, colon, _ = self.url.partition(":")
        known = colon and scheme.partition("+")[0] in {*_OPENERS, "env"}
        return f"{scheme}:…" if known else "…"  # it may be a password in the wrong place

    def __rich_repr__(self) -> Any:
        yield "url", self._shown
        yield "mode", self.mode
        yield "on_failure", self.on_failure


def _text(path: str, value: object) -> None:
    if not isinstance(value, str):
        # Not shown: it may be a secret in the wrong place.
        raise PolicyError(path, f"must be text, not {type(value).__name__}")


def _long_enough(secret: str) -> None:
    if len(secret) < _LEAST_SECRET:
        raise PolicyError(
            "secret",
            f"must have at least {_LEAST_SECRET} characters; make one with "
            "python -c 'import secrets; print(secrets.token_urlsafe())'",
        )


class Charge(msgspec.Struct, frozen=True, gc=False):
    """What shared rates answered to a request that may go on, and the receipt for it.

    Attributes:
        quotas: One for each shared rate that applied, in the order of the rates.
        source: Who decided: `store`, `lease`, `emergency`, `open`.
        receipt: What the store needs to give it back.
    """

    quotas: tuple[Quota, ...]
    source: str
    receipt: Any


class StoreStats(msgspec.Struct, frozen=True):
    """How a shared store fares.

    Attributes:
        state: `closed` (working), `half-open` (back, being probed) or `open` (away).
        connected: Whether a connection stands.
        decisions: By who decided: `store`, `cache` (refused before, and still), `lease`,
            `emergency`, `open`, `closed`, `none` (no shared rate applied).
        troubles: Questions without an answer, by why: `timeout`, `lost`, `failed`, `stale`,
            `moving` (to another node of a cluster), `open`, `saturated`, `closed`, `wrong_type`.
        incidents: How often the store went away.
        away: Seconds it was away, until now.
        oldest: Age of the oldest call without an answer, seconds.
        waiting: Requests that wait for the store now.
        calls: Calls made.
        asked: Questions in them.
        stale: Questions the store saw too late, so that it did nothing.
        late: Answers that nobody waited for any more.
        stalls: Times when our event loop was late and the store was not blamed.
        connections: Connections made.
        given_back: Charges returned because the request was turned away.
        forgotten: Charges that should have been returned and could not be.
        nodes: Processes that use the store, as far as known.
        wait: Seconds that requests waited for the store.
        rates: What each shared rate has done.
    """

    state: str
    connected: bool
    decisions: dict[str, int]
    troubles: dict[str, int]
    incidents: int
    away: float
    oldest: float
    waiting: int
    calls: int
    asked: int
    stale: int
    late: int
    stalls: int
    connections: int
    given_back: int
    forgotten: int
    nodes: int
    wait: HistogramSnapshot
    rates: dict[str, RateStats]


class Pending(Protocol):
    """A question that is under way to the store."""


class SharedRates(Protocol):
    """The shared rates of one controller. It lives in one event loop."""

    def ask(self, client: Client, cost: float, now: float) -> Charge | Refuse | Pending:
        """Charge all shared rates that apply, or none.

        Returns:
            The decision if it can be had at once; else the question, which `answer` must be
            awaited for (or `abandon` called).

        Raises:
            TypeError: The client has the wrong type.
            ValueError: The cost means nothing.
        """
        ...

    async def answer(self, pending: Any) -> Charge | Refuse:
        """The decision that `ask` could not give at once, within the budget whatever happens."""
        ...

    @property
    def immediate(self) -> bool:
        """Whether `hurry` decides as exactly as `answer`: no rate has to be asked about."""
        ...

    def hurry(self, pending: Any) -> Charge | Refuse:
        """The decision that `ask` could not give at once, for a request that cannot wait.

        What this process has leased decides, and the overdraft. If that is not enough the request
        is refused, and may come again once the store has answered.
        """
        ...

    def abandon(self, pending: Any) -> None:
        """Nobody waits for the answer any more; what it charges is given back."""
        ...

    def refund(self, charge: Charge) -> None:
        """Give back in the background: the request was turned away."""
        ...

    def settle(self, charge: Charge, outcome: Outcome, status: int | None) -> None:
        """The request has ended: charge the rates that wait for its outcome, in the background."""
        ...

    def follow(self, policy: Any, now: float) -> None:
        """Go on under the rates of another policy.

        Raises:
            PolicyError: The store itself is another; that needs a restart.
        """
        ...

    async def open(self) -> None:
        """Connect now rather than with the first request.

        Raises:
            PolicyError: The store can be reached but cannot be used as it is set up.
        """
        ...

    async def close(self) -> None:
        """Let go of the store."""
        ...

    def stats(self) -> StoreStats:
        """How the store fares."""
        ...


def connect(
    policy: Any,
    *,
    clock: Callable[[], float],
    draw: Callable[[], float],
    name: str,
) -> SharedRates | None:
    """The shared rates of `policy`, None if it has none.

    Raises:
        PolicyError: The store's settings are wrong.
        UsageError: What speaks to such a store is not installed.
    """
    store: Store | None = policy.store
    if store is None or not any(rate.shared and rate.mode != "off" for rate in policy.rates):
        return None
    scheme = resolve(store.url, "store.url").partition(":")[0].lower()
    try:
        opener = resolve_name(_OPENERS[scheme.partition("+")[0]])
    except KeyError:
        known = ", ".join(_OPENERS)
        problem = f"begins with no known scheme; write {known}, as in redis://host:6379"
        raise PolicyError("store.url", problem) from None
    except ImportError as error:
        raise UsageError(f"shared rates need an optional package: {error}") from error
    shared: SharedRates = opener(policy, clock=clock, draw=draw, name=name)
    return shared


def secret_of(store: Store) -> str:
    """The secret of `store`, wherever it stands.

    Raises:
        PolicyError: It is not there, or too short.
    """
    secret = resolve(store.secret, "secret")
    _long_enough(secret)
    return secret


def resolve(text: str, path: str) -> str:
    """`text`, or what the environment variable NAME holds if it is `env:NAME`.

    Raises:
        PolicyError: There is no such variable.
    """
    if not text.startswith("env:"):
        return text
    import os

    name = text.removeprefix("env:")
    value = os.environ.get(name)
    if not value:
        raise PolicyError(path, f"says {text!r}, but the environment has no {name}")
    return value
