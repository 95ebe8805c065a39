"""What can be said of a request: the words every other module speaks.

All of it is frozen data. A decision is returned, never raised; `errors.py` turns
a `Refuse` into an exception at the edge. msgspec structs are used because they are
built in C: a refusal must not cost more than an admission.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec


class Outcome(StrEnum):
    """How a request that ran has ended; the values are the metric labels.

    SUCCESS: it did its work. Only these teach a limit how long work takes.
    ERROR: it failed by itself; a fast failure is no evidence of free capacity.
    OVERLOAD: it showed that the service or something behind it is too busy
        (an expired timeout, a downstream 503).
    CANCELLED: it was cancelled or its client left; right-censored, so at most
        evidence that the latency is *at least* its age.
    IGNORED: it says nothing (long-lived by nature, a health check).
    """

    SUCCESS = "success"
    ERROR = "error"
    OVERLOAD = "overload"
    CANCELLED = "cancelled"
    IGNORED = "ignored"


class Stage(StrEnum):
    """Which part of the life of a request refused it."""

    RATE = "rate"
    SHED = "shed"
    LIMIT = "limit"


class Reason(StrEnum):
    """Why a request was refused; the values are the metric labels.

    Only RATE is the client's doing (429); every other reason is ours (503).
    """

    RATE = "rate"
    QUEUE_FULL = "queue_full"
    QUEUE_SHED = "queue_shed"
    WAIT_TIMEOUT = "wait_timeout"
    DEADLINE = "deadline"
    PRIORITY = "priority"
    FAIR_SHARE = "fair_share"
    LOOP_LAG = "loop_lag"
    MEMORY = "memory"
    STORE_UNAVAILABLE = "store_unavailable"
    DRAINING = "draining"


class Quota(msgspec.Struct, frozen=True, gc=False):
    """What a rate answered, and the receipt with which a charge is given back.

    Attributes:
        allowed: Whether the cost was (or, from `peek`, would be) charged.
        limit: The most that can be had at once: the burst of a bucket, the limit of a window.
        remaining: What is left after this decision, in cost units, never negative.
        reset_after: Seconds until the key is as good as new if nothing else is charged.
        retry_after: Seconds until the same cost is allowed, 0.0 when allowed;
            `inf` when it can never be (cost above the burst).
        key: The key that was counted.
        cost: The cost that was asked for.
        at: The `now` of the decision; names the window that was charged.
        rate: The name of the rate that answered, empty for one made by `rates.create`.
    """

    allowed: bool
    limit: float
    remaining: float
    reset_after: float
    retry_after: float
    key: str | bytes = ""
    cost: float = 0.0
    at: float = 0.0
    rate: str = ""


class Admit(msgspec.Struct, frozen=True, gc=False):
    """The request may run now."""


class Wait(msgspec.Struct, frozen=True, gc=False):
    """The request may wait until `until` (monotonic seconds), not longer."""

    until: float


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """The request must not run, and why.

    Attributes:
        stage: The stage that refused.
        reason: The reason, also the metric label.
        retry_after: Seconds from the decision after which a new attempt makes sense.
            Exact for RATE (refused before, allowed at it, other things equal), an
            estimate otherwise; `inf` when no attempt like this one can ever pass.
        observed: The number that was compared (its meaning is in `explain.py`).
        bound: What it was compared with.
        subject: The name of the rate that refused; elsewhere empty, or what else the numbers
            are of (see `explain.py`).
        quota: What that rate answered, None elsewhere.
    """

    stage: Stage
    reason: Reason
    retry_after: float
    observed: float = 0.0
    bound: float = 0.0
    subject: str = ""
    quota: Quota | None = None


Decision = Admit | Wait | Refuse

# Admission carries no data, so one instance serves every request.
ADMIT: Final = Admit()
