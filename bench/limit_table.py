"""How are the scores shown? Means over seeds with bounds, per scenario and altogether."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from bench.limit_judge import Score


def table(scores: Sequence[Score]) -> str:
    """A table for the terminal: share of the best fixed limit by scenario and limit."""
    lines: list[str] = []
    labels = list(dict.fromkeys(score.limit for score in scores))
    for queue in dict.fromkeys(score.queue for score in scores):
        rows: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for score in scores:
            if score.queue == queue:
                rows[score.scenario][score.limit].append(score.share)
        wide = max(len(name) for name in rows)
        lines.append(f"queue: {queue}")
        lines.append(" " * wide + "".join(f" {label[:14]:>14}" for label in labels))
        for name, by_limit in rows.items():
            cells = "".join(f" {np.mean(by_limit[label]):14.3f}" for label in labels)
            lines.append(f"{name:{wide}}{cells}")
        means = {
            label: np.asarray([np.mean(row[label]) for row in rows.values()]) for label in labels
        }
        geometric = (np.exp(np.log(np.maximum(means[label], 1e-9)).mean()) for label in labels)
        lines.append(f"{'geometric mean':{wide}}" + "".join(f" {g:14.3f}" for g in geometric))
        worst = (means[label].min() for label in labels)
        lines.append(f"{'worst':{wide}}" + "".join(f" {w:14.3f}" for w in worst))
        lines.append("")
    return "\n".join(lines)
