"""Every example of docs/frameworks.md runs as it is pasted, in the framework that it is for."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"

# These run on asyncio alone, whatever is in front of them.
ASYNCIO_ONLY = {"Quart", "Django"}


def examples() -> Iterator[tuple[str, str]]:
    """Heading and code of each example."""
    heading = ""
    for found in re.finditer(
        r"^## (?P<heading>[^\n]*)$|^```python\n(?P<code>.*?)^```", PAGE.read_text(), re.M | re.S
    ):
        if found["heading"]:
            heading = found["heading"]
        else:
            yield heading, found["code"]


EXAMPLES = list(examples())
ANYWHERE = [example for example in EXAMPLES if example[0] not in ASYNCIO_ONLY]
SOMEWHERE = [example for example in EXAMPLES if example[0] in ASYNCIO_ONLY]


def load(code: str) -> Any:
    """The `app` of an example."""
    module = types.ModuleType(f"pasted_{len(sys.modules)}")
    sys.modules[module.__name__] = module  # where Django and FastAPI look for names
    exec(compile(code, module.__name__, "exec"), vars(module))
    return vars(module)["app"]


async def statuses(app: Callable[..., Awaitable[None]], *paths: str) -> list[int]:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://test"
    ) as client:
        return [(await client.get(path)).status_code for path in paths]


def test_there_is_an_example_for_each_framework() -> None:
    headings = {heading for heading, _ in EXAMPLES}
    assert headings >= {"Bare ASGI", "Starlette", "FastAPI", "Litestar", "Quart", "Django"}


@pytest.mark.anyio
@pytest.mark.parametrize("example", ANYWHERE, ids=[heading for heading, _ in ANYWHERE])
async def test_an_example_serves_three_requests_and_refuses_the_fourth(
    example: tuple[str, str],
) -> None:
    assert await statuses(load(example[1]), *["/"] * 4) == [200, 200, 200, 429]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("example", SOMEWHERE, ids=[heading for heading, _ in SOMEWHERE])
async def test_an_example_that_needs_asyncio_does_so_too(example: tuple[str, str]) -> None:
    assert await statuses(load(example[1]), *["/"] * 4) == [200, 200, 200, 429]
