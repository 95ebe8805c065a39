"""What is committed: dashboards as data, and the queries in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

DASHBOARDS: Final = Path(__file__).parents[2] / "dashboards"
GRAFANA: Final = DASHBOARDS / "grafana"
RULES: Final = DASHBOARDS / "prometheus"

BOARDS: Final = sorted(GRAFANA.glob("*.json"))

# What Grafana puts in place of its variables, as far as a query can tell.
_MEANT: Final = {
    "$__rate_interval": "1m",
    '"$job"': '".+"',
    '"$instance"': '".+"',
    '"$controller"': '".+"',
    '"$priority"': '".+"',
    "$topk": "10",
}


class Target(NamedTuple):
    """One query of one panel."""

    board: str
    panel: str
    ref: str
    legend: str
    expr: str
    instant: bool
    unit: str

    @property
    def name(self) -> str:
        return f"{self.board} / {self.panel} / {self.ref}"


def boards() -> dict[str, dict[str, Any]]:
    """Every dashboard by the stem of its file."""
    return {path.stem: json.loads(path.read_text()) for path in BOARDS}


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """Its panels without the rows."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def targets(board: dict[str, Any]) -> list[Target]:
    """Its queries, as Prometheus gets to see them."""
    return [
        Target(
            board["uid"],
            panel["title"],
            target["refId"],
            target.get("legendFormat", ""),
            meant(target["expr"]),
            target.get("instant", False),
            panel["fieldConfig"]["defaults"].get("unit", ""),
        )
        for panel in panels(board)
        for target in panel.get("targets", ())  # text asks nothing
    ]


def meant(expr: str) -> str:
    """`expr` with all of everything selected."""
    for variable, value in _MEANT.items():
        expr = expr.replace(variable, value)
    return expr
