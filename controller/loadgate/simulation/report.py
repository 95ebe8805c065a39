"""How is a comparison handed on? One HTML file that needs nothing else, and its pictures."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path

from loadgate.simulation.compare import Comparison, Result
from loadgate.simulation.figures import percent, points, seconds

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, sans-serif; color: #222; max-width: 1060px;
       margin: 2.5rem auto; padding: 0 1.2rem; background: #fff; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; }
.intent { color: #555; margin: 0 0 1.6rem; }
.verdict { background: #f3f7fa; border-left: 4px solid #0072B2; padding: .7rem 1.1rem; }
.verdict p { margin: .45rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .8rem; text-align: right; border-bottom: 1px solid #e4e4e4;
         white-space: nowrap; }
th { color: #555; font-weight: 600; } th:first-child, td:first-child { text-align: left; }
img { width: 100%; height: auto; display: block; margin: .4rem 0 1.4rem; }
pre { background: #f6f6f6; padding: .8rem 1rem; overflow-x: auto; font-size: .85rem; }
footer { color: #777; font-size: .85rem; margin-top: 3rem; }
"""

_CAPTIONS = {
    "goodput": "Requests answered within the SLO, by the moment they arrived.",
    "limit": "How many may run at once, and how many run and wait (first seed).",
    "latency": "From the intended start of a request to its answer, queue included.",
    "refusals": "Requests refused for good, by the reason of the last refusal.",
    "clients": "What became of the requests of each class.",
}

COLUMNS = (
    "policy",
    "in time",
    "503",
    "429",
    "late",
    "gave up",
    "median",
    "p99",
    "limit",
    "attempts",
)

CLASS_COLUMNS = ("class", "policy", "in time", "503", "429", "late", "gave up", "p99")


def rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """The table of a comparison, as text; the columns are `COLUMNS`."""
    return [_row(result) for result in comparison.results]


def worth_showing(columns: Sequence[str], body: Sequence[Sequence[str]]) -> list[int]:
    """The columns that say something: all but those that hold nothing but zeros (or ones)."""
    return [
        index
        for index, _ in enumerate(columns)
        if any(row[index] not in {"0.0%", "1.00"} for row in body)
    ]


def class_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """The same for each class of clients; the columns are `CLASS_COLUMNS`."""
    found: list[tuple[str, ...]] = []
    for index, each in enumerate(comparison.results[0].runs[0].classes):
        for result in comparison.results:
            classes = [run.classes[index] for run in result.runs]
            arrivals = sum(c.arrivals for c in classes) or 1
            parts = (
                sum(c.good for c in classes),
                sum(c.overloaded for c in classes),
                sum(c.rate_limited for c in classes),
                sum(c.late for c in classes),
                sum(c.gave_up for c in classes),
            )
            shares = (percent(part / arrivals) for part in parts)
            p99 = result.mean(lambda run, i=index: run.classes[i].p99)  # type: ignore[misc]  # a default binds it
            found.append((each.name, result.label, *shares, seconds(p99)))
    return found


def write(
    folder: Path,
    comparison: Comparison,
    pictures: dict[str, bytes],
    verdict: Sequence[str],
    about: Sequence[str] = (),
) -> list[Path]:
    """Write `report.html` and the pictures into `folder`.

    Args:
        folder: Made if it is not there.
        comparison: What to report.
        pictures: PNG by name, from `plots.draw`.
        verdict: Paragraphs, from `verdict.verdict`.
        about: How to repeat it: lines of plain text.

    Returns:
        The files written, the report first.

    Raises:
        OSError: A file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "report.html"
    page.write_text(_html(comparison, pictures, verdict, about), encoding="utf-8")
    written = [page]
    for name, png in pictures.items():
        file = folder / f"{name}.png"
        file.write_bytes(png)
        written.append(file)
    return written


def _row(result: Result) -> tuple[str, ...]:
    def share(name: str) -> str:
        mean, half = result.share(lambda run: getattr(run.whole, name))
        return percent(mean) + (f" ±{points(half)}" if half and name == "good" else "")

    return (
        result.label,
        share("good"),
        share("overloaded"),
        share("rate_limited"),
        share("late"),
        share("gave_up"),
        seconds(result.mean(lambda run: run.whole.p50)),
        seconds(result.mean(lambda run: run.whole.p99)),
        "none"
        if result.candidate.policy.concurrency.mode == "off"
        else f"{result.mean(lambda run: float(run.gauges.limit.mean())):.0f}",
        f"{result.mean(lambda run: run.attempts):.2f}",
    )


def _html(
    comparison: Comparison,
    pictures: dict[str, bytes],
    verdict: Sequence[str],
    about: Sequence[str],
) -> str:
    scenario = comparison.scenario
    paragraphs = "\n".join(f"<p>{escape(text)}</p>" for text in verdict)
    images = "\n".join(
        f'<h2>{escape(_CAPTIONS.get(name, name))}</h2>\n<img alt="{escape(name)}" '
        f'src="data:image/png;base64,{b64encode(png).decode()}">'
        for name, png in pictures.items()
    )
    classes = ""
    if len(scenario.clients) > 1:
        classes = f"<h2>By class of clients</h2>\n{_table(CLASS_COLUMNS, class_rows(comparison))}"
    repeat = f"<h2>Again</h2>\n<pre>{escape(chr(10).join(about))}</pre>" if about else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(scenario.title)} - loadgate simulate</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(scenario.title)}</h1>
<p class="intent">{escape(scenario.intent)}</p>
<div class="verdict">
{paragraphs}
</div>
<h2>In figures</h2>
{_table(COLUMNS, rows(comparison))}
{classes}
{images}
{repeat}
<footer>Made by loadgate simulate. Virtual time: equal seeds give equal reports.</footer>
</body>
</html>
"""


def _table(columns: Sequence[str], table: Sequence[Sequence[str]]) -> str:
    shown = worth_showing(columns, table)
    header = [columns[index] for index in shown]
    body = [[row[index] for index in shown] for row in table]
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    lines = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in body
    )
    body_html = f"<thead><tr>{head}</tr></thead><tbody>\n{lines}\n</tbody>"
    return f'<div class="scroll"><table>{body_html}</table></div>'
