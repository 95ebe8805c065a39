"""The command line: ``loadgate serve | check | demo | simulate``.

Importing this package needs no extra; `main` says which one is missing.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line with the arguments of the process."""
    try:
        from loadgate.integrations.cli.app import app
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in {"typer", "rich"}:
            raise
        sys.stderr.write(
            f"loadgate: the command line needs {missing.name}, which is not installed; "
            "run: pip install 'loadgate[serve]'\n"
        )
        raise SystemExit(2) from None
    app(prog_name="loadgate")
