"""Real processes that hammer one key admit together what one limiter would."""

from __future__ import annotations

import pytest

from bench.redis_processes import run
from tests.redis.servers import Server


@pytest.mark.parametrize(("mode", "overdraft"), [("strict", 0.0), ("local", 2.0)])
def test_three_processes_admit_no_more_than_the_bound(
    server: Server, mode: str, overdraft: float
) -> None:
    assert run(server, mode, processes=3, seconds=0.7, overdraft=overdraft)
