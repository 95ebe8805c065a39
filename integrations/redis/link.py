"""How do decisions reach the store? Through one task that nobody else can disturb.

Callers leave an `Ask` and wait for it; they never touch the client library, so nothing that a
caller does (giving up, being cancelled) reaches it. Whatever was asked in the meantime travels
together. When the store falls silent or the connection breaks, the whole client is thrown away,
everybody who waits is told at once, and a new one is built; nothing whose fate is unknown is
ever sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Final

import anyio
import anyio.lowlevel

from loadgate.integrations.redis.ask import STALE, Ask
from loadgate.integrations.redis.breaker import Breaker
from loadgate.integrations.redis.offset import ServerClock
from loadgate.integrations.redis.patience import Patience
from loadgate.integrations.redis.tasks import Background
from loadgate.integrations.redis.transport import (
    Connection,
    Reply,
    Script,
    StoreError,
    Transport,
    first_of,
)
from loadgate.integrations.redis.watcher import Counts, Watcher
from loadgate.integrations.redis.wire import NOTHING, read, written

# Requests in one call. At 5 µs each the server is held up for less than a millisecond.
BATCH: Final = 128
# Requests that are worth a call of their own when nothing is under way: a call costs the client
# 35 µs, about as much as the server needs for ten requests.
LEAST_HALF: Final = 16
# Requests waiting to be sent. Beyond it the failure policy decides at once: memory stays bounded.
QUEUE: Final = 4096
# Seconds for connecting, saying hello and loading the scripts. Longer than any healthy network
# needs, shorter than a sentinel's patience.
CONNECT: Final = 1.0
# Seconds without a request after which the link goes away until the next.
IDLE: Final = 30.0
# Seconds between two probes of a store that has just come back.
PROBE_PAUSE: Final = 0.05
# Times that scripts are loaded again for one call: somebody may flush them while we load.
RELOADS: Final = 3
# Turns of the event loop that an answer needs from the socket to its caller: after a stall it
# may have arrived already, and the store is not to blame.
TURNS: Final = 10


class Link:
    """Takes requests to the store, for one event loop.

    Args:
        transport: How to get a connection.
        script: `decide.lua`.
        others: Further scripts to load.
        probe: The key that probes name, without touching it.
        clock: Monotonic seconds.
        draw: Numbers in [0, 1).
        budget: Seconds that a caller waits at most.
        watcher: Who is told.
    """

    def __init__(
        self,
        transport: Transport,
        script: Script,
        others: Sequence[Script],
        probe: bytes,
        clock: Callable[[], float],
        draw: Callable[[], float],
        budget: float,
        watcher: Watcher,
    ) -> None:
        self.transport = transport
        self.budget = budget
        self.breaker = Breaker()
        self.counts = Counts()
        self.connected = False
        self.unusable = False
        self._script = script
        self._scripts = (script, *others)
        self._probe = probe
        self._clock = clock
        self._draw = draw
        self._watcher = watcher
        self._queue: deque[Ask] = deque()
        self.patience = Patience(clock, budget)
        self._waiting = self.patience.waiting
        self._idle_workers: list[anyio.Event] = []
        self._clocks: dict[Hashable, ServerClock] = {}
        self._attention: anyio.Event | None = None
        self._session: anyio.CancelScope | None = None
        self._reloading = anyio.Lock()
        self._loaded = 0
        self._writing = False
        self._task = Background("loadgate store link", self._run)

    # -- asking ------------------------------------------------------------------------

    def submit(self, ask: Ask, *, waits: bool = True) -> bool:
        """Send `ask` with the next call.

        Args:
            ask: The request.
            waits: Whether somebody waits for it.

        Returns:
            False if it cannot be asked now: the failure policy must decide.
        """
        if not self._task.running:
            self._task.start()
        if self.breaker.state != "closed":
            ask.trouble = "open"
            self._wake_watch()
            return False
        if len(self._queue) >= QUEUE:
            self.counts.saturated += 1
            ask.trouble = "saturated"
            return False
        self._queue.append(ask)
        if waits:
            self._waiting.append(ask)
        if self._attention is not None:
            self._attention.set()
        if self._idle_workers:
            self._idle_workers.pop().set()
        return True

    async def ready(self, patience: float) -> str:
        """Wait until the link works, or its first attempt has failed.

        Args:
            patience: Seconds to wait at most.

        Returns:
            What is wrong; empty if it works.
        """
        if not self._task.running:
            self._task.start()
        with anyio.move_on_after(patience):
            while not self.connected and not self.breaker.incidents:  # noqa: ASYNC110  # at the start only
                await anyio.sleep(0.002)
        return "" if self.connected else self.breaker.cause or "it does not answer"

    async def close(self) -> None:
        """Send what is left, then let go of the store."""
        with anyio.move_on_after(5 * self.budget):
            while self.connected and (self._queue or self.patience.flying):  # noqa: ASYNC110  # at the end only
                await anyio.sleep(0.001)
        await self._task.stop()
        self._give_up_all("closed")

    def stop(self) -> None:
        """Let go of the store at once."""
        self._task.cancel()
        self._give_up_all("closed")

    # -- the task ----------------------------------------------------------------------

    async def _run(self) -> None:
        """Keep a connection, as long as there is something to do."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch, group.cancel_scope)
                while True:
                    cause = await self._connection()
                    self.connected = False
                    self._lose(cause)
                    await anyio.sleep(self.breaker.pause(self._draw()))
        finally:
            self.connected = False
            self._session = None
            self._give_up_all("closed")

    async def _connection(self) -> str:
        """One connection from beginning to end; returns why it ended."""
        self._clocks.clear()  # it may be another server by now
        with anyio.CancelScope(deadline=anyio.current_time() + CONNECT) as session:
            self._session = session
            try:
                async with self.transport.connect() as connection:
                    await connection.load(self._scripts)
                    # Before anything binary: coredis breaks over an error that quotes it.
                    await self._watcher.beat(connection)
                    await self._probes(connection, session)
                    session.deadline = float("inf")
                    await self._serve(connection)
            except Exception as error:  # whatever a client library does, the link goes on
                first = first_of(error)
                self.unusable = isinstance(first, StoreError) and first.configuration
                return str(first) or type(first).__name__
        if session.deadline == float("inf"):
            return self.breaker.cause or "the connection was given up"
        return f"no connection within {CONNECT:g} s"

    async def _probes(self, connection: Connection, session: anyio.CancelScope) -> None:
        """Do not send requests before the store answers as fast as they need it."""
        while True:
            slowest = 0.0
            for key in connection.probes(self._probe):
                sent = self._clock()
                reply, server = await connection.call(self._script, [key], NOTHING)
                received = self._clock()
                slowest = max(slowest, received - sent)
                self._clock_of(server).note(sent, received, read(reply, ())[0])
            if self.breaker.state == "closed":
                break
            if slowest <= self.budget:
                if self.breaker.probed(self._clock()):
                    break
            else:
                self.breaker.trip(self._clock(), "")
            session.deadline = anyio.current_time() + CONNECT
            await anyio.sleep(PROBE_PAUSE)
        self._loaded += 1
        self.counts.connections += 1
        self.connected = True
        self.unusable = False
        if self.breaker.opened_at:
            seconds, self.breaker.opened_at = self._clock() - self.breaker.opened_at, 0.0
            self._watcher.found(seconds)

    async def _serve(self, connection: Connection) -> None:
        self._idle_workers.clear()
        self._writing = False
        async with anyio.create_task_group() as group:
            for _ in range(connection.parallel):
                group.start_soon(self._work, connection)
            while True:
                pause = await self._watcher.beat(connection)
                await anyio.sleep(pause)

    async def _work(self, connection: Connection) -> None:
        queue, idle = self._queue, self._idle_workers
        while True:
            while not queue:
                event = anyio.Event()
                idle.append(event)
                await event.wait()
            if self._writing:
                # A batch has just been taken. Written together, both would be answered together,
                # and the server would be idle while we read; one turn later ours travels alone.
                await anyio.lowlevel.checkpoint()
                self._writing = False
                continue
            batch = self._take(connection)
            if queue:
                self._writing = not connection.split
                if idle:
                    idle.pop().set()
            if batch:
                await self._exchange(connection, batch)
                if not queue:
                    # Those who were answered ask again in this turn: their next questions leave
                    # at its end, not in the next.
                    await anyio.lowlevel.checkpoint()

    def _take(self, connection: Connection) -> list[Ask]:
        """The next requests that may travel together."""
        queue = self._queue
        batch: list[Ask] = []
        if not connection.split:
            # Of two halves the server decides one while we read the other.
            halves = self.patience.idle and len(queue) >= 2 * LEAST_HALF
            most = min(BATCH, len(queue) // 2) if halves else BATCH
            while queue and len(batch) < most:
                ask = queue.popleft()
                if not ask.over:
                    batch.append(ask)
            return batch
        group: Hashable = None
        for _ in range(len(queue)):
            ask = queue.popleft()
            if ask.over:
                continue
            place = connection.group(ask.keys[0])
            if not batch:
                group = place
            # What goes again may have met a key that is elsewhere.
            alone = ask.tries or (batch and batch[0].tries)
            if place == group and len(batch) < BATCH and not (batch and alone):
                batch.append(ask)
            else:
                queue.append(ask)
        return batch

    async def _exchange(self, connection: Connection, batch: list[Ask]) -> None:
        expected = self._clock_of(connection.server(batch[0].keys[0]))
        keys, message = written(batch, expected.earliest)
        sent = self._clock()
        number = self.patience.sent(batch, sent)
        self.counts.calls += 1
        self.counts.asked += len(batch)
        try:
            reply, server = await self._call(connection, keys, message)
            now_us, answers = read(reply, batch)
        except StoreError as error:
            if error.elsewhere:
                self._moving(batch)
                return
            self.counts.failed += len(batch)
            for ask in batch:
                ask.give_up("failed")
            if error.lost:
                raise
            if self.breaker.failed(self._clock(), str(error)):
                self._watcher.lost(str(error))
                raise
            return
        finally:
            self.patience.ended(number)
        received = self._clock()
        self.breaker.answered()
        stale: list[Ask] = []
        for ask, answer in zip(batch, answers, strict=True):
            if answer[0] == STALE:
                stale.append(ask)
            else:
                self.counts.late += ask.over
                ask.finish(answer, now_us)
        self._clock_of(server).note(sent, received, now_us, anew=bool(stale))
        self.counts.stale += len(stale)
        for ask in stale:
            # The server saw it too late by its clock.
            self._not_done(ask, received, "stale")
        self.patience.tidy()

    def _moving(self, batch: list[Ask]) -> None:
        """Their slot is on the way to another server, and some of its keys are already there.

        The store as a whole is not to blame. Each may go again by itself: where its key is, or is
        missing, somebody answers.
        """
        now = self._clock()
        for ask in batch:
            self._not_done(ask, now, "moving")

    def _not_done(self, ask: Ask, now: float, trouble: str) -> None:
        """Certainly not done, so it may go again, once."""
        if ask.over:
            return
        if ask.tries == 0 and now < ask.deadline:
            ask.tries = 1
            self._queue.appendleft(ask)
        else:
            ask.give_up(trouble)

    async def _call(self, connection: Connection, keys: Sequence[bytes], message: bytes) -> Reply:
        for _ in range(RELOADS):
            loaded = self._loaded
            try:
                return await connection.call(self._script, keys, message)
            except StoreError as error:
                if error.code != "NOSCRIPT":
                    raise
            # Certainly not executed: the server has forgotten its scripts. One reload for all.
            async with self._reloading:
                if self._loaded == loaded:
                    await connection.load(self._scripts)
                    self._loaded += 1
        return await connection.call(self._script, keys, message)

    def _clock_of(self, server: Hashable) -> ServerClock:
        return self._clocks.setdefault(server, ServerClock())

    # -- time ----------------------------------------------------------------------------

    async def _watch(self, scope: anyio.CancelScope) -> None:
        """End every wait in time, and notice silence. One timer for all."""
        while True:
            moment = self.patience.next_moment()
            if moment is None:
                self._attention = anyio.Event()
                with anyio.move_on_after(IDLE):
                    await self._attention.wait()
                if not self._attention.is_set() and self.patience.next_moment() is None:
                    scope.cancel()
                self._attention = None
                continue
            await anyio.sleep(max(0.0, moment - self._clock()))
            late = self._clock() - moment
            if late > self.budget / 2:
                self.counts.stalls += 1
                for _ in range(TURNS):
                    await anyio.lowlevel.checkpoint()
                self.patience.forgive()
            self._expire(self._clock())

    def _expire(self, now: float) -> None:
        self.counts.expired += self.patience.expire(now)
        silent = self.patience.silent(now)
        if silent is not None:
            self._lose(f"no answer for {silent * 1e3:.0f} ms")
            if self._session is not None:
                self._session.cancel()

    def _wake_watch(self) -> None:
        if self._attention is not None:
            self._attention.set()

    def _lose(self, cause: str) -> None:
        """The store is gone: everybody who waits is told at once."""
        opened = self.breaker.trip(self._clock(), cause)
        self.counts.failed += self.patience.flying
        self._give_up_all("lost")
        if opened:
            self._watcher.lost(cause)

    def _give_up_all(self, trouble: str) -> None:
        self.patience.give_up(trouble)
        for ask in self._queue:
            ask.give_up(trouble)
        self._queue.clear()
