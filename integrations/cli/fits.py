"""Does a policy fit the options that ``loadgate serve`` was started with?

The start and every reload ask here, so that no reload lets in what the start would have refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from loadgate.integrations.classes import PathClasses
from loadgate.integrations.cli.policyfile import PolicyFileError, read_policy
from loadgate.integrations.cli.words import KEYS, untold
from loadgate.policy import Policy


class Fit(msgspec.Struct, frozen=True):
    """What the options ask of every policy.

    Attributes:
        identified: Whether a function of the user's says who asks, which may tell any key.
        priority: The entries of ``--priority``, as they were written.
    """

    identified: bool = False
    priority: tuple[str, ...] = ()

    def read(self, path: Path | None) -> tuple[Policy, PathClasses | None]:
        """Read a policy, the default one from no file, and see that it fits.

        Returns:
            It, and the classes of paths, None if no option names any.

        Raises:
            PolicyFileError: It cannot be read, is no policy, or does not fit.
            ValueError: The default policy does not fit.
        """
        if path is None:
            return (policy := Policy()), self.check(policy)
        policy = read_policy(path)
        try:
            return policy, self.check(policy)
        except ValueError as error:
            raise PolicyFileError(f"{path}: {error}") from None

    def check(self, policy: Policy) -> PathClasses | None:
        """Refuse a policy that the options cannot serve.

        Returns:
            The classes of paths, None if no option names any.

        Raises:
            ValueError: A rate asks for a key that nobody tells, or ``--priority`` names a class
                that the policy does not have.
        """
        if not self.identified and (unknown := untold(policy)):
            raise ValueError(
                f"a rate asks for the key {unknown[0]!r}, which --identify must tell; "
                f"without it there are only {', '.join(KEYS)}"
            )
        if not self.priority:
            return None
        try:
            return PathClasses.read(self.priority, policy.priorities)
        except ValueError as error:
            raise ValueError(f"--{error}") from None


def changes(old: Policy, new: Policy) -> str:
    """Say in short what is different: ``rates: 2 -> 1; queue changed``."""
    return "; ".join(_changes(old, new)) or "nothing changed"


def _changes(old: Policy, new: Policy) -> Iterator[str]:
    if len(old.rates) != len(new.rates):
        yield f"rates: {len(old.rates)} -> {len(new.rates)}"
    elif old.rates != new.rates:
        yield "rates changed"
    for name in Policy.__struct_fields__:
        if name != "rates" and getattr(old, name) != getattr(new, name):
            yield f"{name} changed"
