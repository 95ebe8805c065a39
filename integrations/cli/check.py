"""What does ``loadgate check`` do? Say what a policy means, and what serving it would lack."""

from __future__ import annotations

import importlib.util
import os
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer

from loadgate.integrations.cli.policyfile import PolicyFileError, read_policy
from loadgate.integrations.cli.say import FAILED, fail
from loadgate.integrations.cli.words import KEYS, describe, unset, untold


def check(
    file: Annotated[Path, typer.Argument(help="A policy in TOML.", show_default=False)],
) -> None:
    """Say what a policy means, or what is wrong and where."""
    try:
        policy = read_policy(file)
    except PolicyFileError as error:
        fail(str(error), FAILED)
    typer.echo(f"{file}: a valid policy\n")
    typer.echo(describe(policy), nl=False)
    for key in untold(policy):
        near = get_close_matches(key, KEYS, n=1)
        typer.echo(
            f"warning: a rate asks for the key {key!r}"
            + (f" (did you mean {near[0]!r}?)" if near else "")
            + f", which no built-in identify tells: they tell {', '.join(KEYS)}. loadgate serve "
            "refuses to start without --identify; AdmissionMiddleware needs your own identify",
            err=True,
        )
    if policy.store is not None:
        for variable in unset(policy.store, os.environ):
            typer.echo(
                f"note: store names the variable {variable}, which is not set here; "
                "loadgate serve needs it",
                err=True,
            )
        if importlib.util.find_spec("coredis") is None:
            typer.echo(
                "note: what shared rates need is not installed here, so the URL of the store was "
                "not looked at; run: pip install 'loadgate[redis]'",
                err=True,
            )
