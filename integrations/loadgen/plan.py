"""What is sent, by whom, and when: the plan of a load run, as data.

A plan is complete before the first byte is sent. Nothing that the server does can change
when the next request leaves: that is what makes the load open (arrivals do not wait for
replies), and what makes the latencies honest.
"""

from __future__ import annotations

from typing import Final, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec

# The longest time a request may stay open. Without a bound a run could hang on a server
# that hangs, and a load generator must outlive what it measures.
LONGEST_TIMEOUT: Final = 300.0


class Phase(msgspec.Struct, frozen=True):
    """A named stretch of the run, the same for every class of clients.

    Attributes:
        name: How the results call it.
        duration: Seconds, above zero.
    """

    name: str
    duration: float


class ClientClass(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of client: what it asks for, how often, and how long it is willing to wait.

    Attributes:
        name: How the results call it.
        rates: Requests per second in each phase, in the order of `Plan.phases`: a number,
            or a pair `(from, to)` for a straight ramp. Missing phases are silent.
        arrivals: Seconds after the start, sorted; given, they replace `rates`.
        spacing: "poisson" draws independent arrivals, "even" spaces them regularly.
        method: HTTP method.
        path: Path and query.
        headers: Header lines sent with every request.
        body: Text of the request body; empty means none.
        chunked: Send the body chunked, instead of with a content-length.
        clients: How many clients the class consists of. Each request comes from one of them,
            drawn at random, and names it in `client_header`. 0 sends no such header.
        client_header: The header that carries the name of the client.
        client_name: How clients are named: `name` is the class, `index` counts from 0, `high` and
            `low` are its two bytes, so that `10.0.{high}.{low}` makes addresses.
        timeout: Patience in seconds, counted from the intended start; then the client
            closes its socket. Above zero, at most 300.
        connection: "keep" uses connections again and opens one more when all are busy;
            "new" opens one for each request.
    """

    name: str
    rates: tuple[float | tuple[float, float], ...] = ()
    arrivals: tuple[float, ...] | None = None
    spacing: Literal["poisson", "even"] = "poisson"
    method: str = "GET"
    path: str = "/"
    headers: tuple[tuple[str, str], ...] = ()
    body: str = ""
    chunked: bool = False
    clients: int = 0
    client_header: str = "x-client"
    client_name: str = "{name}-{index}"
    timeout: float = 1.0
    connection: Literal["keep", "new"] = "keep"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run.

    Attributes:
        url: `http://host:port`; the path comes from the classes.
        phases: The stretches of the run, in order.
        classes: The clients.
        slo: Seconds from the intended start within which a reply is good.
        seed: Every draw follows from it; equal seeds give equal schedules.
        progress: Seconds between progress reports, 0 for none.
        core: CPU to run on, None for any. Pinning the generator and the server apart
            keeps one from starving the other.

    Raises:
        ValueError: Something is out of range; the message names the field.
    """

    url: str
    phases: tuple[Phase, ...]
    classes: tuple[ClientClass, ...]
    slo: float = 1.0
    seed: int = 1
    progress: float = 0.0
    core: int | None = None

    def __post_init__(self) -> None:
        _check_url(self.url)
        if not self.phases:
            raise ValueError("phases: at least one is needed")
        if not self.classes:
            raise ValueError("classes: at least one is needed")
        for phase in self.phases:
            _demand(phase.duration > 0, f"phases[{phase.name}].duration", phase.duration, "> 0")
        _demand(self.slo > 0, "slo", self.slo, "> 0")
        _demand(self.progress >= 0, "progress", self.progress, ">= 0")
        names = [one.name for one in self.classes]
        if len(set(names)) < len(names):
            raise ValueError(f"classes: names must differ, not {names}")
        for one in self.classes:
            _check_class(one, len(self.phases), self.duration)

    @property
    def duration(self) -> float:
        """Seconds from the first possible request to the last."""
        return sum(phase.duration for phase in self.phases)

    def starts(self) -> list[float]:
        """When each phase begins, in seconds after the start."""
        starts: list[float] = []
        at = 0.0
        for phase in self.phases:
            starts.append(at)
            at += phase.duration
        return starts


def client_name(one: ClientClass, index: int) -> str:
    """What the client number `index` of a class calls itself."""
    high, low = divmod(index, 256)
    return one.client_name.format(name=one.name, index=index, high=high, low=low)


def _demand(holds: bool, field: str, value: object, bound: str) -> None:
    if not holds:
        raise ValueError(f"{field}: {value!r} must be {bound}")


def _check_url(url: str) -> SplitResult:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"url: {url!r} must be http://host:port (TLS is not spoken here)")
    _ = parts.port  # raises ValueError itself when it is no port
    return parts


def _check_class(one: ClientClass, phases: int, duration: float) -> None:
    field = f"classes[{one.name}]"
    _demand(
        0 < one.timeout <= LONGEST_TIMEOUT,
        f"{field}.timeout",
        one.timeout,
        f"above 0 and at most {LONGEST_TIMEOUT:g}",
    )
    _demand(one.clients >= 0, f"{field}.clients", one.clients, ">= 0")
    _demand(len(one.rates) <= phases, f"{field}.rates", one.rates, f"at most {phases} long")
    for rate in one.rates:
        ends = rate if isinstance(rate, tuple) else (rate,)
        fine = all(0 <= end < float("inf") for end in ends)
        _demand(fine, f"{field}.rates", rate, ">= 0 and finite")
    if one.arrivals:
        _demand(
            list(one.arrivals) == sorted(one.arrivals) and one.arrivals[0] >= 0,
            f"{field}.arrivals",
            "the list",
            "sorted and not negative",
        )
        _demand(
            one.arrivals[-1] <= duration,
            f"{field}.arrivals",
            one.arrivals[-1],
            f"within the {duration:g} s of the phases",
        )
    try:
        named = client_name(one, 0)
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"{field}.client_name: {one.client_name!r}: {error}") from None
    text = [one.method, one.path, one.client_header, named]
    text += [part for header in one.headers for part in header]
    if any(mark in part for part in text for mark in "\r\n"):
        raise ValueError(f"{field}: method, path and headers must not contain line breaks")
    if not one.path.startswith("/") or " " in one.path:
        raise ValueError(f"{field}.path: {one.path!r} must begin with / and hold no space")
