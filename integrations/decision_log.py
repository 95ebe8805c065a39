"""What does the log say about decisions? Sampled lines, with hashes in place of client keys.

An attack is a flood of refusals; a line for each would fill the disk and take the time that
refusing saves. So a bounded number of lines per second is written, each saying how many it
stands for.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from loadgate.decisions import Quota, Reason, Refuse
from loadgate.explain import explain
from loadgate.integrations.identity import KeyHasher

Client = str | bytes | Mapping[str, Any] | None


class DecisionLog:
    """Writes refusals, and admissions if asked, to a standard logger.

    A line is a list of ``name=value``; the same values are attributes of the record
    (``loadgate_reason`` and so on) for structured formatters. ``subject`` is the rate that
    refused, or what else the explanation of the reason names.

    Args:
        logger: Where to; default ``loadgate.decisions``.
        level: The level of refusals. Admissions are written at DEBUG.
        per_second: Lines per second that are written in the long run, above 0.
        burst: Lines that may be written at once.
        admitted_every: Write every n-th admission; 0 writes none.
        explained: Add the explanation for the operator: numbers compared, setting to change.
        hasher: Hashes client keys; the default has a secret of this process alone, so give one
            with the deployment's secret to find a client across processes.
    """

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        level: int = logging.INFO,
        per_second: float = 5.0,
        burst: int = 10,
        admitted_every: int = 0,
        explained: bool = False,
        hasher: KeyHasher | None = None,
    ) -> None:
        if not per_second > 0.0 or burst < 1:
            raise ValueError(f"per_second {per_second} must be above 0, burst {burst} at least 1")
        if admitted_every < 0:
            raise ValueError(f"admitted_every: {admitted_every} is below 0")
        self.admitted_every = admitted_every
        self.suppressed = 0
        self._logger = logging.getLogger("loadgate.decisions") if logger is None else logger
        self._level = level
        self._per_second = per_second
        self._burst = float(burst)
        self._tokens = float(burst)
        self._at = 0.0
        self._explained = explained
        self._hasher = KeyHasher() if hasher is None else hasher
        self._admitted = 0

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
        """Write one line about a refusal, or count it if enough were written.

        Args:
            refusal: The decision.
            client: The key or keys that were counted.
            status: The status that the client sees.
            now: Monotonic seconds.
            algorithm: The rate's algorithm, if a rate refused.
            store_time: Seconds that a shared store took, if one was asked.
        """
        if not self._logger.isEnabledFor(self._level):
            return
        self._tokens = min(self._burst, self._tokens + max(now - self._at, 0.0) * self._per_second)
        self._at = now
        if self._tokens < 1.0:
            self.suppressed += 1
            return
        self._tokens -= 1.0
        fields: dict[str, object] = {
            "decision": "refused",
            "stage": refusal.stage.value,
            "reason": refusal.reason.value,
            "status": status,
            "observed": round(refusal.observed, 6),
            "bound": round(refusal.bound, 6),
            "retry_after": round(refusal.retry_after, 3),
        }
        if refusal.subject:
            fields["subject"] = refusal.subject
        if refusal.reason is Reason.RATE:
            if algorithm:
                fields["algorithm"] = algorithm
            if refusal.quota is not None:
                fields["remaining"] = round(refusal.quota.remaining, 3)
        if store_time is not None:
            fields["store_time"] = round(store_time, 6)
        fields["client"] = self._hashed(client)
        if self.suppressed:
            fields["suppressed"] = self.suppressed
            self.suppressed = 0
        if self._explained:
            fields["explanation"] = explain(refusal)
        self._write(self._level, fields)

    def admitted(self, client: Client, wait: float, quotas: tuple[Quota, ...]) -> None:
        """Count one admission and write every n-th. Call it only if `admitted_every` is set."""
        self._admitted += 1
        if self._admitted % self.admitted_every or not self._logger.isEnabledFor(logging.DEBUG):
            return
        fields: dict[str, object] = {"decision": "admitted", "wait": round(wait, 6)}
        if quotas:
            fields["remaining"] = round(min(quota.remaining for quota in quotas), 3)
        fields["client"] = self._hashed(client)
        self._write(logging.DEBUG, fields)

    def _hashed(self, client: Client) -> str:
        if client is None:
            return "anonymous"
        if isinstance(client, str | bytes):
            return f"client:{self._hasher(client)}"
        return ",".join(f"{name}:{self._hasher(key)}" for name, key in client.items()) or "none"

    def _write(self, level: int, fields: dict[str, object]) -> None:
        line = " ".join(f"{name}={_quoted(value)}" for name, value in fields.items())
        extra = {f"loadgate_{name}": value for name, value in fields.items()}
        self._logger.log(level, "%s", line, extra=extra)


def _quoted(value: object) -> str:
    """Keep a value on one line and in one piece: names come from operators, but newlines forge."""
    text = str(value)
    if text and all(char.isprintable() and char not in ' "\\' for char in text):
        return text
    return '"' + text.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'
