"""Both services of the demo start, serve, tell how they are, and are gone afterwards."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from loadgate.integrations.demo.servers import (
    POLICY,
    Launch,
    ServerError,
    bare,
    get,
    guarded,
    serving,
)
from loadgate.integrations.demo.story import GREEDY, POLITE
from loadgate.integrations.loadgen import ClientClass, Phase, Plan, run_elsewhere
from loadgate.policy import Policy

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> Any:
    return "asyncio"  # the demo runs on the asyncio loop that it starts itself


def short_plan(url: str) -> Plan:
    return Plan(
        url=url,
        phases=(Phase("all", 1.0),),
        classes=(
            ClientClass(
                name=POLITE,
                rates=(30.0,),
                clients=300,
                client_header="x-forwarded-for",
                client_name="10.1.{high}.{low}",
                timeout=30.0,
            ),
            ClientClass(
                name=GREEDY,
                rates=(100.0,),
                clients=1,
                client_header="x-forwarded-for",
                client_name="10.2.0.0",
                timeout=30.0,
            ),
        ),
    )


async def test_the_bare_service_serves_everybody_and_counts_who_is_inside() -> None:
    async with serving(bare()) as server:
        result = await run_elsewhere(short_plan(server.url))
        look = await server.look(1.5)
    assert set(result.tally().statuses) == {"200"}
    assert (look.at, look.in_flight, look.limit) == (1.5, 0.0, None)
    assert not exists(server.pid)


async def test_the_guarded_service_limits_the_greedy_client_and_only_that() -> None:
    async with serving(guarded()) as server:
        result = await run_elsewhere(short_plan(server.url))
        look = await server.look(1.5)
    assert result.tally([GREEDY]).count(429) > 0
    assert result.tally([POLITE]).count(429) == 0
    assert set(result.tally().statuses) <= {"200", "429", "503"}
    assert look.limit is not None
    assert look.limit >= 1
    assert not exists(server.pid)


async def test_a_service_that_does_not_start_says_why() -> None:
    launch = bare("loadgate.integrations.demo.service:nothing_here")
    with pytest.raises(ServerError, match="nothing_here"):
        async with serving(launch):
            pytest.fail("it cannot have started")


async def test_a_page_that_is_not_200_is_an_error() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 \r\ncontent-length: 0\r\n\r\n")
        writer.close()

    listener = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionError, match="503"):
            await get(f"http://127.0.0.1:{port}/metrics")


def test_the_policy_of_the_demo_knows_nothing_of_the_capacity() -> None:
    policy = Policy.from_toml(POLICY)
    assert policy.concurrency == Policy().concurrency
    assert [rate.name for rate in policy.rates] == ["per-client"]


def test_a_launch_names_the_same_app_with_and_without() -> None:
    def app(launch: Launch) -> list[str]:
        return [word for word in launch.command if word.endswith("service:app")]

    assert app(bare()) == app(guarded()) == ["loadgate.integrations.demo.service:app"]


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
