"""Every asynchronous test runs on asyncio, asyncio under uvloop, and trio."""

from __future__ import annotations

from typing import Any

import pytest

BACKENDS: list[Any] = [
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    pytest.param("trio", id="trio"),
]


@pytest.fixture(params=BACKENDS)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param
