"""Who is asked, for whom, at what cost? From a scope to a permit that runs, waits or is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from loadgate.asked import check_request
from loadgate.controller import AdmissionController
from loadgate.errors import Rejected
from loadgate.integrations.identity import Address, Caller, Client, Identify
from loadgate.integrations.receive import Scope, running_loop
from loadgate.permit import Permit
from loadgate.policy import Policy


class Asker:
    """Asks a controller for each request.

    Args:
        controller: The controller, or a `Policy`: then each event loop gets one of its own.
        identify: Who asks, default the address.
        cost: What a request costs, or a function of the scope.
        priority: Likewise its class.
        timeout: Likewise the seconds until its answer is worthless.

    Raises:
        TypeError: `controller` is neither.
        ValueError: `cost` or `timeout` mean nothing.

    Attributes:
        by_peer: The keys of a peer's host, if it alone says who asks, there is a controller, and
            nothing else is a function; None otherwise.
        usual: Then the controller, and what each request costs, its class and its timeout.
    """

    def __init__(
        self,
        controller: AdmissionController | Policy,
        identify: Identify | None,
        cost: float | Callable[[Scope], float],
        priority: str | Callable[[Scope], str],
        timeout: float | Callable[[Scope], float | None] | None,
    ) -> None:
        if not isinstance(controller, AdmissionController | Policy):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
            raise TypeError(
                f"controller must be an AdmissionController or a Policy, not {controller!r:.100}; "
                "Policy.from_toml(path) reads a file"
            )
        check_request(1.0 if callable(cost) else cost, None if callable(timeout) else timeout)
        self._policy = controller if isinstance(controller, Policy) else None
        self._controller = controller if isinstance(controller, AdmissionController) else None
        self._by_loop: WeakKeyDictionary[Any, AdmissionController] = WeakKeyDictionary()
        identify = Address() if identify is None else identify
        self._identify: Identify = identify
        self._cost = cost
        self._priority = priority
        self._timeout = timeout
        self.by_peer: Callable[[str], Client] | None = None
        # Typed as what it is where `by_peer` is not None; nobody looks otherwise.
        self.usual: Any = (self._controller, cost, priority, timeout)
        plain = not (callable(cost) or callable(priority) or callable(timeout))
        if (
            plain
            and self._controller is not None
            and isinstance(identify, Address)
            and type(identify) is Address
        ):
            self.by_peer = identify.by_peer

    def controller(self) -> AdmissionController:
        """The controller of the running event loop."""
        return self._controller or self._controller_of_loop()

    def ask(self, scope: Scope) -> Permit:
        """Ask for a place; the permit runs, waits or holds its refusal afterwards."""
        controller = self._controller or self._controller_of_loop()
        caller = self._identify(scope)
        cost, priority, timeout = self._cost, self._priority, self._timeout
        cost = cost(scope) if callable(cost) else cost
        priority = priority(scope) if callable(priority) else priority
        timeout = timeout(scope) if callable(timeout) else timeout
        if isinstance(caller, Caller):
            if caller.cost is not None:
                cost = caller.cost
            if caller.priority is not None:
                priority = caller.priority
            if caller.timeout is not None:
                timeout = caller.timeout
            caller = caller.client
        permit = controller.admit(caller, cost, priority, timeout)
        try:  # noqa: SIM105  # contextlib.suppress costs 0.2 µs
            permit.begin()
        except Rejected:
            pass  # the permit knows why
        return permit

    def _controller_of_loop(self) -> AdmissionController:
        loop: Any = running_loop()
        if loop is None:
            import trio

            loop = trio.lowlevel.current_trio_token()
        controller = self._by_loop.get(loop)
        if controller is None:
            controller = self._by_loop[loop] = AdmissionController(self._policy)
        return controller
