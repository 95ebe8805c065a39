"""Prometheus stores the traces that belong to refusals."""

from __future__ import annotations

import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from prometheus_client import CollectorRegistry

from loadgate import AdmissionController, Reason
from loadgate.decisions import Refuse, Stage
from loadgate.integrations import witness as module
from loadgate.integrations.prometheus import LoadgateCollector, MetricsPage
from loadgate.integrations.witness import Witness
from tests.observability.prometheus import running

PATIENCE = 30.0


class _Page(BaseHTTPRequestHandler):
    def __init__(self, page: MetricsPage, *rest: Any) -> None:
        self._page = page
        super().__init__(*rest)

    def do_GET(self) -> None:
        body, kind = anyio.run(self._page.render, self.headers["Accept"])
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_the_trace_of_a_refusal_reaches_a_real_prometheus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "current_trace_id", lambda: "ab" * 16)
    controller = AdmissionController(name="checkout")
    witness = Witness(logs=False)
    witness.refused(Refuse(Stage.LIMIT, Reason.QUEUE_FULL, 1.0, 9.0, 8.0), "a", 503, 0.0)
    registry = CollectorRegistry()
    registry.register(LoadgateCollector(controller, witness=witness))
    http = HTTPServer(("127.0.0.1", 0), partial(_Page, MetricsPage(registry)))
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    config = (
        "scrape_configs: [{job_name: a, scrape_interval: 1s, static_configs: "
        f"[{{targets: ['127.0.0.1:{http.server_address[1]}']}}]}}]\n"
    )
    try:
        with running(tmp_path, config) as server:
            ends = time.monotonic() + PATIENCE
            asked = 'loadgate_requests_total{reason="queue_full"}'
            while not (found := server.exemplars(asked, time.time() - 600, time.time() + 600)):
                assert time.monotonic() < ends, server.targets()
                time.sleep(0.1)
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
    (series,) = found
    assert series["seriesLabels"]["controller"] == "checkout"
    assert series["exemplars"][0]["labels"] == {"trace_id": "ab" * 16}
