"""The failed logins of docs/rates.md, over HTTP."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "rates.md"


def app_of(headline: str) -> Any:
    """Run the blocks of the page up to the one that begins with this comment; its app."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        if block.startswith("# three failed logins") or block.startswith(headline):
            exec(compile(block, str(PAGE), "exec"), names)
        if block.startswith(headline):
            return names["app"]
    raise AssertionError(f"{PAGE} has no block {headline!r}")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("headline", "wrong"), [("# three failed logins", 401), ("# the same, by what", 200)]
)
async def test_three_failed_logins_a_minute(headline: str, wrong: int) -> None:
    app = app_of(headline)

    async def attempt(password: str, address: str = "203.0.113.7") -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(address, 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get("/login", params={"password": password})

    for _ in range(5):
        assert (await attempt("correct horse")).status_code == 200
    for _ in range(3):
        assert (await attempt("battery staple")).status_code == wrong
    refused = await attempt("correct horse")
    assert refused.status_code == 429
    # One of three is back within a third of a minute.
    assert 1 <= int(refused.headers["retry-after"]) <= 20
    assert "failed-logins" in refused.headers["ratelimit-policy"]
    assert (await attempt("correct horse", "198.51.100.1")).status_code == 200
