"""When did requests come in real life? Arrivals from a CSV file or from the lines of a log."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import numpy as np

from loadgate.errors import PolicyError
from loadgate.simulation.laws import Floats
from loadgate.simulation.scenario import Scenario, Trace

# The common and combined log formats of Apache and nginx; a duration, where configured, is
# the last field by custom ($request_time, %D).
_COMMON: Final = re.compile(
    r"^(?P<client>\S+) \S+ \S+ \[(?P<time>[^\]]+)\] \"[^\"]*\" \d{3} \S+"
    r"(?: \"[^\"]*\" \"[^\"]*\")?(?:\s+(?P<duration>[\d.]+))?\s*$"
)
_LOG_TIME: Final = "%d/%b/%Y:%H:%M:%S %z"


@dataclass(slots=True, frozen=True)
class Arrivals:
    """What a trace holds, in order of time.

    Attributes:
        times: Seconds after the first request, rising, shape (n,).
        durations: Seconds each took, shape (n,), or None.
        clients: Who asked, shape (n,), or None.
        stage: The stage whose times the durations replace.
    """

    times: Floats
    durations: Floats | None
    clients: list[str] | None
    stage: str | None


def read_trace(scenario: Scenario) -> Arrivals:
    """Read the trace of `scenario`.

    Raises:
        OSError: The file cannot be read.
        PolicyError: A line cannot be understood; the message holds its number.
    """
    trace = scenario.trace
    if trace is None:
        raise PolicyError("trace", "this scenario has none")
    path = Path(scenario.folder) / trace.file
    rows = _csv_rows(path, trace) if trace.format == "csv" else _log_rows(path, trace)
    if not rows:
        raise PolicyError("trace.file", f"{path} holds no request")
    moments = np.asarray([row[0] for row in rows])
    order = np.argsort(moments, kind="stable")
    times = moments[order]
    # Logs have whole seconds: spread the requests of one second evenly over it.
    if trace.format == "log" and np.all(times == np.floor(times)):
        _, first, count = np.unique(times, return_index=True, return_counts=True)
        place = np.arange(len(times)) - np.repeat(first, count)
        times = times + place / np.repeat(count, count)
    durations = None
    if trace.duration is not None:
        durations = np.asarray([row[1] for row in rows])[order] * trace.duration_unit
    clients: list[str] | None = None
    if trace.client is not None:
        clients = [rows[int(i)][2] for i in order]
    return Arrivals((times - times[0]) / trace.speed, durations, clients, trace.stage)


def _csv_rows(path: Path, trace: Trace) -> list[tuple[float, float, str]]:
    rows: list[tuple[float, float, str]] = []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        for name in (trace.time, trace.duration, trace.client):
            if name is not None and name not in (reader.fieldnames or ()):
                known = ", ".join(reader.fieldnames or ())
                raise PolicyError("trace", f"{path} has no column {name!r}; it has: {known}")
        for line in reader:
            where = f"{path}, line {reader.line_num}"
            duration = _number(line[trace.duration], where) if trace.duration else 0.0
            rows.append(
                (
                    _moment(line[trace.time], where),
                    duration,
                    line[trace.client] if trace.client else "",
                )
            )
    return rows


def _log_rows(path: Path, trace: Trace) -> list[tuple[float, float, str]]:
    try:
        pattern = re.compile(trace.pattern) if trace.pattern else _COMMON
    except re.error as error:
        raise PolicyError("trace.pattern", f"is no regular expression: {error}") from error
    if "time" not in pattern.groupindex:
        raise PolicyError("trace.pattern", "needs a group (?P<time>...)")
    rows: list[tuple[float, float, str]] = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            found = pattern.search(line)
            if found is None:
                raise PolicyError("trace.file", f"{where}: not a request: {line.strip()[:80]!r}")
            groups = found.groupdict()
            duration = 0.0
            if trace.duration is not None:
                if groups.get("duration") is None:
                    raise PolicyError("trace.duration", f"{where}: the line has no duration")
                duration = _number(groups["duration"], where)
            rows.append((_moment(groups["time"], where), duration, groups.get("client") or ""))
    return rows


def _number(text: str, where: str) -> float:
    try:
        number = float(text)
    except (TypeError, ValueError):
        number = -1.0
    if not 0.0 <= number < float("inf"):
        raise PolicyError("trace.file", f"{where}: {text!r} is not a number of at least 0")
    return number


def _moment(text: str, where: str) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        pass
    try:
        return datetime.strptime(text, _LOG_TIME).timestamp()
    except (TypeError, ValueError):
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        raise PolicyError(
            "trace.file", f"{where}: {text!r} is neither seconds nor a date and time"
        ) from None
