"""Why was it refused, and what could be changed? One paragraph for each reason."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, inf
from typing import Any, Final

import msgspec

from loadgate.decisions import Reason, Refuse, Stage

# Subjects of the door's refusals, which say what was compared: requests on their way to the
# application with those allowed there, requests offered a second with those let through, or the
# seconds that one was on its way with signals.max_lag.
DOOR_IN_TRANSIT: Final = "door: in transit"
DOOR_RATE: Final = "door: per second"
DOOR_AGE: Final = "door: seconds on the way"

# Subject of the queue's refusals while places are free, but the event loop is late.
LATE_LOOP: Final = "event loop"

# Each text names the numbers compared (observed, bound; seen and most are the same two in few
# digits) and the setting that moves the outcome.
_TEXTS = {
    Reason.RATE: (
        "rate {subject!r} has nothing left for this client: it asked for {observed:.15g} and "
        "{most} were available. It may return in {retry_after:.3f} s. "
        "To allow more, raise the rate or its burst."
    ),
    Reason.QUEUE_FULL: (
        "the service is full and so is the queue: {seen} were waiting, at most {most} "
        "may. More capacity helps; raising queue.max_depth or queue.max_wait only makes "
        "answers later."
    ),
    Reason.QUEUE_SHED: (
        "the service is full and the queue is longer than planned: {seen} were waiting, "
        "everyone may wait up to {most}, above it a share of the arrivals is refused. "
        "More capacity helps; queue.max_queue moves the threshold."
    ),
    Reason.WAIT_TIMEOUT: (
        "no place became free in time: it waited {observed:.3f} s and may wait {bound:.3f} s "
        "(queue.max_wait; its own timeout was longer, or it had none)."
    ),
    Reason.DEADLINE: (
        "it could not be answered in time any more: {observed:.3f} s are expected, {bound:.3f} s "
        "remained of its timeout. Nothing was started."
    ),
    Reason.PRIORITY: (
        "a request of a higher priority needed its place in the queue: {seen} were waiting, "
        "everyone may wait up to {most}."
    ),
    Reason.FAIR_SHARE: (
        "its client was using more than others while the service was full: it had used "
        "{observed:.3g} place-seconds lately, a typical client {bound:.3g} (queue.fair_by says "
        "whose usage is compared)."
    ),
    Reason.LOOP_LAG: (
        "the event loop is late: its last tick is {observed:.3f} s old, {bound:.3f} s are allowed "
        "(signals.max_lag). What holds it up are handlers that compute, or a burst of connections; "
        "move CPU work off it or add processes."
    ),
    Reason.MEMORY: (
        "memory is nearly exhausted: {seen} bytes are used, {most} are allowed "
        "(signals.max_memory)."
    ),
    Reason.STORE_UNAVAILABLE: (
        "the shared store of rate {subject!r} did not answer within {bound:.3f} s and the rate "
        "is set to refuse in that case (on_failure)."
    ),
    Reason.DRAINING: "the service is shutting down and admits nobody; {seen} still run.",
}


# Nothing remained, so there is no second number to compare.
_OVER = "its own timeout was already over, so its answer would be worthless. Nothing was started."

# It was there in time, but its turn did not come.
_WAITED_OUT = (
    "no place became free in time: it waited {observed:.3f} s, its timeout was {bound:.3f} s. "
    "Nothing was started."
)

# The queue is in front of the event loop.
_LATE_LOOP = (
    " What is full is the event loop: while it is late, requests begin a few at a time. Move CPU "
    "work off it or add processes."
)

# A client may hold a share of the places; this one has another setting.
_MAX_SHARE = (
    "its client would have held {seen} places, at most {most} may be (concurrency.max_share)."
)

# The door in front of the server compares other things, while the loop is late.
_DOOR = {
    DOOR_IN_TRANSIT: (
        "the door is closed, as the event loop is late and more come than it works off: {seen} "
        "would have been on their way from the door to the application, {most} may be (a quarter "
        "or half of signals.max_lag)."
    ),
    DOOR_RATE: (
        "the door is closed, as the event loop is late and most requests are refused: {seen} "
        "a second came, {most} a second are let through, twice what was of use lately and 10."
    ),
    DOOR_AGE: (
        "the door is closed, as the event loop is late: this request was {seen} s on its way from "
        "the door to the application, {most} s are allowed (signals.max_lag)."
    ),
}


def explain(refusal: Refuse) -> str:
    """Say in words what `refusal` compared and which setting moves it."""
    if refusal.retry_after == inf:
        if refusal.reason is Reason.RATE and refusal.quota is None and not refusal.bound:
            return (
                f"rate {refusal.subject!r} refuses whoever lacks the key that it counts, and this "
                "client came without it. Let identify give that key, or set the rate's on_missing "
                'to "shared" (all of them share one bucket) or "skip".'
            )
        return (
            f"rate {refusal.subject!r} can never allow this: the cost {refusal.observed:.15g} is "
            f"above the most that can be had at once, {refusal.bound:.15g}. "
            "Lower the cost or raise the burst."
        )
    text = _TEXTS[refusal.reason]
    if refusal.reason is Reason.FAIR_SHARE and refusal.subject:
        text = _MAX_SHARE
    if refusal.reason is Reason.LOOP_LAG and refusal.subject:
        text = _DOOR.get(refusal.subject, text)
    if refusal.reason is Reason.DEADLINE:
        if refusal.bound <= 0.0:
            text = _OVER
        elif refusal.stage is Stage.LIMIT:
            text = _WAITED_OUT
    if refusal.subject == LATE_LOOP:
        text += _LATE_LOOP
    return text.format(
        subject=refusal.subject,
        observed=refusal.observed,
        bound=refusal.bound,
        seen=_plain(refusal.observed),
        most=_plain(refusal.bound),
        retry_after=refusal.retry_after,
    )


def _plain(number: float) -> str:
    """At most three decimals, never an exponent.

    Cut, not rounded: "asked for 1 and 1 were available" would be no reason to refuse.
    """
    if abs(number) < 1e12:
        number = floor(number * 1000.0) / 1000.0
    return f"{number:.15g}"


class _Recorded(msgspec.Struct):
    stage: Stage
    reason: Reason
    retry_after: float | None
    observed: float = 0.0
    bound: float = 0.0
    subject: str = ""


def record(refusal: Refuse) -> dict[str, Any]:
    """`refusal` as plain data that JSON can hold; infinity is None.

    The quota stays out: it holds the client's key, and the explanation does not need it.
    """
    return {
        "stage": refusal.stage.value,
        "reason": refusal.reason.value,
        "retry_after": None if refusal.retry_after == inf else refusal.retry_after,
        "observed": refusal.observed,
        "bound": refusal.bound,
        "subject": refusal.subject,
    }


def recall(recorded: Mapping[str, Any]) -> Refuse:
    """The refusal that `record` wrote down, to be explained again; more keys do no harm.

    Raises:
        ValueError: It is none; the message says what is wrong.
    """
    plain = msgspec.convert(dict(recorded), _Recorded)
    wait = inf if plain.retry_after is None else plain.retry_after
    return Refuse(plain.stage, plain.reason, wait, plain.observed, plain.bound, plain.subject)
