"""May this client afford another retry? A budget keeps retries a fixed share of successes."""

from __future__ import annotations

from loadgate.errors import PolicyError


class RetryBudget:
    """A bucket of retries that only successes fill.

    Source: the AWS Builders' Library and Brooker's analysis of it. Deposits are made when a
    request succeeded, as the text says, not when one starts, as some code does: a budget that
    fills while everything fails protects nobody. While all is well a client can make up for a
    burst of `capacity` failures; when all fails, its load settles at 1 + `deposit` times its
    demand, instead of the 3 times that three plain attempts would make of it.

    Args:
        capacity: The most retries that can be saved up, and what a new client starts with
            (default 10, must be at least 0; 0 forbids every retry).
        deposit: Retries earned by one success (default 0.1: AWS, and the 10 % of Google's SRE
            book). Raising it makes the client more persistent and an overload longer.

    Raises:
        PolicyError: For a negative number or one that is not finite.
    """

    __slots__ = ("balance", "capacity", "deposit")

    def __init__(self, *, capacity: float = 10.0, deposit: float = 0.1) -> None:
        for name, value in (("capacity", capacity), ("deposit", deposit)):
            if not 0.0 <= value < float("inf"):
                raise PolicyError(f"budget.{name}", f"{value!r} must be finite and at least 0")
        self.capacity = capacity
        self.deposit = deposit
        self.balance = capacity

    @property
    def affords_one(self) -> bool:
        """Whether a retry can be paid."""
        # Ten deposits of 0.1 add up to 0.9999999999999999.
        return self.balance >= 1.0 - 1e-9

    def withdraw(self) -> None:
        """Pay for one retry; ask `affords_one` first."""
        self.balance = max(0.0, self.balance - 1.0)

    def on_success(self) -> None:
        """Earn `deposit`."""
        self.balance = min(self.capacity, self.balance + self.deposit)
