"""Admission control for async Python: who is admitted, who waits, who is refused, and why."""

from loadgate.controller import AdmissionController
from loadgate.decisions import Outcome, Quota, Reason, Refuse, Stage
from loadgate.errors import (
    LoadgateError,
    Overloaded,
    PolicyError,
    RateLimited,
    Rejected,
    UsageError,
)
from loadgate.permit import Permit
from loadgate.policy import Concurrency, Policy, Queue, Rate, Signals
from loadgate.telemetry import Snapshot

__version__ = "0.1.0"

__all__ = [
    "AdmissionController",
    "Concurrency",
    "LoadgateError",
    "Outcome",
    "Overloaded",
    "Permit",
    "Policy",
    "PolicyError",
    "Queue",
    "Quota",
    "Rate",
    "RateLimited",
    "Reason",
    "Refuse",
    "Rejected",
    "Signals",
    "Snapshot",
    "Stage",
    "UsageError",
]
