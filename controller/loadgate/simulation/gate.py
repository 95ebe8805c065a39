"""How is a policy driven without an event loop? The gate of a controller, as it stands.

The limit, the queue and the rates are the production objects; only the waiting is done by
the engine instead of by tasks.
"""

from __future__ import annotations

from typing import Final

from loadgate.admission import Admission, Ticket
from loadgate.limits.base import Limit
from loadgate.limits.fixed import FixedLimit
from loadgate.policy import Policy
from loadgate.rates.group import RateSet
from loadgate.shedding.depth import DepthRule
from loadgate.telemetry import Telemetry
from loadgate.waiting import WaitingRoom

# `off`: no scenario has this many requests, so the limit never binds.
_UNLIMITED: Final = 1_000_000


def admission(policy: Policy, limit: Limit | None = None) -> Admission:
    """The admission that a controller with this policy has.

    Args:
        policy: What to enforce.
        limit: A limit to use instead of the policy's.
    """
    concurrency, queue = policy.concurrency, policy.queue
    if limit is None and concurrency.mode == "off":
        limit = FixedLimit(initial=_UNLIMITED, min=_UNLIMITED, max=_UNLIMITED)
    return Admission(
        limit if limit is not None else concurrency.create(),
        DepthRule(queue.max_wait, queue.max_queue, queue.max_depth),
        WaitingRoom[Ticket](len(policy.priorities), queue.discipline),
        Telemetry(),
        observe=concurrency.mode == "observe",
    )


def rates(policy: Policy) -> RateSet | None:
    """The rates that a controller with this policy has, None if none."""
    return RateSet(policy.rates) if policy.rates else None
