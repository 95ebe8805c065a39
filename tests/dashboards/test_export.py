"""`loadgate dashboards export` writes what Grafana and Prometheus can load as it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadgate.integrations.cli.app import app
from tests.dashboards.catalogue import exported
from tests.dashboards.files import DASHBOARDS
from tests.dashboards.lint import problems
from tests.observability.prometheus import promtool


def export(folder: Path, *options: str) -> list[Path]:
    done = CliRunner().invoke(app, ["dashboards", "export", str(folder), *options])
    assert done.exit_code == 0, done.output
    return [Path(line) for line in done.output.splitlines()]


def test_an_export_is_what_is_committed(tmp_path: Path) -> None:
    files = export(tmp_path / "new" / "folder")
    assert len(files) == len(set(files)) == 10
    for path in files:
        committed = (DASHBOARDS / path.relative_to(tmp_path / "new" / "folder")).read_text()
        if path.parts[-3:-1] == ("provisioning", "dashboards"):
            continue
        assert path.read_text() == committed


def test_prometheus_takes_the_exported_configuration(tmp_path: Path) -> None:
    export(tmp_path)
    said = promtool("check", "config", str(tmp_path / "prometheus" / "prometheus.yml"))
    assert "2 rule files found" in said


def test_grafana_finds_the_dashboards_where_the_provider_says(tmp_path: Path) -> None:
    export(tmp_path)
    provider = (tmp_path / "provisioning" / "dashboards" / "loadgate.yml").read_text()
    found = re.search(r"path: (.+)", provider)
    assert found is not None
    assert len(list(Path(found[1]).glob("*.json"))) == 5


def test_addresses_of_the_deployment_are_put_in(tmp_path: Path) -> None:
    export(tmp_path, "--runbooks", "https://wiki/rb/", "--grafana", "https://grafana/")
    alerts = (tmp_path / "prometheus" / "loadgate-alerts.yml").read_text()
    assert "runbook_url: https://wiki/rb/LoadgateSheddingHigh.md" in alerts
    assert "dashboard_url: https://grafana/d/loadgate-overview" in alerts
    assert "viewPanel" not in alerts
    for path in (tmp_path / "grafana").glob("*.json"):
        board = json.loads(path.read_text())
        assert [link["url"] for link in board["links"] if link["type"] == "link"] == [
            "https://wiki/rb/"
        ]
        assert problems(board, set(exported())) == []


def test_a_folder_that_cannot_be_written_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "file"
    taken.write_text("in the way")
    done = CliRunner().invoke(app, ["dashboards", "export", str(taken)])
    assert done.exit_code == 2
    assert "cannot write to" in done.output + capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([""], "the folder has no name"),
        (["{folder}", "--runbooks", "notaurl"], "--runbooks 'notaurl': must be an address"),
        (["{folder}", "--grafana", "javascript:1"], "--grafana 'javascript:1': must be an address"),
        (["{folder}", "--grafana", "https://"], "must be an address"),
        (["{folder}", "--grafana", "http://[x/"], "must be an address"),
        (["{folder}", "--runbooks", "https://wiki/a b"], "must be an address"),
        (["{folder}", "--runbooks", "https://wiki/\nevil: 1"], "must be an address"),
    ],
)
def test_a_folder_without_a_name_and_an_address_of_no_web_page_are_refused(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [word.format(folder="boards") for word in words]
    done = CliRunner().invoke(app, ["dashboards", "export", *given])
    assert done.exit_code == 2
    assert said in done.output + capfd.readouterr().err
    assert not list(tmp_path.iterdir())
