"""One Prometheus that holds the simulated hour, for every test that asks it something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dashboards.files import RULES
from tests.observability import incidents
from tests.observability.prometheus import Prometheus, promtool, running


@pytest.fixture(scope="session")
def hour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """The hour of incidents in a real Prometheus, with the recording rules evaluated over it."""
    folder = tmp_path_factory.mktemp("hour")
    prepare(folder)
    with running(folder) as server:
        yield server


def prepare(folder: Path) -> None:
    """Make the database of a Prometheus that has seen the hour and evaluated the rules."""
    text = incidents.written(folder)
    promtool("tsdb", "create-blocks-from", "openmetrics", str(text), str(folder / "data"))
    with running(folder) as server:
        promtool(
            "tsdb", "create-blocks-from", "rules",
            f"--start={incidents.BEGIN:.0f}", f"--end={incidents.end():.0f}",
            "--eval-interval=15s", f"--url={server.url}", f"--output-dir={folder / 'recorded'}",
            str(RULES / "loadgate-recording.yml"),
        )  # fmt: skip
    for block in (folder / "recorded").iterdir():
        block.rename(folder / "data" / block.name)
