"""Every panel and every alert shows the hour of incidents as it was, in a real Prometheus."""

from __future__ import annotations

from math import isfinite, nan
from typing import Any, Final

import pytest

from loadgate.dashboards.source.alerts import ALERTS
from loadgate.dashboards.source.recording import RECORDED
from tests.dashboards.files import Target, boards, targets
from tests.observability import incidents
from tests.observability.prometheus import Prometheus, QueryError

TARGETS: Final = [target for board in boards().values() for target in targets(board)]
STEP: Final = incidents.SCRAPE

# Whatever is a share or a probability lies here; the used part of a limit may exceed it just after
# a cut, and some of the rest are shares of something that is no whole.
_SHARES: Final = (0.0, 1.0)
_MAY_EXCEED_ONE: Final = {
    "How much of the limit is used?", "Is it restless?",
    "How long are waits beside what is allowed?",
}  # fmt: skip

# (panel, letter): (incident, lowest, highest) in the middle of the incident. The bounds follow from
# what the hour is made of: 40/s of capacity, 20/s asked in calm, 80/s in the overload, one client
# with 40/s of which 8/s are allowed.
EXPECTED: Final[dict[tuple[str, str], list[tuple[str, float, float]]]] = {
    ("Refused: full (503)", "A"): [
        ("calm", 0, 0), ("overload", 0.35, 0.65), ("greedy client", 0, 0.05),
        ("downstream down", 0.6, 1)],
    ("Refused: rate (429)", "A"): [
        ("calm", 0, 0), ("overload", 0, 0.02), ("greedy client", 0.4, 0.65)],
    ("Goodput", "A"): [
        ("calm", 17, 23), ("overload", 34, 46), ("greedy client", 23, 33),
        ("downstream down", 0, 4)],
    ("Every place taken", "A"): [("calm", 0, 0.05), ("overload", 0.8, 1)],
    ("p99 latency", "A"): [("calm", 0.3, 1.5), ("slow downstream", 1, 5)],
    ("Event loop stalled", "A"): [("calm", 0, 0), ("blocked loop", 0.08, 0.16)],
    ("How much is asked, admitted and done?", "A"): [("overload", 72, 88), ("calm", 17, 23)],
    ("How much is asked, admitted and done?", "B"): [("overload", 34, 46)],
    ("How long do they take?", "E"): [("calm", 0.5, 0.5)],
    ("How much work is wasted?", "A"): [("calm", 0, 0.05), ("downstream down", 0.2, 1)],
    ("Is it queueing behind the limit?", "A"): [
        ("calm", 0.12, 0.25), ("slow downstream", 0.3, 0.7), ("downstream down", 1, 5)],
    ("How full is it?", "B"): [("calm", 2, 5)],
    ("How full is it?", "C"): [("calm", 0, 0.1), ("overload", 1, 40)],
    ("How much of the limit is used?", "A"): [("overload", 0.85, 1.1)],
    ("How do waits end?", "A"): [("calm", 0, 0.5), ("overload", 15, 46)],
    ("How long are waits beside what is allowed?", "A"): [("overload", 0.5, 1.1)],
    ("Where between its bounds?", "B"): [("calm", 2, 2)],
    ("Where between its bounds?", "C"): [("calm", 60, 60)],
    ("Do two ways of measuring agree?", "A"): [("calm", 0.12, 0.25), ("overload", 0.15, 1.5)],
    ("Do two ways of measuring agree?", "B"): [("calm", 0.12, 0.25), ("overload", 0.15, 1.5)],
    ("Decided without the store", "A"): [("calm", 0, 0), ("blocked loop", 0.9, 1)],
    ("p99 of asking", "A"): [("calm", 0.001, 0.01)],
    ("How many questions share a call?", "A"): [("calm", 2, 2)],
    ("What brakes the limit?", "A"): [("calm", 1, 1)],
    ("Is anything switched off or away?", "A"): [("calm", 0, 0)],
    ("Is anything switched off or away?", "C"): [("calm", 0, 0), ("blocked loop", 1, 1)],
    ("What does the limit want?", "B"): [("calm", 4, 30)],
    ("Who makes room?", "A"): [("calm", 0, 0), ("overload", 1, 80)],
    ("Refusals that hit one client", "A"): [
        ("overload", 0, 0.2), ("greedy client", 0.6, 1)],
    ("How many keys are remembered?", "A"): [("calm", 1, 121)],
}  # fmt: skip


def moment(incident: str) -> float:
    return incidents.BEGIN + 300 if incident == "calm" else incidents.middle_of(incident)


def dead(server: Prometheus, target: Target) -> str:
    """Why a panel would stay empty or draw nonsense; empty if it does not."""
    try:
        series = server.over(target.expr, incidents.BEGIN, incidents.end(), STEP)
    except QueryError as error:
        return f"{target.name}: {error}"
    values = [float(value) for one in series for _, value in one["values"]]
    finite = [value for value in values if isfinite(value)]
    if not finite:
        return f"{target.name}: no data in the whole hour"
    if len(finite) < len(values) and "histogram_quantile" not in target.expr:
        return f"{target.name}: {len(values) - len(finite)} values are not finite"
    low, high = min(finite), max(finite)
    if low < 0:
        return f"{target.name}: falls to {low}"
    if target.unit == "percentunit" and target.panel not in _MAY_EXCEED_ONE and high > 1.001:
        return f"{target.name}: a share of {high}"
    return ""


def value(server: Prometheus, expr: str, at: float) -> float:
    (one,) = server.instant(expr, at) or [{"value": (at, nan)}]
    return float(one["value"][1])


def test_every_panel_has_data(hour: Prometheus) -> None:
    assert [problem for target in TARGETS if (problem := dead(hour, target))] == []


def _one(panel: str, ref: str) -> Target:
    (found,) = (one for one in TARGETS if (one.panel, one.ref) == (panel, ref) and (
        one.board == "loadgate-overview" or panel != "Refused: rate (429)"))  # fmt: skip
    return found


@pytest.mark.parametrize(("panel", "ref"), EXPECTED, ids=lambda part: str(part))
def test_a_panel_shows_what_happened(hour: Prometheus, panel: str, ref: str) -> None:
    target = _one(panel, ref)
    for incident, low, high in EXPECTED[panel, ref]:
        for one in hour.instant(target.expr, moment(incident)):
            found = float(one["value"][1])
            assert low <= found <= high, (target.name, incident, found)


def test_the_two_ways_of_measuring_agree_in_every_incident(hour: Prometheus) -> None:
    panel = "Do two ways of measuring agree?"
    for incident in ("calm", "overload", "greedy client", "slow downstream", "blocked loop"):
        little, measured = (
            value(hour, _one(panel, ref).expr, moment(incident)) for ref in ("A", "B")
        )
        assert little == pytest.approx(measured, rel=0.1), incident


def test_the_reasons_add_up_to_the_refusals(hour: Prometheus) -> None:
    at = moment("overload")
    by_reason = hour.instant(_one("Why are requests refused?", "A").expr, at)
    refused = sum(float(one["value"][1]) for one in by_reason)
    asked = value(hour, _one("How much is asked, admitted and done?", "A").expr, at)
    admitted = value(hour, _one("How much is asked, admitted and done?", "B").expr, at)
    assert refused == pytest.approx(asked - admitted, rel=1e-6)
    reasons = {one["metric"]["reason"] for one in by_reason if float(one["value"][1]) > 0}
    assert reasons >= {"queue_shed", "wait_timeout"} or "queue_full" in reasons


def test_the_lowest_class_goes_first(hour: Prometheus) -> None:
    found = hour.instant(_one("Are the important ones served?", "A").expr, moment("overload"))
    shares = {one["metric"]["priority"]: float(one["value"][1]) for one in found}
    assert shares["critical"] < shares["default"] < shares["background"]


def test_the_clients_refused_most_are_few_and_have_no_names(hour: Prometheus) -> None:
    found = hour.instant(_one("Who is refused most?", "A").expr, moment("greedy client"))
    names = {one["metric"]["client"] for one in found}
    assert 2 <= len(names) <= 6
    assert "other" in names
    assert incidents.GREEDY not in names
    counts = {one["metric"]["client"]: float(one["value"][1]) for one in found}
    others = counts.pop("other")
    assert max(counts.values()) > 0.6 * (sum(counts.values()) + others)


# Alert: where its condition must hold and where it must not, for the hour as it is made.
_TELLS: Final[dict[str, tuple[list[str], list[str]]]] = {
    "LoadgateSheddingHigh": (["overload", "downstream down"], ["calm", "greedy client"]),
    "LoadgateSheddingSevere": (["overload", "downstream down"], ["calm", "greedy client"]),
    "LoadgateCriticalShed": (["downstream down"], ["calm", "greedy client"]),
    "LoadgateSloBurnFast": (["overload", "downstream down"], ["calm"]),
    "LoadgateWaitHigh": (["overload"], ["calm"]),
    "LoadgateWastedWork": (["downstream down"], ["calm", "overload", "greedy client"]),
    "LoadgateClientDominates": (["greedy client"], ["calm", "overload"]),
    "LoadgateEventLoopBlocked": (["blocked loop"], ["calm", "overload"]),
    "LoadgatePolicyReloadFailed": ([], ["calm", "overload"]),
    "LoadgateStoreUnavailable": ([], ["calm", "overload", "downstream down"]),
    "LoadgateMetricsMissing": ([], ["calm", "overload"]),
    "LoadgateStoreAway": (["blocked loop"], ["calm", "overload"]),
    "LoadgateStoreSlow": ([], ["calm", "overload", "blocked loop"]),
    "LoadgateRateTableFull": ([], ["calm", "overload"]),
}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_tells_its_incident_from_the_others(hour: Prometheus, alert: Any) -> None:
    hour.over(alert.expr, incidents.BEGIN, incidents.end(), STEP)  # it is understood
    holds, silent = _TELLS.get(alert.name, ([], []))
    for incident in holds:
        assert hour.instant(alert.expr, moment(incident)), incident
    for incident in silent:
        assert not hour.instant(alert.expr, moment(incident)), incident


def test_the_policy_that_could_not_be_loaded_is_seen(hour: Prometheus) -> None:
    (alert,) = (one for one in ALERTS if one.name == "LoadgatePolicyReloadFailed")
    assert hour.instant(alert.expr, incidents.end() - STEP)


@pytest.mark.parametrize("rule", RECORDED, ids=lambda rule: rule.record)
def test_a_recording_rule_has_data(hour: Prometheus, rule: Any) -> None:
    recorded = hour.over(rule.record, incidents.BEGIN, incidents.end(), STEP)
    assert any(isfinite(float(value)) for one in recorded for _, value in one["values"])


def test_a_broken_query_a_renamed_metric_and_a_dead_panel_are_found(hour: Prometheus) -> None:
    target = _one("Goodput", "A")
    assert dead(hour, target) == ""
    for expr, why in (
        (target.expr.replace("sum(", "sum(("), "parse error"),
        (target.expr.replace("loadgate_finished_total", "loadgate_ended_total"), "no data"),
        (target.expr.replace('"success"', '"succes"'), "no data"),
        (target.expr + " - 1000", "falls to"),
        ("0 / (loadgate_limit * 0)", "no data"),
    ):
        assert why in dead(hour, target._replace(expr=expr)), expr
    assert "a share of" in dead(hour, target._replace(unit="percentunit"))
