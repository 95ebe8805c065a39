"""Which files are generated, and what is in them?"""

from __future__ import annotations

from loadgate.dashboards.source import fairness, overview, runbooks, store, tuning
from loadgate.dashboards.source.alerts import ALERTS
from loadgate.dashboards.source.assemble import assemble, written
from loadgate.dashboards.source.recording import RECORDED
from loadgate.dashboards.source.rules import as_yaml

BOARDS = (overview, tuning, fairness, store, runbooks)


def generated() -> dict[str, str]:
    """Text by path below the folder of the dashboards."""
    files = {
        f"grafana/{board.UID}.json": written(
            assemble(board.UID, board.TITLE, board.SAYS, board.PANELS, runbooks.links)
        )
        for board in BOARDS
    }
    files["prometheus/loadgate-recording.yml"] = as_yaml(
        "loadgate-recording", RECORDED, runbooks.address
    )
    files["prometheus/loadgate-alerts.yml"] = as_yaml("loadgate-alerts", ALERTS, runbooks.address)
    return files
