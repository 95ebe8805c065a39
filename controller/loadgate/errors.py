"""How a refusal travels: one base, two meanings, each with its HTTP status."""

from __future__ import annotations

from typing import ClassVar

from loadgate.decisions import Reason, Refuse, Stage
from loadgate.explain import explain


class LoadgateError(Exception):
    """Base of every exception raised by loadgate on purpose."""


class PolicyError(LoadgateError, ValueError):
    """A setting is wrong. The message holds the path, the value and the bound.

    Attributes:
        path: Where the setting stands, as in ``rates[0].burst``; empty for the whole policy.
        problem: What is wrong with it, without the path.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
        self.problem = problem

    def under(self, prefix: str) -> PolicyError:
        """The same error, seen from the place that contains this setting."""
        separator = "." if prefix and self.path and not self.path.startswith("[") else ""
        return PolicyError(f"{prefix}{separator}{self.path}", self.problem)


class UsageError(LoadgateError, RuntimeError):
    """The API was used in a way that cannot work (a second event loop, a dead controller)."""


class Rejected(LoadgateError):
    """A request was refused. Catch this to catch both kinds.

    Attributes:
        refusal: The decision as data: stage, reason, the numbers compared.
        reason: Short for ``refusal.reason``.
        retry_after: Seconds after which a new attempt makes sense (see `Refuse`).
        status: The HTTP status that says the same.
    """

    status: ClassVar[int] = 503

    # No __init__ of its own: BaseException keeps the arguments in C, and a refusal must not cost
    # more than an admission.

    @property
    def refusal(self) -> Refuse:
        """The decision as data."""
        decision = self.args[0]
        assert isinstance(decision, Refuse)
        return decision

    @property
    def reason(self) -> Reason:
        """Why it was refused; also the metric label."""
        return self.refusal.reason

    @property
    def stage(self) -> Stage:
        """Which stage refused it."""
        return self.refusal.stage

    @property
    def retry_after(self) -> float:
        """Seconds after which a new attempt makes sense (see `Refuse`)."""
        return self.refusal.retry_after

    def explain(self) -> str:
        """Say in one paragraph what was compared and what to change."""
        return explain(self.refusal)

    def __str__(self) -> str:
        return self.explain()


class RateLimited(Rejected):
    """This client asked for more than its share (429). Others are unaffected."""

    status: ClassVar[int] = 429


class Overloaded(Rejected):
    """The service is full (503). The client did nothing wrong and was charged nothing."""

    status: ClassVar[int] = 503
