"""What does HTTP say about a refusal? Status, headers and problem document, as pure functions.

429 says "you ask for more than your share", 503 "the service is full". Sources: RFC 9110 (503,
Retry-After), RFC 6585 (429), RFC 9457 (problem details), RFC 9651 (structured fields) and
draft-ietf-httpapi-ratelimit-headers-11 (RateLimit fields and problem types).

What stays out: the limit, the depth of the queue, the client's key. They tell an attacker how
close he is; the operator finds them in the log and in the metrics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from email.utils import formatdate
from functools import lru_cache
from typing import Final, Literal

import msgspec

from loadgate.decisions import Quota, Reason, Refuse
from loadgate.rates.spec import Rate

Header = tuple[bytes, bytes]

PROBLEM_JSON: Final = b"application/problem+json"
_QUOTA_EXCEEDED: Final = "https://iana.org/assignments/http-problem-types#quota-exceeded"
_REDUCED_CAPACITY: Final = (
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
)

# The bucket is exact to the last bit of a double, a network is not: a client that returns a
# microsecond early is never seen. Without the slack 60.000000001 would be told as 61.
_SLACK: Final = 1e-6

# A document of 300 bytes fits into one packet with its headers; names longer than this are cut.
_MAX_NAME_CHARS: Final = 64

# What depends on the policy alone is made once: reasons times rates. More only appear where
# policies change all the time.
_MAX_CACHED: Final = 1024

# RFC 9651: an sf-integer has at most 15 digits.
_MAX_INTEGER: Final = 999_999_999_999_999


class Answer(msgspec.Struct, frozen=True):
    """A whole HTTP response.

    Attributes:
        status: The status code.
        headers: Lower-case names; with content-length.
        body: The document.
    """

    status: int
    headers: tuple[Header, ...]
    body: bytes


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """How refusals are told to clients.

    Attributes:
        rate_status: Status of a refusal that is the client's doing.
        overload_status: Status of a refusal because the service is full. 429 here keeps load
            balancers from ejecting the instance (they count 5xx as failures of the backend).
        retry_after: ``seconds`` or ``date``. A date depends on the client's clock; only for
            clients that demand it.
        max_retry_after: Longest Retry-After of an overload in whole seconds. Rates tell the
            exact time, however long.
        ratelimit: Send `RateLimit` and `RateLimit-Policy` with a 429.
        x_ratelimit: Send `X-RateLimit-Limit`, `-Remaining` and `-Reset` with a 429; the reset in
            ``delta`` seconds or as ``epoch`` seconds (GitHub's way).
        on_admitted: Send the same fields with the answers of admitted requests.
        headers: Further fields of each refusal, for example
            ``[(b"access-control-allow-origin", b"*")]``, as the layer stands outside of the
            application's CORS middleware.
        render: Replaces the answer (HTML for browsers, gRPC); gets the refusal and the answer.
    """

    rate_status: int = 429
    overload_status: int = 503
    retry_after: Literal["seconds", "date"] = "seconds"
    max_retry_after: int = 30
    ratelimit: bool = True
    x_ratelimit: Literal["off", "delta", "epoch"] = "off"
    on_admitted: bool = False
    headers: Sequence[Header] = ()
    render: Callable[[Refuse, Answer], Answer] | None = None

    def __post_init__(self) -> None:
        for name in ("rate_status", "overload_status"):
            status = getattr(self, name)
            if not 400 <= status <= 599:
                raise ValueError(f"{name}: {status} is not in 400..599")
        if self.retry_after not in ("seconds", "date"):
            raise ValueError(f"retry_after: {self.retry_after!r} is neither 'seconds' nor 'date'")
        if self.max_retry_after < 1:
            raise ValueError(f"max_retry_after: {self.max_retry_after} is below 1")
        if self.x_ratelimit not in ("off", "delta", "epoch"):
            raise ValueError(
                f"x_ratelimit: {self.x_ratelimit!r} is none of 'off', 'delta', 'epoch'"
            )


class Pressure:
    """How many requests are refused for each one that is served, over the last seconds.

    Grows as long as an overload lasts: each window of one second counts half of what is known.
    """

    __slots__ = ("_admitted", "_opened", "_refused", "ratio")

    def __init__(self) -> None:
        self.ratio = 0.0
        self._opened = -math.inf
        self._admitted = 0
        self._refused = 0

    def refused(self, now: float, admitted: Callable[[], int]) -> float:
        """Count one refusal and return the ratio.

        Args:
            now: Monotonic seconds.
            admitted: Requests admitted so far; asked once a second at most.
        """
        self._refused += 1
        elapsed = now - self._opened
        if elapsed >= 1.0:
            total = admitted()
            # Windows without a refusal were not seen here; each of them halves as well.
            self.ratio *= 0.5 ** min(elapsed, 64.0)
            if elapsed < 2.0:
                self.ratio += 0.5 * self._refused / max(total - self._admitted, 1)
            self._opened, self._admitted, self._refused = now, total, 0
        return self.ratio


def whole_seconds(seconds: float) -> int | None:
    """Round up to whole seconds, at least 1; None for never."""
    if seconds == math.inf:
        return None
    return min(max(1, math.ceil(seconds - _SLACK)), _MAX_INTEGER)


def spread_seconds(estimate: float, pressure: float, draw: float, most: int) -> int:
    """Choose the Retry-After of an overload.

    A constant would bring everyone back at the same moment, so the value is drawn from
    [estimate, estimate + spread]. The spread is the estimate times the refusals per served
    request: what returns in that time is then about what can be served.

    Args:
        estimate: Seconds until the queue has drained.
        pressure: Requests refused for each one served.
        draw: A number in [0, 1).
        most: Longest answer in whole seconds; half of it is kept for the spread.
    """
    base = min(whole_seconds(estimate) or 1, max(1, most // 2))
    spread = min(max(1, math.ceil(base * min(pressure, 1e6))), most - base)
    return base + int(draw * (spread + 1))


def http_date(epoch: float) -> bytes:
    """Format seconds since 1970 as an HTTP-date (RFC 9110, 5.6.7), rounded up."""
    return formatdate(math.ceil(epoch), usegmt=True).encode("ascii")


def refusal_answer(
    refusal: Refuse,
    contract: Contract,
    *,
    pressure: float,
    draw: float,
    epoch: float,
    rate: Rate | None = None,
) -> Answer:
    """Say a refusal in HTTP.

    Args:
        refusal: The decision.
        contract: How to say it.
        pressure: Requests refused for each one served (503 only).
        draw: A number in [0, 1) (503 only).
        epoch: Seconds since 1970, for dates.
        rate: The rate that refused, for `RateLimit-Policy`.
    """
    is_rate = refusal.reason is Reason.RATE
    if is_rate:
        status = contract.rate_status
        wait = whole_seconds(refusal.retry_after)
    else:
        status = contract.overload_status
        wait = spread_seconds(refusal.retry_after, pressure, draw, contract.max_retry_after)
    body = problem(refusal.reason, status, refusal.subject if is_rate else "", wait is None)
    headers: list[Header] = [
        (b"content-type", PROBLEM_JSON),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
    ]
    if wait is not None:
        told = http_date(epoch + wait) if contract.retry_after == "date" else b"%d" % wait
        headers.append((b"retry-after", told))
    if is_rate and refusal.quota is not None:
        headers += quota_headers([(rate, refusal.quota)], contract, epoch=epoch, refused_for=wait)
    headers += contract.headers
    answer = Answer(status, tuple(headers), body)
    return answer if contract.render is None else contract.render(refusal, answer)


_bodies: Final[dict[tuple[Reason, int, str, bool], bytes]] = {}


def problem(reason: Reason, status: int, subject: str = "", never: bool = False) -> bytes:
    """Return the problem document (RFC 9457), at most about 300 bytes, serialised once.

    Args:
        reason: Why.
        status: The HTTP status.
        subject: The name of the rate that refused, empty otherwise.
        never: No request like this one can ever pass (its cost is above the burst).
    """
    key = (reason, status, subject, never)
    body = _bodies.get(key)
    if body is None:
        fields: dict[str, object]
        if reason is Reason.RATE:
            fields = {"type": _QUOTA_EXCEEDED, "title": "Too many requests from this client"}
        else:
            fields = {"type": _REDUCED_CAPACITY, "title": "The service is busy"}
        if never:
            fields["detail"] = "This request costs more than can be had at once."
        fields |= {"status": status, "reason": reason.value}
        if subject:
            fields["violated-policies"] = [subject[:_MAX_NAME_CHARS]]
        body = msgspec.json.encode(fields)
        if len(_bodies) >= _MAX_CACHED:
            _bodies.clear()
        _bodies[key] = body
    return body


def quota_headers(
    pairs: Sequence[tuple[Rate | None, Quota]] | Sequence[tuple[Rate, Quota]],
    contract: Contract,
    *,
    epoch: float,
    refused_for: int | None = None,
) -> list[Header]:
    """Return the RateLimit fields for what some rates answered.

    Args:
        pairs: Settings (None if unknown) and answer of each rate.
        contract: Which fields are wanted.
        epoch: Seconds since 1970.
        refused_for: Seconds until a refused client may return; else the time until the quota is
            whole again is told.
    """
    if not pairs:
        return []
    headers: list[Header] = []
    if contract.ratelimit:
        policies = [policy_item(rate) for rate, _ in pairs if rate is not None]
        if policies:
            headers.append((b"ratelimit-policy", b", ".join(policies)))
        items = [limit_item(quota, refused_for) for _, quota in pairs]
        headers.append((b"ratelimit", b", ".join(items)))
    if contract.x_ratelimit != "off":
        # These fields have room for one rate: the one that is closest to its end.
        _, quota = min(pairs, key=lambda pair: pair[1].remaining / max(pair[1].limit, 1e-9))
        seconds = _seconds(quota, refused_for)
        reset = math.ceil(epoch + seconds) if contract.x_ratelimit == "epoch" else seconds
        headers += [
            (b"x-ratelimit-limit", b"%d" % _whole(quota.limit)),
            (b"x-ratelimit-remaining", b"%d" % _whole(quota.remaining)),
            (b"x-ratelimit-reset", b"%d" % reset),
        ]
    return headers


def policy_item(rate: Rate) -> bytes:
    """One member of `RateLimit-Policy`: ``"name";q=200;w=2``.

    The quota is the burst and the window the time in which a bucket refills, so that ``r`` never
    exceeds ``q``, and a client that spreads q over w is never refused. Both are whole numbers;
    where rounding is needed it promises less than there is.
    """
    return _policy_item(rate.name, rate.limit, rate.per, rate.burst)


@lru_cache(_MAX_CACHED)
def _policy_item(name: str, limit: float, per: float, burst: float) -> bytes:
    window = burst / limit * per
    return b"%b;q=%d;w=%d" % (sf_string(name), _whole(burst), whole_seconds(window) or 1)


def limit_item(quota: Quota, refused_for: int | None = None) -> bytes:
    """One member of `RateLimit`: ``"name";r=0;t=12``, what is left and for how long."""
    seconds = _seconds(quota, refused_for)
    return b"%b;r=%d;t=%d" % (sf_string(quota.rate), _whole(quota.remaining), seconds)


@lru_cache(_MAX_CACHED)
def sf_string(text: str) -> bytes:
    """Serialise a structured-field String (RFC 9651, 4.1.6).

    Strings are printable ASCII; anything else is percent-encoded, so that two names stay two.
    """
    out = bytearray(b'"')
    for char in text[:_MAX_NAME_CHARS].encode("utf-8", "replace"):
        if char in b'"\\':
            out += b"\\"
            out.append(char)
        elif 0x20 <= char < 0x7F:
            out.append(char)
        else:
            out += b"%%%02X" % char
    return bytes(out + b'"')


def _seconds(quota: Quota, refused_for: int | None) -> int:
    if refused_for is not None:
        return refused_for
    if quota.reset_after <= 0.0:
        return 0
    return whole_seconds(quota.reset_after) or _MAX_INTEGER


def _whole(units: float) -> int:
    return min(max(0, math.floor(units + 1e-9)), _MAX_INTEGER) if units < math.inf else _MAX_INTEGER
