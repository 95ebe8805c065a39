"""How the figures of overloaded servers are written down."""

from __future__ import annotations

from math import nan
from pathlib import Path

import pytest

from bench import server_overload_report as report
from bench.server_overload_arms import KNOWN, places_for
from bench.server_overload_report import Cell, Outcome


def cell(arm: str, factor: float, goodput: float) -> Cell:
    return Cell(
        service="pool", arm=arm, ours=arm.startswith("loadgate"), connection="keep",
        factor=factor, offered=40.0 * factor, goodput=goodput, share=goodput / 40.0,
        vital=1.0 if goodput else nan, rest=nan, answered=goodput, refused=10.0 * factor,
        failed=1.0, p50=0.05, p99=0.1 if goodput else nan, refusal_p50=0.001, refusal_p99=0.02,
        answers_per_cpu=1234.0, busy=0.5, memory=50.0, lag=0.002,
    )  # fmt: skip


@pytest.fixture
def outcome() -> Outcome:
    return Outcome(
        pinned=True, seconds=2.2, load=0.1, trivial={"keep": 4000.0, "new": 2000.0},
        slo={"pool": 0.22}, capacity={"pool": 40.0}, places={"pool": 7},
        cells=[cell(arm, factor, goodput) for arm, goodput in (("Hypercorn", 0.0),
               ("loadgate serve", 38.0)) for factor in (1.0, 50.0)],
    )  # fmt: skip


def test_each_arm_is_a_row_with_its_shares_and_what_it_did_at_the_top(outcome: Outcome) -> None:
    text = report.page(outcome)
    assert "at 50 times the capacity" in text
    assert "### Two places of 50 ms, kept connections" in text
    assert "new connections\n" not in text  # nothing was measured there
    assert (
        "| loadgate serve | 95% | 95% | 100% | 100 ms / 100 ms | 500/s, 1.0 / 20.0 ms | 1/s "
        "| 1,234 | 0.50 |" in text
    )
    assert "| Hypercorn | 0% | 0% | - | - / - |" in text


def test_page_and_picture_are_written_between_the_marks(
    outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, picture = tmp_path / "page.md", tmp_path / "pictures" / "picture.png"
    marks = [line for line in report.PAGE.read_text().splitlines() if "written by" in line]
    page.write_text(f"before\n{marks[0]}\nold\n{marks[1]}\nafter\n")
    monkeypatch.setattr(report, "PAGE", page)
    monkeypatch.setattr(report, "PICTURE", picture)
    report.write(outcome)
    text = page.read_text()
    assert text.startswith(f"before\n{marks[0]}\n\n![")
    assert text.endswith(f"{marks[1]}\nafter\n")
    assert "old" not in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_peers_may_have_at_once_what_the_slo_allows() -> None:
    assert places_for(0.25, 40.0) == 8
    assert places_for(0.01, 40.0) == KNOWN
