"""How does an httpx client keep the contract? It waits as told, gives up in time, and holds back.

    client = httpx.AsyncClient(transport=PoliteTransport())

Whatever may forbid a retry is decided before the answer at hand is thrown away, so the caller
always gets the last real answer rather than an error of ours.
"""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from types import TracebackType

import anyio

from loadgate.errors import PolicyError
from loadgate.integrations.extras import missing
from loadgate.integrations.retry import RetryBudget, Throttle, full_jitter, retry_after

try:
    import httpx
except ModuleNotFoundError as error:
    raise missing(__name__, error) from None

# RFC 9110, section 9.2.2: repeating these has the effect of sending them once.
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
# The two statuses with which loadgate refuses; the work behind them was not begun.
REFUSALS = frozenset({429, 503})
# An answer that is thrown away is read to its end first when it is this small (a refusal of ours
# has 300 bytes): a kept connection costs the server about half of a new one.
_DRAIN_MAX_BYTES = 64 * 1024
# Origins remembered at once; the one unused for longest is forgotten. A client that talks to
# more than this many hosts crawls, and gets little from what it learned about one of them.
_ORIGINS_MAX = 1024


class Throttled(httpx.TransportError):
    """The request was not sent: the server refuses so much that it would only add to the load.

    Attributes:
        probability: The share of requests that were being held back, in (0, 1).
    """

    def __init__(self, request: httpx.Request, probability: float) -> None:
        super().__init__(
            f"not sent to {_origin_name(request.url)}: it refused most of the last requests, "
            f"so {probability:.0%} of them are held back",
            request=request,
        )
        self.probability = probability


class DeadlineExceeded(httpx.TimeoutException):
    """All attempts together took longer than the deadline."""


class _Origin:
    """What one client knows about one server."""

    __slots__ = ("budget", "throttle")

    def __init__(self, budget: RetryBudget, throttle: Throttle | None) -> None:
        self.budget = budget
        self.throttle = throttle


class PoliteTransport(httpx.AsyncBaseTransport):
    """A transport that retries what may be repeated, when it may be, and no more than helps.

    A 429 or 503 (`statuses`) and a transport error lead to another attempt, unless

    * `attempts` are used up, or the wait would end after `deadline`;
    * the request is not safe to repeat: the method is not in `methods`, and the caller did not
      say otherwise with ``extensions={"loadgate.retry": True}`` or an ``Idempotency-Key``. A
      connection that was never made is an exception: nothing was sent, so any method may
      be repeated. ``extensions={"loadgate.retry": False}`` forbids it in every case;
    * its body is a stream, which may not exist a second time (``content=bytes``, ``json=`` and
      ``data=`` are not streams);
    * the retry budget of this origin is empty, or its throttle holds the retry back.

    The wait is what ``Retry-After`` says plus the jittered backoff, or the backoff alone: those
    who were all told the same second do not return in the same instant.

    Args:
        transport: What really sends; a new `httpx.AsyncHTTPTransport` by default.
        attempts: The most times one request is sent (default 3, Google's SRE book; 1 never
            retries).
        deadline: Seconds for all attempts and waits together, until the head of the answer is
            there (default 30.0; None waits for ever). A request overrides it with
            ``extensions={"loadgate.deadline": 2.0}``.
        base: The ceiling of the first backoff in seconds (default 0.1, about one round trip
            and one queue of a loadgate server). Doubles with each retry.
        cap: The ceiling of every backoff in seconds (default 10.0). Does not shorten a
            ``Retry-After``.
        methods: The methods that are safe to repeat; the idempotent ones by default.
        statuses: The answers that mean "not now"; 429 and 503 by default.
        budget: Makes the retry budget of each origin.
        throttle: Makes the throttle of each origin; None holds nothing back.
        clock: Monotonic seconds.
        wall: Seconds since the epoch, to read a ``Retry-After`` date without a ``Date``.
        draw: A number in [0, 1) for each jitter and each decision of the throttle.
        sleep: Waits for that many seconds.

    Raises:
        PolicyError: For a number outside its bounds.

    Attributes:
        sent: Requests handed to `transport`, retries included.
        retried: Retries among them.
        throttled: Requests and retries that were held back.
    """

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        attempts: int = 3,
        deadline: float | None = 30.0,
        base: float = 0.1,
        cap: float = 10.0,
        methods: Collection[str] = IDEMPOTENT,
        statuses: Collection[int] = REFUSALS,
        budget: Callable[[], RetryBudget] = RetryBudget,
        throttle: Callable[[], Throttle] | None = Throttle,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        draw: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        if attempts < 1:
            raise PolicyError("attempts", f"{attempts!r} must be at least 1")
        if not 0.0 <= base < float("inf"):
            raise PolicyError("base", f"{base!r} must be finite and at least 0")
        if not base <= cap < float("inf"):
            raise PolicyError("cap", f"{cap!r} must be finite and at least base ({base!r})")
        self._transport = transport if transport is not None else httpx.AsyncHTTPTransport()
        self._attempts = attempts
        self._deadline = _deadline(deadline)
        self._base = base
        self._cap = cap
        self._methods = frozenset(method.upper() for method in methods)
        self._statuses = frozenset(statuses)
        self._make_budget = budget
        self._make_throttle = throttle
        self._clock = clock
        self._wall = wall
        self._draw = draw
        self._sleep = sleep
        self._origins: OrderedDict[tuple[str, str, int | None], _Origin] = OrderedDict()
        self.sent = 0
        self.retried = 0
        self.throttled = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send `request`, again if need be.

        Raises:
            Throttled: It was not sent at all.
            DeadlineExceeded: The deadline passed while an attempt was under way.
            httpx.TransportError: The last attempt failed so.
        """
        origin = self._origin(request.url)
        now = self._clock()
        until = now + _deadline(request.extensions.get("loadgate.deadline", self._deadline))
        throttle = origin.throttle
        if throttle is not None and not throttle.admits(now, self._draw()):
            self.throttled += 1
            raise Throttled(request, throttle.probability(now))
        attempt = 1
        while True:
            response: httpx.Response | None = None
            failure: httpx.TransportError | None = None
            with anyio.move_on_after(until - self._clock()) as scope:
                self.sent += 1
                try:
                    response = await self._transport.handle_async_request(request)
                except httpx.TransportError as error:
                    failure = error
            if scope.cancelled_caught:
                raise DeadlineExceeded(
                    f"{_origin_name(request.url)} did not answer attempt {attempt} in time",
                    request=request,
                )
            pause = self._pause(origin, request, response, failure, attempt, until)
            if pause is None:
                if failure is not None:
                    raise failure
                assert response is not None
                return response
            if response is not None:
                with anyio.move_on_after(until - self._clock()):
                    await _discard(response)
            self.retried += 1
            attempt += 1
            await self._sleep(pause)

    def _pause(
        self,
        origin: _Origin,
        request: httpx.Request,
        response: httpx.Response | None,
        failure: httpx.TransportError | None,
        attempt: int,
        until: float,
    ) -> float | None:
        """Seconds to wait before another attempt, or None: what we have is the answer."""
        now = self._clock()
        throttle = origin.throttle
        if response is not None and response.status_code not in self._statuses:
            if throttle is not None:
                throttle.on_accept(now)
            if response.status_code < 500:
                origin.budget.on_success()
            return None
        if attempt >= self._attempts or not self._may_repeat(request, failure):
            return None
        pause = full_jitter(attempt - 1, base=self._base, cap=self._cap, draw=self._draw())
        if response is not None:
            headers = response.headers
            told = retry_after(headers.get_list("retry-after"), headers.get("date"), self._wall())
            pause += told or 0.0
        if now + pause >= until or not origin.budget.affords_one:
            return None
        if throttle is not None and not throttle.admits(now, self._draw()):
            self.throttled += 1
            return None
        origin.budget.withdraw()
        return pause

    def _may_repeat(self, request: httpx.Request, failure: httpx.TransportError | None) -> bool:
        if not isinstance(request.stream, httpx.ByteStream):
            return False
        if isinstance(failure, httpx.PoolTimeout | httpx.UnsupportedProtocol):
            return (
                False  # our own pool is full, or our own URL is wrong: asking again changes nothing
            )
        told: object = request.extensions.get("loadgate.retry")
        if told is not None:
            return bool(told)
        return (
            request.method.upper() in self._methods
            or "idempotency-key" in request.headers
            or isinstance(failure, httpx.ConnectError | httpx.ConnectTimeout)
        )

    def _origin(self, url: httpx.URL) -> _Origin:
        name = (url.scheme, url.host, url.port)
        origin = self._origins.get(name)
        if origin is None:
            make_throttle = self._make_throttle
            origin = _Origin(self._make_budget(), make_throttle() if make_throttle else None)
            self._origins[name] = origin
            if len(self._origins) > _ORIGINS_MAX:
                self._origins.popitem(last=False)
        else:
            self._origins.move_to_end(name)
        return origin

    async def __aenter__(self) -> PoliteTransport:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._transport.__aexit__(exc_type, exc_value, traceback)

    async def aclose(self) -> None:
        """Close the transport that sends."""
        await self._transport.aclose()


async def _discard(response: httpx.Response) -> None:
    try:
        if int(response.headers.get("content-length", _DRAIN_MAX_BYTES + 1)) <= _DRAIN_MAX_BYTES:
            await response.aread()
    except (httpx.TransportError, httpx.DecodingError, ValueError):
        pass  # nobody wants this body; a broken one only costs the connection
    finally:
        with anyio.CancelScope(shield=True):
            await response.aclose()


def _deadline(value: float | None) -> float:
    if value is None:
        return float("inf")
    if not value > 0.0:
        raise PolicyError("deadline", f"{value!r} must be above 0")
    return value


def _origin_name(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}"
