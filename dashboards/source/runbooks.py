"""What to do? Every runbook as a panel of a dashboard, one click from the panels that need it.

Grafana shows no files, so without this the way from a red panel to a runbook would need a web
server. The text is that of `docs/runbooks`, read when the dashboards are made.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from loadgate.dashboards.source import overview, tuning
from loadgate.dashboards.source.alerts import ALERTS
from loadgate.dashboards.source.panels import Placed, text

UID = "loadgate-runbooks"
TITLE = "Loadgate / Runbooks"
SAYS = "What to do? One panel for each alert; the first one tells which of them to read."

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "runbooks"
INDEX: Final = "README"

# In the order of the panels, whose ids count from 1.
_PAGES: Final = (INDEX, *(alert.name for alert in ALERTS))

# Runbooks that a panel leads to beside those of its alerts: where each incident of the index is
# first seen on the overview.
_MORE: Final = {
    (overview.UID, "Refused: rate (429)"): ("LoadgateClientDominates",),
    (overview.UID, "p99 latency"): ("LoadgateLatencyInflated",),
    (overview.UID, "Why are requests refused?"): ("LoadgateLimitAtFloor",),
    (overview.UID, "Is anything switched off or away?"): ("LoadgateStoreAway",),
    (tuning.UID, "How full is it?"): ("LoadgateLimitAtFloor", "LoadgateLimitAtCeiling"),
}


def address(page: str) -> str:
    """Where Grafana shows that page, without the slash in front.

    Raises:
        ValueError: There is none of that name.
    """
    return f"d/{UID}?viewPanel={_PAGES.index(page) + 1}"


def links(board: str, panel: str) -> list[dict[str, Any]]:
    """What to offer at the corner of a panel: the runbooks of its alerts, and what else helps."""
    pages = [alert.name for alert in ALERTS if (alert.board, alert.panel) == (board, panel)]
    pages += [page for page in _MORE.get((board, panel), ()) if page not in pages]
    return [
        {
            "asDropdown": False,
            "icon": "doc",
            "includeVars": False,
            "keepTime": False,
            "tags": [],
            "targetBlank": False,
            "title": f"What to do: {page}",
            "tooltip": "",
            "type": "link",
            "url": f"/{address(page)}&${{__url_time_range}}&${{__all_variables}}",
        }
        for page in pages
    ]


def _page(name: str) -> Placed:
    title, _, body = (FOLDER / f"{name}.md").read_text(encoding="utf-8").partition("\n")
    # Grafana's page has a base address, so that these work wherever it is mounted.
    body = re.sub(r"\]\((\w+)\.md\)", lambda found: f"]({address(found[1])})", body)
    return text(
        "Which runbook?" if name == INDEX else title.removeprefix("# "),
        "What it means, where to look and what to do. The same text is in docs/runbooks.",
        body.strip(),
        width=24 if name == INDEX else 12,
        height=26 if name == INDEX else 13,
    )


PANELS: list[Placed] = [_page(name) for name in _PAGES]
