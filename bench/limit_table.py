"""How are the scores shown? One table for the terminal, several for the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isnan

from bench.limit_stats import Mean, Table

OURS = "adaptive"
# A difference that nobody would notice; below it a scenario is no argument for another limit.
_AHEAD = 0.02


def plain(table: Table) -> str:
    """A table for the terminal: share of the best fixed limit by scenario and limit."""
    lines: list[str] = []
    wide = max(len(name) for name in [*table.scenarios, "geometric mean (judged)"])
    for queue in table.queues:
        limits = table.limits_of(queue)
        lines.append(f"queue: {queue}")
        lines.append(" " * wide + "".join(f" {limit[-15:]:>15}" for limit in limits))
        for name in table.scenarios:
            cells = "".join(f" {_cell(table.share(name, queue, limit)):>15}" for limit in limits)
            lines.append(f"{name:{wide}}{cells}")
        means = "".join(f" {_cell(table.geometric(queue, limit)):>15}" for limit in limits)
        lines.append(f"{'geometric mean (judged)':{wide}}{means}")
        worst = "".join(f" {table.worst(queue, limit)[0]:15.3f}" for limit in limits)
        lines.append(f"{'worst (judged)':{wide}}{worst}")
        lines.append("")
    return "\n".join(lines)


def markdown(table: Table, faults: Sequence[str]) -> str:
    """The tables of the documentation.

    Args:
        table: The scores.
        faults: The bounds that do not hold, in words.
    """
    parts: list[str] = ["### Bounds", ""]
    if faults:
        parts += [f"`{OURS}` breaks these bounds of its scenarios:", ""]
        parts += [*(f"- {fault}" for fault in faults), ""]
    else:
        parts += [f"`{OURS}` holds every bound of its scenarios.", ""]
    for queue in table.queues:
        where = "Behind the default queue" if queue == "default" else "Without a queue"
        parts += [f"### {where}", "", *_summary(table, queue), "", *_shares(table, queue), ""]
        if queue == "default":
            parts += [*_behaviour(table, queue), "", *_cuts(table, queue), ""]
            parts += [*_pairs(table, queue), ""]
    return "\n".join(parts)


def _summary(table: Table, queue: str) -> list[str]:
    lines = [
        "| limit | geometric mean | lower 95 % bound | worst scenario |  |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for limit in sorted(
        table.limits_of(queue), key=lambda limit: -table.geometric(queue, limit).mean
    ):
        geometric = table.geometric(queue, limit)
        worst, where = table.worst(queue, limit)
        figures = f"{geometric.mean:.3f} | {geometric.low:.3f} | {worst:.3f}"
        lines.append(f"| {_name(limit)} | {figures} | {where} |")
    return lines


def _shares(table: Table, queue: str) -> list[str]:
    limits = table.limits_of(queue)
    lines = [
        "Answers in time, as a share of the best fixed limit of each phase (mean over seeds, "
        "± half of its 95 % interval for ours):",
        "",
        "| scenario | " + " | ".join(_name(limit) for limit in limits) + " |",
        "| --- |" + " ---: |" * len(limits),
    ]
    for name in table.scenarios:
        cells: list[str] = []
        for limit in limits:
            share = table.share(name, queue, limit)
            bound = f" ± {share.half:.3f}" if limit == OURS and share.half != inf else ""
            cells.append(f"{share.mean:.3f}{bound}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _behaviour(table: Table, queue: str) -> list[str]:
    lines = [
        "How they behave: refusals beyond the best fixed limit's in phases that fit (share of the "
        "arrivals, highest scenario), median seconds until goodput is within 5 % of the best after "
        "a change for the worse (protect) and for the better (recover) with the changes after "
        "which that never happened, and how restless the limit is in steady phases (standard "
        "deviation over mean).",
        "",
        "| limit | false refusals | where | protect | never | recover | never | restless |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for limit in table.limits_of(queue):
        false = [
            (_average([s.false_refusals for s in table.get(name, queue, limit)]), name)
            for name in table.scenarios
        ]
        most, where = max(false)
        protect = table.settling(queue, limit, harder=True)
        recover = table.settling(queue, limit, harder=False)
        swing = _average(
            [
                phase.swing
                for name in table.judged
                for score in table.get(name, queue, limit)
                for phase in score.phases
            ]
        )
        lines.append(
            f"| {_name(limit)} | {most:.2%} | {where if most > 0 else ''} | {_time(protect)} | "
            f"{protect[1]}/{protect[2]} | {_time(recover)} | {recover[1]}/{recover[2]} | "
            f"{swing:.2f} |"
        )
    return lines


def _cuts(table: Table, queue: str) -> list[str]:
    """How fast they get there: the share in pieces of a phase, for scenarios that are cut."""
    limits = table.limits_of(queue)
    lines: list[str] = []
    for name in table.scenarios:
        pieces = [*table.get(name, queue, limits[0])[0].cuts] if limits else []
        for piece in pieces:
            cells = (
                _average([score.cuts[piece] for score in table.get(name, queue, limit)])
                for limit in limits
            )
            lines.append(f"| {name}: {piece} | " + " | ".join(f"{c:.3f}" for c in cells) + " |")
    if not lines:
        return []
    return [
        "The share piece by piece, where a phase begins with something new:",
        "",
        "| piece | " + " | ".join(_name(limit) for limit in limits) + " |",
        "| --- |" + " ---: |" * len(limits),
        *lines,
    ]


def _pairs(table: Table, queue: str) -> list[str]:
    """Seed by seed on the same requests: ours beside each other limit, and where it is behind."""
    limits = table.limits_of(queue)
    others = [limit for limit in limits if limit != OURS]
    if OURS not in limits or not others:
        return []
    lines = [
        "In pairs, seed by seed on the same requests: by how much the geometric mean of "
        f"`{OURS}` is higher (± half of the 95 % interval), and the scenario in which the other "
        "is furthest ahead.",
        "",
        "| limit | ours ahead by | theirs ahead by at most | where |",
        "| --- | ---: | ---: | --- |",
    ]
    behind: list[str] = []
    for other in others:
        overall = table.ahead_overall(queue, OURS, other)
        leads = sorted(
            (-table.ahead(name, queue, OURS, other).mean, name) for name in table.scenarios
        )
        most, where = leads[-1]
        lines.append(f"| {_name(other)} | {_difference(overall)} | {most:.3f} | {where} |")
        behind += [
            f"- `{other}` in {name}: {_difference(table.ahead(name, queue, other, OURS))}"
            for lead, name in reversed(leads)
            if lead > _AHEAD
        ]
    lines.append("")
    if behind:
        lines += [f"Better than `{OURS}` by more than {_AHEAD:g}:", "", *behind]
    else:
        lines.append(f"No other limit is better by more than {_AHEAD:g} in any scenario.")
    return lines


def _difference(mean: Mean) -> str:
    return f"{mean.mean:.3f}" + ("" if mean.half == inf else f" ± {mean.half:.3f}")


def _name(limit: str) -> str:
    return f"**`{limit}`**" if limit == OURS else f"`{limit}`"


def _cell(mean: Mean) -> str:
    if isnan(mean.mean):
        return "-"
    return f"{mean.mean:.3f}" + ("" if mean.half == inf else f" ±{mean.half:.3f}")


def _time(settling: tuple[float, int, int]) -> str:
    seconds, _, count = settling
    if not count:
        return "-"
    return "never" if seconds == inf else f"{seconds:.1f} s"


def _average(values: Sequence[float]) -> float:
    known = [value for value in values if not isnan(value)]
    return sum(known) / len(known) if known else 0.0
