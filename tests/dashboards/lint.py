"""What is wrong with a dashboard? The rules of Grafana's dashboard-linter, and some of our own.

The linter is a program in Go that no registry has; these are its rules in our words. Ours:
ids and places, legends, guarded ratios, queries that name only what is exported, and no
bucket by its edge (Prometheus 3 writes edges differently).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from tests.dashboards.files import meant, panels
from tests.dashboards.promql import Selector, selectors

Board = dict[str, Any]

# The units that we use, all in Grafana's list of value formats since before version 10.
UNITS: Final = {"none", "short", "percentunit", "reqps", "cps", "s", "bytes"}
# What every version from 10 to 13 draws; anything else has changed its options in between.
TYPES: Final = {
    "timeseries", "stat", "gauge", "bargauge", "table", "heatmap", "state-timeline", "text",
}  # fmt: skip
# Of the process and not of loadgate: the Prometheus client and Prometheus itself make them.
FOREIGN: Final = {"up", "ALERTS", "process_start_time_seconds"}
# Whatever is exported once for a process has no controller.
WITHOUT_CONTROLLER: Final = re.compile(r"loadgate_(build_info|policy_last_reload_.*)|process_.*")
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_MOST_PANELS: Final = 30


def problems(board: Board, exported: set[str]) -> list[str]:
    """Everything that is wrong with `board`.

    Args:
        board: A dashboard as it is committed.
        exported: Names of the series that exist.
    """
    return [f"{board.get('uid')}: {problem}" for rule in RULES for problem in rule(board, exported)]


def metric_problems(exported: set[str], used: set[str]) -> list[str]:
    """What is exported and shown nowhere."""

    def family(name: str) -> str:
        return re.sub(r"_(bucket|sum|count)$", "", name)

    shown = {family(name) for name in used}
    return [f"{name} is shown nowhere" for name in sorted(exported) if family(name) not in shown]


def _dashboard(board: Board, _: set[str]) -> Iterator[str]:
    if board.get("editable", True):
        yield "is editable: changes made by hand are lost at the next provisioning"
    if not re.fullmatch(r"loadgate-[a-z]+", board.get("uid", "")):
        yield "has no stable uid"
    if "id" in board or "version" in board or "__inputs" in board:
        yield "carries an id, a version or inputs of the Grafana it came from"
    if not 39 <= board.get("schemaVersion", 0) <= 42:
        yield "is not of a schema that Grafana 10 to 13 read"
    if board.get("graphTooltip") != 1:
        yield "does not share its crosshair"
    if len(board["panels"]) > _MOST_PANELS:
        yield f"has more than {_MOST_PANELS} panels"
    if not any(link["includeVars"] and link["keepTime"] for link in board["links"]):
        yield "has no link to the others that keeps variables and time"


def _variables(board: Board, _: set[str]) -> Iterator[str]:
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    sources = [one for one in variables.values() if one["type"] == "datasource"]
    if [(one["name"], one["label"], one["query"]) for one in sources] != [
        ("datasource", "Data source", "prometheus")
    ]:
        yield "needs one variable 'datasource' labelled 'Data source'"
    for name in ("job", "instance", "controller", "priority"):
        variable = variables.get(name)
        if variable is None:
            yield f"has no variable {name!r}"
            continue
        wanted = {
            "type": "query", "label": name, "multi": True, "includeAll": True, "allValue": ".+",
            "refresh": 2, "datasource": _SOURCE,
        }  # fmt: skip
        for key, value in wanted.items():
            if variable.get(key) != value:
                yield f"variable {name!r}: {key} is {variable.get(key)!r}, not {value!r}"
        if not variable["query"].startswith("label_values("):
            yield f"variable {name!r} does not come from label_values"


def _layout(board: Board, _: set[str]) -> Iterator[str]:
    ids = [panel.get("id") for panel in board["panels"]]
    if len(set(ids)) != len(ids) or not all(isinstance(one, int) and one > 0 for one in ids):
        yield f"panel ids are not unique and positive: {ids}"
    taken: dict[tuple[int, int], str] = {}
    for panel in board["panels"]:
        place = panel["gridPos"]
        if place["x"] + place["w"] > 24:
            yield f"{panel['title']!r} is wider than the grid"
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                other = taken.setdefault((x, y), panel["title"])
                if other != panel["title"]:
                    yield f"{panel['title']!r} lies on {other!r}"
                    return
    titles = [panel["title"] for panel in panels(board)]
    if len(set(titles)) != len(titles):
        yield "two panels have the same title"


def _panels(board: Board, _: set[str]) -> Iterator[str]:
    for panel in panels(board):
        title = panel.get("title")
        if not title:
            yield f"panel {panel.get('id')} has no title"
        if len(panel.get("description", "")) < 30:
            yield f"{title!r} does not say how to read it"
        if panel["type"] not in TYPES:
            yield f"{title!r} is a {panel['type']}, which not every version draws"
        if panel["type"] == "text":
            if len(panel["options"].get("content", "")) < 100:
                yield f"{title!r} says nothing"
            continue
        if panel.get("datasource") != _SOURCE:
            yield f"{title!r} asks a fixed data source"
        if not panel.get("targets"):
            yield f"{title!r} asks nothing"
        defaults = panel["fieldConfig"]["defaults"]
        unit = defaults.get("unit") or panel["options"].get("yAxis", {}).get("unit")
        if panel["type"] != "table" and not defaults.get("mappings") and unit not in UNITS:
            yield f"{title!r} has no unit we know: {unit!r}"


def _targets(board: Board, exported: set[str]) -> Iterator[str]:
    for panel in panels(board):
        seen: set[str] = set()
        for target in panel.get("targets", ()):
            where = f"{panel['title']!r} {target.get('refId')}"
            if target.get("refId") in seen:
                yield f"{where}: the letter is used twice"
            seen.add(target.get("refId"))
            if target.get("datasource") != _SOURCE:
                yield f"{where} asks a fixed data source"
            if not target.get("legendFormat"):
                yield f"{where} has no legend"
            yield from (f"{where}: {one}" for one in _query(target["expr"], exported))


def _query(expr: str, exported: set[str]) -> Iterator[str]:
    try:
        asked = selectors(meant(expr))
    except ValueError as error:
        yield f"no PromQL: {error}"
        return
    if "$__rate_interval" not in expr and re.search(r"\b(rate|increase)\(", expr):
        yield "rate() and increase() need [$__rate_interval]"
    if re.search(r"\birate\(", expr):
        yield "irate() shows two samples of a screen of them"
    if re.search(r"\ble\s*=", expr):
        yield "a bucket is picked by its edge"
    if re.search(r"/\s*(?!on\b)(?!\()(sum|avg|max|min|count)\b", expr):
        yield "a ratio divides by something that may be 0: write / (... > 0)"
    for selector in asked:
        yield from _selector(selector, exported)


def _selector(selector: Selector, exported: set[str]) -> Iterator[str]:
    name = selector.metric
    if name not in exported | FOREIGN:
        yield f"{name} is not exported"
    labels = ["job", "instance"]
    if not WITHOUT_CONTROLLER.fullmatch(name) and name not in FOREIGN:
        labels.append("controller")
    for label in labels:
        if selector.matchers.get(label) != ("Re", ".+"):
            yield f'{name} does not select {label}=~"${label}"'
    counter = name.endswith(("_total", "_bucket", "_sum", "_count"))
    if counter != bool(selector.functions and selector.functions[0] in {"rate", "increase"}):
        yield f"{name}: rate() belongs around counters, and around nothing else"


RULES: Final[tuple[Callable[[Board, set[str]], Iterator[str]], ...]] = (
    _dashboard,
    _variables,
    _layout,
    _panels,
    _targets,
)
