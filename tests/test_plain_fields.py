"""A struct with plain fields is the same struct; only setting its fields is quicker."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from loadgate.integrations.exchange import Exchange
from loadgate.permit import Permit
from loadgate.plain_fields import plain_fields
from loadgate.ticket import Ticket


@plain_fields
class Point(msgspec.Struct, gc=False):
    x: float = 0.0
    y: float = 0.0


class Solid(Point, gc=False):
    z: float = 0.0


@pytest.mark.parametrize("kind", [Point, Solid])
def test_fields_are_set_read_and_deleted_as_before(kind: type[Point]) -> None:
    point = kind(1.0)
    point.y = 2.0
    assert (point.x, point.y) == (1.0, 2.0)
    assert point == kind(1.0, 2.0)
    assert msgspec.structs.replace(point, x=3.0) == kind(3.0, 2.0)
    del point.y
    with pytest.raises(AttributeError):
        _ = point.y


@pytest.mark.parametrize("kind", [Point, Solid])
def test_a_name_that_is_no_field_is_still_refused(kind: type[Point]) -> None:
    with pytest.raises(AttributeError):
        kind().w = 1.0  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # what is tested


@pytest.mark.parametrize("kind", [Ticket, Permit, Exchange])
def test_what_every_request_sets_fields_of_has_plain_ones(kind: type[msgspec.Struct]) -> None:
    assert kind.__setattr__ is object.__setattr__
    assert kind.__delattr__ is object.__delattr__


def test_the_collector_knows_of_an_exchange_from_its_first_moment() -> None:
    async def receive() -> dict[str, object]:
        return {}

    async def send(message: object) -> None: ...

    servers: tuple[Any, ...] = (receive, SimpleNamespace(receive=receive).receive, print)
    for inner in servers:
        exchange = Exchange(Permit(controller=None), inner, send)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # never asked
        assert gc.is_tracked(exchange)
