"""``loadgate serve --workers``: several processes behind one address."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import httpx
import pytest

from loadgate import Concurrency, Policy, Rate
from loadgate.integrations.cli.workers import multiplied, operators_address
from tests.integrations.served import Served
from tests.programs import PATIENCE

APP = """
import os

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                os.write(1, b"shut down\\n")  # one write: two workers share the pipe
                return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(os.getpid()).encode()})
"""


def test_workers_share_an_address_are_started_again_and_drain_together(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("[[rates]]\nname = 'a'\nrate = '1000/second'\n")
    options = ("--workers", "2", "--policy", str(policy))
    with Served(tmp_path, *options, app=APP) as served:
        served.line(r"serving served_app:app on (http://\S+)")
        assert "rate 'a' is counted by each of the 2 workers" in served.log()

        first = int(served.get("/").text)
        os.kill(first, signal.SIGKILL)
        served.line(r"serving served_app:app on (http://\S+)")
        assert f"ended with code {-signal.SIGKILL}" in served.log()
        # Whoever is idle takes the next connection: all that counts is that both live.
        assert served.get("/").status_code == 200

        served.signal(signal.SIGHUP)
        served.until(lambda: served.log().count("is in force") == 2)

        served.signal(signal.SIGTERM)
        served.line("shut down")
        served.line("shut down")
        assert served.ended() == 0


def test_workers_whose_parent_is_gone_drain_and_end(tmp_path: Path) -> None:
    with Served(tmp_path, "--workers", "2", app=APP) as served:
        served.line(r"serving served_app:app on (http://\S+)")
        served.signal(signal.SIGKILL)
        served.line("shut down")
        served.line("shut down")
        served.until(lambda: not _answers(served.url))


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=PATIENCE).status_code == 200
    except httpx.TransportError:
        return False


def test_a_worker_that_cannot_start_ends_them_all(tmp_path: Path) -> None:
    served = Served(tmp_path, "--workers", "2", app="raise ValueError('broken')")
    with pytest.raises(AssertionError, match="broken"), served:
        pass
    assert served.process.returncode == 2


def test_what_several_processes_make_of_a_policy_is_said() -> None:
    policy = Policy(
        rates=[Rate("each", "100/second burst 200"), Rate("off", limit=1, mode="off")],
        concurrency=Concurrency("fixed", initial=5),
    )
    rate, limit = multiplied(policy, 4)
    assert re.search(r"'each'.*up to 400 instead of 100 every 1 s.*25 \(burst 50\)", rate)
    assert "4 x 5 in all" in limit
    (default,) = multiplied(Policy(concurrency=Concurrency("fixed", max=8)), 2)
    assert "2 x 8 in all" in default


@pytest.mark.parametrize(
    ("spec", "second"),
    [
        ("127.0.0.1:9464", "127.0.0.1:9465"),
        ("[::1]:9464", "[::1]:9465"),
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("unix:/tmp/ops", "unix:/tmp/ops.1"),
        ("none", "none"),
    ],
)
def test_each_worker_has_a_port_for_operators(spec: str, second: str) -> None:
    assert operators_address(spec, 0) == spec
    assert operators_address(spec, 1) == second
