"""A plan that cannot be meant is refused, with the field and the bound."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from loadgate.integrations.loadgen import ClientClass, Phase, Plan, Result, Rows
from loadgate.integrations.loadgen.plan import client_name

GOOD: dict[str, Any] = {
    "url": "http://127.0.0.1:1",
    "phases": (Phase("all", 1.0),),
    "classes": (ClientClass(name="user", rates=(1.0,)),),
}


def make_plan(**change: Any) -> Plan:
    fields: dict[str, Any] = {**GOOD, **change}
    return Plan(**fields)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"url": "https://127.0.0.1"}, "url"),
        ({"url": "127.0.0.1:80"}, "url"),
        ({"phases": ()}, "phases"),
        ({"classes": ()}, "classes"),
        ({"slo": 0.0}, "slo"),
        ({"phases": (Phase("all", 0.0),)}, "phases[all].duration"),
        ({"classes": (ClientClass(name="a"), ClientClass(name="a"))}, "classes"),
        ({"classes": (ClientClass(name="a", rates=(-1.0,)),)}, "classes[a].rates"),
        ({"classes": (ClientClass(name="a", rates=((0.0, float("inf")),)),)}, "classes[a].rates"),
        ({"classes": (ClientClass(name="a", rates=(1.0, 1.0)),)}, "classes[a].rates"),
        ({"classes": (ClientClass(name="a", timeout=0.0),)}, "classes[a].timeout"),
        ({"classes": (ClientClass(name="a", timeout=float("inf")),)}, "classes[a].timeout"),
        ({"classes": (ClientClass(name="a", arrivals=(0.2, 0.1)),)}, "classes[a].arrivals"),
        ({"classes": (ClientClass(name="a", arrivals=(2.0,)),)}, "classes[a].arrivals"),
        ({"classes": (ClientClass(name="a", client_name="{no}"),)}, "classes[a].client_name"),
        ({"classes": (ClientClass(name="a", path="a b"),)}, "classes[a].path"),
        ({"classes": (ClientClass(name="a", headers=(("x", "1\r\ny: 2"),)),)}, "classes[a]"),
    ],
)
def test_a_wrong_plan_names_the_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field.replace("[", r"\[").replace("]", r"\]")):
        make_plan(**change)


def test_a_plan_survives_json() -> None:
    plan = make_plan(classes=(ClientClass(name="a", rates=((1.0, 2.0),), body="é"),))
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan


def test_clients_can_be_named_as_addresses() -> None:
    one = ClientClass(name="a", client_name="10.0.{high}.{low}")
    assert client_name(one, 259) == "10.0.1.3"
    assert client_name(ClientClass(name="a"), 259) == "a-259"


def make_result() -> Result:
    plan = make_plan(phases=(Phase("calm", 1.0), Phase("storm", 1.0)), slo=0.3)
    rows = Rows(
        at=[0.1, 0.5, 1.0, 1.5, 1.9],
        latency=[0.1, 0.2, 0.3, 0.4, 0.001],
        status=[200, 200, 200, 200, 503],
        late=[0.0, 0.0, 0.0, 0.0, 0.01],
    )
    return Result(plan=plan, rows={"user": rows}, elapsed=2.0, cpu=0.1, opened=1, peak=1, resent=0)


def test_a_request_belongs_to_the_phase_in_which_it_was_due() -> None:
    result = make_result()
    assert result.tally(phase="calm").offered == 2
    storm = result.tally(phase="storm")
    assert (storm.offered, storm.good, storm.goodput) == (3, 1, 1.0)
    assert (storm.p50, storm.worst, storm.refusal_p99) == (0.3, 0.4, 0.001)
    assert result.tally(between=(0.4, 1.2)).offered == 2
    with pytest.raises(KeyError):
        result.tally(phase="night")


def test_a_summary_is_json_with_every_phase_and_class() -> None:
    summary: Any = msgspec.json.decode(msgspec.json.encode(make_result().summary()))
    assert summary["phases"]["storm"]["classes"]["user"]["statuses"] == {"200": 2, "503": 1}
    assert summary["phases"]["calm"]["all"]["refusal_p50"] is None
    assert summary["lag"]["worst"] == 0.01
