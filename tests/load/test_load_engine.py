"""Requests leave by the clock, every one of them ends, and the rows say how."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest

from loadgate.integrations.loadgen import ClientClass, Phase, Plan, Progress, run_elsewhere

pytestmark = pytest.mark.anyio

EVERY_10_MS = tuple(number / 100 for number in range(20))


async def test_arrivals_do_not_wait_for_replies_and_latency_begins_at_the_intended_start(
    serving: Any, offer: Any
) -> None:
    """The server says nothing before the last request is there: closed loops never get so far."""
    waiting: list[asyncio.StreamWriter] = []

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        waiting.append(writer)
        if len(waiting) == len(EVERY_10_MS):
            for one in waiting:
                one.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await reader.read()

    async with serving(stall) as server:
        result = await offer(server.url, arrivals=EVERY_10_MS)
    rows = result.rows["user"]
    assert rows.status == [200] * 20
    for at, latency in zip(rows.at, rows.latency, strict=True):
        assert latency >= rows.at[-1] - at
    assert rows.latency[0] >= 0.19  # from the send after a stall, it would be next to nothing


async def test_a_client_out_of_patience_closes_its_socket(serving: Any, offer: Any) -> None:
    all_closed = asyncio.Event()
    closed = 0

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        nonlocal closed
        await reader.read()
        closed += 1
        if closed == server.connections:
            all_closed.set()

    async with serving(silent) as server:
        result = await offer(server.url, arrivals=EVERY_10_MS, timeout=0.3)
        await asyncio.wait_for(all_closed.wait(), 30.0)
    assert set(result.tally().statuses) <= {"timeout", "unsent"}
    assert result.tally().count("timeout") > 0
    assert min(result.rows["user"].latency) >= 0.3


async def test_statuses_are_counted_and_only_success_within_the_slo_is_good(
    serving: Any, offer: Any
) -> None:
    answers = [b"200 OK", b"429 Slow Down", b"503 Full", b"500 Oops", b"302 Found"] * 4

    async def mixed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 " + answers.pop() + b"\r\ncontent-length: 0\r\n\r\n")

    async with serving(mixed) as server:
        result = await offer(server.url, arrivals=EVERY_10_MS, slo=25.0)
    tally = result.tally()
    assert tally.statuses == {"200": 4, "302": 4, "429": 4, "500": 4, "503": 4}
    assert tally.offered == 20
    assert tally.good == 8
    assert result.tally(slo=0.0).good == 0
    assert tally.count(429, 503) == 8
    assert tally.share == 0.4


async def test_kept_connections_are_used_again(
    serving: Any, offer: Any, polite_server: Any
) -> None:
    async with serving(polite_server) as server:
        result = await offer(server.url, rates=(200.0,), connection="keep")
    offered = result.tally().offered
    assert result.tally().statuses == {"200": offered}
    assert server.connections == result.opened
    assert result.peak == result.opened < offered


async def test_new_connections_carry_one_request_each(
    serving: Any, offer: Any, polite_server: Any
) -> None:
    async with serving(polite_server) as server:
        result = await offer(server.url, rates=(200.0,), connection="new")
    offered = result.tally().offered
    assert result.tally().statuses == {"200": offered}
    assert server.connections == result.opened == offered


async def test_the_pool_grows_when_every_connection_is_busy(serving: Any, offer: Any) -> None:
    busy: list[asyncio.StreamWriter] = []

    async def wait_for_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        busy.append(writer)
        for one in busy if len(busy) == 20 else ():
            one.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await reader.read()

    async with serving(wait_for_all) as server:
        result = await offer(server.url, arrivals=EVERY_10_MS)
    assert result.peak == 20


async def test_bodies_arrive_whole_with_a_length_and_chunked(serving: Any, offer: Any) -> None:
    body = "0123456789" * 20_000
    sizes: list[int] = []

    async def measure(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            if b"chunked" in head:
                size = int(await reader.readuntil(b"\r\n"), 16)
                sizes.append(len(await reader.readexactly(size)))
                await reader.readexactly(len(b"\r\n0\r\n\r\n"))
            else:
                size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                sizes.append(len(await reader.readexactly(size)))
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n")
            writer.write(b"0\r\n\r\n")

    for chunked in (False, True):
        async with serving(measure) as server:
            result = await offer(
                server.url, arrivals=(0.0, 0.1), method="POST", body=body, chunked=chunked
            )
        assert result.tally().statuses == {"200": 2}
    assert sizes == [200_000] * 4


async def test_a_body_without_a_length_ends_with_the_connection(serving: Any, offer: Any) -> None:
    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nall of it")

    async with serving(old) as server:
        result = await offer(server.url, arrivals=(0.0, 0.1))
    assert result.tally().statuses == {"200": 2}
    assert server.connections == 2


async def test_half_an_answer_counts_as_closed(serving: Any, offer: Any) -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")

    async with serving(cut) as server:
        result = await offer(server.url, arrivals=(0.0, 0.1))
    assert result.tally().statuses == {"closed": 2}


async def test_nonsense_counts_as_garbled(serving: Any, offer: Any) -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 mail.example ESMTP\r\n\r\n")
        await reader.read()

    async with serving(nonsense) as server:
        result = await offer(server.url, arrivals=(0.0,))
    assert result.tally().statuses == {"garbled": 1}


@pytest.mark.parametrize(("method", "status"), [("GET", "200"), ("POST", "closed")])
async def test_only_repeatable_requests_are_sent_again_when_a_kept_connection_was_closed(
    serving: Any, offer: Any, method: str, status: str
) -> None:
    async def second_is_dropped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")

    async with serving(second_is_dropped) as server:
        result = await offer(server.url, arrivals=(0.0, 0.2), duration=0.3, method=method)
    assert result.rows["user"].status[0] == 200
    assert result.tally().count(status) == (2 if status == "200" else 1)
    assert result.resent == (1 if method == "GET" else 0)


async def test_a_server_that_closes_idle_connections_costs_nothing(
    serving: Any, offer: Any
) -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")

    async with serving(once) as server:
        result = await offer(server.url, arrivals=EVERY_10_MS)
    assert result.tally().statuses == {"200": 20}


async def test_nobody_listening_counts_as_refused(offer: Any) -> None:
    with socket.socket() as reserved:  # bound, not listening: nobody else takes the port
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        result = await offer(f"http://127.0.0.1:{port}", arrivals=(0.0, 0.01))
    assert result.tally().statuses == {"refused": 2}


async def test_the_generator_says_when_it_was_too_late_itself(
    serving: Any, offer: Any, polite_server: Any
) -> None:
    stalls = [0.2]

    def stall(_: Progress) -> None:
        if stalls:
            time.sleep(stalls.pop())

    async with serving(polite_server) as server:
        result = await offer(
            server.url,
            arrivals=tuple(number / 100 for number in range(100)),
            duration=1.0,
            timeout=0.05,
            progress=0.05,
            report=stall,
        )
    assert result.lag().unsent > 0
    assert result.lag().worst >= 0.05
    assert result.tally().count("unsent") == result.lag().unsent


async def test_progress_adds_up_to_the_result(serving: Any, offer: Any, polite_server: Any) -> None:
    seen: list[Progress] = []
    async with serving(polite_server) as server:
        result = await offer(server.url, rates=(200.0,), progress=0.05, report=seen.append)
    assert len(seen) >= 2
    assert sum(one.classes["user"].sent for one in seen) == result.tally().offered
    assert sum(one.classes["user"].good for one in seen) == result.tally().good
    assert {one.phase for one in seen} == {"all"}


async def test_a_class_with_nothing_to_send_ends_at_once(offer: Any) -> None:
    result = await offer("http://127.0.0.1:9", rates=())
    assert result.tally().offered == 0


async def test_requests_come_from_all_the_clients_of_a_class(serving: Any, offer: Any) -> None:
    names: set[bytes] = set()

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            names.add(head.split(b"x-client: ")[1].split(b"\r\n")[0])
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    async with serving(note) as server:
        await offer(server.url, arrivals=tuple(n / 1000 for n in range(100)), clients=3)
    assert names == {b"user-0", b"user-1", b"user-2"}


async def test_a_process_of_its_own_gives_the_same_result(serving: Any, polite_server: Any) -> None:
    seen: list[Progress] = []
    async with serving(polite_server) as server:
        plan = Plan(
            url=server.url,
            phases=(Phase("first", 0.1), Phase("second", 0.1)),
            classes=(
                ClientClass(name="one", rates=(100.0, 100.0), timeout=30.0),
                ClientClass(name="two", rates=(0.0, 100.0), timeout=30.0),
            ),
            progress=0.05,
        )
        result = await asyncio.wait_for(run_elsewhere(plan, seen.append), 60)
    assert result.plan == plan
    assert result.tally(["two"], phase="first").offered == 0
    assert result.tally(phase="second").offered == result.tally(phase="second").good > 0
    assert seen


async def test_a_result_of_many_rows_comes_back_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unbuffered, one write of a long line ended halfway about once in twenty times."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        plan = Plan(
            url=f"http://127.0.0.1:{reserved.getsockname()[1]}",
            phases=(Phase("all", 0.01),),
            classes=(ClientClass(name="user", rates=(3_000_000.0,), timeout=0.02),),
        )
        result = await asyncio.wait_for(run_elsewhere(plan), 60)
    assert result.tally().offered > 29_000
