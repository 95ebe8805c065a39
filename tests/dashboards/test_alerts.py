"""Every alert fires when it must, and is silent otherwise; promtool is the judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from loadgate.dashboards.source.alerts import ALERTS
from tests.dashboards.files import RULES, boards
from tests.observability.prometheus import promtool

AT: Final = 'job="shop",instance="a:9464",controller="checkout"'
MINUTES: Final = 60

Series = dict[str, str]


class Case(NamedTuple):
    """What an alert sees when it must fire, and when it must not."""

    fires: Series
    silent: Series


def per_second(rate: float) -> str:
    """A counter that grows by `rate` each second, a sample every 30 seconds."""
    return f"0+{rate * 30:g}x{MINUTES * 2}"


def stays(value: float) -> str:
    """A gauge that does not move."""
    return f"{value:g}x{MINUTES * 2}"


def requests(admitted: float, overloaded: float, reason: str = "queue_full") -> Series:
    """Decisions each second."""
    return {
        f'loadgate_requests_total{{{AT},decision="admitted",reason="none"}}': per_second(admitted),
        f'loadgate_requests_total{{{AT},decision="overloaded",reason="{reason}"}}': per_second(
            overloaded
        ),
    }


def critical(admitted: float, overloaded: float) -> Series:
    name = f'loadgate_class_requests_total{{{AT},priority="critical"'
    return {
        f'{name},decision="admitted"}}': per_second(admitted),
        f'{name},decision="overloaded"}}': per_second(overloaded),
    }


def ended(success: float, error: float) -> Series:
    return {
        f'loadgate_finished_total{{{AT},outcome="success"}}': per_second(success),
        f'loadgate_finished_total{{{AT},outcome="error"}}': per_second(error),
        f'loadgate_finished_total{{{AT},outcome="overload"}}': per_second(0),
    }


def one(name: str, values: str, more: str = "") -> Series:
    return {f"loadgate_{name}{{{AT}{more}}}": values}


def limit(now: float, used: float = 1.0, low: float = 2, high: float = 60) -> Series:
    return {
        **one("limit", stays(now)),
        **one("limit_min", stays(low)),
        **one("limit_max", stays(high)),
        **one("limit_seconds_total", per_second(now)),
        **one("in_flight_seconds_total", per_second(now * used)),
    }


def latency(mean: float, unloaded: float) -> Series:
    return {
        **one("latency_seconds_sum", per_second(20 * mean)),
        **one("latency_seconds_count", per_second(20)),
        **one("limit_state", stays(unloaded), ',name="unloaded_latency"'),
        **requests(20, 0),
    }


def waits(bucket: str) -> Series:
    """All waits lie in one bucket; max_wait is 0.2."""
    edges = ("0.05", "0.1", "0.2", "+Inf")
    reached = False
    found: Series = {}
    for edge in edges:
        reached = reached or edge == bucket
        counted = per_second(10 if reached else 0)
        found |= one("wait_seconds_bucket", counted, f',le="{edge}"')
    return {
        **found,
        **one("wait_seconds_count", per_second(10)),
        **one("max_wait_seconds", stays(0.2)),
        **requests(20, 0),
    }


def swinging(low: float, high: float, used: float) -> Series:
    found = limit(10, used)
    found |= one("limit", " ".join([f"{low:g} {high:g}"] * MINUTES))
    return found


CASES: Final[dict[str, Case]] = {
    "LoadgateSheddingHigh": Case(requests(18, 2), requests(20, 0.5)),
    "LoadgateSheddingSevere": Case(requests(10, 10), requests(18, 2)),
    "LoadgateCriticalShed": Case(critical(10, 1), critical(10, 0)),
    "LoadgateSloBurnFast": Case(requests(20, 1) | ended(20, 0), requests(20, 0) | ended(20, 0.1)),
    "LoadgateSloBurnSlow": Case(
        requests(20, 0) | ended(20, 0.5), requests(20, 0) | ended(20, 0.05)
    ),
    "LoadgateSaturated": Case(
        one("saturated_seconds_total", per_second(0.95)) | requests(20, 0),
        one("saturated_seconds_total", per_second(0.5)) | requests(20, 0),
    ),
    "LoadgateLatencyInflated": Case(latency(0.5, 0.1), latency(0.2, 0.1)),
    "LoadgateBaselineGrown": Case(
        # A day and an hour in steps of 5 min: 0.1 s yesterday, 0.3 s now.
        one("limit_state", f"0.1x{24 * 12 - 1} 0.3x12", ',name="unloaded_latency"'),
        one("limit_state", f"0.1x{24 * 12 - 1} 0.15x12", ',name="unloaded_latency"'),
    ),
    "LoadgateLimitAtFloor": Case(limit(2) | requests(2, 5), limit(2) | requests(2, 0)),
    "LoadgateLimitAtCeiling": Case(limit(60, 0.95), limit(60, 0.5)),
    "LoadgateLimitRestless": Case(swinging(5, 15, 0.9), swinging(5, 15, 0.3)),
    "LoadgateWaitHigh": Case(waits("0.2"), waits("0.05")),
    "LoadgateWastedWork": Case(
        one("wasted_seconds_total", per_second(0.5))
        | one("held_seconds_total", per_second(5))
        | requests(20, 0),
        one("wasted_seconds_total", per_second(0.1))
        | one("held_seconds_total", per_second(5))
        | requests(20, 0),
    ),
    "LoadgateClientDominates": Case(
        one("top_refused_share_ratio", stays(0.9)) | requests(20, 5),
        one("top_refused_share_ratio", stays(0.9)) | requests(20, 0.1),
    ),
    "LoadgateRateTableFull": Case(
        one("rate_overflowed_total", per_second(1), ',rate="per-client"'),
        one("rate_overflowed_total", per_second(0), ',rate="per-client"'),
    ),
    "LoadgateEventLoopBlocked": Case(
        one("event_loop_stalled_seconds_total", per_second(0.2)),
        one("event_loop_stalled_seconds_total", per_second(0.01)),
    ),
    "LoadgateStoreUnavailable": Case(
        requests(20, 1, "store_unavailable"), requests(20, 0, "store_unavailable")
    ),
    "LoadgateStoreAway": Case(
        one("store_decisions_total", per_second(20), ',by="store"')
        | one("store_decisions_total", per_second(1), ',by="emergency"'),
        one("store_decisions_total", per_second(20), ',by="store"')
        | one("store_decisions_total", per_second(0), ',by="emergency"'),
    ),
    "LoadgateStoreSlow": Case(
        one("store_wait_seconds_bucket", per_second(0), ',le="0.01"')
        | one("store_wait_seconds_bucket", per_second(20), ',le="0.05"')
        | one("store_wait_seconds_bucket", per_second(20), ',le="+Inf"')
        | requests(20, 0),
        one("store_wait_seconds_bucket", per_second(20), ',le="0.005"')
        | one("store_wait_seconds_bucket", per_second(20), ',le="0.05"')
        | one("store_wait_seconds_bucket", per_second(20), ',le="+Inf"')
        | requests(20, 0),
    ),
    "LoadgatePolicyReloadFailed": Case(
        {'loadgate_policy_last_reload_success{job="shop",instance="a:9464"}': stays(0)},
        {'loadgate_policy_last_reload_success{job="shop",instance="a:9464"}': stays(1)},
    ),
    "LoadgateMetricsMissing": Case(
        {
            'up{job="shop",instance="a:9464"}': f"1x40 0x{MINUTES * 2}",
            'loadgate_build_info{job="shop",instance="a:9464"}': "1x40",
        },
        {
            'up{job="shop",instance="a:9464"}': f"1x{MINUTES * 2}",
            'loadgate_build_info{job="shop",instance="a:9464"}': stays(1),
        },
    ),
}
# These look back for a day: their samples are five minutes apart.
OVER_A_DAY: Final = ("LoadgateBaselineGrown",)
# What an alert may not do at night, when a handful of requests are refused.
NIGHT: Final = requests(0.1, 0.2) | ended(0.1, 0.1)
AT_NIGHT: Final = (
    "LoadgateSheddingHigh", "LoadgateSheddingSevere", "LoadgateSloBurnFast", "LoadgateSloBurnSlow",
)  # fmt: skip


def test_every_alert_has_a_case() -> None:
    assert {alert.name for alert in ALERTS} == set(CASES)


def test_promtool_accepts_the_rules() -> None:
    said = promtool("check", "rules", "--lint=all", "--lint-fatal",
                    *(str(path) for path in sorted(RULES.glob("loadgate-*.yml"))))  # fmt: skip
    assert f"{len(ALERTS)} rules found" in said


def unit(
    alert: str, series: Series, after: str, firing: bool, interval: str = "30s"
) -> dict[str, Any]:
    """One test of promtool's: is the alert firing `after` so long?"""
    return {
        "interval": interval,
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                "eval_time": after,
                "exp_samples": [{"labels": "{}", "value": 1}] if firing else [],
            }
        ],
    }


def judged(folder: Path, tests: list[dict[str, Any]], every: str = "1m") -> str:
    """Run them, with the rules evaluated `every` so often; JSON is YAML."""
    path = folder / "test.yml"
    rules = [str(RULES / f"loadgate-{name}.yml") for name in ("recording", "alerts")]
    path.write_text(json.dumps({"rule_files": rules, "evaluation_interval": every, "tests": tests}))
    return promtool("test", "rules", str(path))


def test_every_alert_fires_when_it_must_and_only_then(tmp_path: Path) -> None:
    tests = [
        unit(name, series, "55m", firing)
        for name, case in CASES.items()
        for series, firing in ((case.fires, True), (case.silent, False))
        if name not in OVER_A_DAY
    ]
    tests += [unit(name, NIGHT, "55m", False) for name in AT_NIGHT]
    judged(tmp_path, tests)


def test_an_alert_that_compares_with_yesterday_does(tmp_path: Path) -> None:
    tests = [
        unit(name, series, "25h", firing, "5m")
        for name in OVER_A_DAY
        for series, firing in ((CASES[name].fires, True), (CASES[name].silent, False))
    ]
    judged(tmp_path, tests, "5m")


def test_an_alert_waits_as_long_as_it_says(tmp_path: Path) -> None:
    case = CASES["LoadgateSheddingHigh"].fires
    judged(tmp_path, [
        unit("LoadgateSheddingHigh", case, "9m", False),
        unit("LoadgateSheddingHigh", case, "12m", True),
    ])  # fmt: skip


def test_a_restart_is_no_incident(tmp_path: Path) -> None:
    """Counters that begin again at 0 are no burst of refusals."""
    series = {
        name: f"100000+{step:g}x60 0+{step:g}x60"
        for name, step in zip(requests(0, 0), (600, 3), strict=True)
    }
    judged(tmp_path, [unit("LoadgateSheddingHigh", series, "35m", False)])


def test_a_judge_that_never_disagrees_is_none(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="exp:"):
        judged(tmp_path, [unit("LoadgateSheddingHigh", requests(20, 0), "55m", True)])


def test_an_alert_fires_where_its_panel_turns_red() -> None:
    drawn = {
        (board["uid"], panel["title"]): panel["fieldConfig"]["defaults"]
        for board in boards().values()
        for panel in board["panels"]
        if panel["type"] not in {"row", "text"}
    }
    checked = 0
    for alert in ALERTS:
        steps = drawn[alert.board, alert.panel].get("thresholds", {}).get("steps", ())
        red = [step["value"] for step in steps if step["color"] == "red"]
        if red and red != [None]:
            checked += 1
            assert any(f"{value:g}" in alert.expr for value in red), alert.name
    assert checked >= 8
