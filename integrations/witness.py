"""Who was refused lately, and why? What a metric cannot hold: examples, clients, trace ids.

A `Witness` stands where a `DecisionLog` stands (it is one):

    witness = Witness(explained=True)
    app = AdmissionMiddleware(app, controller, log=witness)
    REGISTRY.register(LoadgateCollector(controller, witness=witness))

Without the ASGI layer, `witness.watch(controller)` sees every refusal of `admit`, `try_admit` and
`guard`, and the slow ones among those who ended. Beside the layer `witness.watch_slow(controller)`
adds the latter.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from math import isfinite
from threading import Lock
from typing import Any, Final, NamedTuple

import msgspec

from loadgate.controller import AdmissionController
from loadgate.decisions import Reason, Refuse
from loadgate.explain import explain
from loadgate.integrations.decision_log import Client, DecisionLog
from loadgate.integrations.frequent import Frequent
from loadgate.integrations.identity import KeyHasher
from loadgate.permit import Permit

# Refusals kept of each reason: a flood of one must not push out the only example of another.
KEPT: Final = 3
# Every change of the list of those refused most is a new series in Prometheus. In so many seconds
# at most twice as many clients come onto the list as it has places: a list of 20 makes 5,760
# series a day at worst, and none while the same are refused.
SETTLE: Final = 600.0
# A newcomer must be refused so many times as often as the one whose place it takes.
AHEAD: Final = 2.0
# The longest list: beyond it Prometheus pays for what nobody reads.
MOST: Final = 20
# Hexadecimal digits of a client's hash: 2^48 values, no two of a few thousand clients collide.
DIGITS: Final = 12
# What is summed up as one, and what has no name.
OTHER: Final = "other"
ANONYMOUS: Final = "anonymous"


class Seen(NamedTuple):
    """One refusal as it happened."""

    at: float
    refusal: Refuse
    client: Client
    status: int
    trace_id: str


class Sighting(msgspec.Struct, frozen=True):
    """One refusal as it is shown; nothing in it says who the client is.

    Attributes:
        at: Seconds since the epoch.
        stage: Which stage refused.
        reason: Why.
        status: What the client saw.
        client: The keyed hash of its key or keys.
        observed: The number that was compared, None if it is infinite.
        bound: What it was compared with, likewise.
        retry_after: Seconds, None where no attempt can ever pass.
        explanation: For the operator, in words.
        trace_id: The trace it belongs to, empty without one.
        subject: What else was compared, such as the name of the rate.
    """

    at: float
    stage: str
    reason: str
    status: int
    client: str
    observed: float | None
    bound: float | None
    retry_after: float | None
    explanation: str
    trace_id: str
    subject: str = ""


class Example(NamedTuple):
    """A request that belongs to a number.

    Attributes:
        trace_id: The trace.
        value: What was counted: 1 for a refusal, seconds for a latency.
        at: Seconds since the epoch.
    """

    trace_id: str
    value: float
    at: float


class Witness(DecisionLog):
    """Remembers examples of refusals and who is refused most; logs like its parent.

    Args:
        logs: Whether it writes to the log at all.
        top: How many clients to export by name (a keyed hash), at most 20; 0 for none.
        slow: Seconds from which on a latency is an example.
        wall: Seconds since the epoch.
        hasher: Hashes client keys, see `DecisionLog`.
        **log: What `DecisionLog` takes.

    Raises:
        ValueError: `top` is out of bounds, or what `DecisionLog` raises.

    Attributes:
        refused_examples: The last refusal that belongs to a trace, by reason.
        slow_examples: The last slow request that belongs to a trace, by the decade of its
            latency.
    """

    def __init__(
        self,
        *,
        logs: bool = True,
        top: int = 0,
        slow: float = 1.0,
        wall: Callable[[], float] = time.time,
        hasher: KeyHasher | None = None,
        **log: Any,
    ) -> None:
        if not 0 <= top <= MOST:
            raise ValueError(f"top: {top!r} is not from 0 to {MOST}")
        self._hash = KeyHasher() if hasher is None else hasher
        super().__init__(hasher=self._hash, **log)
        self._logs = logs
        self._top = top
        self._slow = slow
        self._wall = wall
        self._last: dict[Reason, deque[Seen]] = {reason: deque(maxlen=KEPT) for reason in Reason}
        self._frequent = Frequent[str | bytes]()
        self._listed: set[str | bytes] = set()
        self._joined: deque[float] = deque()
        # Two who scrape at once, in threads of their own, must not both change the list.
        self._choosing = Lock()
        self.refused_examples: dict[Reason, Example] = {}
        self.slow_examples: dict[int, Example] = {}
        self._ends = _Ends(self)

    def refused(
        self,
        refusal: Refuse,
        client: Client,
        status: int,
        now: float,
        *,
        algorithm: str = "",
        store_time: float | None = None,
    ) -> None:
        """Remember a refusal, and write a line about it as `DecisionLog` does."""
        at = self._wall()
        trace_id = current_trace_id()
        reason = refusal.reason
        self._last[reason].append(Seen(at, refusal, client, status, trace_id))
        self._frequent.add(_one_key(client), now)
        if trace_id:
            self.refused_examples[reason] = Example(trace_id, 1.0, at)
        if self._logs:
            super().refused(
                refusal, client, status, now, algorithm=algorithm, store_time=store_time
            )

    def watch(self, controller: AdmissionController) -> None:
        """See whatever `controller` refuses and ends from now on, whoever asks it.

        It costs a refusal what writing it down costs, and an admitted request about 0.2 µs.
        """
        controller.observe(self)

    def watch_slow(self, controller: AdmissionController) -> None:
        """See the slow ones among those that `controller` ends, and none that it refuses.

        For use beside the layer, which tells of refusals what the controller does not know.
        """
        controller.observe(self._ends)

    def on_refused(self, permit: Permit, refusal: Refuse, now: float) -> None:
        """The controller refuses; it calls this."""
        status = 429 if refusal.reason is Reason.RATE else 503
        self.refused(refusal, permit.client, status, now)

    def on_ended(self, permit: Permit, now: float) -> None:
        """A request has ended; the controller calls this."""
        latency = (permit.answered_at or now) - permit.started
        if latency >= self._slow:
            self.answered(latency)

    def answered(self, latency: float) -> None:
        """Keep a slow request as an example, if it belongs to a trace.

        Args:
            latency: Seconds from its place to the first message of its answer.
        """
        if latency >= self._slow and (trace_id := current_trace_id()):
            decade = len(str(int(latency)))
            self.slow_examples[decade] = Example(trace_id, latency, self._wall())

    def sightings(self, most: int = 20) -> list[Sighting]:
        """The last refusals, the newest first, a few of each reason."""
        seen = sorted(
            (one for kept in self._last.values() for one in tuple(kept)),
            key=lambda one: one.at,
            reverse=True,
        )
        return [self._shown(one) for one in seen[:most]]

    def top_share(self, now: float) -> float:
        """The share of the refusals of the last 5 to 10 minutes that hit one client, 0 to 1."""
        counts = self._frequent.counts(now)
        # Another thread may look between two numbers that change together.
        return min(1.0, max(counts.values(), default=0) / max(1, self._frequent.total(now)))

    def clients(self, now: float) -> int:
        """Clients refused in the last 5 to 10 minutes; above 256 only the frequent are told."""
        return len(self._frequent.counts(now))

    def top(self, now: float) -> dict[str, int]:
        """Refusals of the last 5 to 10 minutes by the hashes of those refused most, and `other`.

        Whoever is on the list stays until somebody is refused twice as often. Empty unless asked
        for.
        """
        if not self._top:
            return {}
        with self._choosing:
            return self._chosen(now)

    def _chosen(self, now: float) -> dict[str, int]:
        counts = self._frequent.counts(now)
        listed = self._listed
        while self._joined and now - self._joined[0] >= SETTLE:
            self._joined.popleft()
        for key, count in counts.items():
            if len(self._joined) >= 2 * self._top:
                break
            if key in listed:
                continue
            if len(listed) >= self._top:
                weakest = min(listed, key=lambda one: counts.get(one, 0))
                if count < AHEAD * max(1, counts.get(weakest, 0)):
                    break  # whoever comes after this one is refused even less
                listed.remove(weakest)
            listed.add(key)
            self._joined.append(now)
        shown = {self._name(key): counts.get(key, 0) for key in listed}
        shown[OTHER] = max(0, self._frequent.total(now) - sum(shown.values()))
        return shown

    def _shown(self, one: Seen) -> Sighting:
        refusal = one.refusal
        client = one.client
        if isinstance(client, Mapping):
            name = ",".join(f"{key}:{self._name(value)}" for key, value in client.items())
        else:
            name = self._name(_one_key(client))
        return Sighting(
            at=one.at,
            stage=refusal.stage.value,
            reason=refusal.reason.value,
            status=one.status,
            client=name or ANONYMOUS,
            observed=_finite(refusal.observed),
            bound=_finite(refusal.bound),
            retry_after=_finite(refusal.retry_after),
            explanation=explain(refusal),
            trace_id=one.trace_id,
            subject=refusal.subject,
        )

    def _name(self, key: str | bytes) -> str:
        return self._hash(key)[:DIGITS] if key else ANONYMOUS


class _Ends:
    """Hears with `witness` of those who ended, but not of refusals."""

    __slots__ = ("on_ended",)

    def __init__(self, witness: Witness) -> None:
        self.on_ended = witness.on_ended

    def on_refused(self, permit: Permit, refusal: Refuse, now: float) -> None:
        """Somebody else tells of refusals."""


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _one_key(client: Client) -> str | bytes:
    """What stands for a client that has several keys: the first, which is the narrowest."""
    if client is None:
        return ""
    if isinstance(client, str | bytes):
        return client
    return next((value for value in client.values() if isinstance(value, str | bytes)), "")


def current_trace_id() -> str:
    """The trace that runs now, in hexadecimal; empty without one, or without OpenTelemetry."""
    # Whoever has not imported it traces nothing; looking it up costs 50 ns.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return ""
    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else ""
