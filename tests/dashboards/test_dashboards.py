"""Dashboards are what the code makes, import everywhere, and ask only for what exists."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from loadgate.dashboards.source.alerts import ALERTS
from loadgate.dashboards.source.files import generated
from loadgate.dashboards.source.recording import RECORDED
from tests.dashboards.catalogue import exported, samples
from tests.dashboards.files import BOARDS, DASHBOARDS, boards, meant, targets
from tests.dashboards.lint import FOREIGN, metric_problems, problems
from tests.dashboards.promql import selectors

Board = dict[str, Any]
BY_NAME = pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)


def test_what_is_committed_is_what_the_code_makes() -> None:
    texts = generated()
    for name, text in texts.items():
        assert (DASHBOARDS / name).read_text() == text, f"{name}: run `make dashboards`"
    committed = {
        str(path.relative_to(DASHBOARDS))
        for folder in ("grafana", "prometheus")
        for path in (DASHBOARDS / folder).iterdir()
    }
    assert committed - set(texts) <= {"prometheus/prometheus.yml"}


@BY_NAME
def test_a_dashboard_breaks_no_rule(path: Any) -> None:
    assert problems(json.loads(path.read_text()), set(exported())) == []


@BY_NAME
def test_grafanas_own_types_know_every_field(path: Any) -> None:
    assert lost_in_round_trip(json.loads(path.read_text())) == []


def test_a_field_that_grafana_does_not_know_is_found() -> None:
    board = boards()["loadgate-overview"]
    panel = next(panel for panel in board["panels"] if panel["type"] == "timeseries")
    panel["fieldConfig"]["defaults"]["custom"]["lineWidht"] = 1
    panel["targets"][0]["legendFromat"] = "x"
    panel["options"]["legnd"] = {}
    assert {place.split("/")[-1] for place in lost_in_round_trip(board)} == {
        "lineWidht", "legendFromat", "legnd",
    }  # fmt: skip


def used() -> set[str]:
    """Every metric that some panel, annotation or rule asks for."""
    exprs = [target.expr for board in boards().values() for target in targets(board)]
    exprs += [
        meant(one["expr"])
        for board in boards().values()
        for one in board["annotations"]["list"]
        if "expr" in one
    ]
    exprs += [rule.expr for rule in RECORDED]
    exprs += [alert.expr for alert in ALERTS]
    return {selector.metric for expr in exprs for selector in selectors(expr)}


def test_every_metric_is_shown_somewhere_and_every_query_names_one() -> None:
    recorded = {rule.record for rule in RECORDED}
    assert metric_problems(set(exported()), used()) == []
    assert used() - exported() - FOREIGN - recorded == set()
    assert recorded <= used(), "a rule that nobody asks for costs without use"


def test_a_controller_with_all_there_is_has_250_series_at_most() -> None:
    everything = [one for one in samples() if one.name.startswith("loadgate_")]
    for_a_rate = [one for one in everything if "rate" in one.labels]
    named = [one for one in everything if "client" in one.labels]
    assert len(everything) - len(named) + 20 + 2 * len(for_a_rate) <= 250  # three rates, 20 clients
    assert len({(one.name, frozenset(one.labels.items())) for one in everything}) == len(everything)


def test_a_metric_that_was_renamed_is_found_from_both_sides() -> None:
    names = set(exported()) - {"loadgate_in_flight_peak"} | {"loadgate_most_in_flight"}
    assert "loadgate_most_in_flight is shown nowhere" in metric_problems(names, used())
    (found,) = problems(boards()["loadgate-tuning"], names)
    assert re.fullmatch(
        r"loadgate-tuning: 'How full is it\?' \w: loadgate_in_flight_peak is not exported", found
    )


def _break(change: Callable[[Board], Any]) -> list[str]:
    board = copy.deepcopy(boards()["loadgate-overview"])
    change(board)
    return problems(board, set(exported()))


def _target(board: Board) -> Any:
    return board["panels"][0]["targets"][0]


BREAKS: dict[str, tuple[str, Callable[[Board], Any]]] = {
    "query": ("no PromQL", lambda b: _target(b).update(expr="sum(rate(")),
    "function": ("rate() belongs", lambda b: _target(b).update(
        expr=_target(b)["expr"].replace("rate(", "avg_over_time("))),
    "interval": ("need [$__rate_interval]", lambda b: _target(b).update(
        expr=_target(b)["expr"].replace("$__rate_interval", "5m"))),
    "job": ("does not select job", lambda b: _target(b).update(
        expr=_target(b)["expr"].replace('job=~"$job",', ""))),
    "guard": ("may be 0", lambda b: _target(b).update(
        expr=_target(b)["expr"].replace("/ (sum", "/ sum").replace(" > 0)", ""))),
    "edge": ("picked by its edge", lambda b: _target(b).update(
        expr=_target(b)["expr"].replace("decision=", 'le="1",decision='))),
    "source": ("fixed data source", lambda b: b["panels"][0].update(datasource={"uid": "x"})),
    "unit": ("no unit", lambda b: b["panels"][0]["fieldConfig"]["defaults"].update(unit="zz")),
    "text": ("how to read it", lambda b: b["panels"][0].update(description="A number.")),
    "nothing": ("asks nothing", lambda b: b["panels"][0].update(targets=[])),
    "type": ("not every version", lambda b: b["panels"][0].update(type="xychart")),
    "ids": ("not unique", lambda b: b["panels"][1].update(id=1)),
    "overlap": ("lies on", lambda b: b["panels"][1].update(gridPos=b["panels"][0]["gridPos"])),
    "variable": ("no variable 'job'", lambda b: b["templating"]["list"].pop(1)),
    "editable": ("is editable", lambda b: b.update(editable=True)),
    "legend": ("no legend", lambda b: _target(b).pop("legendFormat")),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_what_is_broken_is_found(name: str) -> None:
    expected, change = BREAKS[name]
    found = _break(change)
    assert any(expected in problem for problem in found), found


def lost_in_round_trip(board: Board) -> list[str]:
    """Fields that vanish when Grafana's generated types read the dashboard and write it again."""
    register_default_plugins()
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(copy.deepcopy(board))))
    return _missing(board, again, "")


def _missing(one: Any, two: Any, where: str) -> list[str]:
    if type(one) is not type(two) and not (_is_number(one) and _is_number(two)):
        return [where]
    pairs: list[tuple[str, Any, Any]] = []
    if isinstance(one, dict):
        mine, theirs = cast("Board", one), cast("Board", two)
        lost = [f"{where}/{key}" for key in mine if key not in theirs]
        pairs = [(key, mine[key], theirs[key]) for key in mine if key in theirs]
    elif isinstance(one, list):
        ours, others = cast("Sequence[Any]", one), cast("Sequence[Any]", two)
        lost = [where] if len(ours) != len(others) else []
        pairs = [(str(i), *both) for i, both in enumerate(zip(ours, others, strict=False))]
    else:
        lost = [] if one == two else [where]
    return lost + [
        place for key, left, right in pairs for place in _missing(left, right, f"{where}/{key}")
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
