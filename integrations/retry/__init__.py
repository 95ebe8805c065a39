"""The rules of a client that keeps the contract: pure, without a clock, dice or a socket."""

from loadgate.integrations.retry.backoff import full_jitter, retry_after
from loadgate.integrations.retry.budget import RetryBudget
from loadgate.integrations.retry.throttle import Throttle

__all__ = ["RetryBudget", "Throttle", "full_jitter", "retry_after"]
