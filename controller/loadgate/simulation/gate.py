"""How is a policy driven without an event loop? The gate of a controller, as it stands.

The limit, the queue and the rates are the production objects; only the waiting is done by
the engine instead of by tasks.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from loadgate.admission import Admission
from loadgate.limits.base import Limit
from loadgate.making import make_admission
from loadgate.policy import Policy
from loadgate.rates.group import RateSet
from loadgate.shedding.fairness import Key
from loadgate.telemetry import Telemetry


def admission(policy: Policy, limit: Limit | None = None) -> Admission:
    """The admission that a controller with this policy has.

    Args:
        policy: What to enforce.
        limit: A limit to use instead of the policy's.
    """
    return make_admission(policy, Telemetry(), limit=limit, digest=_digest)


def rates(policy: Policy) -> RateSet | None:
    """The rates that a controller with this policy has, None if none.

    Shared rates are counted here as if one process had them for itself.
    """
    return RateSet(policy.rates) if policy.rates else None


@lru_cache(maxsize=65_536)
def _digest(key: Key) -> int:
    """`hash`, but the same in every process."""
    return int.from_bytes(blake2b(repr(key).encode(), digest_size=8).digest(), "little")
