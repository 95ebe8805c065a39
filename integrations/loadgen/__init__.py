"""Open-loop HTTP load: requests leave by the clock, never because a reply came."""

from loadgate.integrations.loadgen.plan import ClientClass, Phase, Plan
from loadgate.integrations.loadgen.process import GeneratorError, run, run_elsewhere
from loadgate.integrations.loadgen.progress import ClassCounts, Progress
from loadgate.integrations.loadgen.result import Failure, Lag, Result, Rows, Tally, label

__all__ = [
    "ClassCounts",
    "ClientClass",
    "Failure",
    "GeneratorError",
    "Lag",
    "Phase",
    "Plan",
    "Progress",
    "Result",
    "Rows",
    "Tally",
    "label",
    "run",
    "run_elsewhere",
]
