"""Where do the dashboards and rules go? Into a folder, with the addresses of this deployment."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent

# Folders with files for users; what else lies here makes them.
_FOLDERS: Final = ("grafana", "prometheus", "provisioning")
_RUNBOOK: Final = re.compile(r"runbook_url: \S+")
_ALERT: Final = re.compile(r"- alert: (\w+)")
_IN_GRAFANA: Final = "_url: /d"
_JSON_AT: Final = "path: /var/lib/grafana/dashboards/loadgate"


def export(target: Path, *, runbooks: str = "", grafana: str = "") -> list[Path]:
    """Write everything below `target`.

    Args:
        target: A folder; made if it does not exist. Files of the same names are replaced.
        runbooks: Where your own copy of the runbooks can be read, for alerts and for a link on
            each dashboard; by default alerts lead to the dashboard that holds them.
        grafana: Where Grafana is, for alerts.

    Returns:
        The files.

    Raises:
        OSError: They could not be written.
    """
    found: list[Path] = []
    for source in _sources():
        text = source.read_text(encoding="utf-8")
        if source.suffix == ".json":
            text = _linked(text, runbooks) if runbooks else text
        else:
            if runbooks:
                text = _elsewhere(text, runbooks.rstrip("/"))
            if grafana:
                text = text.replace(_IN_GRAFANA, f"_url: {grafana.rstrip('/')}/d")
            text = text.replace(_JSON_AT, f"path: {target.resolve() / 'grafana'}")
        path = target / source.relative_to(HERE)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        found.append(path)
    return found


def _sources() -> list[Path]:
    return sorted(
        path
        for folder in _FOLDERS
        for path in (HERE / folder).rglob("*")
        if path.suffix in {".json", ".yml"}
    )


def _elsewhere(text: str, runbooks: str) -> str:
    """Alerts whose runbooks are files in a folder."""
    lines: list[str] = []
    alert = ""
    for line in text.split("\n"):
        if found := _ALERT.search(line):
            alert = found[1]
        lines.append(_RUNBOOK.sub(f"runbook_url: {runbooks}/{alert}.md", line))
    return "\n".join(lines)


def _linked(text: str, runbooks: str) -> str:
    board: dict[str, Any] = json.loads(text)
    board["links"].append(
        {
            "asDropdown": False,
            "icon": "doc",
            "includeVars": False,
            "keepTime": False,
            "tags": [],
            "targetBlank": True,
            "title": "Runbooks",
            "tooltip": "What to do for each alert",
            "type": "link",
            "url": runbooks,
        }
    )
    return json.dumps(board, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
