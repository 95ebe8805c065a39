"""The live views draw what the controller knows, to those who may look."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from io import StringIO

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from loadgate import AdmissionController, Concurrency, Policy, Queue, Rate, RateLimited
from loadgate.integrations.console.lines import Lines
from loadgate.integrations.console.live import DATA, PAGE, Live, is_local, page
from loadgate.integrations.console.reading import between, quantile
from loadgate.integrations.console.status import Counts, Status, StoreLook, status_of
from loadgate.integrations.console.terminal import Watch, lasting, percent, spark, when
from loadgate.integrations.witness import Witness
from loadgate.testing import VirtualClock

POLICY = Policy(
    rates=[Rate("per-client", limit=3, per=3600.0)],
    concurrency=Concurrency(algorithm="fixed", initial=2, max=9),
    queue=Queue(max_wait=0.3),
)


class Story:
    """Ten seconds: two run for 4 s, one is refused, and one looks before and after."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.controller = AdmissionController(POLICY, clock=self.clock, name="checkout")
        self.witness = Witness(logs=False)
        self.before = status_of(self.controller, self.witness)

    async def play(self) -> None:
        async with self.controller as controller:
            async with controller.admit("a", priority="critical"), controller.admit("a"):
                self.clock.advance(4.0)
            async with controller.admit("a"):
                pass
            with pytest.raises(RateLimited) as caught:
                await controller.admit("a").__aenter__()
            self.witness.refused(caught.value.refusal, "a", 429, self.clock())
            self.clock.advance(6.0)
            self.before_end = status_of(controller, self.witness)
            self.after = status_of(controller, self.witness)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # nothing here depends on the loop


@pytest.fixture
async def story() -> Story:
    story = Story()
    await story.play()
    return story


@pytest.mark.anyio
async def test_two_looks_tell_rates_means_and_quantiles(story: Story) -> None:
    reading = between(story.before, story.after)
    assert reading is not None
    assert reading.seconds == pytest.approx(10.0)
    assert reading.limit == pytest.approx(2.0)
    assert reading.in_flight == pytest.approx(0.8)
    assert reading.saturated == pytest.approx(0.4)
    assert reading.asked == pytest.approx(0.4)
    assert reading.admitted == reading.done == pytest.approx(0.3)
    assert reading.refused == {"rate": pytest.approx(0.1)}
    assert reading.p99 == pytest.approx(2.5 + 2.5 * (0.99 * 3 - 1) / 2)
    assert reading.wait99 is None


@pytest.mark.anyio
async def test_another_process_behind_the_same_address_is_no_negative_rate(story: Story) -> None:
    assert between(story.after, story.before) is None
    fresh = msgspec.structs.replace(story.before, at=story.after.at + 1.0)
    assert between(story.after, fresh) is None


@given(st.lists(st.integers(0, 5), min_size=4, max_size=4), st.floats(0.01, 0.99))
def test_a_quantile_lies_in_the_bucket_that_holds_it(added: list[int], q: float) -> None:
    edges = (0.1, 0.2, 0.4)
    found = quantile(q, Counts(edges, (0,) * 4, 0.0), Counts(edges, tuple(added), 0.0))
    if not sum(added):
        assert found is None
        return
    assert found is not None
    values = [edge for edge, count in zip((*edges, 0.4), added, strict=True) for _ in range(count)]
    upper = values[min(len(values) - 1, int(q * len(values) + 1 - 1e-9) - 1)] if q else values[0]
    lower = {0.1: 0.0, 0.2: 0.1, 0.4: 0.2}[upper]
    assert lower - 1e-9 <= found <= upper + 1e-9


@pytest.mark.anyio
async def test_what_is_sent_can_be_read_and_names_nobody(story: Story) -> None:
    live = Live(lambda: story.after, local=True)
    status, body, kind = live.answer(DATA, [(b"host", b"127.0.0.1:9464")])
    assert (status, kind) == (200, "application/json")
    assert msgspec.json.decode(body, type=Status) == story.after
    (seen,) = story.after.sightings
    assert re.fullmatch(r"[0-9a-f]{12}", seen.client)
    assert "per-client" in seen.explanation


ANSWERS: list[tuple[bool, str, dict[bytes, bytes], int]] = [
    (True, "", {b"host": b"localhost:9464"}, 200),
    (True, "", {b"host": b"127.0.0.1"}, 200),
    (True, "", {b"host": b"[::1]:9464"}, 200),
    (True, "", {b"host": b"attacker.example:9464"}, 403),  # a name that was made to point here
    (False, "", {b"host": b"localhost"}, 403),
    (False, "secret", {b"host": b"10.0.0.1"}, 403),
    (False, "secret", {b"Authorization": b"Bearer wrong"}, 403),
    (False, "secret", {b"Authorization": b"Bearer secret"}, 200),
    (True, "secret", {b"host": b"localhost"}, 403),
]


@pytest.mark.parametrize(("local", "token", "headers", "expected"), ANSWERS)
def test_only_those_who_may_look_get_numbers(
    local: bool, token: str, headers: dict[bytes, bytes], expected: int
) -> None:
    live = Live(lambda: Story().before, local=local, token=token)
    status, body, _ = live.answer(DATA, headers.items())
    assert status == expected
    assert (b"checkout" in body) == (expected == 200)
    assert b"secret" not in body
    # The page holds no numbers, so that it can ask for the token.
    assert live.answer(PAGE, [])[0] == 200


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as made:
        yield made


@pytest.mark.parametrize(("address", "expected"), [("127.0.0.1", True), ("0.0.0.0", False)])
def test_a_port_of_this_machine_is_told_from_others(
    listener: socket.socket, address: str, expected: bool
) -> None:
    listener.bind((address, 0))
    assert is_local(listener) is expected


def test_the_page_runs_nothing_but_its_own_program() -> None:
    live = Live(lambda: Story().before, local=True)
    ((name, value),) = live.page_headers
    assert name == b"content-security-policy"
    policy = value.decode()
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    text = page()
    assert not re.findall(r"\b(?:src|href)=\"(?!data:)", text), "it loads nothing"
    assert not re.search(r"\son\w+=|style=", text), "the policy would forbid it"
    assert "innerHTML" not in text


def drawn(watch: Watch, trouble: str = "") -> str:
    console = Console(file=StringIO(), width=120, force_terminal=False, record=True)
    console.print(watch.screen(trouble))
    return console.export_text()


@pytest.mark.anyio
async def test_the_terminal_shows_numbers_reasons_and_explanations(story: Story) -> None:
    watch = Watch()
    assert "looking" in drawn(watch)
    watch.add(story.before)
    assert "the second look" in drawn(watch)
    watch.add(story.after)
    text = drawn(watch)
    for expected in (
        "loadgate checkout", "limit", "1 to 9", "every place taken 40 %", "asked each second",
        "refused each second", "rate", "429 rate", "raise the rate",
    ):  # fmt: skip
        assert expected in text, text
    assert "no answer: gone" in drawn(watch, "gone")
    watch.add(story.before)  # a restart
    assert "the second look" in drawn(watch)


ODD = '<img src=x onerror="hacked=1">[/red][bold]\x1b[2Jé'


def odd(status: Status, *, at: float = 0.0) -> Status:
    """`status`, with names that would be markup, and everything that warns."""
    (seen,) = status.sightings
    classes = {ODD: {"admitted": 3, "rate_limited": 2, "overloaded": 1}, "default": {}}
    return msgspec.structs.replace(
        status,
        name=ODD,
        at=status.at + at,
        classes=classes if at else {},
        sightings=[
            msgspec.structs.replace(seen, client=ODD, explanation=f"rate {ODD!r} has nothing left"),
            msgspec.structs.replace(seen, reason="queue_full", at=1_700_000_000.0),
        ],
        up=72 * 3600.0 + 59.0,
        store=StoreLook("open", 3, {"store": 10, "emergency": 30 if at else 0, "none": 9}),
        bypassing=True,
        brake=0.5,
        paced=True,
    )


@pytest.mark.anyio
async def test_the_terminal_takes_names_as_they_are_and_warns(story: Story) -> None:
    watch = Watch()
    watch.add(odd(story.before_end))
    watch.add(odd(story.after, at=1.0))
    text = drawn(watch)
    for expected in (
        '<img src=x onerror="hacked=1">[/red][bold]?[2Jé', "up 3 d 0 h", "braked to 50 %",
        "late by 0 µs now, paced",
        "kill switch on", "shared store is away", "decided without store", "100 %",
        "it is away, 3 processes share it", "priority, each second", "Nov 14 ",
    ):  # fmt: skip
        assert expected in text, text
    assert "\x1b" not in text


@pytest.mark.anyio
async def test_a_pipe_gets_one_line_for_each_look(story: Story) -> None:
    lines = Lines(wall=lambda: 1_700_000_000.0)
    at = time.strftime("time=%Y-%m-%dT%H:%M:%S ", time.localtime(1_700_000_000.0))
    assert lines.add(story.before) == at + "name=checkout limit=2 in_flight=0 waiting=0"
    assert lines.add(story.after) == at + (
        "name=checkout limit=2 in_flight=0.8 waiting=0 saturated=0.4 asked=0.4 admitted=0.3 "
        "done=0.3 p50=3.12 p99=4.96 stalled=0 refused_rate=0.1"
    )
    assert lines.trouble('no "answer"') == at + r'trouble="no \"answer\""'
    # Another process answers: its counters say nothing about what has happened since.
    assert lines.add(story.before) == at + "name=checkout limit=2 in_flight=0 waiting=0"


@pytest.mark.anyio
async def test_a_line_says_what_is_out_of_the_ordinary_and_can_be_cut_at_spaces(
    story: Story,
) -> None:
    lines = Lines()
    lines.add(odd(story.before_end))
    line = lines.add(msgspec.structs.replace(odd(story.after, at=1.0), mode="observe"))
    assert line.endswith(" mode=observe bypassing=1 brake=0.5 paced=1 store=open")
    assert f" name={json.dumps(ODD)} " in line
    assert "\x1b" not in line


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (None, "-"), (0.0, "0 %"), (0.0004, "0.04 %"), (0.55, "55 %"), (0.994, "99 %"),
        (0.997, ">99 %"), (1.0, "100 %"),
    ],
)  # fmt: skip
def test_nearly_all_is_not_drawn_as_all(share: float | None, said: str) -> None:
    assert percent(share) == said


def test_how_long_it_runs_is_told_in_two_units() -> None:
    told = [lasting(seconds) for seconds in (0.4, 61.0, 3_600.0, 86_399.0, 260_000.0, 86_400 * 400)]
    assert told == [
        "0 min 0 s", "1 min 1 s", "1 h 0 min", "23 h 59 min", "3 d 0 h", "400 d 0 h",
    ]  # fmt: skip


def test_a_moment_of_another_day_has_its_date() -> None:
    now = 1_700_000_000.0
    assert re.fullmatch(r"\d\d:\d\d:\d\d", when(now - 1.0, now))
    assert re.fullmatch(r"\w{3} \d\d \d\d:\d\d", when(now - 2 * 86_400.0, now))
    assert re.fullmatch(r"\w{3} \d\d \d\d:\d\d", when(now - 365 * 86_400.0, now))


@pytest.mark.anyio
async def test_a_process_of_an_older_version_is_still_understood(story: Story) -> None:
    written = msgspec.json.decode(msgspec.json.encode(story.after))
    for later in ("up", "store", "bypassing", "brake", "paced"):
        del written[later]
    assert msgspec.convert(written, Status).store is None


def test_a_history_shows_nothing_little_and_much_apart() -> None:
    assert spark([None, 0.0, 0.5, 8.0]).plain == " ·▁█"
    assert spark([0.0, 0.0]).plain == "··"
    assert spark([4.0], top=8.0).plain == "▅"
