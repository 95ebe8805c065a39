"""Servers that live as long as the tests of one module, and a policy that uses one."""

from __future__ import annotations

import socket
from collections.abc import Generator
from typing import Any

import pytest

from tests.redis.servers import NAMES, Server


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    with Server() as started:
        yield started


@pytest.fixture(scope="module", params=NAMES)
def any_server(request: Any) -> Generator[Server]:
    """Each server that loadgate is tested against."""
    with Server(request.param) as started:
        yield started


@pytest.fixture
def silent() -> Generator[int]:
    """A port where somebody listens and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]
