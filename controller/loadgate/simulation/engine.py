"""What happens next? The event loop of the simulator, in virtual time, around the real rules.

Time jumps from event to event. Equal moments keep the order in which the events were made,
so equal seeds give equal bytes. The rules asked are the ones that run in production: the
`Admission` of a controller, its limit and its queue, and its rates.

While the process stands still (a pause), whatever becomes due is seen when it goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Any, Final, cast

from loadgate.admission import Admission
from loadgate.decisions import ADMIT, Outcome, Reason, Refuse, Wait
from loadgate.rates.group import RateSet
from loadgate.signals import STALL
from loadgate.simulation.request import Request
from loadgate.simulation.stages import Cores, Pool, Stage
from loadgate.simulation.workload import Client, Workload
from loadgate.ticket import ENDED, RUNNING, WAITING

_SUCCESS: Final = Outcome.SUCCESS
_CANCELLED: Final = Outcome.CANCELLED
_OVERLOAD: Final = Outcome.OVERLOAD

# What became of an arrival, its retries included.
UNFINISHED: Final = 0
SERVED: Final = 1
REFUSED: Final = 2
GAVE_UP: Final = 3

# Kinds of events in the heap.
_DEPART: Final = 0  # from a pool or a plain wait
_EXPIRE: Final = 1  # the wait in the queue is over
_TIMEOUT: Final = 2  # the client of an attempt has had enough
_RETRY: Final = 3
_CALL: Final = 4  # something else happens: a change of capacity, a pause, a look at the gauges

# Tokens a retry budget may save up, the size used in Brooker's simulations of retry buckets.
_BUDGET_CAP: Final = 10.0
# Longest pause of a client between two attempts, in seconds.
_LONGEST_BACKOFF: Final = 20.0


class Engine:
    """One run of one workload through one service behind one gate.

    Args:
        workload: Who comes when, with what.
        stages: What the service does with each request, in this order.
        admission: The gate.
        gate_dice: The numbers that the gate's decisions draw on.
        client_dice: The numbers that clients draw their pauses from.
        refusal_work: Core-seconds that each refusal costs the first `Cores` stage.
        rates: The rates in front of the gate.

    Attributes:
        verdict: What became of each arrival, shape (n,).
        ended: When it was decided, seconds, shape (n,).
        wait: Seconds in the queue of the attempt that was served, shape (n,).
        why: The reason of the last refusal of each arrival, None if never, shape (n,).
        attempts: All attempts.
        refusals: Refused attempts by class of client and reason.
        held: Seconds that places were held by attempts that ended.
        wasted: Those of them spent for clients who had gone.
    """

    def __init__(
        self,
        workload: Workload,
        stages: Sequence[Stage],
        admission: Admission,
        *,
        gate_dice: Random,
        client_dice: Random,
        refusal_work: float = 0.0,
        rates: RateSet | None = None,
    ) -> None:
        count = len(workload)
        self.workload = workload
        self.stages = tuple(stages)
        self.admission = admission
        self.verdict = [UNFINISHED] * count
        self.ended = [inf] * count
        self.wait = [0.0] * count
        self.why: list[Reason | None] = [None] * count
        self.attempts = 0
        self.refusals: list[dict[Reason, int]] = [{} for _ in workload.clients]
        self.held = 0.0
        self.wasted = 0.0
        self.now = 0.0
        self._clients = workload.clients
        self._client_of = workload.client
        self._sizes = workload.sizes
        self._first_sizes = workload.sizes[0]
        self._budgeted = any(client.budget < inf for client in workload.clients)
        self._draw = gate_dice.random
        self._client_draw = client_dice.random
        self._rates = rates
        self._plain = rates is None and workload.deadlines is None and workload.keys is None
        self._settles = rates is not None and any(rate.on_outcome for rate in rates.rates)
        self._refusal_work = refusal_work
        self._cores = tuple(stage for stage in stages if isinstance(stage, Cores))
        self._refuser = self._cores[0] if self._cores and refusal_work > 0.0 else None
        self._nobody = Request(index=-1)
        self._events: list[tuple[float, int, int, Any]] = []
        # Waits that end one after the other, as they do where all are equally long: most of
        # those who wait get a place before, and are passed over here without a heap.
        self._waits: deque[tuple[float, int, Request]] = deque()
        self._serial = 0
        self._frozen = 0.0
        self._budgets = [_BUDGET_CAP] * len(workload.clients)

    # -- what a scenario may ask for ----------------------------------------------------

    def at(self, time: float, call: Callable[[float], None]) -> None:
        """Call `call(now)` at `time`, before the run or during it."""
        self._push(time, _CALL, call)

    def pause(self, now: float, seconds: float) -> None:
        """The whole process stands still: nothing is seen, nothing is worked on."""
        for cores in self._cores:
            cores.stop(now, seconds)
        self._frozen = now + seconds
        if seconds >= STALL:  # what the watch over the event loop would report
            self.admission.stalled(self._frozen, seconds)
            self._wake(self._frozen)

    def run(self, until: float = inf) -> None:
        """Let everything happen that happens up to `until` (default: to the very end)."""
        events, waits, cores, work = self._events, self._waits, self._cores, self.workload
        times = [*work.times.tolist(), inf]
        levels = [client.level for client in work.clients]
        timeouts = [client.timeout for client in work.clients]
        sizes, client_of, keys, draw = self._first_sizes, self._client_of, work.keys, self._draw
        admission, start, join = self.admission, self.admission.start, self.admission.join
        enter = self._enter
        plain = self._plain
        index, arrival = 0, times[0]
        while True:
            due = arrival
            arrives, expires, ready = True, False, None
            if events and events[0][0] < due:
                due = events[0][0]
                arrives = False
            while waits:
                ends, serial, waiter = waits[0]
                if waiter.state != WAITING:
                    waits.popleft()
                    continue
                if ends < due or (ends == due and not arrives and serial < events[0][1]):
                    due = ends
                    arrives, expires = False, True
                break
            for stage in cores:
                if stage.next < due:
                    due = stage.next
                    ready = stage
            if due > until or due == inf:
                break
            now = due if due > self._frozen else self._frozen
            if ready is not None:
                request = ready.leave(now)
                if request.index >= 0:
                    self._advance(request, now)
            elif arrives:
                which = client_of[index]
                request = Request(levels[which])
                request.index = index
                if keys is not None:
                    request.client = keys[index]
                self.attempts += 1
                if timeouts[which] < inf:
                    self._push(due + timeouts[which], _TIMEOUT, request)
                if not plain:
                    self._arrive(request, now, due)
                elif start(request, now):
                    enter(request, now, sizes[index])
                else:
                    decision = join(request, now, draw())
                    if admission.ended_waits:
                        self._wake(now)
                    if type(decision) is Wait:
                        self._expect(decision.until, request)
                    elif decision is ADMIT:
                        enter(request, now, sizes[index])
                    else:
                        self._refused(request, now)
                index += 1
                arrival = times[index]
            elif expires:
                self._expire(waits.popleft()[2], now)
            else:
                _, _, kind, what = heappop(events)
                if kind == _DEPART:
                    if not what.gone:
                        if what.placed:
                            self._leave_pool(what, now)
                        self._advance(what, now)
                elif kind == _EXPIRE:
                    self._expire(what, now)
                elif kind == _TIMEOUT:
                    self._timeout(what, now)
                elif kind == _RETRY:
                    self._retry(what, now)
                else:
                    self.now = now
                    what(now)
        self.now = max(self.now, min(until, work.horizon))

    # -- inside ------------------------------------------------------------------------

    def _push(self, time: float, kind: int, what: Any) -> None:
        self._serial = serial = self._serial + 1
        heappush(self._events, (time, serial, kind, what))

    def _expect(self, until: float, request: Request) -> None:
        """The wait of `request` ends at `until`, unless it gets a place."""
        waits = self._waits
        if waits and until < waits[-1][0]:
            self._push(until, _EXPIRE, request)
            return
        self._serial = serial = self._serial + 1
        waits.append((until, serial, request))

    def _expire(self, request: Request, now: float) -> None:
        admission = self.admission
        if admission.expire(request, now) is not None:
            self._refused(request, now)
        if admission.ended_waits:
            self._wake(now)

    def _arrive(self, request: Request, now: float, since: float) -> None:
        """The long way in: deadlines, rates, then the gate."""
        admission, index = self.admission, request.index
        if self.workload.deadlines is not None:
            request.deadline = since + self.workload.deadlines[index]
        if self.workload.keys is not None:
            request.client = self.workload.keys[index]
        if self._rates is not None:
            client = self._clients[self._client_of[index]]
            charged = self._rates.charge(request.client, client.cost, now)
            if isinstance(charged, Refuse):
                request.state = ENDED
                request.refusal = charged
                self._refused(request, now)
                return
            request.quotas = charged
        decision = admission.arrive(request, now, self._draw())
        if admission.ended_waits:
            self._wake(now)
        if decision is ADMIT:
            self._enter(request, now, self._first_sizes[index])
        elif type(decision) is Wait:
            self._expect(decision.until, request)
        else:
            self._not_admitted(request, now)

    def _enter(self, request: Request, now: float, size: float) -> None:
        """`request` begins `size` seconds in the stage it is at."""
        stage = self.stages[request.stage]
        if type(stage) is Cores:
            stage.enter(now, size, request)
        elif type(stage) is Pool:
            seconds = stage.enter(size, request)
            if seconds >= 0.0:
                request.placed = True
                self._push(now + seconds, _DEPART, request)
        else:
            self._serial = serial = self._serial + 1
            heappush(self._events, (now + size, serial, _DEPART, request))

    def _advance(self, request: Request, now: float) -> None:
        """`request` has done its stage; it goes on or ends."""
        stage = request.stage + 1
        if stage < len(self.stages):
            request.stage = stage
            self._enter(request, now, self._sizes[stage][request.index])
            return
        admission = self.admission
        if self._plain:
            admission.finish(request, now, _SUCCESS)
        else:
            self._finish(request, now, _SUCCESS)
        index, held = request.index, now - request.started
        self.held += held
        if request.unheard:
            self.wasted += held
        elif self.verdict[index] == UNFINISHED:
            self.verdict[index] = SERVED
            self.ended[index] = now
            self.wait[index] = request.wait
            if self._budgeted:
                which = self._client_of[index]
                budget = self._clients[which].budget
                if budget < inf:
                    self._budgets[which] = min(self._budgets[which] + budget, _BUDGET_CAP)
        if admission.ended_waits:
            self._wake(now)

    def _leave_pool(self, request: Request, now: float) -> None:
        pool = self.stages[request.stage]
        assert isinstance(pool, Pool)
        request.placed = False
        pool.leave()
        self.fill(pool, now)

    def fill(self, pool: Pool, now: float) -> None:
        """Start whoever stands in line at `pool` and finds a place."""
        while (begun := pool.start()) is not None:
            seconds, request = begun
            request.placed = True
            self._push(now + seconds, _DEPART, request)

    def _wake(self, now: float) -> None:
        """Those whose wait has ended go on."""
        ended = self.admission.ended_waits
        while ended:
            woken, ended[:] = ended[:], []
            for request in cast("list[Request]", woken):
                if request.state == RUNNING:
                    self._enter(request, now, self._first_sizes[request.index])
                else:
                    self._not_admitted(request, now)

    def _not_admitted(self, request: Request, now: float) -> None:
        self._refund(request, now)
        self._refused(request, now)

    def _refund(self, request: Request, now: float) -> None:
        """A 503 costs the client nothing."""
        if self._rates is not None and request.quotas:
            self._rates.refund(request.quotas, now)
            request.quotas = ()

    def _finish(self, request: Request, now: float, outcome: Outcome) -> None:
        """A place becomes free, and rates that charge by outcome hear of it."""
        self.admission.finish(request, now, outcome)
        if self._settles and self._rates is not None:
            if outcome is _SUCCESS and now > request.deadline:
                outcome = _OVERLOAD
            self._rates.settle(request.quotas, now, outcome)

    def _refused(self, request: Request, now: float) -> None:
        """An attempt was turned away; the client hears it at once."""
        index = request.index
        refusal = request.refusal
        assert refusal is not None
        which = self._client_of[index]
        reasons, reason = self.refusals[which], refusal.reason
        reasons[reason] = reasons.get(reason, 0) + 1
        self.why[index] = reason
        if self._refuser is not None:
            self._refuser.enter(now, self._refusal_work, self._nobody)
        if request.unheard or self.verdict[index] != UNFINISHED:
            return
        client = self._clients[which]
        request.unheard = True
        if client.retries and self._try_again(request, client, now, refusal.retry_after):
            return
        self.verdict[index] = REFUSED
        self.ended[index] = now

    def _timeout(self, request: Request, now: float) -> None:
        """The client of this attempt stops listening, unless it has its answer."""
        index = request.index
        if request.unheard or self.verdict[index] != UNFINISHED:
            return
        request.unheard = True
        client = self._clients[self._client_of[index]]
        if client.cancels:
            self._cancel(request, now)
        if client.retries and self._try_again(request, client, now, 0.0):
            return
        self.verdict[index] = GAVE_UP
        self.ended[index] = now

    def _cancel(self, request: Request, now: float) -> None:
        admission = self.admission
        if request.state == RUNNING:
            request.gone = True
            stage = self.stages[request.stage]
            if type(stage) is Cores:
                stage.cancelled(now)
            elif request.placed:
                self._leave_pool(request, now)
            held = now - request.started
            self.held += held
            self.wasted += held
            self._finish(request, now, _CANCELLED)
        elif admission.leave(request, now):
            self._refund(request, now)
        if admission.ended_waits:
            self._wake(now)

    def _try_again(self, request: Request, client: Client, now: float, retry_after: float) -> bool:
        attempt = request.attempt + 1
        if attempt > client.retries:
            return False
        if client.budget < inf:
            which = self._client_of[request.index]
            if self._budgets[which] < 1.0:
                return False
            self._budgets[which] -= 1.0
        pause = min(client.backoff * 2.0 ** (attempt - 1), _LONGEST_BACKOFF)
        if client.jitter:
            pause *= self._client_draw()
        if client.patient and retry_after < inf:
            pause += retry_after
        again = Request(client.level)
        again.index = request.index
        again.client = request.client
        again.attempt = attempt
        self._push(now + pause, _RETRY, again)
        return True

    def _retry(self, request: Request, now: float) -> None:
        self.attempts += 1
        client = self._clients[self._client_of[request.index]]
        if client.timeout < inf:
            self._push(now + client.timeout, _TIMEOUT, request)
        self._arrive(request, now, now)
