"""The demo says yes only to a run that shows what it claims, and draws whatever it was given."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from loadgate.integrations.cli import demo as command
from loadgate.integrations.demo import report
from loadgate.integrations.demo.live import LiveView
from loadgate.integrations.demo.plain import PlainView
from loadgate.integrations.demo.record import Half, Sample
from loadgate.integrations.demo.sparkline import sparkline
from loadgate.integrations.demo.story import (
    CAPACITY,
    GREEDY,
    GREEDY_RATE,
    ONE_GREEDY,
    PATIENCE,
    POLITE,
    STORM,
    plan,
)
from loadgate.integrations.demo.verdict import judge, too_busy
from loadgate.integrations.loadgen import ClassCounts, Failure, Progress, Result, Rows
from loadgate.integrations.loadgen.schedule import arrivals

Ending = tuple[int, float]
Fate = Callable[[str, float, int], Ending]

SERVED: Ending = (200, 0.12)
LIMITED: Ending = (429, 0.001)
FULL: Ending = (503, 0.001)
GONE: Ending = (Failure.TIMEOUT, PATIENCE)


def make_half(title: str, fate: Fate, limit: float | None, late: float = 0.001) -> Half:
    """A half in which each request (class, intended start, number) meets the given fate."""
    todo = plan("http://127.0.0.1:1", 1)
    rows: dict[str, Rows] = {}
    for one in todo.classes:
        at = list(arrivals(one, todo.phases, todo.seed))
        ends = [fate(one.name, when, number) for number, when in enumerate(at)]
        rows[one.name] = Rows(
            at=at,
            status=[status for status, _ in ends],
            latency=[latency for _, latency in ends],
            late=[late] * len(at),
        )
    result = Result(plan=todo, rows=rows, elapsed=21.0, cpu=1.0, opened=9, peak=9, resent=0)
    samples = [Sample(at / 5, 8.0, 1.0, limit) for at in range(100)]
    return Half(title, result, samples)


def collapses(_: str, at: float, __: int) -> Ending:
    return SERVED if at < 3.5 else GONE


def protects(name: str, at: float, number: int) -> Ending:
    if name == GREEDY:
        return SERVED if number % 10 == 0 else LIMITED
    return FULL if 7.5 < at < 15 and number % 5 else SERVED


def halves(fate: Fate = protects, bare: Fate = collapses, late: float = 0.001) -> tuple[Half, Half]:
    return make_half("without loadgate", bare, None), make_half("with loadgate", fate, 16.0, late)


def failed(bare: Half, guarded: Half) -> list[str]:
    return [claim.text for claim in judge(bare, guarded) if not claim.holds]


def test_a_run_that_shows_it_all_passes() -> None:
    assert failed(*halves()) == []


def in_storm(at: float) -> bool:
    return 9 <= at < 14


def slow_in_storm(name: str, at: float, number: int) -> Ending:
    status, latency = protects(name, at, number)
    return (200, 0.6) if status == 200 and in_storm(at) and number % 50 == 0 else (status, latency)


def idle_in_storm(name: str, at: float, number: int) -> Ending:
    return FULL if in_storm(at) and number % 20 else protects(name, at, number)


def greedy_is_served(_: str, at: float, number: int) -> Ending:
    return protects(POLITE, at, number)


def one_polite_limited(name: str, at: float, number: int) -> Ending:
    return LIMITED if (name, number) == (POLITE, 1) else protects(name, at, number)


def polite_suffer(name: str, at: float, number: int) -> Ending:
    hit = name == POLITE and 3 <= at < 7 and number % 10 == 0
    return FULL if hit else protects(name, at, number)


def one_hangs(name: str, at: float, number: int) -> Ending:
    return GONE if (name, number) == (POLITE, 500) else protects(name, at, number)


def stays_down(name: str, at: float, number: int) -> Ending:
    return FULL if at > 15 and number % 2 else protects(name, at, number)


@pytest.mark.parametrize(
    ("fate", "complaint"),
    [
        (slow_in_storm, "p99 of the admitted"),
        (idle_in_storm, "goodput with loadgate"),
        (greedy_is_served, "the greedy client gets 429s"),
        (one_polite_limited, "polite clients get none"),
        (polite_suffer, "polite clients keep"),
        (one_hangs, "no request hangs"),
        (stays_down, "back at once"),
    ],
)
def test_each_claim_fails_alone_when_the_run_does_not_show_it(fate: Fate, complaint: str) -> None:
    complaints = failed(*halves(fate))
    assert len(complaints) == 1
    assert complaint in complaints[0]


def test_a_service_that_needs_no_help_does_not_prove_anything() -> None:
    assert len(failed(*halves(bare=protects))) == 1


def test_a_generator_that_was_late_proves_nothing() -> None:
    assert len(failed(*halves(late=0.2))) == 1


@pytest.mark.parametrize(
    ("late", "fate", "busy"),
    [
        (0.001, protects, False),
        (0.2, protects, True),
        (0.001, stays_down, False),
        (0.2, stays_down, False),
    ],
)
def test_a_machine_is_blamed_only_if_nothing_else_failed(
    late: float, fate: Fate, busy: bool
) -> None:
    assert too_busy(judge(*halves(fate, late=late))) is busy


@pytest.mark.parametrize(
    ("late", "fate", "code"), [(0.001, protects, 0), (0.001, stays_down, 1), (0.2, protects, 3)]
)
def test_the_exit_code_tells_a_busy_machine_from_a_broken_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: float, fate: Fate, code: int
) -> None:
    ran = iter(halves(fate, late=late))

    async def run_half(*_: object) -> Half:
        return next(ran)

    monkeypatch.setattr(command, "run_half", run_half)
    monkeypatch.setattr(command, "cancel_on_signals", lambda: None)
    program = typer.Typer()
    program.command()(command.demo)
    ended = CliRunner().invoke(program, ["--plain", "--out", str(tmp_path)])
    assert ended.exit_code == code, ended.output
    assert ("The machine was too busy to show anything" in ended.output) is (code == 3)


def test_nobody_admitted_is_not_within_the_slo() -> None:
    def nobody(_: str, __: float, ___: int) -> Ending:
        return FULL

    assert any("p99 of the admitted" in text for text in failed(*halves(nobody)))


def test_recovery_is_counted_from_the_end_of_the_storm() -> None:
    bare, guarded = halves()
    assert bare.recovery() is None
    assert guarded.recovery() == pytest.approx(1.0)


def test_the_offered_load_is_what_the_story_says() -> None:
    result = halves()[1].result
    assert result.tally(phase=STORM).offered / 5 == pytest.approx(5 * CAPACITY, rel=0.1)
    assert result.tally([GREEDY], phase=ONE_GREEDY).offered / 4 == pytest.approx(
        GREEDY_RATE, rel=0.2
    )
    assert result.tally([GREEDY]).offered == result.tally([GREEDY], phase=ONE_GREEDY).offered


def test_pictures_and_data_are_written_and_readable(tmp_path: Path) -> None:
    bare, guarded = halves()
    written = report.write(tmp_path / "deep" / "er", bare, guarded, judge(bare, guarded))
    by_suffix = {path.suffix: path for path in written}
    assert set(by_suffix) >= {".svg", ".json"}
    drawing = ElementTree.fromstring(by_suffix[".svg"].read_text())
    words = [text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert words.count("nobody was served") == 1
    assert "with loadgate" in words
    data = msgspec.json.decode(by_suffix[".json"].read_bytes())
    assert data["capacity"] == CAPACITY
    assert set(data["halves"]) == {"without loadgate", "with loadgate"}
    if ".png" in by_suffix:
        assert by_suffix[".png"].read_bytes().startswith(b"\x89PNG")


def test_the_table_says_what_happened() -> None:
    paper = io.StringIO()
    screen = Console(file=paper, width=120)
    bare, guarded = halves()
    screen.print(report.table(bare, guarded), report.verdict(judge(bare, guarded)))
    text = paper.getvalue()
    assert "nobody was served" in text
    assert "not within 5 s" in text
    assert "NO" not in text


def make_progress(at: float, p99: float | None = 0.1) -> Progress:
    counts = ClassCounts(sent=15, good=14, slow=1)
    return Progress(at, 0.25, "calm", {POLITE: counts, GREEDY: ClassCounts()}, p99, p99)


@pytest.mark.parametrize("width", [60, 99, 100, 140, 220])
def test_the_live_view_fits_every_terminal(width: int) -> None:
    paper = io.StringIO()
    screen = Console(file=paper, width=width, height=50)
    with LiveView(screen) as view:
        for half in (0, 1):
            for step in range(1, 82):
                view(half, make_progress(step / 4, None if step % 3 == 0 else 0.1), None)
                view(half, make_progress(step / 4), Sample(step / 4, 9.0, 1.0, 16.0))
        screen.print(view.draw())
    lines = paper.getvalue().splitlines()
    assert max(len(line) for line in lines) <= width
    assert any("with loadgate" in line for line in lines)
    assert any("60" in line for line in lines if "offered/s" in line)


def test_a_log_has_a_line_for_each_second() -> None:
    lines: list[str] = []
    with PlainView(lines.append) as view:
        for step in range(1, 9):
            view(1, make_progress(step / 4), Sample(step / 4, 9.0, 1.0, 16.0))
    assert lines[0].strip() == "with loadgate"
    assert len(lines) == 3
    assert "offered/s  60" in lines[1]
    assert "in flight 9  limit 16 waiting 1" in lines[1]


def test_a_sparkline_shows_heights_gaps_and_nothing() -> None:
    drawn = sparkline([0.0, 0.5, 1.0, None, 9.0], 7, top=1.0, zero="·")
    assert drawn.plain == "·▅█ █  "
    logarithmic = sparkline([1.0, 10.0, 100.0], 3, bottom=1.0, top=100.0, logarithmic=True)
    assert logarithmic.plain == "▁▅█"
