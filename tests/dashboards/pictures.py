"""Draw the dashboards for the docs: ``make pictures``.

The simulated hour is put into a real Prometheus, and Grafana's own components (from npm) draw
each dashboard in headless Chromium. It takes a few minutes the first time and 500 MB of disk in
`.servers/`, so it is no part of `make test`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from tests.dashboards.conftest import prepare
from tests.dashboards.files import BOARDS
from tests.observability import incidents
from tests.observability.browser import Browser
from tests.observability.prometheus import Prometheus, running
from tests.programs import SERVERS

HERE: Final = Path(__file__).parent / "preview"
MODULES: Final = SERVERS / "preview"
PICTURES: Final = Path(__file__).parents[2] / "docs" / "pictures" / "dashboards"

# The runbooks are text, which docs/ has already.
_DRAWN: Final = [path for path in BOARDS if path.stem != "loadgate-runbooks"]

# Until when each is drawn, from the beginning of the hour: a screen as it is in the night, with
# the incident that it is for still going on.
_UNTIL: Final = {
    "loadgate-overview": incidents.middle_of("downstream down"),
    "loadgate-fairness": incidents.middle_of("greedy client"),
    "loadgate-store": incidents.begin_of(incidents.STORE_AWAY) + 120,
}

# A page as wide as a usual screen; Grafana lays panels out on 24 columns of it.
_WIDE: Final = 1560
_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_PAGE: Final = (
    b'<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="/preview.css">'
    b'<link rel="icon" href="data:,"><body style="background:#111217;color:#ccccdc">'
    b'<div id="root"></div><script src="/preview.js"></script>'
)


def bundle(folder: Path) -> None:
    """Install Grafana's components, once, and make the page's program."""
    MODULES.mkdir(parents=True, exist_ok=True)
    wanted = (HERE / "package.json").read_text()
    manifest = MODULES / "package.json"
    if not (MODULES / "node_modules").exists() or manifest.read_text() != wanted:
        manifest.write_text(wanted)
        subprocess.run(
            ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
            cwd=MODULES,
            check=True,
        )
    # Modules are looked for above the file that asks for them.
    for name in ("build.mjs", "preview.jsx"):
        shutil.copy(HERE / name, MODULES / name)
    subprocess.run(
        ["node", "build.mjs", str(folder / "preview.js")],
        cwd=MODULES,
        env=os.environ | {"NODE_PATH": str(MODULES / "node_modules")},
        check=True,
    )


class _Pages(BaseHTTPRequestHandler):
    """The page, its program, the dashboards, Grafana's icons, and Prometheus behind /prom."""

    def __init__(self, folder: Path, prometheus: str, *rest: Any) -> None:
        self._folder = folder
        self._prometheus = prometheus
        super().__init__(*rest)

    def do_GET(self) -> None:
        """Answer."""
        path = urllib.parse.urlsplit(self.path).path
        kind = _TYPES.get(Path(path).suffix, "text/html")
        if path.startswith("/prom/"):
            try:
                with urllib.request.urlopen(self._prometheus + self.path[5:]) as answer:
                    return self._send(answer.read(), "application/json")
            except urllib.error.HTTPError as error:
                with error:
                    return self._send(error.read(), "application/json")
        if path == "/":
            return self._send(_PAGE, kind)
        if "/img/icons/" in path:
            icon = MODULES / "node_modules/@grafana/ui/dist/public" / path[path.index("img/") :]
            return self._send(icon.read_bytes() if icon.exists() else b"", kind)
        files = (*BOARDS, self._folder / "preview.js", self._folder / "preview.css")
        found = [one.read_bytes() for one in files if one.name == path[1:]]
        return self._send(found[0], kind) if found else self.send_error(404)

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def pages(folder: Path, server: Prometheus) -> Generator[str]:
    """Serve the pages; gives their address."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Pages, folder, server.url))
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        http.server_close()


def draw(folder: Path, base: str) -> list[str]:
    """Write a picture of each dashboard; returns what is wrong with them."""
    wrong: list[str] = []
    for path in _DRAWN:
        board = json.loads(path.read_text())
        high = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
        with Browser(folder / path.stem, (_WIDE + 40, high * 38 + 90)) as browser:
            where = urllib.parse.urlencode(
                {
                    "board": f"/{path.name}",
                    "from": incidents.BEGIN + 60,
                    "to": _UNTIL.get(path.stem, incidents.end() - 15),
                    "wide": _WIDE,
                }
            )
            browser.open(f"{base}/?{where}")
            browser.until(
                "window.panels > 0 && Object.keys(window.report).length === window.panels"
            )
            report: dict[str, dict[str, Any]] = browser.value("window.report")
            browser.picture(PICTURES / f"{path.stem}.png")
            for title, panel in report.items():
                if panel["trouble"] or "no data" in panel["text"]:
                    wrong.append(f"{path.stem} / {title}: {panel['trouble'] or 'no data'}")
            # Fonts and translations are in no package; the components do without.
            wrong += [
                f"{path.stem}: {said}"
                for said in browser.complaints
                if "Failed to load resource" not in said
            ]
    return wrong


def main() -> int:
    """Draw all."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        bundle(folder)
        prepare(folder)
        for path in _DRAWN:
            (folder / path.stem).mkdir()
        with running(folder) as server, pages(folder, server) as base:
            wrong = draw(folder, base)
    for path in sorted(PICTURES.glob("loadgate-*.png")):
        print(path)
    for problem in wrong:
        print(f"look at it: {problem}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
