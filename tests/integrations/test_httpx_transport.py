"""The polite client, driven in virtual time by a server that follows a script."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import anyio
import httpx
import pytest

from loadgate.errors import PolicyError
from loadgate.integrations.httpx import DeadlineExceeded, PoliteTransport, Throttled
from loadgate.integrations.retry import RetryBudget, Throttle

pytestmark = pytest.mark.anyio

WALL = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC).timestamp()
URL = "http://service.test/"

Answer = httpx.Response | Exception
Reply = Callable[[httpx.Request], Answer]


class World(httpx.AsyncBaseTransport):
    """A clock that only sleeping moves, and a server that answers from a script."""

    def __init__(self, *script: Answer | Reply) -> None:
        self.now = 1000.0
        self.script: list[Answer | Reply] = list(script)
        self.sent_at: list[float] = []
        self.bodies: list[bytes] = []
        self.closed: list[bool] = []

    def clock(self) -> float:
        return self.now

    def wall(self) -> float:
        return WALL + self.now - 1000.0

    async def sleep(self, seconds: float) -> None:
        await anyio.lowlevel.checkpoint()
        self.now += seconds

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.sent_at.append(self.now)
        assert isinstance(request.stream, httpx.AsyncByteStream)
        self.bodies.append(b"".join([part async for part in request.stream]))
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        reply = step if isinstance(step, httpx.Response | Exception) else step(request)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def client(self, **settings: Any) -> httpx.AsyncClient:
        settings = {"draw": lambda: 0.0, "throttle": None} | settings
        transport = PoliteTransport(
            self,
            clock=self.clock,
            wall=self.wall,
            sleep=self.sleep,
            **settings,
        )
        self.transport = transport
        return httpx.AsyncClient(transport=transport, base_url=URL)

    @property
    def pauses(self) -> list[float]:
        return [b - a for a, b in zip(self.sent_at, self.sent_at[1:], strict=False)]


def refused(status: int = 503, **headers: str) -> httpx.Response:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, headers=fields, json={"title": "not now"})


def ok() -> httpx.Response:
    return httpx.Response(200, text="served")


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_in_seconds_is_waited_out(status: int) -> None:
    world = World(refused(status, retry_after="7"), ok())
    async with world.client() as client:
        response = await client.get("/")
    assert response.text == "served"
    assert world.pauses == [7.0]


async def test_retry_after_as_a_date_counts_from_the_date_of_the_answer() -> None:
    # The server's clock is an hour ahead of ours; only the difference matters.
    sent = datetime(2026, 11, 30, 13, 0, 0, tzinfo=UTC)
    until = sent.replace(second=9)
    answer = refused(
        date=format_datetime(sent, usegmt=True), retry_after=format_datetime(until, usegmt=True)
    )
    world = World(answer, ok())
    async with world.client() as client:
        await client.get("/")
    assert world.pauses == [9.0]


async def test_retry_after_as_a_date_without_one_in_the_answer_counts_from_our_clock() -> None:
    until = datetime.fromtimestamp(WALL + 4, tz=UTC)
    world = World(refused(retry_after=format_datetime(until, usegmt=True)), ok())
    async with world.client() as client:
        await client.get("/")
    assert world.pauses == [4.0]


@pytest.mark.parametrize(
    "value", ["Mon, 30 Nov 2026 11:59:00 GMT", "0", "soon", "-3", "", "Sun, 99 Foo 2026"]
)
async def test_a_retry_after_of_the_past_or_of_nonsense_adds_no_wait(value: str) -> None:
    world = World(refused(retry_after=value), ok())
    async with world.client(draw=lambda: 0.5, base=0.2) as client:
        await client.get("/")
    assert world.pauses == [pytest.approx(0.1)]


async def test_a_retry_after_is_followed_by_jitter_so_that_a_herd_does_not_return_at_once() -> None:
    world = World(refused(retry_after="3"), ok())
    async with world.client(draw=lambda: 0.5, base=0.2) as client:
        await client.get("/")
    assert world.pauses == [pytest.approx(3.1)]


async def test_backoff_doubles_up_to_the_cap_with_full_jitter() -> None:
    world = World(refused())
    async with world.client(attempts=6, draw=lambda: 0.5, base=1.0, cap=5.0) as client:
        response = await client.get("/")
    assert response.status_code == 503
    assert world.pauses == [0.5, 1.0, 2.0, 2.5, 2.5]


async def test_the_last_answer_is_returned_when_attempts_are_used_up() -> None:
    world = World(refused(), refused(), refused(429))
    async with world.client() as client:
        response = await client.get("/")
    assert response.status_code == 429
    assert response.json() == {"title": "not now"}
    assert (world.transport.sent, world.transport.retried) == (3, 2)


async def test_a_wait_that_ends_after_the_deadline_is_not_begun() -> None:
    world = World(refused(retry_after="40"), ok())
    async with world.client(deadline=30.0) as client:
        response = await client.get("/")
    assert response.status_code == 503
    assert world.now == 1000.0


async def test_an_absurd_retry_after_ends_the_attempts_without_an_error() -> None:
    world = World(refused(retry_after="9" * 400), ok())
    async with world.client(deadline=None) as client:
        response = await client.get("/")
    assert response.status_code == 503


async def test_the_deadline_counts_all_attempts_together_and_a_request_may_set_its_own() -> None:
    world = World(refused(retry_after="3"))
    async with world.client(attempts=100, deadline=60.0) as client:
        await client.get("/", extensions={"loadgate.deadline": 10.0})
    assert world.sent_at == [1000.0, 1003.0, 1006.0, 1009.0]


async def test_an_attempt_that_never_ends_is_stopped_by_the_deadline() -> None:
    class Silent(httpx.AsyncBaseTransport):
        cancelled = False

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            try:
                await anyio.sleep_forever()
            finally:
                self.cancelled = True
            raise AssertionError

    silent = Silent()
    async with httpx.AsyncClient(transport=PoliteTransport(silent, deadline=0.01)) as client:
        with pytest.raises(DeadlineExceeded, match="attempt 1"):
            await client.get(URL)
    assert silent.cancelled


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_what_is_not_safe_to_repeat_is_sent_once(method: str) -> None:
    world = World(refused(), ok())
    async with world.client() as client:
        response = await client.request(method, "/", json={"pay": 1})
    assert response.status_code == 503
    assert world.transport.sent == 1


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
async def test_idempotent_methods_are_repeated(method: str) -> None:
    world = World(refused(), ok())
    async with world.client() as client:
        response = await client.request(method, "/")
    assert response.status_code == 200


@pytest.mark.parametrize(
    "told",
    [
        {"extensions": {"loadgate.retry": True}},
        {"headers": {"Idempotency-Key": "8e03978e"}},
    ],
)
async def test_a_caller_can_say_that_a_post_is_safe_to_repeat(told: dict[str, Any]) -> None:
    world = World(refused(), ok())
    async with world.client() as client:
        response = await client.post("/", content=b"body", **told)
    assert response.status_code == 200
    assert world.bodies == [b"body", b"body"]


async def test_a_caller_can_forbid_retries_of_a_get() -> None:
    world = World(refused(), ok())
    async with world.client() as client:
        response = await client.get("/", extensions={"loadgate.retry": False})
    assert response.status_code == 503


async def test_a_streaming_body_is_never_replayed() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"once"

    world = World(refused(), ok())
    async with world.client() as client:
        response = await client.put("/", content=body(), extensions={"loadgate.retry": True})
    assert response.status_code == 503
    assert world.bodies == [b"once"]


@pytest.mark.parametrize("error", [httpx.ConnectError, httpx.ConnectTimeout])
async def test_a_connection_never_made_is_tried_again_whatever_the_method(
    error: type[httpx.TransportError],
) -> None:
    world = World(error("no route"), ok())
    async with world.client() as client:
        response = await client.post("/", content=b"x")
    assert response.status_code == 200


@pytest.mark.parametrize("error", [httpx.ReadTimeout, httpx.RemoteProtocolError, httpx.ReadError])
async def test_a_post_that_may_have_run_is_not_repeated_but_a_get_is(
    error: type[httpx.TransportError],
) -> None:
    world = World(error("gone"), error("gone"), ok())
    async with world.client() as client:
        with pytest.raises(error):
            await client.post("/", content=b"x")
        assert (await client.get("/")).status_code == 200


async def test_our_own_full_pool_is_not_asked_again() -> None:
    world = World(httpx.PoolTimeout("full"), ok())
    async with world.client() as client:
        with pytest.raises(httpx.PoolTimeout):
            await client.get("/")


@pytest.mark.parametrize("status", [200, 304, 404, 500, 502])
async def test_other_answers_are_returned_at_once(status: int) -> None:
    world = World(httpx.Response(status, headers={"retry-after": "5"}), ok())
    async with world.client() as client:
        response = await client.get("/")
    assert response.status_code == status


async def test_retries_are_a_tenth_of_successes_once_the_budget_is_used_up() -> None:
    world = World(refused())
    async with world.client(budget=lambda: RetryBudget(capacity=5.0)) as client:
        for _ in range(100):
            await client.get("/")
        assert world.transport.retried == 5
        world.script = [ok()]
        for _ in range(20):
            await client.get("/")
        world.script = [refused()]
        for _ in range(100):
            await client.get("/")
        assert world.transport.retried == 7


async def test_each_origin_has_a_budget_of_its_own() -> None:
    world = World(refused())
    async with world.client(budget=lambda: RetryBudget(capacity=1.0)) as client:
        for host in ("http://one.test/", "http://two.test/", "http://one.test:81/"):
            await client.get(host)
            await client.get(host)
    assert world.transport.retried == 3


async def test_a_server_that_refuses_everything_soon_hears_almost_nothing() -> None:
    world = World(refused())
    dice = random.Random(1)
    async with world.client(throttle=Throttle, attempts=1, draw=dice.random) as client:
        for _ in range(1000):
            with contextlib.suppress(Throttled):
                await client.get("/")
    # After n requests one in n + 1 is sent: the first 10, then about ln(1000 / 10).
    assert 10 <= world.transport.sent <= 30
    assert world.transport.sent + world.transport.throttled == 1000


async def test_a_request_held_back_names_the_server_and_the_share() -> None:
    world = World(refused())
    async with world.client(throttle=lambda: Throttle(min_requests=0), attempts=1) as client:
        await client.get("/")
        with pytest.raises(Throttled, match=r"http://service\.test.*67%") as caught:
            await client.get("/")
    assert caught.value.request.url == URL
    assert caught.value.probability == 2 / 3


async def test_a_server_that_accepts_two_of_three_is_never_throttled_at_k_2() -> None:
    turn = iter(range(10_000))
    world = World(lambda _: ok() if next(turn) % 3 else refused(429))
    async with world.client(throttle=Throttle, attempts=1) as client:
        for _ in range(500):
            await client.get("/")
    assert world.transport.throttled == 0


async def test_a_retry_held_back_by_the_throttle_returns_the_answer_at_hand() -> None:
    world = World(refused())
    async with world.client(
        throttle=lambda: Throttle(min_requests=1), attempts=3, draw=lambda: 0.4
    ) as client:
        response = await client.get("/")
    assert response.status_code == 503
    assert (world.transport.sent, world.transport.throttled) == (1, 1)


async def test_an_answer_that_is_thrown_away_is_closed_and_read_only_when_small() -> None:
    class Body(httpx.AsyncByteStream):
        def __init__(self) -> None:
            self.read = False
            self.closed = False

        async def __aiter__(self) -> AsyncIterator[bytes]:
            self.read = True
            yield b"1234"

        async def aclose(self) -> None:
            self.closed = True

    small, large = Body(), Body()
    world = World(
        httpx.Response(503, headers={"content-length": "4"}, stream=small),
        httpx.Response(503, headers={"content-length": "40000000"}, stream=large),
        ok(),
    )
    async with world.client() as client:
        assert (await client.get("/")).status_code == 200
    assert (small.read, small.closed) == (True, True)
    assert (large.read, large.closed) == (False, True)


async def test_cancellation_goes_through_at_every_point() -> None:
    async def sleep(_: float) -> None:
        await anyio.sleep_forever()

    transport = PoliteTransport(
        httpx.MockTransport(lambda _: refused()), sleep=sleep, draw=lambda: 0.0
    )
    async with httpx.AsyncClient(transport=transport) as client, anyio.create_task_group() as group:
        group.start_soon(client.get, URL)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert transport.sent == 1


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"attempts": 0}, "attempts"),
        ({"deadline": 0.0}, "deadline"),
        ({"deadline": float("nan")}, "deadline"),
        ({"base": -1.0}, "base"),
        ({"base": 2.0, "cap": 1.0}, "cap"),
    ],
)
async def test_a_wrong_setting_names_its_path_and_value(settings: Any, path: str) -> None:
    with pytest.raises(PolicyError) as caught:
        PoliteTransport(httpx.MockTransport(lambda _: ok()), **settings)
    assert caught.value.path == path
    assert repr(settings[path]) in caught.value.problem
