"""How is a panel written down? One function for each kind, with the colours and axes we always use.

A panel answers a question (its title), and its description says how to read the answer and
what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.builders import text as text_panel
from grafana_foundation_sdk.models import common as shapes
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode, HeatmapColorScale
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.text import TextMode

SOURCE: Final = shapes.DataSourceRef("prometheus", "${datasource}")

# What every query of a controller selects, and what has no controller.
SEL: Final = 'job=~"$job",instance=~"$instance",controller=~"$controller"'
WHO: Final = 'job=~"$job",instance=~"$instance"'
R: Final = "[$__rate_interval]"

# One colour for one meaning, on every dashboard.
ADMITTED: Final = "green"
WAITING: Final = "blue"
RATE_LIMITED: Final = "purple"
OVERLOADED: Final = "orange"
FAILED: Final = "red"
LIMIT: Final = "dark-red"
QUIET: Final = "#8e8e8e"

# Of a refusal: ours in warm colours, the client's doing purple, nobody's fault grey.
REASONS: Final = {
    "rate": RATE_LIMITED,
    "queue_full": "orange",
    "queue_shed": "light-orange",
    "wait_timeout": "dark-orange",
    "deadline": "yellow",
    "priority": "super-light-orange",
    "fair_share": "dark-yellow",
    "loop_lag": "red",
    "memory": "dark-red",
    "store_unavailable": "dark-blue",
    "draining": "light-blue",
    "client_gone": QUIET,
}

# Of a class of requests: the important ones stand out, those that may wait do not.
CLASSES: Final = {"critical": FAILED, "default": WAITING, "background": QUIET}

# The least that an axis shows by its unit: where all is 0, Grafana would draw up to 100.
_LEAST: Final = {"reqps": 1.0, "cps": 1.0, "short": 1.0, "percentunit": 0.1, "s": 0.001}

# (colour, from this value on); the first has no lower end.
Steps = Sequence[tuple[str, float | None]]


@dataclass(frozen=True)
class Query:
    """What is asked of Prometheus, and what the answer is called."""

    expr: str
    legend: str = ""
    instant: bool = False
    format: PromQueryFormat | None = None


@dataclass(frozen=True)
class Placed:
    """A panel and its size on a grid that is 24 wide."""

    builder: Any
    width: int
    height: int


@dataclass(frozen=True)
class Row:
    """A heading."""

    title: str


def lines(
    title: str,
    says: str,
    unit: str,
    *queries: Query,
    colors: Mapping[str, str] | None = None,
    shades: Mapping[str, str] | None = None,
    dashed: Sequence[str] = (),
    steps: Sequence[str] = (),
    red: Steps = (),
    stack: bool = False,
    log: bool = False,
    low: float | None = 0.0,
    high: float | None = None,
    right: bool = False,
    width: int = 12,
    height: int = 8,
) -> Placed:
    """Lines over time.

    Args:
        title: The question.
        says: How to read it and what to do.
        unit: Grafana's name of the unit.
        queries: What to draw.
        colors: By name of the series, a regular expression when between slashes.
        shades: Likewise, for many series that mean the same: each gets a shade of the colour.
        dashed: Names of bounds, drawn dashed.
        steps: Names of what stays the same until it changes.
        red: Thresholds, drawn as lines.
        stack: Areas on top of each other.
        log: A logarithmic axis.
        low: The lower end of the axis.
        high: Its upper end, None to follow the data.
        right: Whether the legend stands beside the lines, for many of them.
        width: Columns of 24.
        height: Rows of the grid.
    """
    panel = (
        timeseries.Panel()
        .unit(unit)
        .line_width(1)
        .fill_opacity(70 if stack else 0)
        .show_points(shapes.VisibilityMode.NEVER)
        .legend(_legend(right=right))
        .tooltip(
            common.VizTooltipOptions()
            .mode(shapes.TooltipDisplayMode.MULTI)
            .sort(shapes.SortOrder.DESCENDING)
        )
    )
    if low is not None and not log:
        panel.min(low)
    if high is not None:
        panel.max(high)
    elif not log and unit in _LEAST:
        panel.axis_soft_max(_LEAST[unit])
    if stack:
        panel.stacking(common.StackingConfig().mode(shapes.StackingMode.NORMAL).group("A"))
    if log:
        panel.scale_distribution(
            common.ScaleDistributionConfig().type(shapes.ScaleDistribution.LOG).log(10)
        )
    if red:
        panel.thresholds(_thresholds(red)).thresholds_style(
            common.GraphThresholdsStyleConfig().mode(shapes.GraphThresholdsStyleMode.DASHED)
        )
    for name, color in (colors or {}).items():
        _override(panel, name, [_property("color", {"mode": "fixed", "fixedColor": color})])
    for name, color in (shades or {}).items():
        _override(panel, name, [_property("color", {"mode": "shades", "fixedColor": color})])
    for name in dashed:
        style = {"fill": "dash", "dash": [8, 6]}
        _override(panel, name, [_property("custom.lineStyle", style)])
    for name in steps:
        _override(panel, name, [_property("custom.lineInterpolation", "stepAfter")])
    return _placed(panel, title, says, queries, width, height)


def number(
    title: str,
    says: str,
    unit: str,
    query: Query,
    *,
    red: Steps = (("text", None),),
    mappings: Mapping[str, tuple[str, str]] | None = None,
    width: int = 4,
    height: int = 4,
) -> Placed:
    """One number, and how it got there.

    Args:
        title: The question.
        says: How to read it and what to do.
        unit: Grafana's name of the unit.
        query: The number.
        red: Colours by value.
        mappings: Text and colour by value.
        width: Columns of 24.
        height: Rows of the grid.
    """
    panel = (
        stat.Panel()
        .unit(unit)
        .thresholds(_thresholds(red))
        .color_mode(shapes.BigValueColorMode.VALUE)
        .graph_mode(shapes.BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .no_value("no traffic")
    )
    if unit == "percentunit":
        panel.decimals(1)
    if mappings:
        panel.mappings([_mapping(mappings)])
    return _placed(panel, title, says, (query,), width, height)


def plume(
    title: str, says: str, unit: str, metric: str, *, width: int = 12, height: int = 8
) -> Placed:
    """A heatmap of the buckets of the histogram `metric`."""
    query = Query(
        f"sum by (le) (increase({metric}_bucket{{{SEL}}}{R}))",
        "{{le}}",
        format=PromQueryFormat.HEATMAP,
    )
    panel = (
        heatmap.Panel()
        .calculate(False)
        .cell_gap(1)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(HeatmapColorMode.SCHEME)
            .scheme("Oranges")
            .scale(HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .steps(64)
        )
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .show_legend()
    )
    return _placed(panel, title, says, (query,), width, height)


def states(
    title: str,
    says: str,
    *queries: Query,
    mappings: Mapping[str, tuple[str, str]],
    width: int = 12,
    height: int = 8,
) -> Placed:
    """What was the case from when to when."""
    panel = (
        statetimeline.Panel()
        .mappings([_mapping(mappings)])
        .merge_values(True)
        .show_value(shapes.VisibilityMode.NEVER)
        .legend(_legend())
    )
    return _placed(panel, title, says, queries, width, height)


def text(title: str, says: str, content: str, *, width: int = 12, height: int = 8) -> Placed:
    """Words, in Markdown."""
    panel = text_panel.Panel().mode(TextMode.MARKDOWN).content(content)
    panel.title(title).description(says)
    return Placed(panel, width, height)


def rows(
    title: str,
    says: str,
    *queries: Query,
    values: bool = False,
    width: int = 12,
    height: int = 8,
) -> Placed:
    """A table of labels, and of what they have if `values` is set."""
    hidden = dict.fromkeys(("Time", "__name__", *(() if values else ("Value",))), True)
    panel = table.Panel().with_transformation(
        models.DataTransformerConfig(
            id_val="organize",
            options={"excludeByName": hidden, "renameByName": {}},
        )
    )
    return _placed(panel, title, says, queries, width, height)


def bars(
    title: str, says: str, unit: str, query: Query, *, color: str, width: int = 12, height: int = 8
) -> Placed:
    """Who has how much, now."""
    panel = (
        bargauge.Panel()
        .unit(unit)
        .min(0.0)
        .orientation(shapes.VizOrientation.HORIZONTAL)
        .display_mode(shapes.BarGaugeDisplayMode.BASIC)
        .thresholds(_thresholds(((color, None),)))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .no_value("nobody (or not asked for)")
    )
    return _placed(panel, title, says, (query,), width, height)


def rate(metric: str, more: str = "", *, by: str = "", of: str = "sum") -> str:
    """The growth per second of the counter ``loadgate_<metric>``.

    Args:
        metric: Its name without the prefix.
        more: Further matchers, beginning with a comma.
        by: Labels to keep.
        of: How instances become one.
    """
    kept = f"{of} by ({by}) " if by else of
    return f"{kept}(rate(loadgate_{metric}{{{SEL}{more}}}{R}))"


def quantile(q: float, metric: str, by: str = "le") -> str:
    """The `q`-quantile of a histogram."""
    return f"histogram_quantile({q}, sum by ({by}) (rate({metric}_bucket{{{SEL}}}{R})))"


def share(part: str, whole: str) -> str:
    """`part` of `whole`, and nothing (rather than NaN) where there is no whole."""
    return f"{part} / ({whole} > 0)"


def _placed(
    panel: Any, title: str, says: str, queries: Sequence[Query], width: int, height: int
) -> Placed:
    panel.title(title).description(says).datasource(SOURCE)
    for index, query in enumerate(queries):
        target = (
            prometheus.Dataquery()
            .datasource(SOURCE)
            .expr(query.expr)
            .legend_format(query.legend or "__auto")
            .ref_id(chr(ord("A") + index))
        )
        target = target.instant() if query.instant else target.range()
        if query.format is not None:
            target.format(query.format)
        panel.with_target(target)
    return Placed(panel, width, height)


def _legend(*, right: bool = False) -> Any:
    return (
        common.VizLegendOptions()
        .display_mode(shapes.LegendDisplayMode.LIST)
        .placement(shapes.LegendPlacement.RIGHT if right else shapes.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs([])
    )


def _thresholds(steps: Steps) -> Any:
    if steps[0][1] is not None:
        steps = (("green", None), *steps)
    return (
        dashboard.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value=value, color=color) for color, value in steps])
    )


def _property(name: str, value: Any) -> models.DynamicConfigValue:
    return models.DynamicConfigValue(id_val=name, value=value)


def _override(panel: Any, name: str, properties: list[models.DynamicConfigValue]) -> None:
    if name.startswith("/"):
        panel.override_by_regexp(name, properties)
    else:
        panel.override_by_name(name, properties)


def _mapping(mappings: Mapping[str, tuple[str, str]]) -> models.ValueMap:
    return models.ValueMap(
        options={
            value: models.ValueMappingResult(text=text, color=color, index=index)
            for index, (value, (text, color)) in enumerate(mappings.items())
        }
    )
