"""What an untyped caller may do by mistake is a clear error, never a silent free pass."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from loadgate import AdmissionController, Concurrency, Policy, UsageError
from loadgate.integrations.asgi import AdmissionMiddleware


async def application(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("it must not run")


@pytest.mark.parametrize("wrong", ["policy.toml", {"rates": []}, 42, Concurrency(), Policy])
def test_a_policy_of_another_kind_is_a_clear_error(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"Policy\.from_toml"):
        AdmissionController(wrong)


@pytest.mark.parametrize("wrong", ["policy.toml", {}, None, 42, Concurrency(), AdmissionController])
def test_a_controller_of_another_kind_is_a_clear_error(wrong: Any) -> None:
    with pytest.raises(TypeError, match="controller must be"):
        AdmissionMiddleware(application, wrong)


@pytest.mark.parametrize("wrong", [AdmissionController(), Policy(), None, "app"])
def test_an_application_of_another_kind_is_a_clear_error(wrong: Any) -> None:
    with pytest.raises(TypeError, match="app must be"):
        AdmissionMiddleware(wrong, AdmissionController())


@pytest.mark.anyio
async def test_a_permit_has_no_truth_before_it_is_entered() -> None:
    controller = AdmissionController()
    with pytest.raises(UsageError, match="with controller"):
        assert controller.try_admit(client="a")
    with pytest.raises(UsageError, match="with controller"):
        assert controller.admit(client="a")
    with controller.try_admit(client="a") as permit:
        assert permit


@pytest.mark.anyio
@pytest.mark.parametrize("client", [1, uuid.UUID(int=1), ("a", "b"), 1.5])
async def test_a_client_of_another_kind_is_an_error_even_without_a_rate(client: Any) -> None:
    controller = AdmissionController()
    with pytest.raises(TypeError, match="client must be"):
        async with controller.admit(client=client):
            raise AssertionError("it must not run")
    assert controller.snapshot().in_flight == 0
