"""The pages in docs/ name what is there, and nothing that is not."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from loadgate import AdmissionController, Concurrency, Policy, Queue, Rate, Reason, Signals
from loadgate.integrations.cli.app import app
from loadgate.integrations.door import Door
from loadgate.integrations.prometheus import LoadgateCollector, Reloads

DOCS = Path(__file__).parents[2] / "docs"

COLUMN = re.compile(r"^\| (?P<cell>[^|]*) \|", re.MULTILINE)


def first_column(page: str) -> set[str]:
    """Every `name` in the first column of the tables of a page."""
    text = (DOCS / page).read_text()
    return {name for cell in COLUMN.findall(text) for name in re.findall(r"`([^`]+)`", cell)}


def test_every_metric_is_documented_and_no_other() -> None:
    policy = Policy(rates=[Rate("a", limit=1)])
    controller = AdmissionController(policy)
    collector = LoadgateCollector(controller)
    collector.reloads = Reloads()
    collector.door = Door(controller)
    suffix = {"counter": "_total", "info": "_info"}
    exported = {family.name + suffix.get(family.type, "") for family in collector.collect()}
    assert {name for name in first_column("metrics.md") if name.startswith("loadgate_")} == exported


def test_every_query_in_the_docs_asks_for_a_metric_that_exists() -> None:
    text = (DOCS / "metrics.md").read_text()
    collector = LoadgateCollector(AdmissionController(Policy(rates=[Rate("a", limit=1)])))
    names = {sample.name for family in collector.collect() for sample in family.samples}
    for query in re.findall(r"`([^`]*\[5m\][^`]*)`", text):
        assert set(re.findall(r"loadgate_\w+", query)) <= names


def test_every_label_value_that_is_documented_exists() -> None:
    text = (DOCS / "metrics.md").read_text()
    for reason in Reason:
        assert f"`{reason}`" in text


@pytest.mark.parametrize("kind", [Rate, Concurrency, Queue, Signals])
def test_every_setting_of_a_policy_is_documented(kind: type[msgspec.Struct]) -> None:
    settings = {field.name for field in msgspec.structs.fields(kind)}
    assert settings <= first_column("policy.md")


def test_no_setting_is_documented_that_does_not_exist() -> None:
    kinds = (Rate, Concurrency, Queue, Signals, Policy)
    known = {field.name for kind in kinds for field in msgspec.structs.fields(kind)}
    assert first_column("policy.md") <= known


def test_the_example_policy_is_valid() -> None:
    example = re.search(r"```toml\n(.*?)```", (DOCS / "policy.md").read_text(), re.DOTALL)
    assert example is not None
    policy = Policy.from_mapping(tomllib.loads(example[1]))
    assert [rate.name for rate in policy.rates] == ["per-client", "failed-logins"]


def test_every_option_of_serve_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        app(["serve", "--help"])
    options = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out)) - {"--help"}
    text = (DOCS / "serve.md").read_text()
    documented = set(re.findall(r"--[a-z][a-z-]+", text))
    assert options - {"--log-refusals"} <= documented
    assert documented <= options
