"""What a refused client is told, where other limiters told it nothing or the wrong thing."""

from __future__ import annotations

import math

import pytest

from loadgate import AdmissionController, Policy, Rate, RateLimited
from loadgate.testing import VirtualClock


@pytest.mark.anyio
async def test_a_client_without_the_key_is_told_so_and_which_setting_changes_it() -> None:
    # `client=None` was counted as 127.0.0.1 by others, and nobody was told.
    policy = Policy(rates=[Rate("per-account", "5/second", key="account", on_missing="refuse")])
    controller = AdmissionController(policy, clock=VirtualClock())
    with pytest.raises(RateLimited) as caught:
        async with controller.admit(client={"address": "203.0.113.7"}):
            raise AssertionError
    assert caught.value.retry_after == math.inf
    text = caught.value.explain()
    assert "'per-account'" in text
    assert "without it" in text
    assert "on_missing" in text
    assert "cost" not in text


@pytest.mark.anyio
async def test_a_cost_above_the_burst_is_told_as_such() -> None:
    policy = Policy(rates=[Rate("per-account", "5/second", key="account")])
    controller = AdmissionController(policy, clock=VirtualClock())
    with pytest.raises(RateLimited) as caught:
        async with controller.admit(client={"account": "42"}, cost=6.0):
            raise AssertionError
    text = caught.value.explain()
    assert "the cost 6 is above" in text
    assert "on_missing" not in text
