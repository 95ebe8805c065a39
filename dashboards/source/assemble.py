"""How do panels become a dashboard that Grafana 10 to 13 all import? Classic JSON, tidied.

File provisioning of every version takes the classic shape only, so nothing newer is written.
What the SDK leaves undone is done here: ids of panels, annotations, fields that belong to
other kinds of variables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from loadgate.dashboards.source.panels import SEL, SOURCE, WHO, Placed, Row

TAG: Final = "loadgate"
_WIDE: Final = 24


Links = Callable[[str, str], list[dict[str, Any]]]


def assemble(
    uid: str, title: str, says: str, panels: Sequence[Placed | Row], links: Links
) -> dict[str, Any]:
    """The dashboard as plain data, ready to be written.

    Args:
        uid: Its address in Grafana, which never changes.
        title: Its name.
        says: The question it answers.
        panels: What is on it, from left to right and from top to bottom.
        links: What the corner of a panel leads to, by `uid` and the panel's title.
    """
    built = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(says)
        .tags([TAG])
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .link(
            dashboard.DashboardLink("Loadgate")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .include_vars(True)
            .keep_time(True)
        )
    )
    for variable in _variables():
        built.with_variable(variable)
    data: dict[str, Any] = json.loads(JSONEncoder().encode(built.build()))
    data["annotations"] = {"list": [_BUILT_IN, *_annotations()]}
    data["panels"] = _laid_out(panels)
    for panel in data["panels"]:
        if led := links(uid, panel["title"]):
            panel["links"] = led
    for variable in data["templating"]["list"]:
        for field in ("auto", "auto_count", "auto_min"):
            variable.pop(field, None)
    for link in data["links"]:
        link.pop("placement", None)
    return data


def written(data: dict[str, Any]) -> str:
    """The JSON as it is committed: equal data, equal bytes."""
    return json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _laid_out(panels: Sequence[Placed | Row]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    x = y = tallest = 0
    for number, panel in enumerate(panels, 1):
        if isinstance(panel, Row):
            x, y, tallest = 0, y + tallest, 0
            found.append(
                {
                    "collapsed": False,
                    "gridPos": {"x": 0, "y": y, "w": _WIDE, "h": 1},
                    "id": number,
                    "panels": [],
                    "title": panel.title,
                    "type": "row",
                }
            )
            y += 1
            continue
        if x + panel.width > _WIDE:
            x, y, tallest = 0, y + tallest, 0
        data: dict[str, Any] = json.loads(JSONEncoder().encode(panel.builder.build()))
        data.pop("repeatDirection", None)
        data["options"].pop("footer", None)  # of tables; gone in Grafana 13
        data["id"] = number
        data["gridPos"] = {"x": x, "y": y, "w": panel.width, "h": panel.height}
        found.append(data)
        x += panel.width
        tallest = max(tallest, panel.height)
    return found


def _variables() -> list[Any]:
    def labels(name: str, query: str) -> Any:
        return (
            dashboard.QueryVariable(name)
            .label(name)
            .datasource(SOURCE)
            .query(query)
            .multi(True)
            .include_all(True)
            .all_value(".+")
            .current(models.VariableOption(text="All", value="$__all"))
            .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(models.VariableSort.ALPHABETICAL_ASC)
        )

    limit = "loadgate_limit"
    return [
        dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"),
        labels("job", f"label_values({limit}, job)"),
        labels("instance", f'label_values({limit}{{job=~"$job"}}, instance)'),
        labels("controller", f"label_values({limit}{{{WHO}}}, controller)"),
        labels("priority", f"label_values(loadgate_class_requests_total{{{SEL}}}, priority)"),
        dashboard.CustomVariable("topk")
        .label("clients shown")
        .values("5,10,20")
        .current(models.VariableOption(text="10", value="10")),
    ]


_BUILT_IN: Final = {
    "builtIn": 1,
    "datasource": {"type": "grafana", "uid": "-- Grafana --"},
    "enable": True,
    "hide": True,
    "iconColor": "rgba(0, 211, 255, 1)",
    "name": "Annotations & Alerts",
    "type": "dashboard",
}


def _annotations() -> list[dict[str, Any]]:
    """Moments that explain a change of shape; at most two kinds are shown unasked."""
    return [
        _annotation(
            "Policy loaded",
            f"loadgate_policy_last_reload_success_timestamp_seconds{{{WHO}}} * 1000",
            "policy loaded",
            "blue",
            enable=True,
            value_is_time=True,
        ),
        _annotation(
            "Process started",
            f"process_start_time_seconds{{{WHO}}} * 1000 and on (job, instance) "
            f"loadgate_build_info{{{WHO}}}",
            "started",
            "green",
            enable=True,
            value_is_time=True,
        ),
        _annotation(
            "Alert",
            f'ALERTS{{alertname=~"Loadgate.+",alertstate="firing",{WHO}}}',
            "{{alertname}}",
            "red",
        ),
        _annotation(
            "Limit at its floor",
            f"loadgate_limit{{{SEL}}} <= loadgate_limit_min{{{SEL}}}",
            "limit at its floor",
            "orange",
        ),
    ]


def _annotation(
    name: str,
    expr: str,
    title: str,
    color: str,
    *,
    enable: bool = False,
    value_is_time: bool = False,
) -> dict[str, Any]:
    # In this form every version reads it; newer ones turn it into theirs on loading.
    return {
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "enable": enable,
        "expr": expr,
        "hide": False,
        "iconColor": color,
        "name": name,
        "step": "15s",
        "tagKeys": "instance",
        "textFormat": "{{instance}}",
        "titleFormat": title,
        "useValueForTime": value_is_time,
    }
