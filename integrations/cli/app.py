"""Which commands are there, and which options do they take?"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from loadgate import __version__
from loadgate.errors import UsageError
from loadgate.integrations.cli.bind import BindError, bind, clash, overlap
from loadgate.integrations.cli.dashboards import commands as dashboards
from loadgate.integrations.cli.load import LoadError, brings_admission, load_app, load_function
from loadgate.integrations.cli.policyfile import PolicyFileError, read_policy
from loadgate.integrations.cli.say import FAILED, fail, fail_for_missing
from loadgate.integrations.cli.words import (
    HOLDS_ALL,
    KEYS,
    describe,
    one_may_hold_all,
    told,
    unset,
    untold,
)
from loadgate.policy import Policy

if TYPE_CHECKING:
    from loadgate.integrations.identity import KeyHasher

# Seconds beyond the graceful timeout after which workers that do not end are killed; they give
# themselves less.
_PATIENCE = 15.0

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    # The tracebacks of Python say more to those who have to read one at night.
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Admission control for async Python: fair rates (429), load shedding (503).",
)

app.add_typer(dashboards, name="dashboards")


class Backend(StrEnum):
    """Event loops that a server can run on."""

    UVLOOP = "uvloop"
    ASYNCIO = "asyncio"
    TRIO = "trio"


class Door(StrEnum):
    """What the door does with requests that it refuses."""

    ANSWER = "answer"
    DROP = "drop"
    OFF = "off"


_DOORS: dict[Door, Literal["answer", "drop"] | None] = {
    Door.ANSWER: "answer",
    Door.DROP: "drop",
    Door.OFF: None,
}


class Header(StrEnum):
    """Headers in which proxies say who asked."""

    X_FORWARDED_FOR = "x-forwarded-for"
    FORWARDED = "forwarded"
    X_REAL_IP = "x-real-ip"


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"loadgate {__version__}")
        raise typer.Exit


@app.callback()
def loadgate(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Say the version."),
    ] = False,
) -> None:
    """Take what stands before a command."""


@app.command()
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
    for variable in unset(policy.store, os.environ) if policy.store is not None else ():
        typer.echo(
            f"note: store names the variable {variable}, which is not set here; "
            "loadgate serve needs it",
            err=True,
        )


@app.command()
def serve(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:APP", help="The ASGI app.", show_default=False)
    ],
    policy: Annotated[
        Path | None,
        typer.Option(
            help="The policy in TOML, read again on SIGHUP. Default: an adaptive limit, no rates.",
        ),
    ] = None,
    bind_: Annotated[
        str,
        typer.Option(
            "--bind", metavar="HOST:PORT", help="Where to listen; port 0 takes a free one."
        ),
    ] = "127.0.0.1:8000",
    metrics_bind: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where /metrics, /healthz, /readyz and /live are; 'none' for nowhere.",
        ),
    ] = "127.0.0.1:9464",
    live_token: Annotated[
        str,
        typer.Option(
            metavar="TOKEN",
            envvar="LOADGATE_LIVE_TOKEN",
            help="What /live asks for. Without one it answers on a port of this machine alone.",
            show_default=False,
        ),
    ] = "",
    backend: Annotated[
        Backend | None,
        typer.Option(help="The event loop. Default: uvloop if it is installed."),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            min=1,
            max=256,
            help="Processes that serve; the port for operators counts up from --metrics-bind.",
        ),
    ] = 1,
    graceful_timeout: Annotated[
        float,
        typer.Option(min=0.0, max=3600.0, help="Seconds for running requests after SIGTERM."),
    ] = 10.0,
    app_dir: Annotated[Path, typer.Option(help="Where MODULE is looked for first.")] = Path(),
    factory: Annotated[
        bool, typer.Option("--factory", help="APP is a function that returns the app.")
    ] = False,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="A proxy (address or network) whose header is believed; repeatable.",
        ),
    ] = None,
    proxy_header: Annotated[
        Header, typer.Option(help="The header that trusted proxies write.")
    ] = Header.X_FORWARDED_FOR,
    identify: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Your own function from an ASGI scope to the client's key.",
        ),
    ] = None,
    exempt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="A path let through always, beside the usual ones for health; repeatable.",
        ),
    ] = None,
    priority: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH=CLASS",
            help="The priority class of a path and everything below it; repeatable.",
        ),
    ] = None,
    body_timeout: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=3600.0,
            help="Seconds that an admitted request may wait for its client's body, and one more "
            "for each 500 bytes; 0 for ever.",
        ),
    ] = 10.0,
    door: Annotated[
        Door,
        typer.Option(
            help="What happens far above capacity before HTTP begins: refusals are answered, "
            "connections dropped, or nothing. Not on trio."
        ),
    ] = Door.ANSWER,
    log_refusals: Annotated[
        bool, typer.Option(help="Log refusals with their reasons, a few each second at most.")
    ] = True,
    top_clients: Annotated[
        int,
        typer.Option(
            min=0,
            max=20,
            help="Clients refused most that the metrics tell apart, by their hashes.",
        ),
    ] = 0,
    client_secret: Annotated[
        str,
        typer.Option(
            metavar="SECRET",
            envvar="LOADGATE_CLIENT_SECRET",
            help="Makes the hashes of clients; the same in all processes. Default: that of the "
            "policy's store, else one that each process draws.",
            show_default=False,
        ),
    ] = "",
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Write every request to stdout.")
    ] = False,
) -> None:
    """Run an ASGI app behind admission."""
    try:
        from loadgate.integrations.cli.fits import Fit
        from loadgate.integrations.cli.serve import Process, Service
        from loadgate.integrations.cli.workers import (
            Parent,
            Worker,
            multiplied,
            operators_address,
        )
        from loadgate.integrations.exempt import DEFAULT_PATHS, Exemptions
        from loadgate.integrations.hypercorn import StartupError
        from loadgate.integrations.witness import Witness
    except ModuleNotFoundError as missing:
        fail_for_missing(missing, "loadgate serve")
    loop = _loop(backend)
    with ExitStack() as sockets, _one_line():
        if loop is Backend.TRIO and door is Door.DROP:
            raise ValueError(
                "--door drop means nothing with --backend trio: there is no door on trio"
            )
        fit = Fit(identified=identify is not None, priority=tuple(priority or ()))
        rules = fit.read(policy) if policy is not None else Policy()
        classes = fit.check(rules)
        worker = Worker.of_this_process()
        if worker is None and bind_ == metrics_bind and not bind_.endswith(":0"):
            raise BindError(clash(bind_, metrics_bind))
        if workers > 1 and worker is None:
            _log_to_stderr()
            for line in multiplied(rules, workers):
                logging.getLogger("loadgate.serve").warning("%s", line)
            raise SystemExit(
                Parent(workers, bind(bind_), graceful_timeout + _PATIENCE).run(sys.argv[1:])
            )
        loaded = load_app(target, app_dir, factory=factory)
        layer = _layer(rules, trusted_proxy or [], proxy_header, identify, app_dir)
        # Hypercorn loses an HTTP/2 connection whose upload outlives the answer.
        layer["finish_uploads"] = True
        layer["body_timeout"] = body_timeout or None
        if exempt:
            layer["exempt"] = (*DEFAULT_PATHS, *exempt)
            try:
                Exemptions(exempt)
            except ValueError as error:
                raise ValueError(f"--{error}") from None
        if classes is not None:
            layer["priority"] = classes
        layer["log"] = witness = Witness(
            logs=log_refusals,
            explained=True,
            top=top_clients,
            hasher=_hasher(rules, client_secret),
        )
        listener = sockets.enter_context(bind(bind_) if worker is None else worker.socket())
        ops_listener = None
        if worker is not None:
            metrics_bind = operators_address(metrics_bind, worker.index)
        if metrics_bind != "none":
            ops_listener = sockets.enter_context(bind(metrics_bind))
            if overlap(listener, ops_listener):
                raise BindError(clash(bind_, metrics_bind))
        _log_to_stderr()
        if worker is None or not worker.index:
            log = logging.getLogger("loadgate.serve")
            if brings_admission(loaded):
                log.warning(
                    "the app brings its own AdmissionMiddleware: every request is decided twice; "
                    "take it out of the app, or run the app under another server"
                )
            if one_may_hold_all(rules):
                log.warning(HOLDS_ALL)
        process = Process(
            Service(
                name=target,
                app=loaded,
                policy=rules,
                policy_file=policy,
                fit=fit,
                listener=listener,
                ops_listener=ops_listener,
                layer=layer,
                graceful_timeout=graceful_timeout,
                access_log=access_log,
                witness=witness,
                live_token=live_token,
                door=_DOORS[door] if loop is not Backend.TRIO else None,
                worker=worker,
            )
        )
        sockets.pop_all()  # from here on Hypercorn closes them
    try:
        code = process.run(loop.value)
    except StartupError as error:
        fail(f"{target!r} did not start: {error}", FAILED)
    raise SystemExit(code)


@contextmanager
def _one_line() -> Generator[None]:
    """Turn what a user can have got wrong into one line and exit code 2."""
    try:
        yield
    except LoadError as error:
        sys.stderr.write(error.details)
        fail(str(error))
    except (PolicyFileError, BindError, UsageError, ValueError) as error:
        fail(str(error))


# These two are found by name when they are called: their modules need extras that the others do
# not, and read their own options.
_PASS_ON: dict[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}


@app.command(context_settings=_PASS_ON)
def demo(context: typer.Context) -> None:
    """Show in a minute what loadgate does."""
    _delegate("demo", context.args)


@app.command(context_settings=_PASS_ON)
def simulate(context: typer.Context) -> None:
    """Play a scenario against a policy on a virtual clock."""
    _delegate("simulate", context.args)


@app.command(context_settings=_PASS_ON)
def watch(context: typer.Context) -> None:
    """Draw a served process in the terminal, live."""
    _delegate("watch", context.args)


@app.command(context_settings=_PASS_ON)
def explain(context: typer.Context) -> None:
    """Say in words why recorded requests were refused."""
    _delegate("explain", context.args)


def _delegate(name: str, arguments: list[str]) -> NoReturn:
    """Run the function `name` of the module of that name as a command of its own."""
    try:
        module = importlib.import_module(f"loadgate.integrations.cli.{name}")
    except ModuleNotFoundError as missing:
        fail_for_missing(missing, f"loadgate {name}")
    command = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    command.command(name)(getattr(module, name))
    command(args=arguments, prog_name=f"loadgate {name}")
    raise SystemExit(0)


def _loop(backend: Backend | None) -> Backend:
    if backend is None:
        return Backend.UVLOOP if importlib.util.find_spec("uvloop") else Backend.ASYNCIO
    if backend is not Backend.ASYNCIO and importlib.util.find_spec(backend) is None:
        fail(f"--backend {backend} needs {backend}, which is not installed; run: pip install "
             f"{backend}")  # fmt: skip
    return backend


def _layer(
    policy: Policy, trusted: list[str], header: Header, identify: str | None, app_dir: Path
) -> dict[str, Any]:
    """Who is asking, as keyword arguments of the layer."""
    from loadgate.integrations.identity import Address

    if identify is not None:
        if trusted:
            raise ValueError("--identify replaces --trusted-proxy: give one of them")
        return {"identify": load_function(identify, app_dir)}
    keys = told(policy)
    try:
        identity = Address(trusted=trusted, header=header.value if trusted else None, keys=keys)
    except ValueError as error:
        raise ValueError(str(error).replace("trusted:", "--trusted-proxy:", 1)) from None
    return {"identify": identity}


def _hasher(policy: Policy, secret: str) -> KeyHasher | None:
    """What makes the hashes of clients, None for a secret that this process draws."""
    from loadgate.integrations.identity import KeyHasher
    from loadgate.shared import resolve

    if not secret and policy.store is not None:
        secret = resolve(policy.store.secret, "store.secret")
    try:
        return KeyHasher(secret.encode()) if secret else None
    except ValueError as error:
        raise ValueError(f"--client-{error}") from None


def _log_to_stderr() -> None:
    """Show our own log unless the app has set up logging while it was imported."""
    if not logging.getLogger().handlers:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("loadgate").setLevel(logging.INFO)
