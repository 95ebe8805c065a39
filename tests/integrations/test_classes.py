"""Classes by path: which entry decides, and that layer and door agree."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from loadgate import AdmissionController, Concurrency, Overloaded, Policy, Queue
from loadgate.decisions import Reason, Refuse
from loadgate.integrations.asgi import AdmissionMiddleware
from loadgate.integrations.classes import PathClasses
from loadgate.integrations.door import Door
from tests.integrations.scripted_door import Script

CLASSES = PathClasses({"/checkout": "critical", "/export/": "background", "/export/small": "fast"})


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/", "default"),
        ("/checkout", "critical"),
        ("/checkout/", "critical"),
        ("/checkout/42/pay", "critical"),
        ("/checkouts", "default"),
        ("/a/checkout", "default"),
        ("/export", "background"),
        ("/export/all", "background"),
        ("/export/small", "fast"),
        ("/export/smaller", "background"),
        ("", "default"),
    ],
)
def test_the_longest_entry_that_covers_the_path_decides(path: str, name: str) -> None:
    assert CLASSES.of(path) == name
    assert CLASSES({"path": path}) == name


def test_the_root_path_of_a_mounted_app_does_not_count() -> None:
    assert CLASSES({"path": "/v1/checkout", "root_path": "/v1"}) == "critical"
    assert CLASSES({"path": "/checkout", "root_path": "/v1"}) == "critical"


def test_everything_can_be_of_another_class_than_default() -> None:
    classes = PathClasses({"/": "background"}, otherwise="critical")
    assert classes.of("/anything") == "background"
    assert classes.unknown(["critical", "background"]) == []


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["/checkout"], "'/checkout' is not of the form"),
        (["checkout=critical"], "'checkout' is no path"),
        (["/checkout="], "a class has no name"),
        (["/checkout=vital"], "'vital' is none of the policy's classes: critical, default"),
    ],
)
def test_an_entry_that_means_nothing_is_an_error(entries: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PathClasses.read(entries, ("critical", "default"))


def test_entries_are_read_as_they_are_written() -> None:
    classes = PathClasses.read(["/a=b=critical", " /c = default "], ("critical", "default"))
    assert classes.of("/a=b/1") == "critical"
    assert classes.of("/c") == "default"


def head(path: str) -> bytes:
    return f"GET {path}?q=1 HTTP/1.1\r\nhost: a\r\n\r\n".encode()


def test_the_door_asks_its_rule_about_the_class_and_counts_by_it() -> None:
    gate = AdmissionController(Policy())
    door = Door(gate, priority=PathClasses({"/pay": "critical", "/bulk": "background"}))
    door.rule = rule = Script()
    for path in ("/pay/1", "/%70ay", "/other", "/bulk"):
        assert not isinstance(door.ask(head(path)), Refuse)
    assert rule.levels == [0, 0, 1, 2]
    assert (rule.classes, rule.usual) == (3, 1)
    rule.shut()
    for path in ("/pay", "/other", "/bulk", "/bulk"):
        refusal = door.ask(head(path))
        assert isinstance(refusal, Refuse)
        if path == "/bulk":
            door.drop(refusal, head(path))
        else:
            door.answer(refusal, head(path), close=True)
    assert list(gate.telemetry.overloaded[:3]) == [1, 1, 2]


def test_a_door_that_is_told_no_classes_treats_all_alike() -> None:
    door = Door(AdmissionController(Policy()))
    door.rule = rule = Script()
    door.ask(head("/pay"))
    assert rule.levels == [0]
    assert (rule.classes, rule.usual) == (1, 0)


def test_a_function_of_the_scope_is_of_no_use_at_the_door() -> None:
    with pytest.raises(ValueError, match="PathClasses"):
        Door(AdmissionController(), priority=lambda scope: "critical")  # type: ignore[arg-type]  # the test


@pytest.mark.anyio
async def test_the_layer_takes_them_as_its_priority() -> None:
    gate = AdmissionController(
        Policy(concurrency=Concurrency("fixed", initial=5), queue=Queue(max_wait=0.0))
    )

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    async def nothing(*_: Any) -> Any:
        return {"type": "http.disconnect"}

    layer = AdmissionMiddleware(app, gate, priority=PathClasses({"/pay": "critical"}))
    for path in ("/pay", "/pay/1", "/other"):
        scope: dict[str, Any] = {
            "type": "http",
            "method": "GET",
            "path": path,
            "headers": [],
            "client": None,
        }
        await layer(scope, nothing, nothing)
    assert list(gate.telemetry.admitted[:3]) == [2, 1, 0]


@pytest.mark.anyio
async def test_a_late_loop_refuses_the_highest_class_last() -> None:
    now = [100.0]
    gate = AdmissionController(
        Policy(concurrency=Concurrency("fixed", initial=10)), clock=lambda: now[0]
    )
    refused: list[str] = []

    async def another(priority: str) -> None:
        try:
            async with gate.admit(priority=priority):
                pass
        except Overloaded as error:
            if error.reason is Reason.LOOP_LAG:  # the limit is braked as well
                refused.append(priority)

    async with gate.admit(), anyio.create_task_group() as tasks:
        for _ in range(20):
            now[0] += 0.15  # later than allowed, but not twice
            tasks.start_soon(another, "default")
            tasks.start_soon(another, "critical")
            seen = gate.watch.last
            while gate.watch.last == seen:  # noqa: ASYNC110  # the tick comes, in real time
                await anyio.sleep(0.001)
    # Whether the tick or the tasks come first is the loop's affair.
    assert refused.count("default") > 5
    assert refused.count("critical") == 0
