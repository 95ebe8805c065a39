"""A comparison is told in words, a table and pictures, from the command line too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from loadgate.integrations.cli.simulate import simulate, uncounted
from loadgate.policy import Policy, Rate
from loadgate.simulation import plots, report, run, scenario
from loadgate.simulation.compare import Candidate, Comparison, compare
from loadgate.simulation.figures import percent, points, seconds
from loadgate.simulation.verdict import verdict

DAY: dict[str, Any] = {
    "title": "A <short> day",
    "intent": "Two classes, two phases.",
    "slo": 0.25,
    "stages": [
        {"kind": "delay", "time": {"law": "exponential", "mean": 0.03}},
        {"kind": "cores", "count": 2, "time": {"law": "exponential", "mean": 0.02}},
    ],
    "clients": [
        {"name": "people", "priority": "critical"},
        {"name": "crawlers", "priority": "background", "share": 2},
    ],
    "phases": [
        {"name": "calm", "seconds": 4.0, "load": 0.6},
        {"name": "crowd", "seconds": 8.0, "load": 2.0},
    ],
}
EXAMPLES = Path(scenario.__file__).parent / "examples"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def compared() -> Comparison:
    day = scenario.from_mapping(DAY)
    policies: dict[str, dict[str, Any]] = {
        "fixed": {"concurrency": {"algorithm": "fixed", "initial": 7}},
        "tight": {"rates": [{"name": "each", "rate": "10/second"}]},
        "no limit": {"concurrency": {"mode": "off"}},
    }
    candidates = [Candidate(name, run.policy_for(day, p)) for name, p in policies.items()]
    return compare(day, candidates, [1, 2, 3])


@pytest.fixture(scope="module")
def pictures(compared: Comparison) -> dict[str, bytes]:
    return plots.draw(compared)


def test_every_candidate_meets_the_same_arrivals(compared: Comparison) -> None:
    for runs in zip(*(result.runs for result in compared.results), strict=True):
        assert len({run.whole.arrivals for run in runs}) == 1
        assert len({run.arrivals.tobytes() for run in runs}) == 1


def test_what_became_of_arrivals_adds_up(compared: Comparison) -> None:
    for result in compared.results:
        for each in result.runs:
            for part in (each.whole, *each.classes):
                ends = (part.good, part.late, part.rate_limited, part.overloaded, part.gave_up)
                assert sum(ends) == part.arrivals
            assert sum(each.by_phase) == each.whole.good


def test_the_verdict_names_the_best_and_what_went_wrong(compared: Comparison) -> None:
    winner, fixed, tight, without = verdict(compared)
    assert winner.startswith("fixed answers most requests in time")
    assert "of the possible" in fixed
    assert "because the service was full" in fixed
    assert "'people'" in fixed
    assert "asked for more than its share" in tight
    assert "refused though the service could have answered" in tight
    assert "too late or not at all" in without
    assert "'crowd'" in without


def test_a_draw_is_called_a_draw() -> None:
    day = scenario.from_mapping(DAY)
    same = [Candidate(name, run.policy_for(day)) for name in ("one", "other")]
    assert "equally many" in verdict(compare(day, same, [1]))[0]


def test_the_report_is_one_file_that_needs_nothing_else(
    compared: Comparison, pictures: dict[str, bytes], tmp_path: Path
) -> None:
    said = verdict(compared)
    written = report.write(tmp_path / "new", compared, pictures, said, ["loadgate simulate day"])
    assert [file.name for file in written] == [
        "report.html", "goodput.png", "limit.png", "latency.png", "refusals.png", "clients.png",
    ]  # fmt: skip
    assert all(file.read_bytes().startswith(PNG) for file in written[1:])
    page = written[0].read_text(encoding="utf-8")
    assert "A &lt;short&gt; day" in page
    assert page.count("data:image/png;base64,") == 5
    assert not re.search(r"(src|href)=\"(?!data:)", page)


def test_equal_seeds_give_equal_pictures(compared: Comparison, pictures: dict[str, bytes]) -> None:
    day = scenario.from_mapping(DAY)
    again = compare(day, [result.candidate for result in compared.results], [1, 2, 3])
    assert plots.draw(again) == pictures


@pytest.mark.parametrize(
    ("share", "digits", "said"),
    [
        (1.0, 1, "100.0%"),
        (1.0 - 1e-16, 1, "100.0%"),
        (0.9996, 1, ">99.9%"),
        (0.9994, 1, "99.9%"),
        (0.997, 1, "99.7%"),
        (0.997, 0, ">99%"),
        (0.0, 1, "0.0%"),
        (0.0004, 1, "<0.1%"),
        (0.004, 0, "<1%"),
        (0.5, 0, "50%"),
    ],
)
def test_a_share_that_is_not_all_or_nothing_is_never_written_as_if_it_were(
    share: float, digits: int, said: str
) -> None:
    assert percent(share, digits) == said


def test_half_an_interval_and_a_short_time_are_never_written_as_nothing() -> None:
    assert (points(0.0), points(0.0002), points(0.012)) == ("0.1", "0.1", "1.2")
    assert [seconds(t) for t in (0.0, 0.0004, 0.0095, 0.25, 2.0)] == [
        "0 ms", "0.4 ms", "10 ms", "250 ms", "2.00 s",
    ]  # fmt: skip


def test_a_column_with_next_to_nothing_is_shown() -> None:
    assert report.worth_showing(("late", "429"), [("<0.1%", "0.0%")]) == [0]


# -- the command -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def command() -> typer.Typer:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(simulate)
    return app


def invoke(command: typer.Typer, *words: str) -> Any:
    return CliRunner().invoke(command, list(words), env={"COLUMNS": "200"})


def test_the_command_plays_a_scenario_file(command: typer.Typer, tmp_path: Path) -> None:
    file = tmp_path / "day.toml"
    file.write_text(
        """
        title = "A day"
        slo = 0.25
        [[stages]]
        kind = "cores"
        count = 2
        time = { law = "exponential", mean = 0.02 }
        [[phases]]
        seconds = 3.0
        load = 2.0
        """
    )
    policy = tmp_path / "house.toml"
    policy.write_text('[concurrency]\nalgorithm = "fixed"\ninitial = 4\n')
    out = tmp_path / "out"
    done = invoke(
        command, str(file), "--policy", str(policy), "--compare", "aimd", "--compare", "off",
        "--seeds", "2", "--out", str(out),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    for words in ("A day", "house", "aimd", "no limit", "in time", "written:"):
        assert words in done.output
    assert "--compare aimd --compare off --seeds 2" in (out / "report.html").read_text()


def test_scenarios_come_along_by_name(command: typer.Typer, tmp_path: Path) -> None:
    done = invoke(command, "overload", "--variant", "5x", "--seeds", "1", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "Overload" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere: there is no such file"),
        (["overload", "--variant", "9x"], "no variant '9x'; '1.5x', '5x'"),
        (["overload", "--compare", "vegs"], "neither a policy file nor a limit"),
        (["overload", "--policy", "gone.toml"], "gone.toml: cannot be read"),
    ],
)
def test_what_cannot_be_played_is_one_line_and_exit_code_2(
    command: typer.Typer, words: list[str], said: str
) -> None:
    done = invoke(command, *words)
    assert done.exit_code == 2
    assert said in done.output
    assert len(done.output.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("folder", "said"),
    [("file", "is a file, not a folder"), ("file/below", "cannot be made: not a directory")],
)
def test_a_report_that_has_nowhere_to_go_is_refused_before_anything_is_played(
    command: typer.Typer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    folder: str,
    said: str,
) -> None:
    def play(*_: object) -> None:
        raise AssertionError("it was played")

    monkeypatch.setattr("loadgate.integrations.cli.simulate.compare", play)
    (tmp_path / "file").write_text("in the way")
    done = invoke(command, "overload", "--out", str(tmp_path / folder))
    assert done.exit_code == 2
    assert said in done.output
    assert len(done.output.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "rate", "said"),
    [
        ("busy-day", {}, None),
        ("busy-day", {"key": "account"}, "'account'.*'client' alone; all requests share one"),
        ("busy-day", {"key": "account", "on_missing": "skip"}, "'account'.*applies to nobody"),
        ("busy-day", {"key": "account", "on_missing": "refuse"}, "'account'.*is refused"),
        ("busy-day", {"match": {"route": "/a"}}, "'route'.*applies to nobody"),
        ("busy-day", {"key": "account", "mode": "off"}, None),
        ("overload", {}, "'client'.*they have none.*share one count"),
    ],
)
def test_a_rate_whose_key_no_client_of_the_scenario_has_is_warned_about(
    name: str, rate: dict[str, Any], said: str | None
) -> None:
    played = scenario.read(EXAMPLES / f"{name}.toml")
    policy = Policy(rates=[Rate("a", limit=5, **rate)])
    found = uncounted(played, [Candidate("one", policy), Candidate("other", policy)])
    assert [bool(re.search(said or "", line)) for line in found] == [True] * (said is not None)


def test_the_command_warns_about_a_key_that_nobody_has(
    command: typer.Typer, tmp_path: Path
) -> None:
    policy = tmp_path / "accounts.toml"
    policy.write_text('[[rates]]\nname = "a"\nrate = "9/second"\nkey = "account"\n')
    done = invoke(
        command, "overload", "--policy", str(policy), "--seeds", "1", "--out", str(tmp_path)
    )
    assert done.exit_code == 0, done.output
    assert "warning: rate 'a' asks for the key 'account'" in done.output


def test_a_wrong_key_is_named_with_its_path(command: typer.Typer, tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(
        'title = "x"\n[[stages]]\nkind = "delay"\ntime = { law = "constant", mean = 1.0 }\n'
        "[[phases]]\nseconds = 1.0\nlaod = 1.0\n"
    )
    done = invoke(command, str(file))
    assert done.exit_code == 2
    assert "phases[0].laod: unknown key; did you mean 'load'?" in done.output
