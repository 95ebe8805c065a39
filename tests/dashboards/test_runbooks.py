"""From a red panel it is one click to the runbook; every link leads somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest

from loadgate.dashboards.export import export
from loadgate.dashboards.source import thresholds
from loadgate.dashboards.source.alerts import ALERTS
from loadgate.dashboards.source.rules import Alert
from loadgate.dashboards.source.runbooks import FOLDER
from tests.dashboards.files import DASHBOARDS, boards, targets
from tests.observability import incidents
from tests.observability.prometheus import Prometheus

DOCS: Final = FOLDER.parent
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_has_a_panel_and_a_runbook_that_names_it(alert: Alert) -> None:
    titles = {panel["title"] for panel in boards()[alert.board]["panels"]}
    assert alert.panel in titles
    runbook = (FOLDER / f"{alert.name}.md").read_text()
    assert runbook.startswith(f"# {alert.name}\n")
    assert alert.panel in runbook
    for heading in ("## What it means", "## Look", "## Do"):
        assert f"\n{heading}\n" in runbook


def test_runbooks_name_panels_that_exist() -> None:
    titles = {panel["title"] for board in boards().values() for panel in board["panels"]}
    runbooks = sorted(FOLDER.glob("*.md"))
    assert {path.stem for path in runbooks} == {alert.name for alert in ALERTS} | {"README"}
    for path in runbooks:
        quoted = set(re.findall(r"\*([^*\n]+\?)\*", path.read_text()))
        assert quoted <= titles, (path.name, quoted - titles)


def led_to(url: str) -> str:
    """The title of the panel that an address below Grafana shows.

    Raises:
        LookupError: There is no such dashboard or panel.
    """
    parts = urlsplit(url.lstrip("/"))
    folder, _, uid = parts.path.partition("/")
    if folder != "d" or uid not in boards():
        raise LookupError(f"no dashboard: {url}")
    asked = parse_qs(parts.query.partition("&$")[0])
    if "viewPanel" not in asked:
        return uid
    number = int(asked["viewPanel"][0])
    for panel in boards()[uid]["panels"]:
        if panel["id"] == number:
            return str(panel["title"])
    raise LookupError(f"no panel: {url}")


def panel_links() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for uid, board in boards().items():
        for panel in board["panels"]:
            for link in panel.get("links", ()):
                yield uid, panel["title"], link


def test_a_link_that_leads_nowhere_is_found() -> None:
    for url in ("/d/loadgate-gone", "/d/loadgate-runbooks?viewPanel=99", "docs/runbooks/X.md"):
        with pytest.raises(LookupError):
            led_to(url)


def test_every_link_of_a_panel_leads_to_the_runbook_that_it_names() -> None:
    links = list(panel_links())
    assert len(links) > len(ALERTS)
    for _, panel, link in links:
        assert link["title"] == f"What to do: {led_to(link['url'])}", (panel, link)


def test_every_alerts_panel_leads_to_its_runbook() -> None:
    led = {(uid, panel, led_to(link["url"])) for uid, panel, link in panel_links()}
    assert {(alert.board, alert.panel, alert.name) for alert in ALERTS} <= led


def test_every_link_inside_the_runbooks_leads_somewhere() -> None:
    count = 0
    for panel in boards()["loadgate-runbooks"]["panels"]:
        content = panel["options"]["content"]
        for name, url in re.findall(r"\[(\w+)\]\(([^)\s]+)\)", content):
            assert led_to(url) == name, panel["title"]
            assert not url.startswith("/"), "Grafana may be mounted below a folder"
            count += 1
        assert ".md" not in content.replace(".md)", ""), panel["title"]
    assert count > len(ALERTS)


def test_the_addresses_in_alerts_lead_to_their_dashboard_and_runbook() -> None:
    text = (DASHBOARDS / "prometheus" / "loadgate-alerts.yml").read_text()
    for alert in ALERTS:
        _, _, rule = text.partition(f"- alert: {alert.name}\n")
        rule = rule.partition("- alert: ")[0]
        (runbook,) = re.findall(r"runbook_url: (\S+)", rule)
        (board,) = re.findall(r"dashboard_url: (\S+)", rule)
        assert led_to(runbook) == alert.name
        assert led_to(board) == alert.board


def test_runbooks_that_lie_elsewhere_are_found_there(tmp_path: Path) -> None:
    export(tmp_path, runbooks="https://wiki/rb/", grafana="https://grafana/")
    text = (tmp_path / "prometheus" / "loadgate-alerts.yml").read_text()
    found = re.findall(r"runbook_url: https://wiki/rb/(\S+)", text)
    assert found == [f"{alert.name}.md" for alert in ALERTS]
    assert all((FOLDER / name).exists() for name in found)
    export(tmp_path, grafana="https://grafana/under")
    text = (tmp_path / "prometheus" / "loadgate-alerts.yml").read_text()
    assert text.count("https://grafana/under/d/loadgate-") == 2 * len(ALERTS)


def _anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize(
    "path", sorted(DOCS.rglob("*.md")), ids=lambda path: str(path.relative_to(DOCS))
)
def test_every_link_of_the_docs_leads_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    urls: list[str] = _LINK.findall(text)
    for url in urls:
        if "://" in url or url.startswith("mailto:"):
            continue
        name, _, anchor = url.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), url
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            assert anchor in {_anchor(heading) for heading in headings}, url


# The incident, the panel of the overview that shows it and the letter of its query, what it is at
# least then, and the runbook to which the panel leads. In calm it is below that.
INCIDENTS: Final = (
    ("overload", "Refused: full (503)", "A", thresholds.SHED_HIGH, "LoadgateSheddingHigh"),
    ("greedy client", "Refused: rate (429)", "A", 0.3, "LoadgateClientDominates"),
    ("slow downstream", "p99 latency", "A", 1.5, "LoadgateLatencyInflated"),
    ("blocked loop", "Is anything switched off or away?", "C", 1.0, "LoadgateStoreAway"),
    ("downstream down", "Why are requests refused?", "A", 5.0, "LoadgateLimitAtFloor"),
)


@pytest.mark.parametrize(("incident", "panel", "ref", "least", "page"), INCIDENTS)
def test_each_incident_is_seen_on_the_overview_one_click_from_its_runbook(
    hour: Prometheus, incident: str, panel: str, ref: str, least: float, page: str
) -> None:
    overview = boards()["loadgate-overview"]
    (target,) = (one for one in targets(overview) if (one.panel, one.ref) == (panel, ref))

    def highest(at: float) -> float:
        return max(float(one["value"][1]) for one in hour.instant(target.expr, at))

    assert highest(incidents.BEGIN + 300) < least <= highest(incidents.middle_of(incident))
    led = [led_to(link["url"]) for uid, title, link in panel_links()
           if (uid, title) == (overview["uid"], panel)]  # fmt: skip
    assert page in led


def test_every_incident_of_the_index_is_one_of_these() -> None:
    index = (FOLDER / "README.md").read_text()
    table = re.findall(r"^\| (?!what|alert|---)[^|\[]+ \| \[(\w+)\]", index, re.MULTILINE)
    assert sorted(table) == sorted(page for *_, page in INCIDENTS)
