"""Open-loop load from the command line; the generator itself is `loadgate.integrations.loadgen`.

It lives in the package because `loadgate demo` needs it wherever loadgate is installed.
"""

from loadgate.integrations.loadgen import (
    ClientClass,
    Failure,
    GeneratorError,
    Lag,
    Phase,
    Plan,
    Progress,
    Result,
    Rows,
    Tally,
    label,
    run,
    run_elsewhere,
)

__all__ = [
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
