"""What is one attempt of a client, on its way through the gate and the service?"""

from __future__ import annotations

from loadgate.decisions import Quota
from loadgate.ticket import Ticket


class Request(Ticket, eq=False, gc=False):
    """One attempt of one arrival, and where it is in the service.

    Attributes:
        index: The arrival it belongs to; -1 for the work that a refusal makes.
        attempt: 0 for the first.
        stage: Index of the stage it is in.
        gone: Cancelled; every stage forgets it.
        placed: It occupies a place of a pool.
        unheard: Its client has stopped listening.
        quotas: What its rates charged, for the refund.
    """

    index: int = 0
    attempt: int = 0
    stage: int = 0
    gone: bool = False
    placed: bool = False
    unheard: bool = False
    quotas: tuple[Quota, ...] = ()
