"""What came of it? The result of a load run, as data, with the questions one asks of it.

Every request keeps a row, so that any later question (another SLO, another interval) can be
answered without another run. Requests are counted where they were *intended* to start: a
phase is answerable for the requests that arrived in it, whenever they ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import IntEnum
from math import ceil, nan
from typing import Final

import msgspec

from loadgate.integrations.loadgen.plan import Plan


class Failure(IntEnum):
    """Why a request has no status; the numbers lie below those of HTTP.

    PENDING: not ended; never in a finished result.
    TIMEOUT: the client lost patience and closed its socket.
    REFUSED: nobody listened.
    CLOSED: the server closed before the response was complete.
    GARBLED: the answer was not HTTP.
    FAILED: no connection for another reason (out of descriptors, unreachable).
    UNSENT: the generator itself was so late that the patience was over before the request
        could leave. Any of these makes the run worthless at that rate.
    """

    PENDING = 0
    TIMEOUT = 1
    REFUSED = 2
    CLOSED = 3
    GARBLED = 4
    FAILED = 5
    UNSENT = 6


RATE_LIMITED: Final = 429
OVERLOADED: Final = 503
_FAILURES: Final = {int(failure): failure.name.lower() for failure in Failure}


def label(status: int) -> str:
    """Name a status: the code itself, or the failure in lower case."""
    return _FAILURES.get(status) or str(status)


def is_success(status: int) -> bool:
    """Whether the server did what was asked (2xx, 3xx)."""
    return 200 <= status < 400


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that is not below `share` of the values; nan of nothing."""
    ranked = sorted(values)
    return ranked[max(0, ceil(share * len(ranked)) - 1)] if ranked else nan


class Rows(msgspec.Struct):
    """The requests of one class, in the order of their intended starts; columns of one length.

    Attributes:
        at: Intended start, seconds after the start of the run.
        latency: Seconds from the intended start to the end of the response (or of the patience).
        status: HTTP status, or a `Failure`.
        late: Seconds from the intended start until the generator acted on it: its own lag.
    """

    at: list[float]
    latency: list[float]
    status: list[int]
    late: list[float]


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of some classes in some interval, counted.

    Attributes:
        seconds: Length of the interval.
        offered: Requests that were due in it.
        statuses: How they ended, by label.
        good: Successes within the SLO.
        p50, p90, p99, worst: Latency of the successes in seconds, nan when there are none.
        refusal_p50, refusal_p99: Latency of the 429 and 503 in seconds, likewise.
    """

    seconds: float
    offered: int
    statuses: dict[str, int]
    good: int
    p50: float
    p90: float
    p99: float
    worst: float
    refusal_p50: float
    refusal_p99: float

    @property
    def goodput(self) -> float:
        """Successes within the SLO, per second."""
        return self.good / self.seconds

    @property
    def share(self) -> float:
        """Of what was offered, the part that was good; nan when nothing was."""
        return self.good / self.offered if self.offered else nan

    def count(self, *labels: str | int) -> int:
        """How many ended so."""
        return sum(self.statuses.get(str(one), 0) for one in labels)


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """How late the generator itself was, in seconds: what its figures are worth.

    Attributes:
        p50, p99, worst: From the intended start until the generator acted.
        unsent: Requests that could not leave before their patience was over.
    """

    p50: float
    p99: float
    worst: float
    unsent: int


class Result(msgspec.Struct, kw_only=True):
    """A finished run.

    Attributes:
        plan: What was asked for.
        rows: What happened, by class name.
        elapsed: Seconds until the last request had ended.
        cpu: Seconds of processor time that the generator used.
        opened: Connections opened.
        peak: Most connections open at once.
        resent: Requests sent a second time because a kept connection turned out to be closed.
    """

    plan: Plan
    rows: dict[str, Rows]
    elapsed: float
    cpu: float
    opened: int
    peak: int
    resent: int

    def tally(
        self,
        classes: Sequence[str] = (),
        *,
        phase: str = "",
        between: tuple[float, float] | None = None,
        slo: float | None = None,
    ) -> Tally:
        """Count the requests of some classes (default all) that were due in an interval.

        Args:
            classes: Names; empty for all.
            phase: The name of a phase; empty for the whole run.
            between: Seconds after the start, from (included) to (excluded), instead of a phase.
            slo: Another SLO than the plan's.

        Raises:
            KeyError: There is no such class or phase.
        """
        start, end = between or self.interval(phase)
        bound = self.plan.slo if slo is None else slo
        statuses: Counter[int] = Counter()
        latencies: list[float] = []
        refusals: list[float] = []
        for name in classes or self.rows:
            rows = self.rows[name]
            for at, latency, status in zip(rows.at, rows.latency, rows.status, strict=True):
                if start <= at < end:
                    statuses[status] += 1
                    if is_success(status):
                        latencies.append(latency)
                    elif status in (RATE_LIMITED, OVERLOADED):
                        refusals.append(latency)
        latencies.sort()
        refusals.sort()
        return Tally(
            seconds=end - start,
            offered=statuses.total(),
            statuses={label(status): count for status, count in sorted(statuses.items())},
            good=sum(1 for latency in latencies if latency <= bound),
            p50=percentile(latencies, 0.5),
            p90=percentile(latencies, 0.9),
            p99=percentile(latencies, 0.99),
            worst=latencies[-1] if latencies else nan,
            refusal_p50=percentile(refusals, 0.5),
            refusal_p99=percentile(refusals, 0.99),
        )

    def interval(self, phase: str = "") -> tuple[float, float]:
        """From when to when a phase lasts, in seconds after the start; "" is the whole run.

        Raises:
            KeyError: There is no such phase.
        """
        if not phase:
            # The last arrival may fall on the very end, which belongs to the run.
            return 0.0, self.plan.duration + 1e-9
        for one, start in zip(self.plan.phases, self.plan.starts(), strict=True):
            if one.name == phase:
                return start, start + one.duration
        raise KeyError(phase)

    def lag(self) -> Lag:
        """How late the generator was."""
        late = sorted(value for rows in self.rows.values() for value in rows.late)
        return Lag(
            p50=percentile(late, 0.5),
            p99=percentile(late, 0.99),
            worst=late[-1] if late else nan,
            unsent=sum(rows.status.count(Failure.UNSENT) for rows in self.rows.values()),
        )

    def summary(self) -> dict[str, object]:
        """Everything but the rows, ready for JSON: by phase and class, and the lag."""
        phases = [phase.name for phase in self.plan.phases]
        return {
            "plan": msgspec.to_builtins(self.plan),
            "all": _as_json(self.tally()),
            "phases": {
                phase: {
                    "all": _as_json(self.tally(phase=phase)),
                    "classes": {
                        name: _as_json(self.tally([name], phase=phase)) for name in self.rows
                    },
                }
                for phase in phases
            },
            "lag": msgspec.to_builtins(self.lag()),
            "elapsed": self.elapsed,
            "cpu": self.cpu,
            "connections": {"opened": self.opened, "peak": self.peak, "resent": self.resent},
        }


def _as_json(tally: Tally) -> dict[str, object]:
    fields: dict[str, object] = msgspec.to_builtins(tally)
    return {**fields, "goodput": tally.goodput, "share": tally.share}
