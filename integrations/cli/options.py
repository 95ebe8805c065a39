"""Which options does ``loadgate serve`` take?"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from loadgate.integrations.cli.say import fail_for_missing


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


class Header(StrEnum):
    """Headers in which proxies say who asked."""

    X_FORWARDED_FOR = "x-forwarded-for"
    FORWARDED = "forwarded"
    X_REAL_IP = "x-real-ip"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What `serve` was asked for; each field is the option of its name."""

    target: str
    policy: Path | None
    bind: str
    metrics_bind: str
    live_token: str
    backend: Backend | None
    workers: int
    graceful_timeout: float
    app_dir: Path
    factory: bool
    trusted_proxy: tuple[str, ...]
    proxy_header: Header
    identify: str | None
    exempt: tuple[str, ...]
    priority: tuple[str, ...]
    body_timeout: float
    door: Door
    log_refusals: bool
    top_clients: int
    client_secret: str
    access_log: bool


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
    bind: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 takes a free one."),
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
        from loadgate.integrations.cli.prepare import run
    except ModuleNotFoundError as missing:
        fail_for_missing(missing, "loadgate serve")
    options = Options(
        target=target,
        policy=policy,
        bind=bind,
        metrics_bind=metrics_bind,
        live_token=live_token,
        backend=backend,
        workers=workers,
        graceful_timeout=graceful_timeout,
        app_dir=app_dir,
        factory=factory,
        trusted_proxy=tuple(trusted_proxy or ()),
        proxy_header=proxy_header,
        identify=identify,
        exempt=tuple(exempt or ()),
        priority=tuple(priority or ()),
        body_timeout=body_timeout,
        door=door,
        log_refusals=log_refusals,
        top_clients=top_clients,
        client_secret=client_secret,
        access_log=access_log,
    )
    raise SystemExit(run(options))
