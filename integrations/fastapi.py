"""How does one FastAPI route ask for admission of its own? With a dependency.

The layer (`AdmissionMiddleware`) protects the process; a dependency protects what is behind one
route (a pool of report generators, an expensive model) or gives it a rate of its own, and knows
what only a route knows: path parameters, and who has logged in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from loadgate.asked import check_request
from loadgate.controller import AdmissionController
from loadgate.decisions import Outcome
from loadgate.errors import Rejected, UsageError
from loadgate.integrations.asgi import PERMIT
from loadgate.integrations.http import Contract
from loadgate.integrations.identity import Address, Client
from loadgate.integrations.starlette import REFUSED_BY, RejectedHandler
from loadgate.permit import Permit, outcome_of

__all__ = ["admit", "install"]


def install(app: FastAPI, contract: Contract | None = None) -> None:
    """Let the app answer 429 and 503 when a route's own admission refuses.

    Args:
        app: The app.
        contract: How refusals are told; the same as the layer's.
    """
    app.add_exception_handler(Rejected, RejectedHandler(contract))


def admit(
    controller: AdmissionController,
    *,
    identify: Callable[[HTTPConnection], Client] | None = None,
    cost: float | Callable[[HTTPConnection], float] = 1.0,
    priority: str | Callable[[HTTPConnection], str] = "default",
    timeout: float | None = None,
) -> Callable[[HTTPConnection], AsyncIterator[Permit]]:
    """Make a dependency that holds a permit: ``permit: Annotated[Permit, Depends(admit(...))]``.

    The place is given back when FastAPI ends the dependency: after the response has been sent and
    its background tasks have run, or with ``Depends(..., scope="function")`` when the route
    returns.

    Args:
        controller: The route's own; not the one that the layer uses, which holds a place already.
        identify: Who asks; gets the request. Default the address.
        cost: What the request takes from each rate, or a function of the request.
        priority: Its class, or a function of the request.
        timeout: Seconds until the answer is worthless, None for never.

    Raises:
        ValueError: `cost` or `timeout` mean nothing.
    """
    check_request(1.0 if callable(cost) else cost, timeout)
    who: Callable[[Any], Any] = Address() if identify is None else identify

    async def admitted(request: HTTPConnection) -> AsyncIterator[Permit]:
        outer = request.scope.get(PERMIT)
        if outer is not None and outer.controller is controller:
            raise UsageError(
                "the layer holds a place of this controller already: give the route one of its own"
            )
        permit = controller.admit(
            who(request),
            cost(request) if callable(cost) else cost,
            priority(request) if callable(priority) else priority,
            timeout,
        )
        try:
            if not permit.begin():
                await permit.settle()
        except Rejected:
            request.scope[REFUSED_BY] = controller
            raise
        try:
            yield permit
        except HTTPException as error:
            permit.release(_outcome(error.status_code))
            raise
        except BaseException as error:
            permit.release(outcome_of(type(error)))
            raise
        permit.release()

    return admitted


def _outcome(status: int) -> Outcome:
    if status == 503:
        return Outcome.OVERLOAD
    return Outcome.ERROR if status >= 500 else Outcome.SUCCESS
