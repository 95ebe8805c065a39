"""What does the service do with a request? Cores that share, pools that queue, plain waiting.

Each stage knows the moment of its next departure; the engine asks all of them and takes the
earliest. Nothing here knows of limits, clients or the future.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from math import inf

from loadgate.simulation.request import Request


class Cores:
    """Processor sharing: `count` cores at `speed`, divided equally among all who are here.

    The remaining work of every request falls at the same rate, so a single clock of *work
    done per request* is kept, and a request departs when that clock reaches the reading at its
    entry plus its size: one heap operation per event, however many are here.

    Contention follows the Universal Scalability Law (Gunther): n requests together get
    min(n, count) * speed / (1 + contention (n - 1) + crosstalk n (n - 1)) cores' worth.

    Attributes:
        next: The moment of the next departure, `inf` when nobody is here.
        busy: Cores' worth of work done since the beginning, in core-seconds.
    """

    __slots__ = (
        "_at",
        "_clock",
        "_contention",
        "_count",
        "_crosstalk",
        "_heap",
        "_rate",
        "_rates",
        "_serial",
        "_speed",
        "busy",
        "here",
        "next",
    )

    def __init__(
        self, count: int, speed: float = 1.0, contention: float = 0.0, crosstalk: float = 0.0
    ) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._serial = 0
        self._at = 0.0
        self._clock = 0.0
        self._rate = 0.0
        self._contention = contention
        self._crosstalk = crosstalk
        self._count = count
        self._speed = speed
        self._rates: list[float] = [0.0]
        self.here = 0
        self.busy = 0.0
        self.next = inf

    def share(self, n: int) -> float:
        """Work per second that each of `n` requests gets, in cores."""
        total = min(n, self._count) * self._speed
        return total / (n * (1.0 + self._contention * (n - 1) + self._crosstalk * n * (n - 1)))

    def _pace(self, now: float) -> None:
        # The clock has been brought to `now`; find the new rate and the next departure.
        heap = self._heap
        while heap and heap[0][2].gone:
            heappop(heap)
        here, rates = self.here, self._rates
        while here >= len(rates):
            rates.append(self.share(len(rates)))
        if not heap:
            self._clock = self._rate = 0.0
            self.next = inf
            return
        rate = self._rate = rates[here]
        left = heap[0][0] - self._clock
        if rate <= 0.0:
            self.next = inf
        else:
            self.next = now + left / rate if left > 0.0 else now

    def enter(self, now: float, size: float, request: Request) -> None:
        """`request` begins `size` seconds of work of one core."""
        # `_advance` and `_pace` written out: they cost as much as the rest. The first in the
        # heap is not `gone`, because whoever goes is taken out at once.
        heap, rates, clock = self._heap, self._rates, self._clock
        here = self.here
        if rate := self._rate:
            done = (now - self._at) * rate
            clock = self._clock = clock + done
            self.busy += done * here
        self._at = now
        self._serial = serial = self._serial + 1
        heappush(heap, (clock + size, serial, request))
        self.here = here = here + 1
        while here >= len(rates):
            rates.append(self.share(len(rates)))
        self._rate = rate = rates[here]
        left = heap[0][0] - clock
        self.next = inf if rate <= 0.0 else now + left / rate if left > 0.0 else now

    def leave(self, now: float) -> Request:
        """The request whose departure was due at `now`."""
        heap = self._heap
        done = (now - self._at) * self._rate
        clock = self._clock = self._clock + done
        here = self.here
        self.busy += done * here
        self._at = now
        request = heappop(heap)[2]
        self.here = here = here - 1
        if heap and not heap[0][2].gone:
            rate = self._rate = self._rates[here]
            left = heap[0][0] - clock
            self.next = inf if rate <= 0.0 else now + left / rate if left > 0.0 else now
        else:
            self._pace(now)
        return request

    def cancelled(self, now: float) -> None:
        """One request here has just been marked as `gone`."""
        self._advance(now)
        self.here -= 1
        self._pace(now)

    def _advance(self, now: float) -> None:
        self._clock += (now - self._at) * self._rate
        self.busy += (now - self._at) * self._rate * self.here
        self._at = now

    def change(self, now: float, *, count: int | None = None, speed: float | None = None) -> None:
        """Other cores from now on; work already done stays done."""
        self._advance(now)
        self._count = self._count if count is None else count
        self._speed = self._speed if speed is None else speed
        self._rates = [0.0]
        self._pace(now)

    def stop(self, now: float, seconds: float) -> None:
        """Stand still for `seconds` from `now` on."""
        self._advance(now)
        self._at = now + seconds
        self.next += seconds


class Pool:
    """`count` places, each serving one request at a time, first come, first served.

    A connection pool, a pool of threads, a downstream with workers of its own. When the pool
    shrinks, running work ends first and nothing starts until fewer than `count` run.
    """

    __slots__ = ("_line", "busy", "count", "running", "speed")

    def __init__(self, count: int, speed: float = 1.0) -> None:
        self.count = count
        self.speed = speed
        self.running = 0
        self.busy = 0.0
        self._line: deque[tuple[float, Request]] = deque()

    def enter(self, size: float, request: Request) -> float:
        """Seconds after which `request` departs, or -1.0: it stands in line."""
        if self.running < self.count:
            self.running += 1
            self.busy += size
            return size / self.speed
        self._line.append((size, request))
        return -1.0

    def leave(self) -> None:
        """One of the running has departed."""
        self.running -= 1

    def start(self) -> tuple[float, Request] | None:
        """The next in line and the seconds it takes, if there is a free place for it."""
        while self._line and self.running < self.count:
            size, request = self._line.popleft()
            if not request.gone:
                self.running += 1
                self.busy += size
                return size / self.speed, request
        return None


class Delay:
    """Plain waiting: everyone takes their own time, however many are here."""

    __slots__ = ()


Stage = Cores | Pool | Delay
